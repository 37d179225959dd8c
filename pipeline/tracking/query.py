"""Trainings, read back from an MLflow store."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.errors import UserError
from pipeline.tracking.record import EPOCH_KEYS
from pipeline.tracking.store import EXPERIMENT, Store, StoreFault, display_name, explain

_DIGEST = "sha256.run.json"  # the tag of a parent run that has its record
_THREADS = 8  # histories are asked for one by one, and a server takes its time for each


@dataclass(frozen=True)
class SeedRun:
    """One seed of one training. Its numbers are bitwise those of run.json and the tables.

    Attributes:
        started: milliseconds since 1970.
        metrics: the last value of each of EPOCH_KEYS, evaluation.NAME, and the training's parameters and flops.
        curves: one value per epoch, by EPOCH_KEYS.
        record: run.json, which its parent run keeps.
    """

    run_id: str
    dataset: str
    variant: str
    seed: int
    started: int
    metrics: Mapping[str, float]
    curves: Mapping[str, list[float]]
    record: Mapping[str, Any]


def runs_of(trainings: Collection[str], uri: str) -> list[SeedRun]:
    """The finished run of each seed of these trainings, ordered by data set, variant and seed.

    Args:
        trainings: by their `training_id`, one of each variant.
        uri: address of the store.

    Raises:
        UserError: the store cannot be read.
    """
    try:
        store = Store(uri)
        with ThreadPoolExecutor(_THREADS) as pool:
            found = [run for runs in pool.map(lambda id: list(search(store, f"tags.`training.id` = '{id}'")), trainings) for run in runs]
        # One that `make train` has ended has no record before its stage has written it and `sync` added it.
        parents = {run.info.run_id: run for run in found if run.data.tags.get("kind") == "parent" and _DIGEST in run.data.tags}
        newest: dict[tuple[str, str, int], Any] = {}
        for run in found:
            # Nor do seeds count whose parent was deleted by hand; `sync` makes new ones.
            if run.info.status == "FINISHED" and run.data.tags.get("mlflow.parentRunId") in parents:
                newest.setdefault((run.data.params["data.dataset"], run.data.tags["variant"], int(run.data.tags["seed"])), run)
        parents = {id: parents[id] for id in {run.data.tags["mlflow.parentRunId"] for run in newest.values()}}
        with ThreadPoolExecutor(_THREADS) as pool:
            records = dict(zip(parents, pool.map(lambda run: _record(store, run), parents.values()), strict=True))
            curves = list(pool.map(lambda run: _curves(store, run.info.run_id), newest.values()))
    except Exception as error:
        raise UserError(f"{explain(error, uri)}; mend that, then run the command again.") from None
    runs = []
    for ((of, variant, seed), run), curve in zip(newest.items(), curves, strict=True):
        parent = parents[run.data.tags["mlflow.parentRunId"]]
        sizes = {key: parent.data.metrics[key] for key in ("parameters", "flops") if key in parent.data.metrics}
        metrics = {key: restored(value) for key, value in (run.data.metrics | sizes).items()}
        runs.append(SeedRun(run.info.run_id, of, variant, seed, run.info.start_time, metrics, curve, records[parent.info.run_id]))
    return sorted(runs, key=lambda run: (run.dataset, run.variant, run.seed))


def search(store: Store, filter_string: str) -> Iterator[Any]:
    """Runs on all data sets, the newest first; those that started in the same moment come in the same order every time."""
    name, token = EXPERIMENT.format(dataset="%"), None
    experiments = [experiment.experiment_id for experiment in store.call("search_experiments", filter_string=f"name LIKE '{name}'")]
    while experiments:
        page = store.call(
            "search_runs",
            experiments,
            filter_string=filter_string,
            order_by=["attributes.start_time DESC", "attributes.run_id ASC"],
            max_results=1000,
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def _curves(store: Store, run_id: str) -> dict[str, list[float]]:
    return {
        key: [restored(point.value) for point in sorted(store.call("get_metric_history", run_id, key), key=lambda point: point.step)]
        for key in EPOCH_KEYS
    }


def _record(store: Store, parent: Any) -> dict[str, Any]:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    files = get_artifact_repository(parent.info.artifact_uri, tracking_uri=store.uri)
    with TemporaryDirectory() as folder:
        content = Path(files.download_artifacts("run.json", folder)).read_bytes()
    if hashlib.sha256(content).hexdigest() != parent.data.tags[_DIGEST]:
        raise StoreFault(f"run.json of the run {parent.info.run_name} in {display_name(store.uri)} is not what was logged")
    record: dict[str, Any] = json.loads(content)
    return record


def restored(stored: float) -> float:
    """The value that was logged: infinite where a store has the largest float."""
    return math.copysign(math.inf, stored) if abs(stored) == sys.float_info.max else stored
