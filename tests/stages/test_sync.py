"""Completing a store from runs/: what is missing, once."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipeline import params, provenance
from pipeline.errors import UserError
from pipeline.provenance import training_code
from pipeline.runner import results
from pipeline.stages.sync import main as command
from pipeline.stages.sync import sync
from pipeline.study import load
from pipeline.tracking import runs_of
from pipeline.tracking.recorder import Recorder, TimedRow, training_lock
from pipeline.tracking.store import Store, locked
from pipeline.tracking.views import VIEWS
from tests.conftest import small_study
from tests.helpers import commit_all, git
from tests.tracking.trainings import (
    ALL_POINTS,
    COUNTS,
    EPOCHS,
    EVALUATION_POINTS,
    LATE,
    METRICS,
    ROOT,
    SEEDS,
    Tracker,
    artifacts_of,
    assert_complete,
    assert_diverged,
    evaluation_of,
    expected_points,
    make_rows,
    make_run,
    read_store,
    records_of,
    silent_server,
    track,
    write_diverged,
    write_evaluation,
    write_training,
)


def test_sync_after_live_adds_what_comes_later_alone_and_both_make_what_sync_makes(
    project: Path, uri: str, empty_database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    evaluation_of(directory).rename(project / "later")  # the evaluate stage has not run yet
    track(make_run(), directory)
    before = read_store(uri)
    sync()
    assert capsys.readouterr().out == f"base: {len(LATE)} points added\n"

    (project / "later").rename(evaluation_of(directory))
    sync()
    assert capsys.readouterr().out == f"base: {EVALUATION_POINTS} points added\n"
    after = assert_complete(uri)
    assert after.artifacts["0123 base"] == artifacts_of(directory)
    assert after.tags["0123 base"] == before.tags["0123 base"]
    assert (after.params, after.datasets) == (before.params, before.datasets)

    (project / "alone").mkdir()
    shutil.copyfile(empty_database, project / "alone" / "mlflow.db")
    alone = f"sqlite:///{project / 'alone' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", alone)
    sync()
    sync()
    said = f"base: 4 runs, {ALL_POINTS} points, 1 file added, 4 runs set to finished\nbase: complete\n"
    assert capsys.readouterr().out == said
    assert read_store(alone) == after


def test_sync_adds_only_what_is_missing(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_training(project / "runs" / "base", make_run())
    write_training(project / "runs" / "other", make_run("other", "fedc" * 8))
    tracker = Tracker(make_run())
    for row in make_rows():
        if row.seed != 7 and row.epoch != 2:
            tracker.epoch(row)
    assert not tracker.close("FINISHED", metrics=METRICS)
    assert "lacks some epochs" in capsys.readouterr().err
    assert set(read_store(uri).statuses.values()) == {"RUNNING"}

    sync()
    lines = capsys.readouterr().out.splitlines()
    logged = 2 * 3 * 5 + len(COUNTS)
    assert lines[0] == f"base: 1 run, {ALL_POINTS - logged} points, 1 file added, 4 runs set to finished"
    assert lines[1].startswith(f"other: 4 runs, {ALL_POINTS} points")
    content = read_store(uri)
    assert content.points == expected_points() + expected_points("fedc", "other")
    assert set(content.statuses.values()) == {"FINISHED"}

    store = Store(uri)
    [seed_run] = store.call("search_runs", [store.experiment("digits")], filter_string="tags.variant = 'other' and tags.seed = '7'")
    store.call("delete_run", seed_run.info.run_id)
    sync()
    assert capsys.readouterr().out.splitlines() == ["base: complete", f"other: 1 run, {EPOCHS * 5 + 4} points added, 1 run set to finished"]
    assert read_store(uri) == content


def test_a_new_training_of_a_variant_leaves_the_old_one_alone(project: Path, uri: str) -> None:
    """But for its place in the views, which show one row of each variant."""
    directory = write_training(project / "runs" / "base", make_run())
    track(make_run(), directory)
    sync()
    before = read_store(uri)
    shutil.rmtree(directory)
    write_training(directory, make_run(training_id="fedc" * 8))
    track(make_run(training_id="fedc" * 8), directory)
    sync()
    content = read_store(uri)
    assert content.points == expected_points() + expected_points("fedc")
    for name in before.statuses:
        assert content.artifacts[name] == before.artifacts[name]
        assert content.tags[name] == before.tags[name] | ({"current": "false"} if name == "0123 base" else {})


def test_the_views_show_the_training_in_the_folder(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what runs now, and DVC experiments; after a checkout of an earlier commit, that one's."""

    def shown() -> set[str]:
        store = Store(uri)
        found = store.call("search_runs", [store.experiment("digits")], filter_string=VIEWS[0].filter)
        return {f"{run.data.tags['training.id'][:4]} {run.info.run_name}" for run in found}

    directory = project / "runs" / "base"
    folders = {}
    for number in (1, 2):
        write_training(directory, make_run(training_id=f"{number}{number}" * 16) | {"started": f"2026-01-0{number}T00:00:00+00:00"})
        sync()
        assert shown() == {f"{number}{number}{number}{number} base"}
        folders[number] = directory.rename(project / f"commit-{number}")
    for number, day in ((3, 1), (4, 3)):  # killed before the second one was trained, and running now
        run = make_run(training_id=f"{number}{number}" * 16) | {"started": f"2026-01-0{day}T12:00:00+00:00"}
        assert not Tracker(run).close("FINISHED")
    write_training(project / "runs" / "other", make_run("other", "fedc" * 8))
    with monkeypatch.context() as experiment:
        experiment.setenv("DVC_EXP_NAME", "wider")
        experiment.setenv("DVC_ROOT", str(project))
        assert not Tracker(make_run(training_id="5555" * 8)).close("FINISHED")
    for number in (2, 1, 2):
        folders[number].rename(directory)
        with locked(training_lock({"training_id": "4444" * 8}), 0):
            sync()
        assert shown() == {f"{number}{number}{number}{number} base", "4444 base", "fedc other", "5555 wider: base"}
        directory.rename(folders[number])


def test_a_training_that_no_process_goes_on_with_is_killed(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At its last epoch; while a process trains it, it is running, and it is again when a process goes on with it."""
    write_training(project / "runs" / "other", make_run("other", "fedc" * 8))
    run = make_run()
    rows = [TimedRow(row, 1_767_225_600_000 + 1000 * row.epoch) for row in make_rows() if row.epoch < EPOCHS]
    Recorder(Store(uri), run).add(rows)
    names = ["0123 base", *(f"0123 base, seed {seed}" for seed in SEEDS)]
    with locked(training_lock(run), 0):
        sync()
    assert [read_store(uri).statuses[name] for name in names] == ["RUNNING"] * len(names)
    capsys.readouterr()
    sync()
    assert "base: set to killed, because no process trains it" in capsys.readouterr().out
    assert [read_store(uri).statuses[name] for name in names] == ["KILLED"] * len(names)
    store = Store(uri)
    found = store.call("search_runs", [store.experiment("digits")], filter_string="attributes.status = 'KILLED'")
    assert {one.info.end_time for one in found} == {rows[-1].ended}
    again = Recorder(Store(uri), run)
    again.reopen()
    again.add([TimedRow(row, 1_767_225_700_000) for row in make_rows()])
    again.finish("FINISHED", 1_767_225_700_000)
    assert [read_store(uri).statuses[name] for name in names] == ["FINISHED"] * len(names)


def test_a_seed_has_what_it_was_trained_with_itself(project: Path, uri: str) -> None:
    """Live and afterwards, of a training whose seeds are not all of one time and place."""
    here = make_run()
    there = {"git_commit": "a" * 40, "git_dirty": False, "code_hash": "0" * 64, "device_name": "Another", "versions": {"torch": "2.11.0"}}
    groups = [{"seeds": [3, 7], **there}, {"seeds": [0]}]
    tracker = Tracker(here)
    for row in make_rows():
        if row.seed == 0:
            tracker.epoch(row)
    tracker.origins(groups)
    for row in make_rows():
        if row.seed != 0:
            tracker.epoch(row)
    assert tracker.close("FINISHED", metrics=METRICS)
    write_training(project / "runs" / "other", make_run("other", "fedc" * 8) | {"trainings": groups})
    sync()
    tags = read_store(uri).tags
    names = ("git.commit", "git.dirty", "git.base", "commits", "code.hash", "device.name", "versions.torch")
    other = ["a" * 40, "false", None, "a" * 40, "0" * 64, "Another", "2.11.0"]
    own = [None, "true", "f" * 40, None, "d" * 64, "A processor (2 cores)", "2.15.0"]
    for name in ("0123 base", "fedc other"):
        assert {seed: [tags[f"{name}, seed {seed}"].get(tag) for tag in names] for seed in SEEDS} == {3: other, 0: own, 7: other}
        assert [tags[name].get(tag) for tag in names] == own


def test_the_children_of_a_parent_that_was_deleted_by_hand_do_no_harm(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """MLflow's page deletes a row and leaves the seeds' runs."""
    write_training(project / "runs" / "base", make_run())
    for _ in range(3):
        sync()
        store = Store(uri)
        parents = store.call("search_runs", [store.experiment("digits")], filter_string="tags.kind = 'parent'")
        store.call("delete_run", parents[0].info.run_id)
    sync()
    capsys.readouterr()
    sync()
    assert capsys.readouterr().out == "base: complete\n"


def test_doubles_that_a_restored_experiment_brings_back_are_deleted(project: Path, uri: str) -> None:
    write_training(project / "runs" / "base", make_run())
    sync()
    store = Store(uri)
    experiment = store.experiment("digits")
    (parent,) = store.call("search_runs", [experiment], filter_string="tags.kind = 'parent'")
    store.call("delete_run", parent.info.run_id)
    sync()
    store.call("delete_experiment", experiment)
    store.call("restore_experiment", experiment)
    assert len(store.call("search_runs", [experiment], filter_string="tags.kind = 'parent'")) == 2
    sync()
    (kept,) = store.call("search_runs", [experiment], filter_string="tags.kind = 'parent'")
    seeds = store.call("search_runs", [experiment], filter_string="tags.kind = 'seed'")
    assert {run.data.tags["mlflow.parentRunId"] for run in seeds} == {kept.info.run_id}
    assert len(seeds) == len(SEEDS)


def test_sync_leaves_out_the_evaluation_of_an_earlier_training(project: Path, uri: str) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    write_evaluation(directory, "b" * 64)
    sync()
    content = read_store(uri)
    assert not any(key.startswith("evaluation.") for _, key, _, _ in content.points)
    assert content.artifacts["0123 base"] == artifacts_of(directory)


def test_sync_names_damaged_files_and_logs_the_others(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, variant in enumerate("abcd"):
        write_training(project / "runs" / variant, make_run(variant, f"000{number}" * 8))
    (project / "runs" / "a" / "run.json").write_text("{")
    path = project / "runs" / "b" / "run.json"
    path.write_text(path.read_text().replace("digits", "digit5"))
    older = results.read_run(project / "runs" / "c")
    results.write_run(project / "runs" / "c", {name: value for name, value in older.items() if name != "metrics"})
    with pytest.raises(UserError, match="Damaged files in runs/a, runs/b, runs/c"):
        sync()
    output = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in output[:3]] == [f"{name}: left out" for name in "abc"]
    assert read_store(uri).points == expected_points("0003", "d")


def test_sync_waits_for_no_training_that_is_being_logged(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_training(project / "runs" / "base", make_run())
    with locked(training_lock(make_run()), 0):
        sync()
    assert "another process logs it at the moment" in capsys.readouterr().out
    assert read_store(uri).statuses == {}


def test_the_pictures_that_a_report_has_drawn_are_kept_with_the_parent(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """But for one of an earlier training, which the next report will draw anew, and one of a variant that is gone."""
    folder = project / ".checkpoints" / "figures"
    folder.mkdir(parents=True)
    for variant, training in (("base", "0123456789abcdef" * 2), ("other", "fedc" * 8)):
        directory = write_training(project / "runs" / variant, make_run(variant, training))
        (folder / f"{variant}.png").write_bytes(variant.encode())
        drawn = (directory / "run.json").stat().st_mtime + (5 if variant == "base" else -5)
        os.utime(folder / f"{variant}.png", (drawn, drawn))
    (folder / "removed.png").write_bytes(b"removed")
    command([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" points, ")[1] for line in lines] == [
        "2 files added, 4 runs set to finished",
        "1 file added, 4 runs set to finished",
    ]
    content = read_store(uri)
    pictures = {(name, path): data for name, files in content.artifacts.items() for path, data in files.items() if path.endswith(".png")}
    assert pictures == {("0123 base", "figures/base.png"): b"base"}
    command([])
    assert capsys.readouterr().out == "base: complete\nother: complete\n"
    assert read_store(uri) == content

    (folder / "base.png").write_bytes(b"drawn again")
    os.utime(folder / "base.png", (drawn + 60, drawn + 60))
    sync()
    assert capsys.readouterr().out == "base: 1 file added\nother: complete\n"
    assert read_store(uri).artifacts["0123 base"]["figures/base.png"] == b"drawn again"


def test_the_filters_of_the_document_find_what_it_says(
    project: Path, uri: str, study: params.Params, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of docs/mlflow.md, and those of the views. Two variants read 98 % of the images, others 85 to 92 %."""
    for name in ("params.yaml", "claims.yaml"):
        shutil.copyfile(ROOT / name, project / name)
    for number, variant in enumerate(("base", "sinusoidal", "no-position", "cnn", "caption")):
        config = study.resolve(variant).model_dump(mode="json")
        config["train"] |= {"seeds": SEEDS, "epochs": 30 if variant == "sinusoidal" else EPOCHS}
        known = {"config": config, "git_commit": f"{number}" * 40, "git_dirty": False}
        directory = write_training(project / "runs" / variant, make_run(variant, f"000{number}" * 8) | known)
        if variant in ("sinusoidal", "no-position"):
            run = results.read_run(directory)
            epochs = [row._replace(test_accuracy=0.98 - 0.01 * (row.seed == 7)) for row in results.epoch_rows(run)]
            results.write_run(directory, run | {"epochs": epochs})
    sync()
    assert "base: not registered, " in capsys.readouterr().out  # what lies there are no weights
    text = (ROOT / "docs/mlflow.md").read_text(encoding="utf-8")
    filters = re.findall(r"```sql\n(.+)\n```", text.replace("%COMMIT%", "%4444444%")) + [view.filter for view in VIEWS]
    expected = [
        {"base", "sinusoidal", "no-position"},
        {"base"},
        {"sinusoidal"},
        {"sinusoidal"},
        {"sinusoidal, seed 0", "sinusoidal, seed 3"},
        {"caption", *(f"caption, seed {seed}" for seed in SEEDS)},
        {"base", "sinusoidal", "no-position", "cnn", "caption"},
        {"base", "sinusoidal", "no-position", "cnn"},
    ]
    store = Store(uri)
    found = [store.call("search_runs", [store.experiment("digits")], filter_string=one) for one in filters]
    assert [{run.info.run_name for run in runs} for runs in found] == expected


def test_a_model_without_weights_is_told(project: Path, study: params.Params, capsys: pytest.CaptureFixture[str]) -> None:
    config = study.resolve("base").model_dump(mode="json")
    config["train"] |= {"seeds": SEEDS, "epochs": EPOCHS}
    directory = write_training(project / "runs" / "base", make_run() | {"config": config})
    (directory / results.WEIGHTS).unlink()
    sync()
    said = capsys.readouterr().out
    assert said.startswith("base: not registered, runs/base/model.safetensors is missing: ")
    assert "`dvc pull --allow-missing`" in said


def test_the_report_stage_outlives_a_silent_server(
    project: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what is wrong; the next report completes the store, and one more finds nothing to do."""
    from pipeline.stages import report

    directory = write_training(project / "runs" / "base", make_run())
    weights = results.read_run(directory)["outputs"][results.WEIGHTS]
    records_of(directory).write_tables({"base": {"weights": weights}})
    trainings = load(".", "").trainings.values()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with silent_server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        report.track(trainings)
    sentence = f"MLflow is not up to date: MLflow at {address} does not answer; mend that, then run `make sync` again.\n"
    assert capsys.readouterr() == (sentence, "")

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    report.track(trainings)
    assert capsys.readouterr() == (f"base: 4 runs, {ALL_POINTS} points, 2 files added, 4 runs set to finished\n", "")
    assert_complete(uri)
    picture = (project / ".checkpoints" / "figures" / "base.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    content = read_store(uri)
    assert content.artifacts["0123 base"] == artifacts_of(directory) | {"figures/base.png": picture}
    report.track(trainings)
    assert capsys.readouterr().out == "base: complete\n"
    assert read_store(uri) == content


def test_a_training_that_diverged(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run() | {"git_dirty": False}
    write_diverged(project / "runs" / "base", run)
    sync()
    capsys.readouterr()
    before = read_store(uri)
    assert set(before.statuses.values()) == {"FINISHED"}
    sync()
    assert capsys.readouterr().out == "base: complete\n"
    after = read_store(uri)
    assert sorted(map(repr, after.points.elements())) == sorted(map(repr, before.points.elements()))
    assert after.points["0123 base", "diverged", 0, 1.0] == 1
    assert_diverged(runs_of([run["training_id"]], uri))


def test_settings_of_every_architecture_are_params(project: Path, uri: str, study: params.Params) -> None:
    settings = study.resolve("cnn")
    config = settings.model_dump(mode="json")
    config["train"] |= {"seeds": SEEDS, "epochs": EPOCHS}
    write_training(project / "runs" / "cnn", make_run("cnn") | {"config": config})
    sync()
    found = read_store(uri).params["0123 cnn, seed 0"]
    assert found.items() >= {
        "model.architecture": "cnn", "model.widths": "[12, 26]", "train.optimizer": "adam", "train.clip_norm": "None", "train.epochs": "4",
    }.items()  # fmt: skip
    assert {key for key in found if key.startswith("model.")} == {"model.architecture", "model.widths"}
    assert {key.removeprefix("train.") for key in found if key.startswith("train.")} == set(params.TrainSettings.model_fields)


def test_runs_get_the_commits_that_hold_them(project: Path, uri: str, study: params.Params, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that began with uncommitted edits, whatever was committed since; those that no commit holds stay as they are."""

    def train(training_id: str, dim: int) -> None:
        """params.yaml edited and trained, not committed."""
        raw["base"]["dim"] = dim
        (project / "params.yaml").write_text(yaml.safe_dump(raw))
        settings = params.parse(raw).resolve("base")
        known = {"config": settings.model_dump(mode="json"), "code_hash": training_code(), "git_edits": [f"base.dim: none -> {dim}"]}
        shutil.rmtree(project / "runs", ignore_errors=True)
        directory = write_training(project / "runs" / "base", make_run("base", training_id) | known)
        records_of(directory).write_tables({"base": {"weights": results.read_run(directory)["outputs"][results.WEIGHTS]}})
        sync()

    def commits(training_id: str) -> list[str | None]:
        tags = read_store(uri).tags
        parent, seed = (
            [tags[f"{training_id[:4]} {run}"].get(name) for name in ("git.commit", "git.dirty", "git.base", "commits")]
            for run in ("base", "base, seed 7")
        )
        assert parent == seed
        return parent

    shutil.copytree(provenance.PACKAGE, project / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    (project / ".gitignore").write_text("/runs\n/predictions\n/mlflow.db*\n/mlartifacts\n/.checkpoints\n")
    raw = small_study(params.read_both(provenance.ROOT / "params.yaml"))
    raw["train"] |= {"seeds": SEEDS, "epochs": EPOCHS}
    git(project, "init", "--quiet")
    commit_all(project, "before any training")
    train("1111" * 8, 16)
    assert commits("1111" * 8) == [None, "true", "f" * 40, None]
    git(project, "add", "tables")
    git(project, "commit", "--quiet", "-m", "the tables alone, without the settings")
    sync()
    assert commits("1111" * 8)[:2] == [None, "true"]
    second = commit_all(project, "all of it")
    train("2222" * 8, 24)  # takes the place of the first before any sync has seen the commit
    assert f"base: in commit {second[:10]} by now\n" in capsys.readouterr().out
    assert commits("1111" * 8)[:2] == [second, "false"]
    assert commits("2222" * 8)[:2] == [None, "true"]
    train("3333" * 8, 32)
    third = commit_all(project, "the third, never the second")
    sync()
    sync()
    assert commits("2222" * 8)[:2] == [None, "true"]
    assert commits("3333" * 8) == [third, "false", "f" * 40, third]


def test_runs_of_an_experiment_go_to_the_repository_that_it_is_of(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC runs queued experiments in copies, and tells a stage the experiment's name and the repository."""
    copy = project / ".dvc" / "tmp" / "exps" / "copy"
    write_training(copy / "runs" / "base", make_run())
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.setenv("DVC_EXP_NAME", "two-epochs")
    sync()
    assert not (copy / "mlflow.db").exists()
    found = read_store(uri)
    assert set(found.statuses) == {"0123 two-epochs: base", *(f"0123 two-epochs: base, seed {seed}" for seed in SEEDS)}
    assert all(tags["dvc.experiment"] == "two-epochs" for tags in found.tags.values())


def test_what_an_experiment_has_from_its_commit_is_not_of_it(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sync of a fresh clone may be that of an experiment's report."""
    directory = write_training(project / "runs" / "base", make_run())
    records_of(directory).write_tables({"base": {"weights": results.read_run(directory)["outputs"][results.WEIGHTS]}})
    (project / ".gitignore").write_text("/runs\n/predictions\n/mlflow.db*\n/mlartifacts\n/.checkpoints\n")
    git(project, "init", "--quiet")
    commit_all(project, "a study")
    write_training(project / "runs" / "wide", make_run("wide", "fedc" * 8))
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.setenv("DVC_EXP_NAME", "short")
    sync()
    parents = {name: tags.get("dvc.experiment") for name, tags in read_store(uri).tags.items() if "seed" not in name}
    assert parents == {"0123 base": None, "fedc short: wide": "short"}


def test_sync_without_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command([])
    assert capsys.readouterr().out == "There is no finished training in runs/ yet: run `make demo` or `dvc repro` first.\n"
