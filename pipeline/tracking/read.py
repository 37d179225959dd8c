"""Trainings read back from an MLflow store: the parent of a whole one keeps its record and its evaluation."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.system.errors import UserError
from pipeline.tracking.record import FILE, RECORD
from pipeline.tracking.store import Store, database_path, display_name, fault, sqlite_uri, store_uri


def address(folder: Path) -> str:
    """The address of the store: MLFLOW_TRACKING_URI, else a folder's own, if it has one, else the working directory's."""
    own = folder / "mlflow.db"
    return store_uri(own if own.is_file() else None)


def trainings(ids: Collection[str], store: str) -> dict[str, tuple[dict[str, Any], Mapping[str, list[float]] | None]]:
    """By its `training_id`, the record of each training that the store holds whole, and its evaluation's columns, in its seeds' order.

    Args:
        store: address of an MLflow store, or a SQLite file.

    Raises:
        UserError: there is no store, or it cannot be read.
    """
    uri = store if "://" in store else sqlite_uri(Path(store))
    if (path := database_path(uri)) is not None and not path.is_file():
        raise UserError(f"There is no MLflow store {path.name} in {path.parent.name}/ yet: run `make sync`, or name another store.")
    found: dict[str, tuple[dict[str, Any], Mapping[str, list[float]] | None]] = {}
    try:
        opened = Store(uri)
        where = f"attributes.status = 'FINISHED' and tags.`{RECORD}` LIKE '_%'"  # others were logged by earlier versions
        for run in opened.runs((one.experiment_id for one in opened.experiments()), where):
            if (id := run.data.tags["training.id"]) in ids:
                with TemporaryDirectory() as folder:
                    content = json.loads(Path(opened.download_artifacts(run.info.run_id, FILE, folder)).read_bytes())
                found[id] = content["run"], content["evaluation"] or None
    except Exception as error:
        raise fault(error, uri, "run the command again") from None
    if not found:
        raise UserError(f"{display_name(uri)} has no finished runs of these trainings: check their commit out and run `make sync` there.")
    return found
