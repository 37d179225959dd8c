"""Pictures drawn side by side: drawing takes most of a report's time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from pipeline.report.figures.drawing import Drawing
from pipeline.runner.workers import choose_processes

Result = TypeVar("Result")

_calls: Sequence[Callable[[], Any]] = ()


def call_all(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all calls in their order, made in as many processes as there are cores, or as LAB_PROCESSES says.

    The processes are forked: what the calls hold and the modules that they need are there at once, where a new process takes seconds
    to import them. Torch's threads do not survive a fork, so that the calls are made here, one by one, once torch is imported.

    Raises:
        Exception: what the first call that failed raised.
    """
    processes = min(choose_processes(), len(calls))
    if processes <= 1 or "torch" in sys.modules:
        return [call() for call in calls]
    with warnings.catch_warnings():
        # Of Python 3.12 and later. The other threads here are those of BLAS, which ends them before a fork and starts new ones after it.
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        pool = ProcessPoolExecutor(processes, mp_context=get_context("fork"), initializer=_start, initargs=(calls,))
        with pool:
            return list(pool.map(_call, range(len(calls))))


def pictures(drawings: Sequence[Drawing], folder: str) -> dict[str, bytes]:
    """The pictures of all drawings for light and dark pages, by their path."""
    drawn = call_all([partial(drawing.files, folder) for drawing in drawings])
    return {path: content for files in drawn for path, content in files.items()}


def _start(calls: Sequence[Callable[[], Any]]) -> None:
    """A process's beginning."""
    global _calls
    _calls = calls


def _call(place: int) -> Any:
    return _calls[place]()
