"""Completes an MLflow store from the files in runs/: evaluations, short trainings, and all that was missed while it was down."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import UserError
from pipeline.tracking.recorder import ARTIFACTS, REQUIRED, Added, Recorder, TimedRow, milliseconds, training_lock
from pipeline.tracking.store import Store, StoreBusy, explain, locked, store_uri
from pipeline.training.records import read_epochs


class _Training(NamedTuple):
    run: dict[str, Any]
    rows: list[TimedRow]
    metrics: dict[str, Any]
    evaluation: dict[str, Any]  # empty as long as the evaluate stage has not run on this training
    files: list[Path]


def sync(runs_dir: Path = Path("runs"), *, uri: str | None = None, figures: Path | None = None) -> None:
    """Adds what the store lacks of every finished training under `runs_dir`, and prints a line for each.

    Args:
        figures: a folder with VARIANT.png, a picture to keep with the variant's run.

    Raises:
        UserError: the store cannot be used, or files of a training are damaged (all others have been logged by then).
    """
    directories = sorted(path.parent for path in runs_dir.glob("*/run.json"))
    if not directories:
        print(f"There is no finished training in {runs_dir}/ yet: run `make demo` or `dvc repro` first.")
        return
    address = store_uri(uri)
    damaged: list[str] = []
    try:
        store = Store(address)
        for directory in directories:
            try:
                training = _read(directory, figures)
            except (UserError, OSError, ValueError, KeyError, TypeError) as error:
                print(f"{directory.name}: left out, {error}", flush=True)
                damaged.append(str(directory))
                continue
            try:
                with locked(training_lock(training.run), 0):
                    print(f"{directory.name}: {_complete(store, training)}", flush=True)
            except StoreBusy:
                print(f"{directory.name}: another process logs it at the moment; run `make sync` again afterwards", flush=True)
    except Exception as error:
        raise UserError(f"{explain(error, address)}; mend that, then run `make sync` again.") from None
    if damaged:
        raise UserError(f"Damaged files in {', '.join(damaged)}: restore them with `dvc checkout` or `git checkout`.")


def _complete(store: Store, training: _Training) -> Added:
    recorder = Recorder(store, training.run)
    recorder.add(training.rows)
    recorder.summary(training.metrics)
    recorder.summary(training.evaluation, "evaluation.")
    recorder.files(training.files)
    recorder.finish("FINISHED", milliseconds(training.run["finished"]))
    return recorder.added


def _read(directory: Path, figures: Path | None) -> _Training:
    """The files of a training. Raises UserError, OSError, ValueError, KeyError or TypeError when one is damaged."""
    run = _read_json(directory / "run.json")
    if missing := sorted({*REQUIRED, "finished"} - run.keys()):
        raise ValueError(f"run.json has no {missing[0]}")
    rows, ended, started = [], 0.0, milliseconds(run["started"])
    # The file has no clock times: a seed's epochs are laid end to end from the start of the training.
    for row in read_epochs(directory / "epochs.csv"):
        ended = row.seconds if row.epoch == 1 else ended + row.seconds
        rows.append(TimedRow(row, started + round(1000 * ended)))
    expected = [(seed, epoch) for seed in run["seeds"] for epoch in range(1, run["config"]["train"]["epochs"] + 1)]
    if sorted((timed.row.seed, timed.row.epoch) for timed in rows) != sorted(expected):
        raise ValueError("epochs.csv does not have exactly the seeds and epochs of run.json")
    metrics = _read_json(directory / "metrics.json")
    files = [path for name in ARTIFACTS if (path := directory / name).exists()]
    evaluation: dict[str, Any] = {}
    if (path := directory / "evaluation.json").exists():
        evaluation = _read_json(path)
        # Between two stages the file can still be that of the training before; then both its numbers are off.
        same = math.isclose(evaluation["test_accuracy"], metrics["test_accuracy_mean"], abs_tol=1e-9)
        if not (same and math.isclose(evaluation["test_loss"], metrics["test_loss_mean"], rel_tol=1e-4)):
            evaluation = {}
            files = [path for path in files if path.name not in ("evaluation.json", "confusion.csv")]
    if figures is not None and (picture := figures / f"{directory.name}.png").exists():
        files.append(picture)
    return _Training(run, rows, metrics, evaluation, files)


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a mapping")
    return content
