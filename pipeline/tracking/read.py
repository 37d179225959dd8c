"""Trainings read back from an MLflow store: run.json, which the parent run keeps, and what the evaluation found, from the seeds' runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.errors import UserError
from pipeline.tracking.store import Store, database_path, display_name, explain, sqlite_uri, store_uri

_EVALUATION = "evaluation."  # begins the names of what the evaluation found


def address(folder: Path) -> str:
    """The address of a folder's own store, if it has one and MLFLOW_TRACKING_URI names none; else of the working directory's."""
    own = folder / "mlflow.db"
    return store_uri(sqlite_uri(own) if own.is_file() and "MLFLOW_TRACKING_URI" not in os.environ else None)


def trainings(ids: Collection[str], store: str) -> dict[str, tuple[dict[str, Any], Mapping[str, list[float]] | None]]:
    """By its `training_id`, run.json of each training that the store holds whole, and its evaluation's columns, in the order of its seeds.

    Args:
        store: address of an MLflow store, or a SQLite file.

    Raises:
        UserError: there is no store, or it cannot be read.
    """
    uri = store if "://" in store else sqlite_uri(Path(store))
    if (path := database_path(uri)) is not None and not path.is_file():
        raise UserError(f"There is no MLflow store {path.name} in {path.parent.name}/ yet: run `make sync`, or name another store.")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    found: dict[str, tuple[dict[str, Any], Mapping[str, list[float]] | None]] = {}
    try:
        opened = Store(uri)
        runs = list(opened.runs((one.experiment_id for one in opened.experiments()), "attributes.status = 'FINISHED'"))
        for run in runs:  # the newest of a training is the last to be taken
            # One that `make train` has ended has no run.json before its stage has written it and `sync` added it.
            if run.data.tags.get("kind") == "parent" and (id := run.data.tags["training.id"]) in ids and "sha256.run.json" in run.data.tags:
                with TemporaryDirectory() as folder:
                    record = json.loads(Path(opened.call("download_artifacts", run.info.run_id, "run.json", folder)).read_bytes())
                parts = [one.data for one in runs if one.data.tags.get("mlflow.parentRunId") == run.info.run_id]
                own = {part.tags.get("seed"): part.metrics for part in parts}
                seeds = [own[str(seed)] for seed in record["seeds"] if str(seed) in own]
                if len(seeds) == len(record["seeds"]):
                    names = [name for name in seeds[0] if name.startswith(_EVALUATION) and all(name in one for one in seeds)]
                    columns = {name.removeprefix(_EVALUATION): [_restored(one[name]) for one in seeds] for name in names}
                    found[id] = record, columns or None
    except Exception as error:
        raise UserError(f"{explain(error, uri)}; mend that, then run the command again.") from None
    if not found:
        where = display_name(uri).removeprefix("the ")
        raise UserError(f"The {where} has no finished runs of these trainings: check their commit out and run `make sync` there.")
    return found


def _restored(value: float) -> float:
    """MLflow keeps the largest float in infinity's place."""
    return value if abs(value) < sys.float_info.max else value * 2
