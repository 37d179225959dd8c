"""`make train`: all variants at once, in this process, with a worker's own functions; what cannot be finished stops nothing else."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pipeline import params
from pipeline.commands.train import train_all
from pipeline.data.datasets import load
from pipeline.runner import pool, seeds
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED
from tests.conftest import small_study
from tests.helpers import lay_out, trains_here


@pytest.fixture
def study(tmp_path: Path, arrays: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., params.Params]:
    """Lays out a study of tiny variants on the digits, after its stages before train, and goes there."""
    monkeypatch.chdir(tmp_path)
    for name in ("REPLAY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)

    def make(**variants: dict[str, Any]) -> params.Params:
        raw = small_study(raw_params) | {"variants": {"base": {}, **variants}, "experiments": {}, "claims": {}}
        raw["train"] |= {"seeds": [0], "batch_size": 256}
        return lay_out(tmp_path, raw, arrays)

    return make


def place(settings: params.Params, variant: str) -> Path:
    return seeds.folder(FINISHED, settings.resolve(variant), load(Path("data/arrays")).digest)


def finished(settings: params.Params, variant: str) -> list[int]:
    """The seeds of a variant."""
    return sorted(part.seed for part in seeds.read_all(place(settings, variant))[0])


def test_each_seed_is_trained_once_and_the_longest_first(study: Callable[..., params.Params], capsys: pytest.CaptureFixture[str]) -> None:
    """`more` and `base` differ in their seeds alone; `deep` takes the longest."""
    settings = study(more={"seeds": [0, 1]}, deep={"blocks": 3})
    taken: list[pool.Assignment] = []

    def engine(assignments: Sequence[pool.Assignment], handle: pool.Handle) -> None:
        taken.extend(assignments)
        trains_here(assignments, handle)

    train_all(settings, "cpu", engine)
    assert [(one.job.settings.model.blocks, one.task.seeds) for one in taken] == [(3, [0]), (1, [0]), (1, [1])]
    assert place(settings, "base") == place(settings, "more")
    assert (finished(settings, "base"), finished(settings, "deep")) == ([0, 1], [0])
    capsys.readouterr()
    assert not Path("store").exists()  # the stages write it
    train_all(settings, "cpu", trains_here)
    assert capsys.readouterr().out == "Nothing is to be trained.\n"


def test_what_another_trains_is_left_to_it(study: Callable[..., params.Params], capsys: pytest.CaptureFixture[str]) -> None:
    settings = study(deep={"blocks": 3})
    place(settings, "base").mkdir(parents=True)
    with FileLock(place(settings, "base") / "lock"):
        for _ in range(2):  # the second time nothing else is left
            with pytest.raises(UserError) as caught:
                train_all(settings, "cpu", trains_here)
            assert caught.value.status == 1
            said = capsys.readouterr().out + str(caught.value)
            assert said.count("Another trainer is working on variant base: ") == 1
    assert (finished(settings, "base"), finished(settings, "deep")) == ([], [0])


def test_a_group_that_breaks_costs_its_own_seeds_and_a_fault_of_all_ends_it(
    study: Callable[..., params.Params], capsys: pytest.CaptureFixture[str]
) -> None:
    settings, status = study(deep={"blocks": 3}), 1

    def breaks(assignments: Sequence[pool.Assignment], handle: pool.Handle) -> None:
        handle(assignments[0], pool.Message("broken", assignments[0].task.seeds, error=UserError("It died.", status=status)))
        trains_here(assignments[1:], handle)

    with pytest.raises(UserError, match=r"^Not everything is trained"):
        train_all(settings, "cpu", breaks)
    assert "deep  seed 0: It died." in capsys.readouterr().out
    assert (finished(settings, "base"), finished(settings, "deep")) == ([0], [])
    status = 2
    with pytest.raises(UserError, match="It died"):
        train_all(settings, "cpu", breaks)


def test_seeds_of_other_data_than_were_there_at_the_start_are_refused(study: Callable[..., params.Params]) -> None:
    settings, description = study(), Path("data/arrays/dataset.json")
    planned = place(settings, "base")

    def engine(assignments: Sequence[pool.Assignment], handle: pool.Handle) -> None:
        def changed(assignment: pool.Assignment, message: pool.Message) -> None:
            other = json.loads(description.read_text())
            other["arrays"]["test_labels"]["sha256"] = "0" * 64
            digest = hashlib.sha256("".join(array["sha256"] for array in other["arrays"].values()).encode()).hexdigest()
            description.write_text(json.dumps(other | {"digest": digest}))
            handle(assignment, message)

        trains_here(assignments, changed)

    with pytest.raises(UserError, match=r"^The data were changed while this command ran") as caught:
        train_all(settings, "cpu", engine)
    assert (caught.value.status, seeds.paths(planned)) == (2, [])


def test_a_loss_that_is_not_finite_stops_no_other_variant(study: Callable[..., params.Params], capsys: pytest.CaptureFixture[str]) -> None:
    settings = study(wild={"learning_rate": 1000.0, "optimizer": "sgd", "blocks": 2})
    with pytest.raises(UserError, match=r"^Not everything is trained") as caught:
        train_all(settings, "cpu", trains_here)
    assert caught.value.status == 2  # not again, as after a fault of the machine
    assert "The loss of variant wild was not finite: seed 0 in epoch 1." in capsys.readouterr().out
    assert (finished(settings, "base"), finished(settings, "wild")) == ([0], [])
