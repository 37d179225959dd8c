"""The schedule: every task once, the longest first, and never worse than Graham's bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runner.schedule import Queue, lower_bound, makespan

SECONDS = st.lists(st.floats(0, 1e6), max_size=60)
WORKERS = st.integers(1, 100)


@given(SECONDS)
def test_every_task_is_taken_once_and_the_longest_first(seconds: list[float]) -> None:
    queue = Queue(enumerate(seconds))
    taken = [queue.take() for _ in seconds]
    assert len(queue) == 0
    assert sorted(taken) == list(range(len(seconds)))
    assert all(seconds[a] > seconds[b] or (seconds[a] == seconds[b] and a < b) for a, b in itertools.pairwise(taken))
    with pytest.raises(IndexError):
        queue.take()


@given(SECONDS, WORKERS)
def test_it_is_never_worse_than_list_scheduling_may_be(seconds: list[float], workers: int) -> None:
    """By Graham 1966; the bound holds against what no schedule can beat."""
    bound = lower_bound(seconds, workers)
    assert bound <= makespan(seconds, workers) * (1 + 1e-9)
    assert makespan(seconds, workers) <= (2 - 1 / workers) * bound * (1 + 1e-9)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 3))
def test_longest_first_is_within_a_third_of_the_shortest_time(seconds: list[int], workers: int) -> None:
    """Against all ways to hand out a few tasks; Graham 1969, theorem 2."""
    ways = itertools.product(range(workers), repeat=len(seconds))
    best = min(max(sum(s for s, w in zip(seconds, way, strict=True) if w == worker) for worker in range(workers)) for way in ways)
    assert best <= makespan(seconds, workers) <= (4 / 3 - 1 / (3 * workers)) * best + 1e-9


@given(SECONDS)
def test_one_worker_takes_the_sum_and_enough_of_them_the_longest(seconds: list[float]) -> None:
    assert makespan(seconds, 1) == pytest.approx(sum(seconds))
    assert makespan(seconds, max(len(seconds), 1)) == max(seconds, default=0.0)


def test_by_hand() -> None:
    """Two workers: 5 and 4, then 3 to the second, 3 to the first, 3 to the second: 10. The best is 5 + 4 beside 3 + 3 + 3."""
    assert makespan([3, 3, 4, 5, 3], 2) == 10
    assert lower_bound([3, 3, 4, 5, 3], 2) == 9


def test_what_comes_later_takes_its_place_by_its_length() -> None:
    queue = Queue([("a", 2.0), ("b", 1.0)])
    assert queue.take() == "a"
    queue.put("c", 3.0)
    queue.put("d", 1.0)
    assert [queue.take() for _ in range(len(queue))] == ["c", "b", "d"]
