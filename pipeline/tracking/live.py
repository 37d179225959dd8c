"""MLflow beside a running training: a daemon thread writes, the training never waits for it and never sees its faults."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.tracking.recorder import Recorder, TimedRow, now, training_lock
from pipeline.tracking.store import Store, display_name, experiment_name, explain, locked, store_uri
from pipeline.training.records import EpochRow

# Importing MLflow, opening the store and logging take about three seconds of a core, which a training on the CPU would have. To keep this
# below 2 % of two cores' work, a training that is FINISHED sooner is left to `sync`, which opens the store once for all.
START_SECONDS = 90.0
FLUSH_SECONDS = 5.0  # between two batches
RETRY_SECONDS = (30.0, 600.0)  # after a fault: the first and the longest pause
PATIENCE = 10.0  # `close` gives up after this long without an answer from the store ...
MAX_CLOSE_SECONDS = 60.0  # ... and after this long in any case


class Tracker:
    """Logs a training while it runs. No method raises; only `close` waits, for a bounded time.

    A training that was killed goes on in its former runs: it gives the rows of its checkpoint again, and those in the store are skipped.

    Args:
        run: what run.json will hold; "finished" is not there yet.
        start_after: seconds before the store is opened; a training that is FINISHED sooner is left to `sync`.
    """

    def __init__(self, run: Mapping[str, Any], *, start_after: float = START_SECONDS) -> None:
        self._run = dict(run)
        self._uri = store_uri()
        self._delay = start_after
        self._lock_path = training_lock(run)
        self._rows: list[TimedRow] = []
        self._end: tuple[str, Mapping[str, Any], Sequence[Path]] | None = None
        self._closing = threading.Event()
        self._store: Store | None = None
        self._said = False
        self._complete = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def epoch(self, row: EpochRow) -> None:
        """Takes one epoch of one seed; returns at once."""
        self._rows.append(TimedRow(row, now()))

    def origins(self, trainings: Sequence[Mapping[str, Any]]) -> None:
        """Takes what run.json will hold as `trainings`, before the epochs of seeds that were trained earlier."""
        self._run["trainings"] = trainings

    def close(self, status: str, *, metrics: Mapping[str, Any] | None = None, artifacts: Sequence[Path] = ()) -> bool:
        """Ends the run as FINISHED, FAILED or KILLED.

        Args:
            metrics: those of run.json.
            artifacts: files to keep with the parent run.

        Returns:
            Whether the store has everything. If not, a line has said so, or the training is left to `sync`.
        """
        self._end = (status, metrics or {}, artifacts)
        self._closing.set()
        begun = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.05)
            store, moment = self._store, time.monotonic()
            # Until the store is open, mlflow is being imported, which always ends.
            silent = store is not None and moment - max(store.last_answer, begun) > PATIENCE
            if silent or moment - begun > MAX_CLOSE_SECONDS:
                self._say(f"{display_name(self._uri)} is slow to answer")
                return False
        return self._complete

    def _work(self) -> None:
        """The thread: writes what is new, again and again after faults, and a last time when closing."""
        # Without a delay nothing is left to `sync`, even if `close` comes first.
        if self._delay and self._closing.wait(self._delay) and self._end is not None and self._end[0] == "FINISHED":
            return
        recorder: Recorder | None = None
        pause, written = 0.0, 0
        with ExitStack() as lock:
            is_locked = False
            while True:
                last = self._closing.wait(pause)
                try:
                    if not is_locked:
                        lock.enter_context(locked(self._lock_path, PATIENCE))
                        is_locked = True
                    if self._store is None:
                        self._store = Store(self._uri)
                    if recorder is None:
                        recorder, written = Recorder(self._store, self._run, experiment=experiment_name()), 0
                        recorder.reopen()
                    rows = self._rows[written:]
                    recorder.add(rows)
                    written += len(rows)
                    if last:
                        self._finish(recorder)
                    pause = FLUSH_SECONDS
                except Exception as error:
                    # Whether the failed call arrived is unknown, so the next recorder looks at what the store has.
                    recorder = None
                    self._say(explain(error, self._uri))
                    pause = min(max(2 * pause, RETRY_SECONDS[0]), RETRY_SECONDS[1])
                if last:
                    break
        if self._said and self._complete:
            _print(f"{display_name(self._uri)} answers again and has this run.")

    def _finish(self, recorder: Recorder) -> None:
        assert self._end is not None, "`close` sets it before it wakes the thread"
        status, metrics, artifacts = self._end
        recorder.counts(metrics)
        recorder.files(artifacts)
        self._complete = recorder.finish(status, now())
        if not self._complete and not self._said:
            self._said = True
            _print("MLflow lacks some epochs of this run; `make sync` will add them.")

    def _say(self, clause: str) -> None:
        """Says what is wrong, the first time."""
        if not self._said:
            self._said = True
            _print(f"{clause}; training goes on, `make sync` will log this run later.")


def _print(sentence: str) -> None:
    print(sentence[:1].upper() + sentence[1:], file=sys.stderr, flush=True)
