"""Effects, with the intervals that verdicts rest on.

The seed is the unit: one value per training. Two networks are compared as independent samples (Welch 1947), because trainings with
the same seed share only the order of the images: their results have a median correlation near 0 in this study. Learning curves, whose
trainings share their subset of the data, and what depends on the initial weights alone are compared in pairs. Shares of trainings have
exact intervals. Rounds of interleaved timings have stragglers, so their ratios are judged by ranks (Hodges and Lehmann 1963).

Seeds are added in looks that are declared beforehand. All looks share one level, at which all of them together err in at most
5 % of cases (Pocock 1977).
"""

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from pipeline.measures import Measure
from pipeline.measures.definitions import FloatArray
from pipeline.study.statistics import LEVEL, ROUNDING, Interval, row_of, student, vote

TOGETHER = 0.035  # rate at which all looks together err by the normal theory; see `look_level`
_NODES = 200  # of the quadrature over the paths that have not yet crossed: the level is then exact to ten digits
MIN_ROUNDS = 6  # the signed-rank test of fewer values cannot reject at 5 %
_SHARES = 401  # true shares of one side that are tried, evenly spaced
_MOST = 1001  # seeds of shares; with more than a thousand nothing is asked
_SUBSETS = 1000  # of the voters, drawn where there are more


@dataclass(frozen=True)
class Estimate:
    """An effect whose interval is mean ± t(freedom) · error.

    Attributes:
        error: standard error of the mean; 0.0 where the values do not differ, nan where a side has one value only.
        freedom: degrees of freedom of the error (Welch 1947; Satterthwaite 1946); nan with it.
        limits: what the mean cannot go beyond, so that no interval does; see `limited`.
    """

    mean: float
    error: float
    freedom: float
    limits: tuple[float, float] = (-math.inf, math.inf)

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Of the mean; None where a side has one value only."""
        if math.isnan(self.error):
            return None
        half = self.half_width(level)
        return Interval(max(self.mean - half, self.limits[0]), min(self.mean + half, self.limits[1]), level)

    def half_width(self, level: float) -> float:
        return float(student((1 + level) / 2, self.freedom)) * self.error

    @property
    def p(self) -> float | None:
        """Two-sided, of the mean being 0; None where the values have no spread."""
        return float(2 * special.stdtr(self.freedom, -abs(self.mean) / self.error)) if self.error > 0 else None


def limited(estimate: Estimate, sides: int, limits: tuple[float, float] = (0, 1)) -> Estimate:
    """The estimate of values within `limits`: there their mean lies too, and a difference of two within plus or minus their distance."""
    apart = sides // 2 * (limits[1] - limits[0])
    return replace(estimate, limits=(-apart, apart) if sides > 1 else limits)


@dataclass(frozen=True)
class RankEstimate:
    """The centre of values that may have stragglers: the median of the means of all pairs (Hodges and Lehmann 1963).

    Attributes:
        values: (n,), assumed symmetric about their centre.
    """

    values: FloatArray

    @property
    def mean(self) -> float:
        return float(np.median(self._means()))

    def interval(self, level: float = LEVEL) -> Interval | None:
        """The values of the centre that the signed-rank test (Wilcoxon 1945) does not reject; free of any distribution.

        Returns:
            None where n is too small for the level: 95 % takes `MIN_ROUNDS` values.
        """
        n = len(self.values)
        counts = np.ones(1)  # by sum of ranks, the number of the 2^n sign patterns
        for rank in range(1, n + 1):
            counts = np.append(counts, np.zeros(rank)) + np.append(np.zeros(rank), counts)
        left_out = int(np.searchsorted(np.cumsum(counts) / 2.0**n, (1 - level) / 2, side="right"))
        if not left_out:
            return None
        means = np.sort(self._means())
        return Interval(float(means[left_out - 1]), float(means[-left_out]), level)

    def _means(self) -> FloatArray:
        first, second = np.triu_indices(len(self.values))
        return (self.values[first] + self.values[second]) / 2


@dataclass(frozen=True)
class ShareEstimate:
    """A share of trainings, those that diverged for example, or the difference of two such shares.

    Where all seeds of a side do the same, Student's interval would have no width. This one is exact: it misses on either side in at
    most half of its error, whatever the true shares are. A share's is Clopper and Pearson's (1934). A difference's holds every
    difference of true shares at which an outcome that speaks for as large a difference as the observed one has a chance of half the
    error (Buehler 1957); outcomes are ordered by Newcombe's limit (1998, method 10, with Clopper and Pearson's for each share).

    Attributes:
        counts: (sides,), how many trainings of each side did it.
        sizes: (sides,), of how many.
    """

    counts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def mean(self) -> float:
        share, *other = (count / size for count, size in zip(self.counts, self.sizes, strict=True))
        return share - sum(other)

    def interval(self, level: float = LEVEL) -> Interval:
        if len(self.counts) == 1:
            low, high = stats.binomtest(self.counts[0], self.sizes[0]).proportion_ci(level, "exact")
            return Interval(float(low), float(high), level)
        low, high = (_least_difference(self.counts[::way], self.sizes[::way], (1 - level) / 2) for way in (1, -1))
        return Interval(low, -high, level)


@cache
def _least_difference(counts: tuple[int, ...], sizes: tuple[int, ...], tail: float) -> float:
    """The least difference of two true shares at which what speaks for no less than these counts has a chance of `tail`."""
    first, second = (np.arange(size + 1) for size in sizes)
    share, other = first[:, None] / sizes[0], second / sizes[1]
    least = np.where(first == 0, 0.0, stats.beta.ppf(tail, first, sizes[0] - first + 1))[:, None]
    most = np.where(second == sizes[1], 1.0, stats.beta.isf(tail, second + 1, sizes[1] - second))
    order = share - other - np.hypot(share - least, most - other)
    reached = order >= order[counts] - ROUNDING
    if reached.all():
        return -1.0

    def chance(true: float) -> float:
        shares = np.linspace(max(0.0, true), min(1.0, 1.0 + true), _SHARES)[:, None]  # of the first side; the second has less by `true`
        return float(((_binomial(first, shares) @ reached) * _binomial(second, shares - true)).sum(1).max())

    return float(optimize.brentq(lambda true: chance(true) - tail, -1.0, 1.0, xtol=1e-9))


def _binomial(counts: npt.NDArray[np.int64], shares: FloatArray) -> FloatArray:
    """Chances of the counts 0 to n, (shares, n + 1), at true shares (shares, 1), which rounding may have put beside [0, 1]."""
    shares, size = np.clip(shares, 0.0, 1.0), counts[-1]
    return special.binom(size, counts) * shares**counts * (1 - shares) ** (size - counts)


def contrast(*sides: Sequence[float] | FloatArray, paired: bool = False) -> Estimate:
    """The mean of one side, the difference of two, or of four sides (a - b) - (c - d).

    With the variances s² and sizes n of the sides the error is √Σ s²/n, with (Σ s²/n)² / Σ (s²/n)²/(n - 1) degrees of freedom
    (Welch 1947).

    Args:
        sides: (n,) finite numbers each, one per seed.
        paired: whether entry i of two sides is of the same seed, so that the differences are one side; else they are independent.

    Raises:
        ValueError: a side has no values, or one that is not finite; or pairs of different lengths.
    """
    rows = [row_of(side) for side in sides]
    # Accuracies are shares of images, so values that are equal on paper often differ in their last bits. That is rounding and no
    # spread, and an interval made of it would be far too short.
    rounding = ROUNDING * max(float(np.abs(row).max()) for row in rows)
    if paired:
        rows = [rows[0] - rows[1]]
    mean = sum(sign * float(row.mean()) for sign, row in zip((1, -1, -1, 1), rows, strict=False))
    mean = 0.0 if abs(mean) <= rounding else mean
    sizes = tuple(row.size for row in rows)
    if min(sizes) < 2:
        return Estimate(mean, math.nan, math.nan)
    variances = tuple(0.0 if np.ptp(row) <= rounding else float(row.var(ddof=1)) for row in rows)
    squared = sum(variance / n for variance, n in zip(variances, sizes, strict=True))
    if not squared:
        return Estimate(mean, 0.0, math.inf)
    shares = [variance / n / squared for variance, n in zip(variances, sizes, strict=True)]  # of a sum of 1: squares do not vanish
    freedom = 1 / sum(share**2 / (n - 1) for share, n in zip(shares, sizes, strict=True))
    return Estimate(mean, math.sqrt(squared), freedom)


def effect(measure: Measure, *sides: Sequence[float] | FloatArray, paired: bool = False) -> Estimate | ShareEstimate:
    """The effect on a measure: `contrast` of the sides, of logarithms where effects are ratios; of values that are 0 or 1 their shares.

    Raises:
        ValueError: as `contrast`; a logarithm may be what is not finite.
    """
    if measure.ratio:
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = tuple(np.log(side) for side in sides)
    if measure.share:
        rows = [row_of(side) for side in sides]
        return ShareEstimate(tuple(int(row.sum()) for row in rows), tuple(row.size for row in rows))
    estimate = contrast(*sides, paired=paired)
    return estimate if measure.ratio else limited(estimate, len(sides), measure.limits)


def mapped(ends: Interval, show: Callable[[float], float]) -> Interval:
    """The interval on another scale, such as of a ratio from that of its logarithm."""
    return Interval(show(ends.low), show(ends.high), ends.level)


def to_decide(estimate: Estimate | RankEstimate | ShareEstimate, n: int, level: float, *bounds: float) -> int | None:
    """Values of each side with which the interval would end at the nearest bound, more than n; None where the mean lies on it.

    An interval grows shorter as 1 / √n, one of shares as it does: where all or none of the seeds do the same, as 1 / n.
    """
    bound = min(bounds, key=lambda bound: abs(estimate.mean - bound))
    distance, ends = abs(estimate.mean - bound), estimate.interval(level)
    if not distance or ends is None:
        return None
    if not isinstance(estimate, ShareEstimate):
        half = estimate.half_width(level) if isinstance(estimate, Estimate) else (ends.high - ends.low) / 2
        return max(n + 1, math.ceil(n * (half / distance) ** 2))

    def decides(n: int) -> bool:
        counts = tuple(round(n * count / size) for count, size in zip(estimate.counts, estimate.sizes, strict=True))
        ends = ShareEstimate(counts, (n,) * len(counts)).interval(level)
        return not ends.low <= bound <= ends.high

    return n + 1 + bisect.bisect_left(range(n + 1, _MOST), True, key=decides)


def vote_estimate(predictions: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Estimate:
    """Accuracy of the vote of all seeds on these test images, with the error that other seeds would give.

    The error is that of the delete-d jackknife (Shao and Wu 1989) with half of the seeds left out, because a vote is not smooth in a
    single voter. With S seeds, votes θ of all subsets of S - d, and θ' their mean: error² = (S - d) / d · mean (θ - θ')².

    Args:
        predictions: (seeds, images) predicted classes; labels: (images,).
    """
    seeds = len(predictions)
    accuracy = float((vote(predictions) == labels).mean())
    if seeds < 2:
        return Estimate(accuracy, math.nan, math.nan)
    d = seeds // 2
    if math.comb(seeds, d) <= _SUBSETS:
        subsets = [list(kept) for kept in itertools.combinations(range(seeds), seeds - d)]
    else:
        rng = np.random.default_rng(0)
        subsets = [sorted(rng.choice(seeds, seeds - d, replace=False)) for _ in range(_SUBSETS)]
    votes = np.array([(vote(predictions[kept]) == labels).mean() for kept in subsets])
    error = math.sqrt((seeds - d) / d * float(votes.var()))
    return limited(Estimate(accuracy, error, seeds - 1), 1)


# --- looks ---


@cache
def look_level(looks: tuple[int, ...]) -> float:
    """Level of the intervals at each look, so that all looks together miss the truth in `TOGETHER` of all cases (Pocock 1977).

    Each side of a comparison counts up to its own largest look, and either side may be one look ahead of the other. The information
    about a difference, n₁n₂ / (n₁ + n₂), grows at every such step, whichever side is ahead. The level is that of all these steps. The
    chance that a random walk stays below c √information at every step is integrated step by step (Armitage, McPherson and Rowe 1969).

    The theory takes the spread as known and the values as normal. Few seeds whose errors are skewed on one side only miss more often:
    up to 5 % of cases in place of the theory's 3.5 %, as `docs/method/error_rates.py` counts.

    Args:
        looks: numbers of seeds, rising; with one number or none there is no repetition.
    """
    sides = itertools.pairwise(look for look in looks for _ in range(2))  # (6, 6), (6, 10), (10, 10), ...
    return _level(tuple(a * b / (a + b) for a, b in sides), 1 - LEVEL)


@cache
def common_look_level(looks: tuple[int, ...], error: float = 1 - LEVEL) -> float:
    """As `look_level`, where both sides have the same number of seeds at each look, and all looks together may miss in `error` of cases."""
    return _level(tuple(k / 2 for k in looks), error)


def _level(information: tuple[float, ...], error: float) -> float:
    if len(information) < 2:
        return 1 - error
    miss = error * TOGETHER / (1 - LEVEL)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)

    def stays(bound: float) -> float:
        places, held, before = np.zeros(1), np.ones(1), 0.0  # the walk starts at 0
        for amount in information:
            reach, step = bound * math.sqrt(amount), math.sqrt(amount - before)
            places, former = nodes * reach, places
            density = stats.norm.pdf(places[:, None] - former, scale=step) @ held
            held, before = density * weights * reach, amount
        return float(held.sum())

    bound = optimize.brentq(lambda bound: stays(bound) - (1 - miss), 1.0, 9.0)
    return float(1 - 2 * special.ndtr(-bound))
