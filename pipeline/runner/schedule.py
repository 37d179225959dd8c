"""Which training a free worker gets next, and how long all of them take together.

Nothing here starts a process, so the code that orders a study also simulates it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Queue(Generic[T]):
    """Tasks that wait, the longest first. Tasks of one length keep the order in which they came.

    A free worker takes the next task: this is list scheduling by longest processing time. It takes at most 4/3 - 1/(3 n) times the
    shortest time that n workers could take (Graham 1969, theorem 2).

    Args:
        tasks: the first ones, each with the seconds that it is expected to take.
    """

    def __init__(self, tasks: Iterable[tuple[T, float]] = ()) -> None:
        self._count = itertools.count()
        self._waiting: list[tuple[float, int, T]] = []
        for task, seconds in tasks:
            self.put(task, seconds)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, task: T, seconds: float) -> None:
        """Adds a task, which depends on no other."""
        heapq.heappush(self._waiting, (-seconds, next(self._count), task))

    def take(self) -> T:
        """The next task, for a worker that is free. Raises IndexError where none is left."""
        return heapq.heappop(self._waiting)[2]


def starts(seconds: Sequence[float], workers: int) -> list[float]:
    """When each task begins, in seconds from the first, where a free worker takes the longest task that waits."""
    queue = Queue(enumerate(seconds))
    free = [0.0] * workers  # when each worker is free, as a heap
    begun = [0.0] * len(seconds)
    while queue:
        task = queue.take()
        begun[task] = free[0]
        heapq.heapreplace(free, free[0] + seconds[task])
    return begun


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of the tasks ends, in seconds from the beginning."""
    return max((start + one for start, one in zip(starts(seconds, workers), seconds, strict=True)), default=0.0)


def lower_bound(seconds: Sequence[float], workers: int) -> float:
    """Seconds that every schedule takes at least: those of the longest task, and of the workers' equal share of all."""
    return max(max(seconds, default=0.0), sum(seconds) / workers)
