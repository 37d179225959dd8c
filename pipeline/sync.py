"""Completes an MLflow store from the files in runs/: evaluations, short trainings, and all that was missed while it was down.

`make sync` is `python -m pipeline.sync` in the folder that holds runs/; the report stage calls `sync`.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.errors import UserError, run_command
from pipeline.provenance import committed
from pipeline.runner.results import WEIGHTS, read_run
from pipeline.tracking.recorder import REQUIRED, Added, Recorder, TimedRow, milliseconds, training_lock
from pipeline.tracking.store import Store, StoreBusy, explain, locked, store_uri
from pipeline.training.records import read_epochs

PICTURES = Path(".checkpoints/figures")  # where the report stage draws them
# Kept with the parent run: files of runs/VARIANT, and in a folder `evaluation` those of evaluations/VARIANT.
_FILES = ("run.json", "metrics.json", "epochs.csv")
_EVALUATION_FILES = ("metrics.json", "seeds.csv", "confusion.csv")


class _Evaluation(NamedTuple):
    metrics: dict[str, Any]
    seeds: dict[int, dict[str, float]]
    files: list[Path]


class _Training(NamedTuple):
    run: dict[str, Any]
    rows: list[TimedRow]
    metrics: dict[str, Any]
    evaluation: _Evaluation | None  # as long as the evaluate stage has not run on this training: None
    files: list[Path]
    pictures: list[Path]
    commit: str | None  # the one checked out, where it has these files


def main(argv: list[str]) -> None:
    description = "Completes the MLflow store from runs/ and evaluations/, without doubles."
    argparse.ArgumentParser(prog="python -m pipeline.sync", description=description).parse_args(argv)
    sync()


def sync(runs_dir: Path = Path("runs"), *, uri: str | None = None, figures: Path = PICTURES) -> None:
    """Adds what the store lacks of every finished training under `runs_dir`, and prints a line for each.

    Args:
        runs_dir: its sibling `evaluations` holds the evaluations.
        figures: a folder with VARIANT.png, a picture to keep with the variant's run; one drawn before the training is left out.

    Raises:
        UserError: the store cannot be used, or files of a training are damaged (all others have been logged by then).
    """
    directories = sorted(path.parent for path in runs_dir.glob("*/run.json"))
    if not directories:
        print(f"There is no finished training in {runs_dir}/ yet: run `make demo` or `dvc repro` first.")
        return
    commit, held = committed([path for directory in directories for path in _identity(directory)])
    address = store_uri(uri)
    damaged: list[str] = []
    try:
        store = Store(address)
        for directory in directories:
            try:
                training = _read(directory, figures, commit if held.issuperset(_identity(directory)) else None)
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


def _identity(directory: Path) -> list[Path]:
    """The files that tell a training from any other."""
    return [path for path in (directory / "run.json", directory / "epochs.csv") if path.exists()]


def _complete(store: Store, training: _Training) -> Added:
    recorder = Recorder(store, training.run)
    recorder.add(training.rows)
    recorder.summary(training.metrics)
    if (evaluation := training.evaluation) is not None:
        recorder.summary(evaluation.metrics, "evaluation.")
        for seed, values in evaluation.seeds.items():
            recorder.seed_summary(seed, values, "evaluation.")
        recorder.files(evaluation.files, "evaluation")
    recorder.files(training.files)
    recorder.files(training.pictures, "figures")
    recorder.finish("FINISHED", milliseconds(training.run["finished"]))
    if training.commit is not None:
        recorder.belongs_to(training.commit)
    return recorder.added


def _read(directory: Path, figures: Path, commit: str | None) -> _Training:
    """The files of a training. Raises UserError, OSError, ValueError, KeyError or TypeError when one is damaged."""
    run = read_run(directory)
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
    picture = figures / f"{directory.name}.png"
    is_current = picture.exists() and picture.stat().st_mtime >= (directory / "run.json").stat().st_mtime
    return _Training(
        run,
        rows,
        _read_json(directory / "metrics.json"),
        _read_evaluation(directory, run),
        [directory / name for name in _FILES],
        [picture] if is_current else [],
        commit,
    )


def _read_evaluation(directory: Path, run: dict[str, Any]) -> _Evaluation | None:
    """What the evaluate stage found; None where it has not been here since these weights were trained."""
    folder = directory.parent.parent / "evaluations" / directory.name
    if not (folder / "inputs.json").exists():
        return None
    if _read_json(folder / "inputs.json")["weights"] != run["outputs"][WEIGHTS]:
        return None
    with (folder / "seeds.csv").open(newline="", encoding="utf-8") as file:
        values = {int(row.pop("seed")): {name: float(value) for name, value in row.items()} for row in csv.DictReader(file)}
    if sorted(values) != sorted(run["seeds"]):
        raise ValueError("evaluations/ does not have exactly the seeds of run.json")
    metrics = _read_json(folder / "metrics.json")
    columns = [name for name in next(iter(values.values())) if name not in metrics]
    means = {name: fmean(row[name] for row in values.values()) for name in columns}
    return _Evaluation(means | metrics, values, [folder / name for name in _EVALUATION_FILES])


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a mapping")
    return content


if __name__ == "__main__":
    run_command(main)
