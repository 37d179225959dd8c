"""MLflow beside a running training: a daemon thread writes, the training never waits for it and never sees its faults."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.tracking.recorder import Recorder, TimedRow, now, training_lock
from pipeline.tracking.store import Store, display_name, explain, locked, store_uri
from pipeline.training.records import EpochRow

# Importing MLflow, opening the store and logging take about three seconds of a core, which on the CPU are seconds that training
# does not get. So that they stay below 2 % of two cores' work, a training that is FINISHED sooner than this is left to `sync`, which
# opens the store once for all of them; the report stage runs it.
START_SECONDS = 90.0
FLUSH_SECONDS = 5.0  # between two batches
RETRY_SECONDS = (30.0, 600.0)  # after a fault: the first and the longest pause
PATIENCE = 10.0  # `close` gives up after this long without an answer from the store ...
LONGEST_CLOSE = 60.0  # ... and after this long in any case


class _Writer:
    """A thread that brings `_write` to success: again and again after faults, a last time when closing."""

    def __init__(self, run: Mapping[str, Any], uri: str | None, on_fault: str, write: Callable[[Recorder], bool], *, delay: float) -> None:
        self._delay = delay
        self._skip = False
        self._run = run
        self._uri = store_uri(uri)
        self._on_fault = on_fault
        self._write = write
        self._lock_path = training_lock(run)
        self._store: Store | None = None
        self._recorder: Recorder | None = None
        self._closing = threading.Event()
        self._said = False
        self._complete = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def close(self, *, skip: bool = False) -> bool:
        """Lets the thread finish, for a bounded time; with `skip`, without opening a store that is not open yet.

        Returns:
            Whether everything is in the store.
        """
        self._skip = skip
        self._closing.set()
        begun = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.05)
            store, moment = self._store, time.monotonic()
            # Until the store is open, the time goes into importing mlflow, which always ends.
            silent = store is not None and moment - max(store.last_answer, begun) > PATIENCE
            if silent or moment - begun > LONGEST_CLOSE:
                self._say(f"{display_name(self._uri)} is slow to answer; {self._on_fault}.")
                return False
        return self._complete

    def _work(self) -> None:
        # Without a delay nothing is left out, even if `close` comes before this thread has got here.
        if self._delay and self._closing.wait(self._delay) and self._skip:
            return
        pause = 0.0
        with ExitStack() as stack:
            is_locked = False
            while True:
                last = self._closing.wait(pause)
                try:
                    if not is_locked:
                        stack.enter_context(locked(self._lock_path, PATIENCE))
                        is_locked = True
                    if self._store is None:
                        self._store = Store(self._uri)
                    if self._recorder is None:
                        self._recorder = Recorder(self._store, self._run)
                    self._complete = self._write(self._recorder)
                    pause = FLUSH_SECONDS
                except Exception as error:
                    # Whether the failed call arrived is unknown: the next recorder looks at what the store has.
                    self._recorder = None
                    self._say(f"{explain(error, self._uri)}; {self._on_fault}.")
                    pause = min(max(2 * pause, RETRY_SECONDS[0]), RETRY_SECONDS[1])
                if last:
                    break
        if self._said and self._complete:
            _print(f"{display_name(self._uri)} answers again and has this run.")

    def _say(self, sentence: str) -> None:
        if not self._said:
            self._said = True
            _print(sentence)


def _print(sentence: str) -> None:
    print(sentence[:1].upper() + sentence[1:], file=sys.stderr, flush=True)


class Tracker:
    """Logs a training while it runs. No method raises; only `close` waits, for a bounded time.

    A training that was killed goes on in the runs that it had: give the rows of its checkpoint's history again,
    those that the store has are skipped.

    Args:
        run: what run.json will hold; "finished" is not there yet.
        uri: address of the store; by default MLFLOW_TRACKING_URI or the SQLite file of the working directory.
        start_after: seconds before the store is opened; a training that is FINISHED sooner is left to `sync`.
    """

    def __init__(self, run: Mapping[str, Any], *, uri: str | None = None, start_after: float = START_SECONDS) -> None:
        self._rows: list[TimedRow] = []
        self._taken = 0
        self._recorder: Recorder | None = None
        self._end: tuple[str, Mapping[str, Any] | None, Sequence[Path]] | None = None
        self._writer = _Writer(run, uri, "training goes on, `make sync` will log this run later", self._write, delay=start_after)

    def epoch(self, row: EpochRow) -> None:
        """Takes one epoch of one seed; returns at once."""
        self._rows.append(TimedRow(row, now()))

    def close(self, status: str, *, metrics: Mapping[str, Any] | None = None, artifacts: Sequence[Path] = ()) -> bool:
        """Ends the run as FINISHED, FAILED or KILLED.

        Args:
            metrics: content of metrics.json.
            artifacts: files to keep with the parent run.

        Returns:
            Whether the store has everything; if not, one line has said so, or does now, or it is left to `sync`.
        """
        self._end = (status, metrics, artifacts)
        return self._writer.close(skip=status == "FINISHED")

    def _write(self, recorder: Recorder) -> bool:
        if recorder is not self._recorder:
            recorder.reopen()
            self._recorder, self._taken = recorder, 0
        end, count = self._end, len(self._rows)
        recorder.add(self._rows[self._taken : count])
        self._taken = count
        if end is None:
            return False
        status, metrics, artifacts = end
        recorder.summary(metrics or {})
        recorder.files(artifacts)
        complete = recorder.finish(status, now())
        if not complete:
            self._writer._say("MLflow lacks some epochs of this run; `make sync` will add them.")
        return complete
