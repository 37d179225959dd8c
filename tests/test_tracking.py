"""MLflow tracking on real stores: every run and point once, whatever is killed, gone or in parallel."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline import params
from pipeline.errors import UserError
from pipeline.files import sha256
from pipeline.runner import results
from pipeline.stages import report
from pipeline.sync import main as sync_command
from pipeline.sync import sync
from pipeline.tracking import RUNS_OF_COMMIT, SeedRun, init_store, live, newest_runs
from pipeline.tracking import Tracker as DelayedTracker
from pipeline.tracking.recorder import training_lock
from pipeline.tracking.store import Store, StoreBusy, explain, locked, store_uri
from pipeline.tracking.ui import main as ui_command
from pipeline.training.records import EpochRow, write_epochs

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

ROOT = Path(__file__).parents[1]
SEEDS, EPOCHS = [3, 0, 7], 4
KEYS = ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "epoch_seconds")
METRICS = {"n": 3, "test_accuracy_mean": 0.91, "test_accuracy_sd": 0.0125, "test_loss_mean": 0.3, "parameters": 26_000}
EVALUATION = {
    "test_accuracy": 0.91,
    "test_loss": 0.3,
    "ensemble_accuracy": 0.93,
    "per_class_accuracy": {str(digit): 0.9 + 0.001 * digit for digit in range(10)},
}
SEED_EVALUATION = {  # by column: a number of each seed
    "test_accuracy": [0.9, 0.91, 0.92],
    "test_loss": [0.31, 0.3, 0.29],
    "shift_1": [0.81, 0.62, 0.7],
    "attention_entropy": [2.25, 3.5, 3.0],
}
TRAIN_FILES, EVALUATION_FILES = ("metrics.json", "epochs.csv", "run.json"), ("metrics.json", "seeds.csv", "confusion.csv")
# Epochs of 3 seeds and their means, then the numbers of metrics.json.
TRAIN_POINTS = 5 * EPOCHS * 4 + len(METRICS)
# Of the evaluation's metrics.json, and of seeds.csv: for each seed, and the means of the columns that metrics.json lacks.
EVALUATION_POINTS = 13 + 3 * 4 + 2
ALL_POINTS = TRAIN_POINTS + EVALUATION_POINTS


def make_run(variant: str = "base", training_id: str = "0123456789abcdef" * 2) -> dict[str, Any]:
    """What the train stage knows when it starts."""
    return {
        "training_id": training_id,
        "variant": variant,
        "stage": f"train@{variant}",
        "config": {
            "data": {"dataset": "digits"},
            "train": {"seeds": SEEDS, "epochs": EPOCHS, "batch_size": 128, "learning_rate": 0.005},
            "model": {"patch": 4, "dim": 32, "final_norm": False, "pool": "cls"},
        },
        "config_hash": "c" * 64,
        "code_hash": "d" * 64,
        "data_digest": "e" * 64,
        "dataset": "digits",
        "git_commit": "f" * 40,
        "git_dirty": True,
        "device": "cpu",
        "device_name": "A processor (2 cores)",
        "attention": "fused-cpu",
        "versions": {"python": "3.11.7", "torch": "2.15.0"},
        "seeds": SEEDS,
        "started": "2026-01-02T03:04:05+00:00",
    }


def Tracker(run: dict[str, Any], **keywords: Any) -> DelayedTracker:
    """A tracker that opens the store at once, however short the training."""
    return DelayedTracker(run, start_after=0.0, **keywords)


def make_rows() -> list[EpochRow]:
    """In the order in which seeds side by side end their epochs; numbers whose sums are not exact."""
    return [
        EpochRow(
            seed=seed,
            epoch=epoch,
            train_loss=2.3 / epoch + 0.1 * seed,
            test_loss=2.1 / epoch + 0.07 * seed,
            test_accuracy=1 - 0.3 / epoch - 0.011 * seed,
            gradient_norm=0.7 / epoch + 0.013 * seed,
            seconds=0.1 * epoch + 0.3 * seed,
        )
        for epoch in range(1, EPOCHS + 1)
        for seed in SEEDS
    ]


def write_training(directory: Path, run: dict[str, Any]) -> Path:
    """The files of a finished and evaluated training, as the stages leave them."""
    directory.mkdir(parents=True)
    write_epochs(directory / "epochs.csv", sorted(make_rows(), key=lambda row: (SEEDS.index(row.seed), row.epoch)))
    (directory / "metrics.json").write_text(json.dumps(METRICS))
    (directory / results.WEIGHTS).write_text("weights")
    results.write_run(directory, run | {"finished": "2026-01-02T04:04:05+00:00"})
    evaluation = evaluation_of(directory)
    evaluation.mkdir(parents=True, exist_ok=True)
    (evaluation / "inputs.json").write_text(json.dumps({"weights": sha256(directory / results.WEIGHTS)}))
    (evaluation / "metrics.json").write_text(json.dumps(EVALUATION))
    rows = [[seed, *values] for seed, *values in zip(SEEDS, *SEED_EVALUATION.values(), strict=True)]
    (evaluation / "seeds.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in [["seed", *SEED_EVALUATION], *rows]))
    (evaluation / "confusion.csv").write_text("actual,predicted,count\n0,0,5\n")
    return directory


def evaluation_of(directory: Path) -> Path:
    """Where the evaluation of a folder of runs/ lies."""
    return directory.parents[1] / "evaluations" / directory.name


def artifacts_of(directory: Path) -> dict[str, bytes]:
    """The files that MLflow keeps of a training and its evaluation."""
    return {name: (directory / name).read_bytes() for name in TRAIN_FILES} | {
        f"evaluation/{name}": (evaluation_of(directory) / name).read_bytes() for name in EVALUATION_FILES
    }


def track(run: dict[str, Any], directory: Path, **keywords: Any) -> bool:
    """A whole training, tracked live; its evaluation comes with the next `sync`."""
    tracker = Tracker(run, **keywords)
    for row in make_rows():
        tracker.epoch(row)
    return tracker.close("FINISHED", metrics=METRICS, artifacts=[directory / name for name in TRAIN_FILES])


class Content(NamedTuple):
    """What a store holds, without ids and clock times; runs are named "TRAINING RUNNAME"."""

    statuses: dict[str, str]
    points: Counter[tuple[str, str, int, float]]
    params: dict[str, dict[str, str]]
    tags: dict[str, dict[str, str]]
    datasets: dict[str, list[tuple[str, ...]]]
    artifacts: dict[str, dict[str, bytes]]


def files_of(repository: Any, folder: str | None = None) -> list[str]:
    """The paths of all files that an artifact repository holds, below any folder."""
    entries = repository.list_artifacts(folder)
    return [path for entry in entries for path in (files_of(repository, entry.path) if entry.is_dir else [entry.path])]


def read_store(uri: str) -> Content:
    """Reads everything through MLflow's own client. A run or data set that is there twice fails the test."""
    from mlflow import MlflowClient
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = list(client.search_runs(experiments, max_results=1000))
    names = {run.info.run_id: f"{run.data.tags['training.id'][:4]} {run.info.run_name}" for run in found}
    assert len(set(names.values())) == len(found), f"doubles: {sorted(names.values())}"
    content = Content({}, Counter(), {}, {}, {}, {})
    for run in found:
        name = names[run.info.run_id]
        content.statuses[name] = run.info.status
        content.params[name] = run.data.params
        content.tags[name] = {key: names.get(value, value) for key, value in run.data.tags.items()}
        inputs = [(used.dataset.name, used.dataset.digest, *(tag.value for tag in used.tags)) for used in run.inputs.dataset_inputs]
        content.datasets[name] = inputs
        for key in run.data.metrics:
            content.points.update((name, key, metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))
        # By the address of the run's files: asked by the run's id, MLflow looks the run and its models up again for each folder and file.
        repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=uri)
        content.artifacts[name] = {path: Path(repository.download_artifacts(path)).read_bytes() for path in files_of(repository)}
    return content


def expected_points(training: str = "0123", variant: str = "base", *, evaluated: bool = True) -> Counter[tuple[str, str, int, float]]:
    """From the rows by hand, with exact sums; the evaluation's numbers are there only after a `sync`."""
    points: Counter[tuple[str, str, int, float]] = Counter()
    rows = make_rows()
    for row in rows:
        points.update((f"{training} {variant}, seed {row.seed}", key, row.epoch, value) for key, value in zip(KEYS, row[2:], strict=True))
    for epoch in range(1, EPOCHS + 1):
        for column, key in enumerate(KEYS, start=2):
            total = sum(Fraction(row[column]) for row in rows if row.epoch == epoch)
            points[f"{training} {variant}", key, epoch, float(total) / len(SEEDS)] += 1
    points.update((f"{training} {variant}", key, 0, float(value)) for key, value in METRICS.items())
    if not evaluated:
        return points
    for key in ("test_accuracy", "test_loss", "ensemble_accuracy"):
        points[f"{training} {variant}", f"evaluation.{key}", 0, EVALUATION[key]] += 1
    for key, values in SEED_EVALUATION.items():
        if key not in EVALUATION:
            points[f"{training} {variant}", f"evaluation.{key}", 0, float(sum(map(Fraction, values)) / 3)] += 1
        points.update(
            (f"{training} {variant}, seed {seed}", f"evaluation.{key}", 0, value) for seed, value in zip(SEEDS, values, strict=True)
        )
    for digit, value in EVALUATION["per_class_accuracy"].items():
        points[f"{training} {variant}", f"evaluation.per_class_accuracy.{digit}", 0, value] += 1
    return points


def assert_complete(uri: str, *, evaluated: bool = True) -> None:
    content = read_store(uri)
    assert content.statuses == dict.fromkeys(["0123 base", *(f"0123 base, seed {seed}" for seed in SEEDS)], "FINISHED")
    assert content.points == expected_points(evaluated=evaluated)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store without an experiment of ours: making one takes seconds, copying one takes none."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    Store(f"sqlite:///{path}")
    return path


@pytest.fixture
def project(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a store, as the stages have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture
def uri(project: Path) -> str:
    return f"sqlite:///{project / 'mlflow.db'}"


@contextmanager
def child_training(code: str, *content: Any, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A training in a process of its own, which does not outlive the test."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, text=True, **pipes
    ) as child:
        try:
            assert child.stdin is not None
            json.dump(content, child.stdin)
            child.stdin.close()
            child.stdin = None
            yield child
        finally:
            child.kill()


def test_live_training_is_in_the_store_once_and_whole(project: Path, uri: str) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    assert track(make_run(), directory)

    assert_complete(uri, evaluated=False)
    content = read_store(uri)
    parent, child = "0123 base", "0123 base, seed 7"
    assert content.params[parent] == {
        "data.dataset": "digits", "train.seeds": "[3, 0, 7]", "train.epochs": "4", "train.batch_size": "128",
        "train.learning_rate": "0.005",
        "model.patch": "4", "model.dim": "32", "model.final_norm": "False", "model.pool": "cls", "variant": "base",
    }  # fmt: skip
    assert content.params[child] == content.params[parent] | {"seed": "7"}
    shared = {
        "training.id": "0123456789abcdef" * 2, "variant": "base", "dvc.stage": "train@base", "config.hash": "c" * 64, "code.hash": "d" * 64,
        "data.digest": "e" * 64, "git.commit": "f" * 40, "git.dirty": "true", "device": "cpu", "device.name": "A processor (2 cores)",
        "attention": "fused-cpu", "versions.python": "3.11.7", "versions.torch": "2.15.0", "mlflow.source.git.commit": "f" * 40,
    }  # fmt: skip
    assert content.tags[parent].items() >= (shared | {"kind": "parent"}).items()
    assert content.tags[child].items() >= (shared | {"kind": "seed", "seed": "7", "mlflow.parentRunId": parent}).items()
    assert all(datasets == [("digits", "e" * 32, "training")] for datasets in content.datasets.values())
    assert content.artifacts[parent] == {name: (directory / name).read_bytes() for name in TRAIN_FILES}
    assert not any(content.artifacts[name] for name in content.artifacts if name != parent)


def test_sync_after_live_adds_the_evaluation_and_changes_nothing_else(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    evaluation_of(directory).rename(project / "later")  # the evaluate stage has not run yet
    track(make_run(), directory)
    before = read_store(uri)
    sync()
    assert capsys.readouterr().out == "base: complete\n"
    assert read_store(uri) == before

    (project / "later").rename(evaluation_of(directory))
    sync()
    assert capsys.readouterr().out == f"base: {EVALUATION_POINTS} points, 3 files added\n"
    assert_complete(uri)
    after = read_store(uri)
    assert after.artifacts["0123 base"] == artifacts_of(directory)
    new_tags = {key for key in after.tags["0123 base"] if key not in before.tags["0123 base"]}
    assert new_tags == {f"sha256.evaluation/{name}" for name in EVALUATION_FILES}
    assert after.tags["0123 base"].items() >= before.tags["0123 base"].items()
    assert (after.params, after.datasets) == (before.params, before.datasets)


def test_sync_makes_what_live_makes(
    project: Path, uri: str, tmp_path: Path, empty_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    sync()
    synced = read_store(uri)
    assert capsys.readouterr().out == f"base: 4 runs, {ALL_POINTS} points, 6 files added, 4 runs set to finished\n"
    assert_complete(uri)
    sync()
    assert capsys.readouterr().out == "base: complete\n"
    assert read_store(uri) == synced

    (tmp_path / "live").mkdir()
    shutil.copyfile(empty_database, tmp_path / "live" / "mlflow.db")
    other = f"sqlite:///{tmp_path / 'live' / 'mlflow.db'}"
    track(make_run(), directory, uri=other)
    sync(uri=other)
    assert capsys.readouterr().out == f"base: {EVALUATION_POINTS} points, 3 files added\n"
    assert read_store(other) == synced


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
    logged = 2 * 3 * 5 + len(METRICS)
    assert lines[0] == f"base: 1 run, {ALL_POINTS - logged} points, 6 files added, 4 runs set to finished"
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
        assert content.tags[name] == before.tags[name]


def test_failed_training_that_goes_on_continues_its_runs(project: Path, uri: str) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    tracker = Tracker(make_run())
    for row in make_rows():
        if row.epoch <= 2 or row.seed == 0:
            tracker.epoch(row)
    assert tracker.close("FAILED")
    statuses = read_store(uri).statuses
    assert statuses == {
        "0123 base": "FAILED",
        "0123 base, seed 3": "FAILED",
        "0123 base, seed 0": "FINISHED",
        "0123 base, seed 7": "FAILED",
    }

    assert track(make_run(), directory)
    assert_complete(uri, evaluated=False)


def test_sync_leaves_out_the_evaluation_of_an_earlier_training(project: Path, uri: str) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    (evaluation_of(directory) / "inputs.json").write_text(json.dumps({"weights": "b" * 64}))
    sync()
    content = read_store(uri)
    assert not any(key.startswith("evaluation.") for _, key, _, _ in content.points)
    assert set(content.artifacts["0123 base"]) == set(TRAIN_FILES)


def test_sync_names_damaged_files_and_logs_the_others(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, variant in enumerate(["a", "b", "c", "d", "e"]):
        write_training(project / "runs" / variant, make_run(variant, f"000{number}" * 8))
    (project / "runs" / "a" / "run.json").write_text("{")
    (project / "runs" / "b" / "epochs.csv").write_text("seed,epoch\n1,2\n")
    lines = (project / "runs" / "c" / "epochs.csv").read_text().splitlines(keepends=True)
    (project / "runs" / "c" / "epochs.csv").write_text("".join(lines[:-1]))
    (project / "runs" / "d" / "metrics.json").unlink()
    with pytest.raises(UserError, match="Damaged files in runs/a, runs/b, runs/c, runs/d"):
        sync()
    output = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in output[:4]] == [f"{name}: left out" for name in "abcd"]
    assert read_store(uri).points == expected_points("0004", "e")


def test_sync_waits_for_no_training_that_is_being_logged(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_training(project / "runs" / "base", make_run())
    with locked(training_lock(make_run()), 0):
        sync()
    assert "another process logs it at the moment" in capsys.readouterr().out
    assert read_store(uri).statuses == {}


CHILD = """
import json, sys, time
from pipeline.tracking import Tracker, live
from pipeline.training.records import EpochRow
live.PATIENCE, live.LONGEST_CLOSE = 90.0, 180.0  # a machine that is busy with other things is no fault of the store
live.FLUSH_SECONDS = 0.1
run, rows, metrics = json.load(sys.stdin)
tracker = Tracker(run, start_after=0.0)
for row in rows:
    tracker.epoch(EpochRow(*row))
if metrics is None:
    time.sleep(300)
print(tracker.close("FINISHED", metrics=metrics))
"""


def test_a_short_training_opens_no_store_and_is_left_to_sync(
    tmp_path: Path, empty_database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said, written or imported for it: the import alone takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code = CHILD.replace(", start_after=0.0", "") + "print([name for name in sys.modules if name.startswith('mlflow')])"
    with child_training(code, make_run(), make_rows(), METRICS) as child:
        output, errors = child.communicate(timeout=100)
    assert (output, errors, child.returncode) == ("False\n[]\n", "", 0)
    assert list(tmp_path.iterdir()) == []

    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    write_training(tmp_path / "runs" / "base", make_run())
    sync()
    assert capsys.readouterr().out == f"base: 4 runs, {ALL_POINTS} points, 6 files added, 4 runs set to finished\n"
    assert_complete(f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_a_training_that_lasts_is_in_the_store_before_its_end(project: Path, uri: str) -> None:
    rows = make_rows()
    tracker = DelayedTracker(make_run(), start_after=0.5)
    for row in rows[:5]:
        tracker.epoch(row)
    deadline = time.monotonic() + 60
    while sum(read_store(uri).points.values()) < 5 * 5 + 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    content = read_store(uri)
    assert sum(content.points.values()) == 5 * 5 + 5  # five rows, and the means of the first epoch
    assert set(content.statuses.values()) == {"RUNNING"}
    for row in rows[5:]:
        tracker.epoch(row)
    assert tracker.close("FINISHED", metrics=METRICS)
    assert_complete(uri, evaluated=False)


def test_a_short_training_that_fails_is_in_the_store(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`sync` does not see it: it leaves no files in runs/."""
    tracker = DelayedTracker(make_run())
    for row in make_rows()[:4]:
        tracker.epoch(row)
    assert tracker.close("FAILED")
    assert capsys.readouterr() == ("", "")
    content = read_store(uri)
    assert content.statuses == dict.fromkeys(["0123 base", *(f"0123 base, seed {seed}" for seed in SEEDS)], "FAILED")
    assert content.points == Counter({point: count for point, count in expected_points().items() if is_early(point)})

    # It is started again, goes on and is FINISHED soon: its runs are completed by `sync`.
    tracker = DelayedTracker(make_run())
    for row in make_rows():
        tracker.epoch(row)
    assert not tracker.close("FINISHED", metrics=METRICS)
    assert read_store(uri) == content
    write_training(project / "runs" / "base", make_run())
    sync()
    assert_complete(uri)


def is_early(point: tuple[str, str, int, float]) -> bool:
    """Whether the first four rows give it: epoch 1 of every seed and its means, and epoch 2 of the first seed."""
    name, _, epoch, _ = point
    return epoch == 1 or (epoch == 2 and name.endswith(f"seed {SEEDS[0]}"))


def test_figures_are_kept_with_the_parent(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    for variant, training in (("base", "0123456789abcdef" * 2), ("other", "fedc" * 8)):
        write_training(project / "runs" / variant, make_run(variant, training))
    folder = project / "pictures"
    folder.mkdir()
    for name in ("base.png", "removed.png"):
        (folder / name).write_bytes(name.encode())
    track(make_run(), project / "runs" / "base")
    sync(figures=folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"base: {EVALUATION_POINTS} points, 4 files added"
    assert lines[1].startswith(f"other: 4 runs, {ALL_POINTS} points, 6 files added")
    content = read_store(uri)
    pictures = {(name, path): data for name, files in content.artifacts.items() for path, data in files.items() if path.endswith(".png")}
    assert pictures == {("0123 base", "figures/base.png"): b"base.png"}

    for _ in range(2):
        sync(figures=folder)
        sync()
        assert capsys.readouterr().out == "base: complete\nother: complete\n" * 2
        assert read_store(uri) == content

    (folder / "base.png").write_bytes(b"drawn again")
    sync(figures=folder)
    assert capsys.readouterr().out == "base: 1 file added\nother: complete\n"
    assert read_store(uri).artifacts["0123 base"]["figures/base.png"] == b"drawn again"


def test_the_report_stage_outlives_a_silent_server(
    project: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raw_params: dict[str, Any]
) -> None:
    """One line says what is wrong; the next report completes the store, and one more finds nothing to do."""
    study = params.parse(raw_params | {"variants": {"base": {}}, "experiments": {}})
    directory = write_training(project / "runs" / "base", make_run())
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with silent_server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        report.track(study)
    sentence = f"MLflow is not up to date: MLflow at {address} does not answer; mend that, then run `make sync` again.\n"
    assert capsys.readouterr() == (sentence, "")

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    report.track(study)
    assert capsys.readouterr() == (f"base: 4 runs, {ALL_POINTS} points, 7 files added, 4 runs set to finished\n", "")
    assert_complete(uri)
    picture = (project / ".checkpoints" / "figures" / "base.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    content = read_store(uri)
    assert content.artifacts["0123 base"] == artifacts_of(directory) | {"figures/base.png": picture}
    report.track(study)
    assert capsys.readouterr().out == "base: complete\n"
    assert read_store(uri) == content


def test_sync_by_hand_keeps_the_pictures_that_a_report_has_drawn(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """But for one of an earlier training, which the next report will draw anew."""
    folder = project / ".checkpoints" / "figures"
    folder.mkdir(parents=True)
    for variant, training in (("base", "0123456789abcdef" * 2), ("other", "fedc" * 8)):
        directory = write_training(project / "runs" / variant, make_run(variant, training))
        (folder / f"{variant}.png").write_bytes(variant.encode())
        drawn = (directory / "run.json").stat().st_mtime + (5 if variant == "base" else -5)
        os.utime(folder / f"{variant}.png", (drawn, drawn))
    sync_command([])
    content = read_store(uri)
    assert content.artifacts["0123 base"]["figures/base.png"] == b"base"
    assert "figures/other.png" not in content.artifacts["fedc other"]
    capsys.readouterr()
    sync_command([])
    assert capsys.readouterr().out == "base: complete\nother: complete\n"


def write_diverged(directory: Path, run: dict[str, Any]) -> None:
    """A training whose second seed diverges to infinity in epoch 2, and is no number from then on."""
    write_training(directory, run)
    rows = []
    for row in make_rows():
        if row.seed == SEEDS[1] and row.epoch >= 2:
            value = math.inf if row.epoch == 2 else math.nan
            row = row._replace(train_loss=value, test_loss=value, gradient_norm=value, test_accuracy=0.1)
        rows.append(row)
    write_epochs(directory / "epochs.csv", sorted(rows, key=lambda row: (SEEDS.index(row.seed), row.epoch)))
    (directory / "metrics.json").write_text(json.dumps(METRICS | {"diverged": 1, "test_loss_mean": None}))
    seeds = evaluation_of(directory) / "seeds.csv"
    seeds.write_text(seeds.read_text().replace("0.91,0.3,", "0.1,inf,"))
    (evaluation_of(directory) / "metrics.json").write_text(json.dumps(EVALUATION | {"test_loss": None}))
    results.write_run(directory, json.loads((directory / "run.json").read_text()))


def assert_diverged(runs: list[SeedRun]) -> None:
    good, bad = (next(run for run in runs if run.seed == seed) for seed in SEEDS[:2])
    assert bad.curves["train_loss"] == pytest.approx([2.3 + 0.1 * SEEDS[1], math.inf, math.nan, math.nan], nan_ok=True, rel=0)
    assert bad.curves["gradient_norm"][1:3] == pytest.approx([math.inf, math.nan], nan_ok=True)
    assert bad.curves["test_accuracy"][1:] == [0.1, 0.1, 0.1]
    assert math.isnan(bad.metrics["test_loss"])
    assert bad.metrics["evaluation.test_loss"] == math.inf
    assert good.curves["train_loss"] == [row.train_loss for row in make_rows() if row.seed == SEEDS[0]]
    assert all(math.isfinite(value) for value in good.metrics.values())


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
    keys = {key for name, key, _, _ in after.points if name == "0123 base"}
    assert "diverged" in keys
    assert not {"test_loss_mean", "evaluation.test_loss"} & keys
    assert_diverged(newest_runs(run["git_commit"]))


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


def test_the_newest_runs_of_a_commit(project: Path, uri: str) -> None:
    """Trained there, with nothing uncommitted, finished, the newest: once through our query, once through the documented filter."""
    commit, other = "1" * 40, "2" * 40
    trainings = [
        ("base", "2026-01-02T03:04:05+00:00", {"git_commit": commit, "git_dirty": False}),
        ("base", "2026-01-03T03:04:05+00:00", {"git_commit": commit, "git_dirty": False, "config_hash": "9" * 64}),
        ("base", "2026-01-04T03:04:05+00:00", {"git_commit": commit, "git_dirty": True}),
        ("base", "2026-01-05T03:04:05+00:00", {"git_commit": other, "git_dirty": False}),
        ("wide", "2026-01-02T03:04:05+00:00", {"git_commit": commit, "git_dirty": False}),
        ("gone", "2026-01-02T03:04:05+00:00", {"git_commit": None, "git_dirty": None}),
    ]
    for number, (variant, started, known) in enumerate(trainings):
        directory = project / f"side{number}" / "runs" / variant
        run = make_run(variant, f"000{number}" * 8) | known | {"started": started}
        write_training(directory, run)
        if variant == "wide":
            assert track(run, directory)
            assert {run.variant for run in newest_runs(commit)} == {"base", "wide"}
        sync(directory.parent)
    tracker = Tracker(make_run("base", "fedc" * 8) | {"git_commit": commit, "git_dirty": False, "started": "2026-01-06T03:04:05+00:00"})
    for row in make_rows():
        if row.seed == 3 or row.epoch < 3:
            tracker.epoch(row)
    assert tracker.close("FAILED")

    found = newest_runs(commit)
    assert [(run.dataset, run.variant, run.seed) for run in found] == [("digits", v, s) for v in ("base", "wide") for s in sorted(SEEDS)]
    for run in found:
        assert run.record["training_id"][:4] == {"base": "0001", "wide": "0004"}[run.variant]
        rows = [row for row in make_rows() if row.seed == run.seed]
        expected = {key: [row[column] for row in rows] for column, key in enumerate(KEYS, start=2)}
        assert run.curves == expected
        assert {key: run.metrics[key] for key in KEYS} == {key: values[-1] for key, values in expected.items()}
        assert run.record["config"] == make_run()["config"]
        assert run.metrics["parameters"] == METRICS["parameters"]
        assert run.metrics["evaluation.shift_1"] == SEED_EVALUATION["shift_1"][SEEDS.index(run.seed)]
        assert run.record["config_hash"] == ("9" if run.variant == "base" else "c") * 64
    assert newest_runs("3" * 40) == []
    assert newest_runs(commit, dataset="mnist") == []
    assert newest_runs(other, dataset="digits") == newest_runs(other)

    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    filter_string = f"attributes.status = 'FINISHED' and tags.kind = 'seed' and tags.commits LIKE '%{commit}%'"
    assert RUNS_OF_COMMIT.format(commit=commit) == filter_string
    newest: dict[tuple[str, str], str] = {}
    for run in client.search_runs(experiments, filter_string, order_by=["attributes.start_time DESC"]):
        newest.setdefault((run.data.tags["variant"], run.data.tags["seed"]), run.info.run_id)
    assert newest == {(run.variant, str(run.seed)): run.run_id for run in found}


def test_the_runs_that_a_commit_holds(project: Path, uri: str) -> None:
    """A commit's unchanged files belong to it, whenever they were trained; those changed since or never committed do not."""

    def git(*arguments: str) -> str:
        identity = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = os.environ | identity | {"GIT_CONFIG_GLOBAL": os.devnull}
        return subprocess.run(["git", *arguments], cwd=project, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    for number, variant in enumerate(("base", "edited", "late")):
        write_training(project / "runs" / variant, make_run(variant, f"000{number}" * 8))
    git("init", "--quiet")
    git("add", "runs/base", "runs/edited")
    git("commit", "--quiet", "-m", "first")
    first = git("rev-parse", "HEAD")
    path = project / "runs" / "edited" / "run.json"
    path.write_text(path.read_text() + "\n")
    sync()
    assert {run.variant for run in newest_runs(first)} == {"base"}
    git("add", "runs/edited", "runs/late")
    git("commit", "--quiet", "-m", "second")
    second = git("rev-parse", "HEAD")
    for _ in range(2):
        sync()
    assert {run.variant for run in newest_runs(first)} == {"base"}
    assert {run.variant for run in newest_runs(second)} == {"base", "edited", "late"}
    tags = read_store(uri).tags
    assert tags["0000 base, seed 7"]["commits"] == tags["0000 base"]["commits"] == f"{first} {second}"

    # A profile's runs lie in a folder that git ignores; what a commit holds is a copy.
    (project / ".gitignore").write_text("/build\n")
    directory = write_training(project / "build" / "small" / "runs" / "small", make_run("small", "fedc" * 8))
    shutil.copytree(directory, project / "reports" / "small" / "runs" / "small")
    git("add", "reports")
    git("commit", "--quiet", "-m", "third")
    sync(directory.parent)
    assert {run.variant for run in newest_runs(git("rev-parse", "HEAD"))} == {"small"}


def test_a_store_that_cannot_be_read_is_named(project: Path) -> None:
    (project / "mlflow.db").write_bytes(os.urandom(5000))
    with pytest.raises(UserError, match="is damaged: move the file away; mend that, then run the command again"):
        newest_runs("1" * 40)


@pytest.mark.slow
def test_kill_and_resume_continue_one_run(project: Path, uri: str) -> None:
    """The process dies in the middle of its writing; the next one gives all rows of the checkpoint again."""
    directory = write_training(project / "runs" / "base", make_run())
    rows = make_rows()
    with child_training(CHILD, make_run(), rows[:5], None) as child:
        deadline = time.monotonic() + 120
        while sum(read_store(uri).points.values()) == 0 and time.monotonic() < deadline:
            assert child.poll() is None
            time.sleep(0.1)
        child.kill()
    killed = read_store(uri)
    assert killed.points
    assert "RUNNING" in killed.statuses.values()

    assert track(make_run(), directory)
    assert_complete(uri, evaluated=False)


@pytest.mark.slow
def test_first_users_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trainings start at once where there is no store yet: one makes it, the others wait."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with ExitStack() as stack:
        runs = [make_run(f"v{number}", f"000{number}" * 8) for number in range(3)]
        children = [stack.enter_context(child_training(CHILD, run, make_rows(), METRICS)) for run in runs]
        for child in children:
            output, errors = child.communicate(timeout=200)
            assert (output, errors, child.returncode) == ("True\n", "", 0)
    content = read_store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert len(content.statuses) == 12
    assert set(content.statuses.values()) == {"FINISHED"}
    expected = [expected_points(f"000{number}", f"v{number}", evaluated=False) for number in range(3)]
    assert content.points == sum(expected, Counter())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".checkpoints", "mlflow.db"]


@pytest.fixture
def quick_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(live, "PATIENCE", 3.0)


@contextmanager
def silent_server() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def close_within_bound(tracker: Tracker) -> bool:
    started = time.monotonic()
    complete = tracker.close("FINISHED", metrics=METRICS)
    assert time.monotonic() - started < live.LONGEST_CLOSE + 1
    return complete


@pytest.mark.usefixtures("project", "quick_timeouts")
@pytest.mark.parametrize("server", ["closed", "silent"])
def test_a_server_that_does_not_answer(server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.1, 0.2))
    with silent_server() as silent:
        address = silent if server == "silent" else f"http://user:secret@127.0.0.1:{free_port()}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        tracker = Tracker(make_run())
        for row in make_rows():
            tracker.epoch(row)
        time.sleep(3)  # several attempts fail
        assert not close_within_bound(tracker)
        shown = f"http://{address.rpartition('@')[2].removeprefix('http://')}"
        sentence = f"MLflow at {shown} does not answer; training goes on, `make sync` will log this run later.\n"
        assert capsys.readouterr() == ("", sentence)
        write_training(Path("runs/base"), make_run())
        with pytest.raises(UserError, match="does not answer; mend that, then run `make sync` again"):
            sync()


@pytest.mark.slow
def test_a_hanging_store_does_not_hold_up_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends within `close`'s bound although its thread still waits for the server."""
    monkeypatch.chdir(tmp_path)
    code = CHILD.replace("live.FLUSH_SECONDS = 0.1", "live.PATIENCE = 1.0")
    with (
        silent_server() as address,
        child_training(code, make_run(), make_rows(), METRICS, MLFLOW_TRACKING_URI=address, MLFLOW_HTTP_REQUEST_TIMEOUT="250") as child,
    ):
        output, errors = child.communicate(timeout=100)
    assert (output, child.returncode) == ("False\n", 0)
    assert errors == f"MLflow at {address} is slow to answer; training goes on, `make sync` will log this run later.\n"


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    options = ["--backend-store-uri", uri, "--artifacts-destination", str(folder / "artifacts"), "--workers", "1", "--port", str(port)]
    log = (folder / "server.log").open("ab")
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # A group of its own: the server is two processes, and both have to go.
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *options], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    log.close()
    try:
        deadline = time.monotonic() + 150
        while True:
            assert server.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline, (folder / "server.log").read_text()
            # An open port is not yet a server: the process behind it may still be starting.
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                time.sleep(0.3)
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@pytest.mark.slow
def test_a_server_that_dies_midway(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP: half a training is logged, the server is killed, comes back, and `sync` adds the other half."""
    monkeypatch.setattr(live, "FLUSH_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a server that lives may be slow on a busy machine: not this test's fault
    directory = write_training(project / "runs" / "base", make_run())
    (project / "server").mkdir()
    shutil.copyfile(project / "mlflow.db", project / "server" / "mlflow.db")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    rows = make_rows()
    with mlflow_server(project / "server", port) as server:
        tracker = Tracker(make_run())
        for row in rows[:7]:
            tracker.epoch(row)
        deadline = time.monotonic() + 60
        while sum(read_store(address).points.values()) < 7 * 5 + 2 * 5 and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        for row in rows[7:]:
            tracker.epoch(row)
        assert not close_within_bound(tracker)
        assert capsys.readouterr().err == f"MLflow at {address} does not answer; training goes on, `make sync` will log this run later.\n"
    monkeypatch.setattr(live, "PATIENCE", 60.0)
    monkeypatch.setattr(live, "LONGEST_CLOSE", 120.0)
    with mlflow_server(project / "server", port):
        sync()
        assert capsys.readouterr().out == f"base: {ALL_POINTS - 45} points, 6 files added, 4 runs set to finished\n"
        assert_complete(address)
        assert read_store(address).artifacts["0123 base"] == artifacts_of(directory)
        sync()
        assert capsys.readouterr().out == "base: complete\n"
        # A whole training over HTTP, live.
        assert track(make_run(training_id="fedc" * 8), directory)
        assert read_store(address).points == expected_points() + expected_points("fedc", evaluated=False)
        # One that diverged, and what is read back of it.
        wild = make_run("wild", "abcd" * 8) | {"git_dirty": False}
        write_diverged(project / "runs" / "wild", wild)
        sync()
        sync()
        assert capsys.readouterr().out.splitlines()[3] == "wild: complete"
        assert_diverged(newest_runs(wild["git_commit"]))
    assert not (project / "mlartifacts").exists()


@pytest.mark.slow
def test_a_store_that_comes_back_gets_the_whole_run(
    project: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds the database for longer than MLflow waits, then lets go of it."""
    monkeypatch.setattr("pipeline.tracking.store._BUSY_ATTEMPTS", 1)
    monkeypatch.setattr("pipeline.tracking.store._BUSY_SECONDS", 1.0)
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.1, 0.2))
    directory = write_training(project / "runs" / "base", make_run())
    with closing(sqlite3.connect(project / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        tracker = Tracker(make_run())
        for row in make_rows():
            tracker.epoch(row)
        deadline = time.monotonic() + 100
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.2)
            said = capsys.readouterr().err
        assert said == "The MLflow store mlflow.db is locked by another program; training goes on, `make sync` will log this run later.\n"
        other.execute("ROLLBACK")
    assert tracker.close("FINISHED", metrics=METRICS, artifacts=[directory / name for name in TRAIN_FILES])
    assert capsys.readouterr().err == "The MLflow store mlflow.db answers again and has this run.\n"
    assert_complete(uri, evaluated=False)


def test_a_damaged_database_is_named_and_left_as_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = os.urandom(5000)
    (project / "mlflow.db").write_bytes(damaged)
    assert not track(make_run(), write_training(project / "runs" / "base", make_run()))
    (first,) = capsys.readouterr().err.splitlines()
    assert first == "The MLflow store mlflow.db is damaged: move the file away; training goes on, `make sync` will log this run later."
    with pytest.raises(UserError, match="is damaged: move the file away; mend that"):
        sync_command([])
    assert (project / "mlflow.db").read_bytes() == damaged


@pytest.mark.slow
def test_a_disk_without_room(project: Path, uri: str) -> None:
    """The kernel refuses to let any file grow beyond what the database has."""
    size = (project / "mlflow.db").stat().st_size
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    with child_training(limit + CHILD, make_run(), make_rows() * 200, METRICS) as child:
        output, errors = child.communicate(timeout=200)
    sentence = "The disk of the MLflow store mlflow.db is full or fails; training goes on, `make sync` will log this run later.\n"
    assert (output, errors, child.returncode) == ("False\n", sentence, 0)
    write_training(project / "runs" / "base", make_run())
    sync()
    assert_complete(uri)


def test_faults_of_sqlite_have_names(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as full:
            database.execute("CREATE TABLE t (x)")
        database.execute("PRAGMA query_only = 1")
    assert explain(full.value, uri) == "The disk of the MLflow store mlflow.db is full or fails"
    (tmp_path / "other.db").touch()
    with (
        closing(sqlite3.connect(f"file:{tmp_path / 'other.db'}?mode=ro", uri=True)) as database,
        pytest.raises(sqlite3.OperationalError) as e,
    ):
        database.execute("CREATE TABLE t (x)")
    assert "cannot be opened for writing" in explain(e.value, uri)
    assert explain(ZeroDivisionError("x" * 1000), uri).startswith("The MLflow store mlflow.db failed (ZeroDivisionError: xxx")
    assert len(explain(ZeroDivisionError("x" * 1000), uri)) < 250


def test_a_deleted_experiment_is_named(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = init_store("digits", uri=uri)
    number = store.experiment("digits")
    store.call("delete_experiment", number)
    assert not Tracker(make_run()).close("FINISHED")
    command = f"mlflow experiments restore --experiment-id {number}"
    assert capsys.readouterr().err.startswith(
        f"The experiment vit-ablations/digits is deleted in the MLflow store mlflow.db: bring it back with `{command}`;"
    )
    store.call("restore_experiment", number)
    assert not Tracker(make_run()).close("FINISHED")
    assert read_store(uri).statuses == {"0123 base": "RUNNING"}


def test_a_store_that_was_moved_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = project / "old", project / "new"
    old.mkdir()
    shutil.move(project / "mlflow.db", old)
    monkeypatch.chdir(old)
    init_store("digits")
    old.rename(new)
    monkeypatch.chdir(new)
    write_training(new / "runs" / "base", make_run())
    with pytest.raises(UserError, match=r"The MLflow store mlflow.db was made in .*/old, which is gone: move it away"):
        sync()


def test_creation_after_a_kill_during_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed creation leaves is not taken for a store, whatever is in it; nor is an empty file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for leftover in ("mlflow.db.new", "mlflow.db.new-journal", "mlflow.db.lock"):
        (tmp_path / leftover).write_bytes(os.urandom(100))
    (tmp_path / "mlflow.db").touch()
    assert init_store("digits").experiment("digits")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


@pytest.mark.slow
def test_a_database_of_an_earlier_mlflow_is_migrated(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real earlier schema: MLflow's own migrations, stopped one before the last."""
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    engine = create_engine(f"sqlite:///{tmp_path / 'mlflow.db'}")
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(f"sqlite:///{tmp_path / 'mlflow.db'}")
    scripts = ScriptDirectory.from_config(config)
    [head] = scripts.get_heads()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, scripts.get_revision(head).down_revision)
    engine.dispose()
    directory = write_training(tmp_path / "runs" / "base", make_run())
    assert track(make_run(), directory)
    assert_complete(f"sqlite:///{tmp_path / 'mlflow.db'}", evaluated=False)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, closing(sqlite3.connect(empty_database)) as fresh:
        query = "SELECT version_num FROM alembic_version"
        assert database.execute(query).fetchall() == fresh.execute(query).fetchall()


@pytest.mark.parametrize("name", ["with space", "č#ü", "100%25?"])
def test_unusual_folder_names(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / name
    folder.mkdir()
    shutil.move(project / "mlflow.db", folder)
    monkeypatch.chdir(folder)
    assert track(make_run(), write_training(folder / "runs" / "base", make_run()))
    assert_complete(store_uri(), evaluated=False)
    assert len(list((folder / "mlartifacts").rglob("metrics.json"))) == 1


def test_a_lock_is_held_by_one_and_left_by_none(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a.lock"
    with locked(path, 0), pytest.raises(StoreBusy), locked(path, 0.2):
        pass
    assert not path.exists()
    code = f"""
from pathlib import Path
from pipeline.tracking.store import locked
with locked(Path({str(path)!r}), 0):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreBusy), locked(path, 0):
            pass
        holder.kill()
        holder.wait()
        with locked(path, 0):
            assert path.exists()


def test_command_ui_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"There is no mlflow\.db in .*: run `make demo` or `dvc repro` first"):
        ui_command([])
    (tmp_path / "mlflow.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=rf"Port {port} is taken: choose another one, for example --port \d+"):
            ui_command(["--port", str(port)])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@mlflow.example:5000")
    ui_command([])
    assert capsys.readouterr().out == "MLFLOW_TRACKING_URI names a server: open http://mlflow.example:5000 in a browser.\n"


@pytest.mark.slow
def test_command_ui_serves_the_store(project: Path, uri: str) -> None:
    assert track(make_run(), write_training(project / "runs" / "base", make_run()))
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline.tracking.ui", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            assert f"http://127.0.0.1:{port}".encode() in server.stdout.readline()
            deadline = time.monotonic() + 150
            while time.monotonic() < deadline:
                assert server.poll() is None
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.3)
            assert read_store(f"http://127.0.0.1:{port}") == read_store(uri)
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def test_sync_without_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sync_command([])
    assert capsys.readouterr().out == "There is no finished training in runs/ yet: run `make demo` or `dvc repro` first.\n"
