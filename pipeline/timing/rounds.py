"""Interleaved rounds: everything is timed once per round, in a new random order each round. Timings under foreign load do not count."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

# Share of the machine. One other busy core of twenty does not affect a step's time; more of them compete for its caches.
THRESHOLD = 0.05
MAX_ATTEMPTS = 4

Value = TypeVar("Value")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Timing(Generic[Value]):
    """One timing, of one name or of a whole round.

    Attributes:
        round: counted from 1.
        position: position in the round's random order, from 1; 1 for a whole round.
        names: what was timed, in that order.
        value: the result of `measure`.
        foreign: share of the machine that other processes used meanwhile.
        kept: whether that share was small enough for the timing to count.
    """

    round: int
    position: int
    names: tuple[str, ...]
    value: Value
    foreign: float
    kept: bool


def run_rounds(
    names: Sequence[str],
    measure: Callable[[Sequence[str]], tuple[Value, float]],
    *,
    rounds: int,
    say: Say,
    repeat: Literal["round", "timing"],
    show: Callable[[Value], str] = lambda value: "",
    attempts: int = MAX_ATTEMPTS,
    threshold: float = THRESHOLD,
    seed: int = 0,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing[Value]]:
    """Times all names once per round, in a new random order each round.

    Args:
        measure: times the given names in their order; returns the result, and the share of the machine that others used meanwhile.
        say: gets a line for every timing.
        repeat: what is timed again if others used more than `threshold`: the whole round, for timings too short to measure their own
            load, or the one timing.
        show: describes a result in words.
        attempts: maximum number of attempts at a round or a timing.
        seed: of the random orders.
        seconds: time limit. The first timing always runs; a later one starts only if it would end in time, were it as long as the last.

    Returns:
        All timings, including those that do not count.
    """
    generator = random.Random(seed)
    done: list[Timing[Value]] = []
    start = last = clock()
    for number in range(1, rounds + 1):
        order = generator.sample(list(names), len(names))
        parts = [order] if repeat == "round" else [[name] for name in order]
        for position, part in enumerate(parts, start=1):
            for _ in range(attempts):
                begin = clock()
                if done and begin + (begin - last) > start + seconds:
                    say(f"the {seconds:g} s for timing are used up in round {number} of {rounds}")
                    return done
                last = begin
                value, foreign = measure(part)
                done.append(Timing(number, position, tuple(part), value, foreign, foreign <= threshold))
                place = "" if len(parts) == 1 else f", {position:2} of {len(parts)}, {part[0]}"
                counts = "" if done[-1].kept else "; does not count"
                shown = show(value) or f"{clock() - begin:.1f} s"
                say(f"round {number} of {rounds}{place}: {shown}, others used {foreign:.1%} of the machine{counts}")
                if done[-1].kept:
                    break
    return done
