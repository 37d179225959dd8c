"""The difference of two samples that share no seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

from pipeline.analysis.statistics import LEVEL, FloatArray, Interval, summarize


class Welch(NamedTuple):
    """Difference of the means; interval and two-sided p where both samples have two values or more, p only where they spread."""

    mean: float
    interval: Interval | None
    p: float | None


def unpaired_difference(variant: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray, *, level: float = LEVEL) -> Welch:
    """`mean(variant) - mean(baseline)` of independent samples with variances of their own (Welch 1947).

    With v = sd² / n of each, the interval is mean ± t(ν) √(v1 + v2) and ν = (v1 + v2)² / (v1² / (n1 - 1) + v2² / (n2 - 1)).

    Args:
        variant, baseline: (n1,) and (n2,) finite numbers, one per seed.

    Raises:
        ValueError: as `summarize`.
    """
    first, second = summarize(variant), summarize(baseline)
    difference = first.mean - second.mean
    if min(first.n, second.n) < 2:
        return Welch(difference, None, None)
    squares = first.sd**2 / first.n, second.sd**2 / second.n
    error = math.sqrt(sum(squares))
    if error == 0:
        return Welch(difference, Interval(difference, difference, level), None)
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / (first.n - 1) + squares[1] ** 2 / (second.n - 1))
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom))
    return Welch(difference, Interval(difference - half, difference + half, level), p)
