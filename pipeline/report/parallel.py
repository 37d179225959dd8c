"""Pictures drawn side by side: drawing takes most of a report's time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from pipeline.errors import UserError
from pipeline.report.figures.drawing import Drawing
from pipeline.runner.workers import choose_processes

Result = TypeVar("Result")

_calls: Sequence[Callable[[], Any]] = ()


def call_all(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all calls, in their order, from one process per core or from as many as LAB_PROCESSES says.

    The processes are forked, so that they have the calls, which cannot be pickled, and the modules, whose import takes seconds. Torch's
    threads do not survive a fork: where torch is imported, the calls are made in this process, one by one.

    Raises:
        UserError: a process died (status 1).
        Exception: that of the first call that failed.
    """
    processes = min(choose_processes(), len(calls))
    if processes <= 1 or "torch" in sys.modules:
        return [call() for call in calls]
    with warnings.catch_warnings():
        # Python 3.12 and later warn of other threads. They are those of BLAS, which ends them before a fork and restarts them after it.
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        pool = ProcessPoolExecutor(processes, mp_context=get_context("fork"), initializer=_start, initargs=(calls,))
        with pool:
            try:
                return list(pool.map(_call, range(len(calls))))
            except BrokenProcessPool:
                raise UserError("A process that drew pictures ended early (out of memory?); run the command again.", status=1) from None


def pictures(drawings: Sequence[Drawing], folder: str) -> dict[str, bytes]:
    """The pictures of all drawings for light and dark pages, by their path."""
    drawn = call_all([partial(drawing.files, folder) for drawing in drawings])
    return {path: content for files in drawn for path, content in files.items()}


def _start(calls: Sequence[Callable[[], Any]]) -> None:
    global _calls
    _calls = calls


def _call(place: int) -> Any:
    return _calls[place]()
