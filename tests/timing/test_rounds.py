"""Rounds, their order, and the repeats of what was disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.timing.rounds import Timing, run_rounds


class Machine:
    """Takes a second of its own clock for each name; `foreign` gives the load of one measurement after the other, then none."""

    def __init__(self, *foreign: float) -> None:
        self.now = 0.0
        self.foreign = list(foreign)
        self.asked: list[tuple[str, ...]] = []
        self.lines: list[str] = []

    def measure(self, names: Sequence[str]) -> tuple[float, float]:
        self.asked.append(tuple(names))
        self.now += len(names)
        return self.now, self.foreign.pop(0) if self.foreign else 0.0

    def run(self, names: str = "ab", **options: Any) -> list[Timing[float]]:
        return run_rounds(list(names), self.measure, say=self.lines.append, clock=lambda: self.now, **({"repeat": "round"} | options))


def test_disturbed_rounds_are_repeated_kept_apart_and_told() -> None:
    machine = Machine(0.0, 0.5, 0.01, 0.3, 0.0)
    done = machine.run(rounds=3)
    assert [(timing.round, timing.kept) for timing in done] == [(1, True), (2, False), (2, True), (3, False), (3, True)]
    assert ["does not count" in line for line in machine.lines] == [not timing.kept for timing in done]


def test_of_single_timings_only_the_disturbed_one_is_repeated() -> None:
    machine = Machine(0.0, 0.06, 0.04)
    done = machine.run(rounds=2, repeat="timing")
    assert [(timing.round, timing.position, timing.kept) for timing in done] == [
        (1, 1, True), (1, 2, False), (1, 2, True), (2, 1, True), (2, 2, True),
    ]  # fmt: skip
    assert machine.asked[1] == machine.asked[2]


def test_a_machine_that_is_never_quiet_ends_the_rounds() -> None:
    done = Machine(*[0.9] * 100).run(rounds=3, attempts=2)
    assert len(done) == 6
    assert not any(timing.kept for timing in done)


def test_no_round_starts_that_would_end_too_late() -> None:
    assert len(Machine().run(rounds=50, seconds=9.0)) == 4  # two seconds a round: the fifth would end at ten
    assert len(Machine().run(rounds=50, seconds=0.5)) == 1


def test_every_round_has_its_own_order_and_every_run_the_same() -> None:
    machine, again = Machine(), Machine()
    machine.run("abcdef", rounds=8)
    again.run("abcdef", rounds=8)
    assert all(sorted(order) == list("abcdef") for order in machine.asked)
    assert len(set(machine.asked)) == 8
    assert again.asked == machine.asked
