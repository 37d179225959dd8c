"""The plan: what `dvc repro` would do is told from real finished seeds, its time from real records, and nothing is changed."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import params
from pipeline.commands import plan
from pipeline.runner import seeds
from pipeline.runner.pool import Task
from pipeline.runner.train import Entry, estimated, recorded, survey
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED
from tests.conftest import Repository, small_study
from tests.helpers import lay_out, stored

pytestmark = pytest.mark.slow


def study_of(raw: dict[str, Any], **variants: dict[str, Any]) -> dict[str, Any]:
    return small_study(raw) | {"variants": {"base": {}, **variants}, "experiments": {}, "claims": {}}


@pytest.fixture
def copied(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], params.Params]:
    """Lays out a study with what was trained of `base`, two seeds of one epoch, and goes there."""

    def copy(raw: dict[str, Any]) -> params.Params:
        monkeypatch.chdir(tmp_path)
        settings = lay_out(tmp_path, raw, trained.path / "data/arrays")
        run = seeds.read_record(stored(trained.path, "base"))
        place = seeds.folder(FINISHED, seeds.settings_of(run), run["data_digest"])
        shutil.copytree(trained.path / place, tmp_path / place)
        stored(tmp_path, "base").parent.mkdir(parents=True)
        shutil.copyfile(stored(trained.path, "base"), stored(tmp_path, "base"))
        monkeypatch.delenv("REPLAY", raising=False)
        # The fused attention may have to be compiled first.
        for name, value in (("LAB_DEVICE", "cpu"), ("LAB_PROCESSES", "2"), ("LAB_ATTENTION", "sdpa")):
            monkeypatch.setenv(name, value)
        return settings

    return copy


def seeds_of(entry: Entry) -> tuple[list[int], list[int], list[int]]:
    return entry.kept, entry.replayed, entry.trained


def changed_seeds(**origin: Any) -> None:
    """The finished seeds, with another origin: of another version of the code, or of another processor."""
    for path in FINISHED.glob("*/*.done"):
        part = seeds.read(path)
        path.unlink()
        seeds.write(path.parent, replace(part, origin={**part.origin, **origin}))


def test_each_state_is_told_and_nothing_is_changed(
    copied: Callable[..., params.Params], raw_params: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, kept under another name, to train; and, by other code, replayed."""

    def snapshot() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}

    monkeypatch.setattr(plan, "code_of_data_changed", lambda: False)  # which asks DVC, in a process of its own
    settings = copied(study_of(raw_params, renamed={}, more={"seeds": 3}, long={"epochs": 3}))
    before = snapshot()

    entries = {entry.variant: entry for entry in survey(settings, "cpu")}
    expected = {"base": ([0, 1], [], []), "renamed": ([0, 1], [], []), "more": ([0, 1], [], [2]), "long": ([], [], [0, 1])}
    assert {name: seeds_of(entry) for name, entry in entries.items()} == expected
    plan.main([])
    said = capsys.readouterr().out
    assert "2 seeds x 3 epochs" in said
    assert "4 variants: 2 kept, 2 to train: 3 seeds, about " in said
    assert snapshot() == before

    shutil.rmtree("store")
    changed_seeds(code_hash="f" * 64)
    assert {entry.variant: seeds_of(entry) for entry in survey(settings, "cpu")}["more"] == ([], [0, 1], [2])


def test_an_option_that_is_gone_is_not_trained_over(
    copied: Callable[..., params.Params], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a finished seed alone has it, under a key that nothing asks for any more. What is surely another's is in nobody's way."""
    settings = copied(study_of(raw_params))
    config = seeds.read_record(stored(Path(), "base"))["config"]
    config["model"]["gone"] = 1
    (place,) = FINISHED.iterdir()
    place.rename(FINISHED / "elsewhere")
    shutil.rmtree("store")
    changed_seeds(config=config)
    with pytest.raises(UserError, match=r"elsewhere/seed-.*model\.gone.* delete \.checkpoints/seeds/elsewhere\."):
        survey(settings, "cpu")
    for name, value in (("REPLAY", "0"), ("LAB_COMMIT", "1")):  # the second is set for a commit's own code
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert seeds_of(survey(settings, "cpu")[0]) == ([], [], [0, 1])
    changed_seeds(config=config | {"model": config["model"] | {"dim": 64}})  # an experiment that was dropped
    assert seeds_of(survey(settings, "cpu")[0]) == ([], [], [0, 1])


def test_times_are_those_on_record(
    copied: Callable[..., params.Params], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this kind of processor; other networks take what their operations take."""
    settings = copied(study_of(raw_params, wide={"mlp_dim": 48}))
    shutil.rmtree("store")
    for path in FINISHED.glob("*/*.done"):
        part = seeds.read(path)
        seeds.write(path.parent, replace(part, rows=(part.rows[0]._replace(seconds=1437.0),)))  # 1 s an image
    entries = survey(settings, "cpu")
    rates = recorded(entries, "cpu")
    assert rates == {"base": pytest.approx(1)}
    assert 1 < estimated(entries, rates)["wide"] < 2
    changed_seeds(device_name="Other (2 cores)")
    assert recorded(survey(settings, "cpu"), "cpu") == {}
    assert estimated(entries, {}).keys() == {"base", "wide"}
    monkeypatch.setattr("pipeline.models.count_flops", lambda _: 0)  # as an own model may say
    assert estimated(entries, {"base": 1.0}) == {"base": 1.0, "wide": 1.0}


def test_the_last_seeds_leave_processes_idle(study: params.Params) -> None:
    """Three seeds on two processes take as long as four; a replay takes its steps and a test."""
    settings, tasks = study.resolve("base"), tuple(Task([seed]) for seed in range(3))
    rates = {"base": 3e-3}  # and 1e-3 for a test image
    epoch = 180 + 10
    entry = Entry("base", settings, tasks)
    assert [plan.seconds([entry], rates, count) for count in (1, 2, 8)] == pytest.approx([90 * epoch, 60 * epoch, 30 * epoch])
    replay = Task([0], (seeds.Finished(0, {}, (), {}),))
    assert plan.seconds([Entry("base", settings, (replay,))], rates, 2) == pytest.approx(50 * 128 * 3e-3 + 10)
