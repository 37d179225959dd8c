"""What is timed, in which rounds and order, what is disturbed, and the fit of a power law."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.params import Params
from pipeline.timing import load
from pipeline.timing.rounds import Timing, run_rounds
from pipeline.timing.subjects import WAYS, entries


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


BURN = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]


def test_work_of_children_is_not_foreign_and_other_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = load.tree
    with monkeypatch.context() as patch:
        patch.setattr(load, "_busy", lambda: sum(tree(os.getpid()).values()))  # a machine on which nobody else works
        with load.LoadMeter() as meter:
            subprocess.run(BURN, check=True)
        assert meter.foreign < 0.02
    start = time.perf_counter()
    monkeypatch.setattr(load, "tree", lambda root: {root: tree(root)[root] - sum(os.times()[2:4])})  # children do not belong to it
    with load.LoadMeter() as meter:
        subprocess.run(BURN, check=True)
    assert meter.foreign * (time.perf_counter() - start) * (os.cpu_count() or 1) > 0.4  # seconds


def test_everything_the_claims_speak_of_is_timed(study: Params) -> None:
    listed = entries(study, 16)
    parts = [part for claim in study.claims.values() for part in claim.comparisons if part.rule == "ratio"]
    names = {f"step/published/{subject}" for part in parts for subject in (part.variant, part.reference)}
    assert names <= {entry.name for entry in listed}
    assert len({entry.name for entry in listed}) == len(listed)
    for way in WAYS:
        growth = [entry for entry in listed if (entry.kind, entry.way) == ("growth", way)]
        assert [(entry.model.num_tokens, entry.batch) for entry in growth] == [(tokens, 16) for tokens in (4, 16, 49, 196, 784)]
    for subject in study.timing.subjects.keys() & study.variants.keys():  # what is timed is what the study trains
        assert {entry.model for entry in listed if entry.subject == subject} == {study.resolve(subject).model}
