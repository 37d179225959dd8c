"""The results of a folder or a commit, read from an MLflow store: the same numbers as `load` reads from files, to the last bit."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.study.files import CURVES, REPEATED
from pipeline.study.study import Study
from pipeline.study.training import Training
from pipeline.tracking.query import SeedRun, runs_of
from pipeline.tracking.store import database_path, display_name, sqlite_uri, store_uri

_KEYS = {"seconds": "epoch_seconds"}  # curves that have another name in MLflow's runs
_EVALUATION = "evaluation."  # begins the names of what the evaluation found


def address(folder: Path) -> str:
    """The address of the folder's own store, if it has one and MLFLOW_TRACKING_URI names none; else of the working directory's."""
    own = folder / "mlflow.db"
    return store_uri(sqlite_uri(own) if own.is_file() and "MLFLOW_TRACKING_URI" not in os.environ else None)


def read(study: Study, store: str, *, name: str) -> Study:
    """The same trainings, with what the store's finished runs say of them.

    Args:
        study: read from files; its trainings' ids say which runs to read.
        store: address of an MLflow store, or a SQLite file.
        name: of the files, in sentences.

    Raises:
        UserError: no store, one that cannot be read, or one without finished runs of these trainings.
    """
    uri = store if "://" in store else sqlite_uri(Path(store))
    if (path := database_path(uri)) is not None and not path.is_file():
        raise UserError(f"There is no MLflow store {path.name} in {path.parent.name}/ yet: run `make sync`, or name another store.")
    by_id: dict[str, list[SeedRun]] = defaultdict(list)
    for run in runs_of([training.id for training in study.trainings.values() if training.id], uri):
        by_id[run.record["training_id"]].append(run)
    place = display_name(uri).removeprefix("the ")
    if not by_id:
        raise UserError(f"The {place} has no finished runs of the trainings of {name}: check that out and run `make sync` there.")
    trainings, left_out = {}, {}
    for variant, expected in study.trainings.items():
        training = _training(variant, by_id[expected.id or ""])
        if training is None:
            left_out[variant] = "not all of its epochs are in MLflow"
        else:
            trainings[variant] = training
    if not trainings:
        raise UserError(f"The {place} lacks epochs of every training of {name}: run `make sync`.")
    return replace(study, place=place, trainings=trainings, left_out=left_out, timed=False)


def _training(variant: str, runs: Sequence[SeedRun]) -> Training | None:
    """A training from the runs of its seeds; None where some are gone."""
    if not runs:
        return None
    newest = max(runs, key=lambda run: run.started)
    record = newest.record
    by_seed = {run.seed: run for run in runs}
    if by_seed.keys() != set(record["seeds"]):
        return None
    runs = [by_seed[seed] for seed in record["seeds"]]
    if {len(curve) for run in runs for curve in run.curves.values()} != {record["config"]["train"]["epochs"]}:
        return None
    curves = {name: np.array([run.curves[_KEYS.get(name, name)] for run in runs]) for name in CURVES}
    # A `sync` that was interrupted may have given a column to some seeds only.
    common = [key for key in newest.metrics if all(key in run.metrics for run in runs)]
    evaluated = [key.removeprefix(_EVALUATION) for key in common if key.startswith(_EVALUATION)]
    found = {name: np.array([run.metrics[f"{_EVALUATION}{name}"] for run in runs]) for name in evaluated if name not in REPEATED}
    sizes = [int(newest.metrics[key]) if key in newest.metrics else None for key in ("parameters", "flops")]
    return Training(variant, record, tuple(record["seeds"]), curves, sizes[0], sizes[1], found if evaluated else None)
