"""A commit's trainings out of MLflow, in the shape in which its text files are read."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.compare.sides import Side
from pipeline.errors import UserError
from pipeline.study import Study, Training
from pipeline.study.files import CURVES, LATER_CURVES, CommitFiles
from pipeline.study.git import Repository
from pipeline.study.results import described, locate
from pipeline.tracking import SeedRun, newest_runs
from pipeline.tracking.store import database_path, display_name, sqlite_uri, store_uri

_NAMES = {"seconds": "epoch_seconds"}  # of curves that MLflow's runs call otherwise
_TAGS = {"code_hash": "code.hash", "data_digest": "data.digest", "device": "device", "device_name": "device.name", "attention": "attention"}


def read_store(repository: Repository, revision: str, folder: str | None = None) -> Side:
    """The newest finished runs of a commit, as `pipeline.tracking.newest_runs` finds them.

    Args:
        folder: as for `sides.read_revision`; where it holds an mlflow.db, as build/preview does, that store is read, unless
            MLFLOW_TRACKING_URI names another.

    Raises:
        UserError: no such commit, no store, a store that cannot be read, or one without finished runs of the commit.
    """
    commit = repository.commit(revision)
    own = repository.root / (folder or "") / "mlflow.db"
    uri = store_uri(sqlite_uri(own) if own.is_file() and "MLFLOW_TRACKING_URI" not in os.environ else None)
    if (path := database_path(uri)) is not None and not path.is_file():
        raise UserError(f"There is no MLflow store {path.name} in {path.parent.name}/ yet: run `make sync`, or set MLFLOW_TRACKING_URI.")
    files = CommitFiles(repository, commit.id)
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
    for variant in sorted(by_variant, key=lambda variant: (order.index(variant) if variant in order else len(order), variant)):
        training = _training(variant, by_variant[variant])
        if training is None:
            left_out[variant] = "not all epochs in MLflow"
        else:
            trainings[variant] = training
    if not trainings:
        raise UserError(f"The {place} lacks epochs of every run of commit {revision}: run `make sync`.")
    return Side(revision, commit, None, Study(place, prefix, trainings, files, left_out))


def _training(variant: str, runs: Sequence[SeedRun]) -> Training | None:
    newest = max(runs, key=lambda run: run.started)
    # Two trainings of one commit are not one sample; of the older one, seeds are left that the newer does not have.
    runs = [run for run in runs if run.tags["training.id"] == newest.tags["training.id"]]
    settings = {key: _value(text) for key, text in newest.params.items() if key not in ("variant", "seed")}
    # As in the text files: the order in which the settings name the seeds.
    named = settings.get("train.seeds")
    if isinstance(named, list):
        runs = sorted(runs, key=lambda run: named.index(run.seed) if run.seed in named else len(named))
    lengths = {len(run.curves[_NAMES.get(name, name)]) for run in runs for name in CURVES}
    if len(lengths) != 1 or 0 in lengths:
        return None
    curves = {}
    for name in (*CURVES, *LATER_CURVES):
        rows = [run.curves.get(_NAMES.get(name, name), []) for run in runs]
        if {len(row) for row in rows} == lengths:
            curves[name] = np.array(rows, dtype=np.float64)
    record: dict[str, Any] = {key: newest.tags[tag] for key, tag in _TAGS.items() if tag in newest.tags}
    record["versions"] = {tag.removeprefix("versions."): value for tag, value in newest.tags.items() if tag.startswith("versions.")}
    record |= {"training_id": newest.tags["training.id"], "config": settings}
    sizes = [int(newest.metrics[key]) if key in newest.metrics else None for key in ("parameters", "flops")]
    return Training(variant, record, tuple(run.seed for run in runs), curves, sizes[0], sizes[1])


def _value(text: str) -> Any:
    """A setting as it was before MLflow made it text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return list(value) if isinstance(value, tuple) else value
