"""MLflow as the source of a study: the numbers of the tables."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from pipeline.compare.__main__ import main
from pipeline.errors import UserError
from pipeline.evaluation.records import Evaluation, Records
from pipeline.files import sha256
from pipeline.runner import seeds
from pipeline.stages.sync import sync
from pipeline.study import load
from pipeline.tracking.store import Store
from tests.helpers import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compare.conftest import Study


pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def of_two_commits() -> dict[str, Any]:
    """A record of seeds that were not all trained at one commit."""
    origin = {"code_hash": "e" * 64, "device": "cpu", "device_name": "A processor (2 cores)", "attention": "fused-cpu"}
    groups = [
        {"seeds": [7, 2], **origin, "git_commit": "a" * 40, "finished": "2026-01-02T03:09:05+00:00"},
        {"seeds": [0], **origin, "git_commit": "b" * 40, "finished": "2026-01-02T03:14:05+00:00"},
    ]
    return {"code_hash": "e" * 64, "trainings": groups}


def records_of(study: Study) -> Records:
    root = study.root
    return Records(arrays=root / "data/arrays", runs=root / "runs", predictions=root / "predictions", tables=root / "tables")


def evaluate(study: Study, variant: str, **columns: list[float]) -> None:
    """Writes what the evaluate stage leaves of a training, with these columns beside accuracy and loss."""
    weights = study.directory(variant) / seeds.WEIGHTS
    weights.write_text(variant)
    study.seal(variant)
    metrics = {"test_accuracy": 0.5, "ensemble_accuracy": 0.6, "per_class_accuracy": {"0": 1.0}}
    records_of(study).write(variant, {}, Evaluation({"weights": sha256(weights)}, columns, metrics))


def commit(study: Study, message: str) -> str:
    """A commit of the tables of what is trained."""
    runs = {path.name: seeds.read_run(path) for path in sorted((study.root / "runs").iterdir())}
    records_of(study).write_tables({name: {"weights": run["outputs"].get(seeds.WEIGHTS)} for name, run in runs.items()})
    return study.commit(message)


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory, study_class: type[Study]) -> tuple[Study, str, str]:
    """A study with two commits, of which MLflow had all runs before they were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        study = study_class(tmp_path_factory.mktemp("synced") / "study")
        patch.chdir(study.root)
        (study.root / ".gitignore").write_text("/mlflow.db*\n/mlartifacts/\n/.checkpoints/\n/build/\n/runs/\n/predictions/\n")
        (study.root / "params.yaml").write_text(
            "data: {dataset: digits}\nvariants: {base: {}, kept: {}, same: {}, gone: {}, few: {}, new: {}}\n"
        )
        for variant in ("base", "kept", "same", "gone", "few"):
            study.train(variant, {7: 0.1 + 0.2, 0: 0.9, 2: 1 / 3})
        sync()
        first = commit(study, "the first")
        study.train("same", {7: 0.1 + 0.2, 0: 0.9, 2: 1 / 3}, run={"versions": {"python": "3.12.1", "torch": "2.16"}}, seconds=20)
        study.train("few", {7: 0.4, 0: 0.8}, parameters=77)
        study.remove("gone")
        study.train("new", {7: 0.3, 0: 0.2, 2: 0.1}, change={"model.architecture": "cnn"})
        study.train("base", {7: 0.5, 0: 0.95, 2: 2 / 3}, change={"model.dim": 64, "train.clip_norm": 1.5}, run=of_two_commits())
        evaluate(study, "base", shift_1=[0.1 + 0.2, 2 / 3, 0.7], attention_entropy=[float("inf"), 1.0, 1e-300])
        evaluate(study, "kept")
        (study.root / "timing").mkdir()
        shutil.copyfile(ROOT / "timing" / "seeds.json", study.root / "timing" / "seeds.json")
        sync()
        second = commit(study, "the second")
    return study, first, second


def test_every_number_is_that_of_the_tables(synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    study, *commits = synced
    monkeypatch.chdir(study.root)
    for commit in commits:
        files, store = load(commit), load(commit, store="mlflow.db")
        for frame in ("epochs", "seeds", "variants"):
            pd.testing.assert_frame_equal(getattr(store, frame), getattr(files, frame), check_exact=True)
        assert [training.id for training in store.trainings.values()] == [training.id for training in files.trainings.values()]
        assert store.timings.empty
    assert len(files.timings) > 0
    assert list(files.seeds.git_commit[:3]) == ["a" * 40, "b" * 40, "a" * 40]
    assert list(files.seeds.attention_entropy[:3]) == [float("inf"), 1.0, 1e-300]
    pd.testing.assert_frame_equal(load(".", store=f"sqlite:///{study.root}/mlflow.db").seeds, files.seeds, check_exact=True)


def test_a_record_that_the_store_has_lost_or_that_is_another_is_named(
    synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, first, _ = synced
    monkeypatch.chdir(study.root)
    [path] = [path for path in study.root.glob("mlartifacts/**/run.json") if json.loads(path.read_bytes())["variant"] == "gone"]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"fused-cpu", b"fused-gpu"))
    with pytest.raises(UserError, match=r"^Run\.json of the run gone in the MLflow store mlflow\.db is not what was logged; mend that"):
        load(first, store="mlflow.db")
    path.unlink()
    with pytest.raises(UserError, match=r"^The MLflow store mlflow\.db lacks /.*/run\.json: bring it back, or move the store away"):
        load(first, store="mlflow.db")
    path.write_bytes(content)
    assert list(load(first, store="mlflow.db").trainings) == ["base", "kept", "same", "gone", "few"]


def test_the_two_sources_make_the_same_page(
    synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, first, second = synced
    monkeypatch.chdir(study.root)
    main([first, second])
    files = capsys.readouterr().out
    main([first, second, "--source", "mlflow"])
    store = capsys.readouterr().out
    assert "MLflow store mlflow.db" in store
    place = r"^# .*\n|\| results in .*\n"
    assert re.sub(place, "", store) == re.sub(place, "", files)
    assert "| `base` | 51.11" in files
    main([first, "--source", "mlflow"])  # to the working tree
    assert "| `base` | 51.11" in capsys.readouterr().out


def test_trainings_that_mlflow_does_not_know_are_said(
    synced: tuple[Study, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, first, second = synced
    empty = f"sqlite:///{tmp_path}/mlflow.db"
    Store(empty)
    monkeypatch.chdir(study.root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", empty)
    with pytest.raises(UserError, match=f"^The MLflow store mlflow.db has no finished runs of the trainings of the commit {first}: check"):
        main([first, second, "--source", "mlflow"])


def test_a_training_that_mlflow_does_not_know_is_left_out_and_said(
    synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, first, _ = synced
    monkeypatch.chdir(study.root)
    study.git("switch", "--quiet", "--create", "later")
    study.train("late", {7: 0.3, 0: 0.2, 2: 0.1})
    study.train("kept", {7: 0.3, 0: 0.2, 2: 0.1})
    third = commit(study, "the third")
    for sides, there, added, removed in (((first, third), "head", "new", "gone"), ((third, first), "base", "gone", "new")):
        main([*sides, "--source", "mlflow"])
        page = capsys.readouterr().out
        assert f"- Left out at {there}, not a whole record (not all of its epochs are in MLflow): `kept`, `late`.\n" in page
        assert page.count("Left out at") == 1
        assert f"- Added: `{added}`.\n- Removed: `{removed}`.\n" in page


def test_without_a_store_none_is_made(make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = make_study()
    study.train("base", [0.9])
    study.commit()
    monkeypatch.chdir(study.root)
    with pytest.raises(UserError, match=r"There is no MLflow store mlflow\.db in study/ yet: run `make sync`"):
        main(["HEAD", "--source", "mlflow"])
    assert not (study.root / "mlflow.db").exists()
