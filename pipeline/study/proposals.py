"""Whether a change is better: the rule of `make judge`.

Both sides train the same number of seeds, look by look, and the first look that decides ends it. As with claims the effect is a ratio of
geometric means where the measure's effects are ratios, else a difference, its interval is Welch's, and all looks share one level, at
which all of them together err in at most 5 % of cases. `docs/method/judge_rates.py` counts how often that comes out on real trainings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.study.effects import common_look_level, effect, mapped, to_decide
from pipeline.study.statistics import LEVEL, Interval

LOOKS = (6, 10, 20, 50, 100)
MARGIN = 0.05
UNDECIDED = "not decided"
# A command's exit status. Where nobody says which side is better, the answer is "larger" or "smaller", and the status says neither.
STATUS = {"better": 0, "worse": 3, "the same": 4, UNDECIDED: 5, "larger": 6, "smaller": 7}


@dataclass(frozen=True)
class Look:
    """What one look found.

    Attributes:
        n: seeds of each side.
        effect: a ratio of the change to what it is compared with, or a difference in the measure's own unit.
        interval: of the effect; None without spread.
        answer: better, worse, the same or not decided; of a measure without a good side larger or smaller.
        needed: seeds of each side with which the interval would just lie on one side of the nearest bound, if mean and spread stay as
            they are; None where it is decided, or where no number would.
    """

    n: int
    effect: float
    interval: Interval | None
    answer: str
    needed: int | None = None


def words(measure: str) -> tuple[str, str]:
    """What a smaller and a larger effect is called."""
    return {"less": ("better", "worse"), "more": ("worse", "better"), "": ("smaller", "larger")}[MEASURES[measure].better]


def looks_up_to(most: int) -> tuple[int, ...]:
    """The looks with at most so many seeds a side, and that number."""
    return (*(look for look in LOOKS if look < most), most)


def error_of(k: int) -> float:
    """The share of cases in which the k-th proposal of a series may be answered wrongly: over any number of them 5 %, as Σ 1/k² = π²/6."""
    return (1 - LEVEL) * 6 / (math.pi * k) ** 2


def judge(
    measure: str,
    change: Sequence[float] | FloatArray,
    against: Sequence[float] | FloatArray,
    *,
    looks: tuple[int, ...] = LOOKS,
    margin: float = MARGIN,
    error: float = 1 - LEVEL,
) -> Look:
    """The answer from equally many seeds of two networks.

    Args:
        change, against: (seeds,), finite; above 0 where the measure's effects are ratios.
        looks: all that are planned, which decide the level.
        margin: how far a ratio may lie from 1 (0.05: from 1/1.05 to 1.05), or a difference from 0, and still be the same.
        error: the share of cases in which all looks together may err.
    """
    entry, level = MEASURES[measure], common_look_level(looks, error)
    bound, show = (math.log1p(margin), math.exp) if entry.ratio else (margin, float)
    estimate = effect(entry, change, against)
    n, mean, ends = len(change), estimate.mean, estimate.interval(level)
    if ends is None or ends.low == ends.high:  # without a spread nothing is known of other seeds
        return Look(n, show(mean), None, UNDECIDED)
    smaller, larger = words(measure)
    for holds, answer in ((ends.high < -bound, smaller), (ends.low > bound, larger), (-bound < ends.low and ends.high < bound, "the same")):
        if holds:
            return Look(n, show(mean), mapped(ends, show), answer)
    return Look(n, show(mean), mapped(ends, show), UNDECIDED, to_decide(estimate, n, level, -bound, bound))
