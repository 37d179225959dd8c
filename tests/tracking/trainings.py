"""Trainings as the stages leave them, and what an MLflow store has to hold of them."""

import math
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.evaluation.records import Evaluation, Records
from pipeline.runner import seeds
from pipeline.training.records import EpochRow
from tests.helpers import ROOT, wait_until

SEEDS, EPOCHS = [3, 0, 7], 4
WEIGHTS = {str(seed): f"{seed:032x}" for seed in SEEDS}  # digests
KEYS = ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "epoch_seconds")
COUNTS = {"n": 3, "diverged": 0, "parameters": 26_000, "flops": 4_000_000}
METRICS = COUNTS | {"test_accuracy_mean": 0.91}
EVALUATION = {"test_accuracy": 0.91, "ensemble_accuracy": 0.93}
COLUMNS = {"shift_1": [0.81, 0.62, 0.7], "attention_entropy": [2.25, 3.5, 3.0]}  # of each seed
# Of the last epoch, which is all that is late in so few: 0.892, 0.925, 0.848. Their spread is 0.0386307, t(2) is 4.302653.
LATE = {
    "late_accuracy": 0.888333, "late_accuracy_sd": 0.038631, "late_accuracy_low": 0.792369, "late_accuracy_high": 0.984297,
    "late_test_error": 0.111667,
}  # fmt: skip


def make_run(variant: str = "base", training_id: str = "0123456789abcdef" * 2) -> dict[str, Any]:
    """What the train stage knows when it starts."""
    return {
        "training_id": training_id, "variant": variant, "stage": f"train@{variant}",
        "config": {
            "data": {"dataset": "digits"},
            "train": {"seeds": SEEDS, "epochs": EPOCHS, "batch_size": 128, "learning_rate": 0.005},
            "model": {"patch": 4, "dim": 32, "final_norm": False, "pool": "cls"},
        },
        "config_hash": "c" * 64, "code_hash": "d" * 64, "data_digest": "e" * 64, "dataset": "digits",
        "git_commit": "f" * 40, "git_dirty": True, "device": "cpu", "device_name": "A processor (2 cores)", "attention": "fused-cpu",
        "versions": {"python": "3.11.7", "torch": "2.15.0"}, "seeds": SEEDS, "started": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip


def make_rows() -> list[EpochRow]:
    """In the order in which seeds side by side end their epochs; numbers whose sums are not exact."""
    return [
        EpochRow(
            seed=seed, epoch=epoch, train_loss=2.3 / epoch + 0.1 * seed, test_loss=2.1 / epoch + 0.07 * seed,
            test_accuracy=1 - 0.3 / epoch - 0.011 * seed, gradient_norm=0.7 / epoch + 0.013 * seed, seconds=0.1 * epoch + 0.3 * seed,
        )
        for epoch in range(1, EPOCHS + 1)
        for seed in SEEDS
    ]  # fmt: skip


def write_training(path: Path, run: dict[str, Any], rows: Sequence[EpochRow] = (), diverged: int = 0) -> Path:
    """The files of a finished and evaluated training, as the stages leave them, with other epochs where `rows` has some.

    `path`: of the variant's file in the store.
    """
    epochs = sorted(rows or make_rows(), key=lambda row: (SEEDS.index(row.seed), row.epoch))
    record = {"finished": "2026-01-02T04:04:05+00:00", "epochs": epochs, "outputs": {"weights": WEIGHTS}}
    seeds.write_record(path, run | record | {"metrics": METRICS | {"diverged": diverged}}, {})
    write_evaluation(path)
    return path


def write_evaluation(path: Path, weights: Mapping[str, str] = WEIGHTS, metrics: dict[str, Any] = EVALUATION) -> None:
    """What the evaluate stage leaves of a training's weights, or of others with these digests."""
    Records(path.parents[2]).write(path.stem, {}, Evaluation({"weights": dict(weights), "data": "e" * 64}, COLUMNS, metrics))


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
            history = client.get_metric_history(run.info.run_id, key)
            content.points.update((name, key, metric.step, round(metric.value, 6) if key in LATE else metric.value) for metric in history)
        # By the address of the run's files: asked by the run's id, MLflow looks the run and its models up again for each folder and file.
        repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=uri)
        content.artifacts[name] = {path: Path(repository.download_artifacts(path)).read_bytes() for path in files_of(repository)}
    return content


def expected_points(training: str = "0123", variant: str = "base") -> Counter[tuple[str, str, int, float]]:
    """From the rows by hand, with exact sums."""
    points: Counter[tuple[str, str, int, float]] = Counter()
    rows = make_rows()
    for row in rows:
        points.update((f"{training} {variant}, seed {row.seed}", key, row.epoch, value) for key, value in zip(KEYS, row[2:], strict=True))
    for epoch in range(1, EPOCHS + 1):
        for column, key in enumerate(KEYS, start=2):
            total = sum(Fraction(row[column]) for row in rows if row.epoch == epoch)
            points[f"{training} {variant}", key, epoch, float(total) / len(SEEDS)] += 1
    points.update((f"{training} {variant}", key, 0, float(value)) for key, value in COUNTS.items())
    points.update((f"{training} {variant}", key, 0, value) for key, value in LATE.items())
    points[f"{training} {variant}", "evaluation.ensemble_accuracy", 0, 0.93] += 1
    for key, values in COLUMNS.items():
        points[f"{training} {variant}", f"evaluation.{key}", 0, float(sum(map(Fraction, values)) / 3)] += 1
        points.update(
            (f"{training} {variant}, seed {seed}", f"evaluation.{key}", 0, value) for seed, value in zip(SEEDS, values, strict=True)
        )
    return points


def assert_complete(uri: str) -> Content:
    """Has the store hold the training of `make_run`, whole and once; gives all that it holds."""
    content = read_store(uri)
    assert content.statuses == dict.fromkeys(["0123 base", *(f"0123 base, seed {seed}" for seed in SEEDS)], "FINISHED")
    assert content.points == expected_points()
    return content


def write_diverged(path: Path, run: dict[str, Any]) -> None:
    """A training whose second seed diverges to infinity in epoch 2, and is no number from then on."""
    rows = []
    for row in make_rows():
        if row.seed == SEEDS[1] and row.epoch >= 2:
            value = math.inf if row.epoch == 2 else math.nan
            row = row._replace(train_loss=value, test_loss=value, gradient_norm=value, test_accuracy=0.1)
        rows.append(row)
    write_training(path, run, rows, diverged=1)


@contextmanager
def serving(folder: Path, port: int, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that runs in `folder` and answers; what it says is in server.log."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # A group of its own: the server is two processes, and both have to go.
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *command, "--port", str(port)],
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def answers() -> bool:
        """An open port is not yet a server: the process behind it may still be starting."""
        assert server.poll() is None, (folder / "server.log").read_text()
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return bool(answer.status == 200)
        return False

    try:
        wait_until(answers)
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
