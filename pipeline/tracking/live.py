"""Curves in MLflow while a training runs: a daemon thread that may fail without harm, because `record` writes what is finished anew."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pipeline.tracking.gpus import gpu_points
from pipeline.tracking.record import CURRENT, Point, create, log, mean_points, milliseconds, name_of, now, params_of, points_of, tags_of
from pipeline.tracking.store import Store, experiment_name, explain, store_uri, training_lock
from pipeline.training.records import EpochRow

# Importing MLflow and opening the store take about three seconds of a core, so a training that is over sooner is left to `record`.
START_SECONDS = 90.0
FLUSH_SECONDS = 5.0  # between two batches
CLOSE_SECONDS = 10.0  # for which the end of a training waits


class Live:
    """Logs a training while it runs. No method raises; only `close` waits, for a bounded time.

    Args:
        run: what run.json will hold; "finished" is not there yet.
        start_after: seconds before the store is opened.
    """

    def __init__(self, run: Mapping[str, Any], *, start_after: float = START_SECONDS) -> None:
        self._run, self._uri, self._delay = run, store_uri(), start_after
        self._rows: list[tuple[EpochRow, int]] = []
        self._status, self._ended = "KILLED", threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def epoch(self, row: EpochRow) -> None:
        """Takes one epoch of one seed; returns at once."""
        self._rows.append((row, now()))

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
            sentence = f"{explain(error, self._uri)}; training goes on, `make sync` will log this run later."
            print(sentence, file=sys.stderr, flush=True)

    def _write(self, store: Store) -> None:
        run, experiment, start = self._run, experiment_name(), milliseconds(self._run["started"])
        for one in store.runs([store.experiment(run["dataset"])], f"tags.`training.id` = '{run['training_id']}'"):
            store.discard(one)  # what a kill left; its checkpoint's rows come again
        parent = create(store, run, name_of(run, experiment), start, tags_of(run, experiment) | {CURRENT: "true"})
        log(store, parent, [], params_of(run))
        children: dict[int, str] = {}
        by_epoch: dict[int, list[EpochRow]] = defaultdict(list)
        done, samples, last = 0, 0, False
        while not last:
            last = self._ended.wait(FLUSH_SECONDS)
            new = self._rows[done:]
            points: dict[str, list[Point]] = defaultdict(list)
            for row, ended in new:
                if row.seed not in children:
                    tags = tags_of(run, experiment, row.seed)
                    children[row.seed] = create(store, run, name_of(run, experiment, row.seed), start, tags, parent)
                    log(store, children[row.seed], [], params_of(run) | {"seed": str(row.seed)})
                points[children[row.seed]] += points_of(row.epoch, row[2:], ended)
                by_epoch[row.epoch].append(row)
                if len(by_epoch[row.epoch]) == len(run["seeds"]):
                    points[parent] += mean_points(row.epoch, by_epoch[row.epoch], ended)
            if run["device"] == "cuda":
                points[parent] += gpu_points(samples)
                samples += 1
            for id, of_run in points.items():
                log(store, id, of_run)
            done += len(new)
        for id in (*children.values(), parent):
            store.call("set_terminated", id, status=self._status)
