"""Curves in MLflow while a training runs: a daemon thread that may fail without harm, because `record` writes what is finished anew."""

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipeline.tracking.record import CURRENT, SYSTEM, Point, create, log, means, points_of
from pipeline.tracking.store import Store, experiment_name, fault, store_uri, training_lock
from pipeline.training.records import EpochRow

# Importing MLflow and opening the store take about three seconds of a core, so a training that is over sooner is left to `record`.
START_SECONDS = 90.0
FLUSH_SECONDS = 5.0  # between two batches
CLOSE_SECONDS = 10.0  # for which the end of a training waits
_GPU = ("memory_usage_megabytes", "power_usage_watts", "utilization_percentage")  # MLflow's names of what the driver is asked for
_ASKED = ("nvidia-smi", "--query-gpu=memory.used,power.draw,utilization.gpu", "--format=csv,noheader,nounits")


class Live:
    """Logs a training while it runs. No method raises; only `close` waits, for a bounded time.

    Args:
        run: what the record will hold; "finished" is not there yet.
        start_after: seconds before the store is opened.
    """

    def __init__(self, run: Mapping[str, Any], *, start_after: float = START_SECONDS) -> None:
        self._run, self._uri, self._delay = run, store_uri(), start_after
        self._rows: list[tuple[EpochRow, int]] = []
        self._status, self._ended = "KILLED", threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def epoch(self, row: EpochRow) -> None:
        """Takes one epoch of one seed; returns at once. A stack that is trained again may have seeds that nobody asks for any more."""
        if row.seed in self._run["seeds"]:
            self._rows.append((row, _now()))

    def close(self, status: str) -> None:
        """Ends the runs: as FAILED or KILLED, or as SCHEDULED, which is a training that waits for `record`."""
        self._status = status
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        if self._ended.wait(self._delay):
            return
        try:
            with training_lock(self._run["training_id"]):
                self._write(Store(self._uri))
        except Exception as error:
            print(f"Training goes on: {fault(error, self._uri, '`make sync` will log this run')}", file=sys.stderr)

    def _write(self, store: Store) -> None:
        run, where = self._run, store.experiment(self._run["dataset"])
        for one in store.runs([where], f"tags.`training.id` = '{run['training_id']}'"):
            store.discard(one)  # what a kill left; its checkpoint's rows come again
        parent = create(store, where, run, experiment_name())
        store.set_tag(parent, CURRENT, "true")
        children = {seed: create(store, where, run, experiment_name(), seed, parent) for seed in run["seeds"]}
        by_epoch: dict[int, list[EpochRow]] = defaultdict(list)
        done, sample, last = 0, 0, False
        while not last:
            last = self._ended.wait(FLUSH_SECONDS)
            new = self._rows[done:]
            points: dict[str, list[Point]] = defaultdict(list)
            for row, ended in new:
                points[children[row.seed]] += points_of(row, ended)
                by_epoch[row.epoch].append(row)
                if len(by_epoch[row.epoch]) == len(children):
                    points[parent] += points_of(means(by_epoch[row.epoch])[0], ended)
            if run["device"] == "cuda":
                points[parent] += _gpu_points(sample)
            for id, of_run in points.items():
                log(store, id, of_run)
            done, sample = done + len(new), sample + 1
        for id in (*children.values(), parent):
            store.set_terminated(id, status=self._status)


def _gpu_points(sample: int) -> list[Point]:
    """Memory, power and use of each GPU now, as MLflow's system metrics; without what the driver does not tell ("[N/A]")."""
    points: list[Point] = []
    with suppress(OSError, subprocess.SubprocessError):
        for number, line in enumerate(subprocess.run(_ASKED, capture_output=True, text=True, timeout=10).stdout.splitlines()):
            for name, value in zip(_GPU, line.split(","), strict=False):
                with suppress(ValueError):
                    points.append((f"{SYSTEM}gpu_{number}_{name}", float(value), _now(), sample))
    return points


def _now() -> int:
    return time.time_ns() // 1_000_000
