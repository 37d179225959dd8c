"""A store from the files in store/: which are logged, what they belong to, and what the views show of them."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from pipeline import params
from pipeline.evaluation.records import Records
from pipeline.runner import seeds
from pipeline.stages.report import track
from pipeline.stages.sync import _places, sync
from pipeline.system.errors import UserError
from pipeline.tracking.store import Store
from pipeline.tracking.views import MAX_RUNS, STUDY, views_of
from tests.helpers import ROOT, commit_all, git, stored
from tests.tracking.trainings import EPOCHS, SEEDS, assert_complete, expected_points, make_rows, make_run, read_store, write_training


def shown(uri: str, where: str) -> set[str]:
    store = Store(uri)
    found = store.runs([store.experiment("digits")], where)
    return {f"{run.data.tags['training.id'][:4]} {run.info.run_name}" for run in found}


def test_the_views_show_the_training_in_the_folder(project: Path, uri: str) -> None:
    """The store keeps the earlier ones; after a checkout of an earlier commit, that one's is shown."""
    directory, study = stored(project, "base"), views_of(None)[0].filter
    folders = {}
    for number in (1, 2):
        write_training(directory, make_run(training_id=f"{number}{number}" * 16) | {"started": f"2026-01-0{number}T00:00:00+00:00"})
        sync()
        assert shown(uri, study) == {f"{number}{number}{number}{number} base"}
        folders[number] = directory.rename(project / f"commit-{number}")
    for number in (1, 2):
        folders[number].rename(directory)
        sync()
        assert shown(uri, study) == {f"{number}{number}{number}{number} base"}
        directory.rename(folders[number])
    assert read_store(uri).points == expected_points("1111") + expected_points("2222")


def test_damaged_files_are_named_and_a_seed_of_the_others_has_what_it_was_trained_with_itself(project: Path, uri: str) -> None:
    there = {"git_commit": "a" * 40, "git_dirty": False, "code_hash": "0" * 64, "device_name": "Another", "versions": {"torch": "2.11.0"}}
    of = {"trainings": [{"seeds": [3, 7], **there}, {"seeds": [0]}]}
    for variant in ("a", "b", "base"):
        write_training(stored(project, variant), make_run(variant) | of)
    stored(project, "a").write_text("{")
    path = stored(project, "b")
    path.write_bytes(path.read_bytes().replace(b"digits", b"digit5"))
    with pytest.raises(UserError, match=r"a\.safetensors does not match .*b\.safetensors does not match"):
        sync()
    tags = assert_complete(uri).tags
    names = ("git.commit", "git.dirty", "commits", "code.hash", "device.name", "versions.torch")
    other = ["a" * 40, "false", "a" * 40, "0" * 64, "Another", "2.11.0"]
    own = ["f" * 40, "true", None, "d" * 64, "A processor (2 cores)", "2.15.0"]
    assert {seed: [tags[f"0123 base, seed {seed}"].get(tag) for tag in names] for seed in SEEDS} == {3: other, 0: own, 7: other}
    assert [tags["0123 base"].get(tag) for tag in names] == own


def test_the_filters_of_the_document_and_of_the_views(project: Path, uri: str, study: params.Params) -> None:
    """Each finds what it says. Two variants read 98 % of the images, others 85 to 92 %; an interval of a share ends at one."""
    accuracies = {"sinusoidal": {3: 0.98, 0: 0.98, 7: 0.97}, "no-position": {3: 1.0, 0: 0.999, 7: 0.93}}
    for name in ("params.yaml", "claims.yaml"):
        shutil.copyfile(ROOT / name, project / name)
    for number, variant in enumerate(("base", "sinusoidal", "no-position", "cnn", "caption")):
        config = study.resolve(variant).model_dump(mode="json")
        config["train"] |= {"seeds": SEEDS, "epochs": 30 if variant == "sinusoidal" else EPOCHS}
        known = {"config": config, "git_commit": f"{number}" * 40, "git_dirty": False}
        rows = [row._replace(test_accuracy=of[row.seed]) for row in make_rows()] if (of := accuracies.get(variant)) else []
        write_training(stored(project, variant), make_run(variant, f"000{number}" * 8) | known, rows)
    sync()
    text = (ROOT / "docs/mlflow.md").read_text(encoding="utf-8")
    filters = re.findall(r"```sql\n(.+)\n```", text.replace("%COMMIT%", "%4444444%"))
    assert [{name.split(" ", 1)[1] for name in shown(uri, where)} for where in filters] == [
        {"base", "sinusoidal", "no-position"}, {"base"}, {"sinusoidal"}, {"sinusoidal"}, {"sinusoidal, seed 0", "sinusoidal, seed 3"},
        {"caption"},
    ]  # fmt: skip
    views = {view.key: view for view in views_of(study)}
    assert set(views) == {STUDY, *study.experiments}
    for name, view in views.items():
        found = {name.split(" ", 1)[1] for name in shown(uri, view.filter)}
        trained = {"base", "sinusoidal", "no-position", "cnn", "caption"}
        expected = trained - {"caption"} if name == STUDY else trained & set(study.experiments[name].variants[:MAX_RUNS])
        assert found == expected, name
    store = Store(uri)
    tags = store.get_experiment(store.experiment("digits")).tags
    assert {key.rpartition(".")[2] for key in tags if key.startswith("mlflow.sharedViewState.")} == set(views)
    for view in views.values():
        assert json.loads(json.loads(tags[f"mlflow.sharedViewState.{view.key}"])["state"])["searchFilter"] == view.filter
    found = {run.info.run_name: run.data.metrics for run in store.runs([store.experiment("digits")], "tags.kind = 'parent'")}
    asked = found["sinusoidal"]["measure.late_test_error"]  # by claims
    assert asked == pytest.approx(found["sinusoidal"]["late_test_error"], rel=1e-9)
    assert found["no-position"]["late_accuracy_high"] == 1
    assert found["no-position"]["late_accuracy_low"] < 0.9
    assert _places(study.model_copy(update={"experiments": {}}), "base") == {"experiments": ","}  # written over what it was in
    captioner = next(run for run in store.runs([store.experiment("digits")]) if run.info.run_name == "caption")
    assert "late_accuracy" not in captioner.data.metrics
    assert captioner.data.metrics["late_scene_accuracy"] == pytest.approx(0.888333, abs=1e-6)
    assert captioner.data.params.items() >= {"model.architecture": "captioner", "variant": "caption"}.items()


def test_the_report_stage_outlives_a_silent_server(
    project: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what is wrong; the next report completes the store."""
    write_training(stored(project, "base"), make_run())
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never says a word
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        track()
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"MLflow is not up to date: MLflow at {address} does not answer")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    track()
    assert_complete(uri)


def test_what_an_experiment_has_from_its_commit_is_not_of_it(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC runs queued experiments in copies, and tells a stage the experiment's name and the repository, whose store it is."""
    copy = project / ".dvc" / "tmp" / "exps" / "copy"
    path = write_training(stored(copy, "base"), make_run())
    Records(copy).write_tables({"base": {"weights": seeds.read_record(path)["outputs"]["weights"]}})
    (copy / ".gitignore").write_text("/runs\n/predictions\n/.checkpoints\n")
    git(copy, "init", "--quiet")
    commit = commit_all(copy, "a study")
    write_training(stored(copy, "wide"), make_run("wide", "fedc" * 8))
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.setenv("DVC_EXP_NAME", "short")
    monkeypatch.setenv("GIT_DIR", str(project / "foreign"))  # of a hook, say
    sync()
    assert not (copy / "mlflow.db").exists()
    tags = {name: (one.get("dvc.experiment"), one.get("commits")) for name, one in read_store(uri).tags.items() if "seed" not in one}
    assert tags == {"0123 base": (None, commit), "fedc short: wide": ("short", None)}
