"""`make train`: all variants at once, killed anywhere, end with the bits of `dvc repro`; what cannot be finished stops nothing else.

What processes are needed for runs in processes of its own; all else in this one, with a worker's own functions.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from filelock import FileLock

from pipeline import params
from pipeline.commands.train import train_all
from pipeline.data.datasets import load
from pipeline.errors import UserError
from pipeline.runner import pool, seeds
from pipeline.stages import resolve
from pipeline.study.files import FINISHED
from pipeline.training.engine import set_reproducible
from tests.conftest import Repository, small_study
from tests.helpers import PATIENCE, is_worker, stored, trains_here, wait_until, workers_of


def start(study: Repository, jobs: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.commands.train", "--jobs", jobs],
        cwd=study.path,
        env=study.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], found: Callable[[str], bool]) -> str:
    assert process.stdout is not None
    line = next((line for line in process.stdout if found(line)), "")
    assert line, process.communicate()
    return line


@pytest.mark.long
@pytest.mark.timeout(600)
def test_worker_and_driver_killed_the_bits_are_those_of_dvc_repro(trained: Repository, tmp_path: Path) -> None:
    alone, study = trained.copy(tmp_path / "alone"), trained.copy(tmp_path / "study")
    for one in (alone, study):
        one.edit(train={"epochs": 12, "batch_size": 32})
    stages = "train@base", "train@wide"
    assert set(stages) <= set(alone.repro(*stages))

    with start(study, "2") as process:
        begun = {read_until(process, lambda line: "  epoch 1/12" in line).split("  epoch")[0]}
        first = workers_of(process)[0]
        os.kill(first, signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    (said,) = (line for line in out.splitlines() if "A training process ended with status -9" in line)
    assert err.splitlines()[-1].startswith("error: Not everything is trained, and the lines above say why.")
    assert "Traceback" not in err
    assert len(list((study.path / FINISHED).glob("*/*.done"))) == 4 + 3  # those of the first study, and the others of this one
    assert begun | {said.split(":")[0]} <= {f"{variant}  seed {seed}" for variant in ("base", "wide") for seed in (0, 1)}

    with start(study, "1") as process:
        read_until(process, lambda line: "  epoch " in line)
        (worker,) = workers_of(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_until(lambda: not is_worker(worker))

    with start(study, "1") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "goes on after epoch" in out
    assert set(stages) <= set(study.repro(*stages))
    assert "  epoch " not in study.output
    for variant in ("base", "wide"):
        ours, theirs = (seeds.read_record(stored(one.path, variant))["outputs"] for one in (study, alone))
        assert ours == theirs  # digests of weights and traces


@pytest.fixture
def study(tmp_path: Path, arrays: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., params.Params]:
    """Lays out a study of tiny variants on the digits, after its stages before train, and goes there."""
    threads = torch.get_num_threads()
    set_reproducible(torch.device("cpu"))
    monkeypatch.chdir(tmp_path)
    for name in ("REPLAY", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)

    def make(**variants: dict[str, Any]) -> params.Params:
        raw = small_study(raw_params) | {"variants": {"base": {}, **variants}, "experiments": {}, "claims": {}}
        raw["train"] |= {"seeds": [0], "batch_size": 256}
        Path("params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
        settings = params.load()
        resolve.write_configs(settings, Path("configs"))
        shutil.copytree(arrays, "data/arrays", dirs_exist_ok=True)
        return settings

    yield make
    torch.set_num_threads(threads)


@pytest.fixture
def taken() -> list[pool.Assignment]:
    """What `here` took, in order."""
    return []


@pytest.fixture
def here(taken: list[pool.Assignment]) -> pool.Engine:
    """Has a worker's own functions called in this process."""

    def run(assignments: Sequence[pool.Assignment], handle: pool.Handle) -> None:
        taken.extend(assignments)
        trains_here(assignments, handle)

    return run


def place(settings: params.Params, variant: str) -> Path:
    return seeds.folder(FINISHED, settings.resolve(variant), load(Path("data/arrays")).digest)


def seeds_in(folder: Path) -> list[int]:
    return sorted(part.seed for part in seeds.read_all(folder)[0])


def test_each_seed_is_trained_once_and_the_longest_first(
    study: Callable[..., params.Params], taken: list[pool.Assignment], here: pool.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """`more` and `base` differ in their seeds alone; `deep` takes the longest."""
    settings = study(more={"seeds": [0, 1]}, deep={"blocks": 3})
    train_all(settings, "cpu", here)
    assert [(one.job.settings.model.blocks, one.task.seeds) for one in taken] == [(3, [0]), (1, [0]), (1, [1])]
    assert place(settings, "base") == place(settings, "more")
    assert (seeds_in(place(settings, "base")), seeds_in(place(settings, "deep"))) == ([0, 1], [0])
    capsys.readouterr()
    assert not Path("store").exists()  # the stages write it
    train_all(settings, "cpu", here)
    assert capsys.readouterr().out == "Nothing is to be trained.\n"


def test_what_another_trains_is_left_to_it(
    study: Callable[..., params.Params], taken: list[pool.Assignment], here: pool.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = study(deep={"blocks": 3})
    place(settings, "base").mkdir(parents=True)
    with FileLock(place(settings, "base") / "lock"):
        with pytest.raises(UserError) as caught:
            train_all(settings, "cpu", here)
        assert caught.value.status == 1
        assert [one.job.settings.model.blocks for one in taken] == [3]
        assert capsys.readouterr().out.count("Another trainer is working on variant base: ") == 1
        with pytest.raises(UserError) as caught:
            train_all(settings, "cpu", here)
        assert caught.value.status == 2
    assert seeds_in(place(settings, "base")) == []


def test_a_loss_that_is_not_finite_stops_no_other_variant(
    study: Callable[..., params.Params], taken: list[pool.Assignment], here: pool.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = study(wild={"learning_rate": 1000.0, "optimizer": "sgd", "blocks": 2})
    with pytest.raises(UserError, match=r"^Not everything is trained") as caught:
        train_all(settings, "cpu", here)
    assert caught.value.status == 1
    assert "The loss of variant wild was not finite: seed 0 in epoch 1." in capsys.readouterr().out
    assert (seeds_in(place(settings, "base")), seeds_in(place(settings, "wild"))) == ([0], [])
