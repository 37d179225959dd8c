"""The results of a commit out of an MLflow store, as `load` gives them out of files: the same numbers, to the last bit."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.study.files import CURVES, LATER_CURVES, REPEATED, TIMINGS, CommitFiles, described, in_order, locate
from pipeline.study.git import Repository
from pipeline.study.study import Study
from pipeline.study.training import Training
from pipeline.tracking import SeedRun, newest_runs
from pipeline.tracking.store import database_path, display_name, sqlite_uri, store_uri

_KEYS = {"seconds": "epoch_seconds"}  # of curves that MLflow's runs call otherwise
_EVALUATION = "evaluation."  # begins the names of what the evaluation found


class _Untimed(CommitFiles):
    """The files at a commit without its timings, which no run holds."""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        return super().read(path for path in paths if not path.endswith(TIMINGS.as_posix()))


def address(folder: Path) -> str:
    """Of the folder's own store, as build/preview has one, unless MLFLOW_TRACKING_URI names another; else of the working directory's."""
    own = folder / "mlflow.db"
    return store_uri(sqlite_uri(own) if own.is_file() and "MLFLOW_TRACKING_URI" not in os.environ else None)


def read(repository: Repository, revision: str, folder: str | None, store: str) -> Study:
    """The newest finished runs of a commit, as `newest_runs` finds them.

    Args:
        folder: as for `load`; where its params.yaml names the data set, runs on others are left out.
        store: address of an MLflow store, or a SQLite file.

    Raises:
        UserError: no such commit, no store, a store that cannot be read, or one without finished runs of the commit.
    """
    commit = repository.commit(revision)
    uri = store if "://" in store else sqlite_uri(Path(store))
    if (path := database_path(uri)) is not None and not path.is_file():
        raise UserError(f"There is no MLflow store {path.name} in {path.parent.name}/ yet: run `make sync`, or name another store.")
    files = _Untimed(repository, commit.id)
    prefix = locate(files, folder) or (f"{folder}/" if folder else "")
    order, dataset = described(files, prefix)
    runs = newest_runs(commit.id, dataset=dataset, uri=uri)
    place = display_name(uri).removeprefix("the ")
    if not runs:
        raise UserError(f"The {place} has no finished runs of commit {revision}: check that commit out and run `make sync` there.")
    if len(datasets := sorted({run.dataset for run in runs})) > 1:
        raise UserError(f"The {place} has runs of commit {revision} on {', '.join(datasets)}: say with --in which study is meant.")
    by_variant: dict[str, list[SeedRun]] = defaultdict(list)
    for run in runs:
        by_variant[run.variant].append(run)
    trainings, left_out = {}, {}
    for variant, seeds in in_order(by_variant, order).items():
        training = _training(variant, seeds)
        if training is None:
            left_out[variant] = "not all epochs in MLflow"
        else:
            trainings[variant] = training
    if not trainings:
        raise UserError(f"The {place} lacks epochs of every run of commit {revision}: run `make sync`.")
    return Study(place, prefix, trainings, files, left_out)


def _training(variant: str, runs: Sequence[SeedRun]) -> Training | None:
    """A training from the runs of its seeds; None where some are gone."""
    newest = max(runs, key=lambda run: run.started)
    record = newest.record
    # Two trainings of one commit are not one sample; of the older one, seeds are left that the newer does not have.
    by_seed = {run.seed: run for run in runs if run.record["training_id"] == record["training_id"]}
    if by_seed.keys() != set(record["seeds"]):
        return None
    runs = [by_seed[seed] for seed in record["seeds"]]
    if {len(curve) for run in runs for curve in run.curves.values()} != {record["config"]["train"]["epochs"]}:
        return None
    curves = {name: np.array([run.curves[_KEYS.get(name, name)] for run in runs]) for name in (*CURVES, *LATER_CURVES)}
    evaluated = [key for key in newest.metrics if key.startswith(_EVALUATION)]
    columns = {key.removeprefix(_EVALUATION): np.array([run.metrics[key] for run in runs]) for key in evaluated}
    found = {name: column for name, column in columns.items() if name not in REPEATED}
    sizes = [int(newest.metrics[key]) if key in newest.metrics else None for key in ("parameters", "flops")]
    return Training(variant, record, tuple(record["seeds"]), curves, sizes[0], sizes[1], found if evaluated else None)
