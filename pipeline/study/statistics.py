"""Summaries over seeds, and the differences and tests with which two commits are compared.

The seed is the unit: one value per training run. Intervals over seeds speak of training again on the same test images;
`hierarchical_bootstrap` of other test images of the same kind, too. The statistics of verdicts are in `effects`. The same values
always give the same numbers: resamples are enumerated, or drawn from a generator with a fixed start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from pipeline.measures.definitions import FloatArray

LEVEL = 0.95
EXACT_SIGN_FLIPS = 20  # largest n whose 2^n sign patterns are all looked at (half a million sums by symmetry)
_RANDOM_SIGN_FLIPS = 2**17 - 1
_RESAMPLES = 10_000
_BLOCK = 100  # resamples whose image weights are in memory at once
ROUNDING = 1e-12  # share of the numbers' own size: a spread below it is their rounding


@dataclass(frozen=True)
class Interval:
    """A closed interval of the mean; `level` is its coverage."""

    low: float
    high: float
    level: float = LEVEL

    @property
    def reach(self) -> float:
        """The larger absolute end: an effect of this size or more would have been seen."""
        return max(abs(self.low), abs(self.high))

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Summary:
    """What n values, one per seed, say. `sd` divides by n - 1 (0.0 for n = 1); one value alone has no interval."""

    n: int
    mean: float
    sd: float
    min: float
    max: float
    interval: Interval | None


def summarize(values: Sequence[float] | FloatArray, *, level: float = LEVEL) -> Summary:
    """Mean, spread and Student's t interval of the mean: mean ± t(n - 1) sd / √n (Student 1908).

    Simulated, it covers its level on normal values whatever n is; on accuracies whose errors are skewed (lognormal, σ = 0.5) 95 %
    become 92 % for n = 3 to 10. In a paired difference the skewness of the two sides cancels, and it covers 95 to 96 %.

    Args:
        values: (n,) finite numbers, one per seed.
        level: coverage of the interval, in (0, 1).

    Raises:
        ValueError: no values, not one-dimensional, or not finite.
    """
    array = row_of(values)
    return _summary(array, _size(array), level)


def next_value(values: Sequence[float] | FloatArray, *, level: float = LEVEL) -> Interval | None:
    """Where one more value lies in a share `level` of cases: mean ± t(n - 1) sd √(1 + 1/n) (Fisher 1935). None from one value.

    Args:
        values: (n,) as for `summarize`.
    """
    summary = summarize(values, level=level)
    if summary.n == 1:
        return None
    low, high = stats.t.interval(level, summary.n - 1, loc=summary.mean, scale=1.0)
    reach = (high - low) / 2 * summary.sd * math.sqrt(1 + 1 / summary.n)
    return Interval(summary.mean - float(reach), summary.mean + float(reach), level)


def paired_difference(variant: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray, *, level: float = LEVEL) -> Summary:
    """Summary of `variant - baseline`, seed by seed; entry i of both has to be the same seed's.

    Raises:
        ValueError: the lengths differ, or as `summarize`.
    """
    return _summary(row_of(_differences(variant, baseline)), _size(variant, baseline), level)


def student(p: float, freedom: npt.ArrayLike) -> FloatArray:
    """Quantile of Student's t: `stats.t.ppf` without its checks of the arguments, which take a hundred times as long."""
    quantile: FloatArray = special.stdtrit(freedom, p)
    return quantile


def row_of(values: Sequence[float] | FloatArray) -> FloatArray:
    """The values as an array. Raises ValueError if they are none, not one-dimensional or not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"needs a row of one or more values, not an array of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("holds a value that is not a finite number")
    return array


def _size(*rows: Sequence[float] | FloatArray) -> float:
    return max(float(np.abs(row).max()) for row in rows)


def _summary(array: FloatArray, size: float, level: float) -> Summary:
    """Summary of (n,) values that were computed from numbers of at most `size`."""
    n = array.size
    # Accuracies are shares of images, so differences that are equal on paper often differ in their last bits. That is rounding and
    # no spread, and an interval made of it would be far too short.
    if np.ptp(array) <= ROUNDING * size:
        array = np.full(n, array[0] if abs(array[0]) > ROUNDING * size else 0.0)
        mean, sd = float(array[0]), 0.0
    else:
        mean, sd = float(array.mean()), float(array.std(ddof=1))
    interval = None
    if n > 1:
        half = float(student((1 + level) / 2, n - 1)) * sd / n**0.5
        interval = Interval(mean - half, mean + half, level)
    return Summary(n, mean, sd, float(array.min()), float(array.max()), interval)


def _differences(variant: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray) -> FloatArray:
    first, second = np.asarray(variant, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a pairing needs the same seeds on both sides, not shapes {first.shape} and {second.shape}")
    return first - second


def hierarchical_bootstrap(variant_correct: npt.ArrayLike, baseline_correct: npt.ArrayLike, *, level: float = LEVEL) -> Interval | None:
    """Interval of the difference of mean accuracy when both the seeds and the test images are a sample.

    The interval over seeds (`paired_difference`) says what training again would give on the same test images. This one says what
    training again and testing on other images of the same kind would give. It is the one to quote for "the variant is better"
    rather than "better on this test set".

    With D = variant - baseline of every seed and image, a resample draws seeds and, independently, images with replacement,
    the same images for both networks and all seeds (Owen 2007, The pigeonhole bootstrap), and takes the mean of D. Left so,
    its spread is wrong: it counts what is peculiar to a seed on an image three times (McCullagh 2000; Owen 2007), and
    S seeds show S - 1 parts of S of their variance, with the tails of a normal distribution. Both are known exactly, so the
    resampled means' distances from the observed one are stretched by t(ν) / z · √(V / V*), where
        V* = (var seeds / S + var images / N + var rest / (S N)), all with divisor n, is the resampling's own variance,
        V  = A + max(B - C, 0) is the unbiased one of a two-way layout, A = var(means of seeds) / S, B = var(means of images) / N,
             C = mean square of the rest / (S N), all with their degrees of freedom (Searle, Casella and McCulloch 1992), and
        ν  = V² / (A² / (S - 1) + (V - A)² / (N - 1)) are its degrees of freedom (Satterthwaite 1946).
    Where V is 0 although the two differ (what differs cancels in the means), V* stands for V with ν = S - 1: too wide, but no point.
    The ends are the 2.5 % and 97.5 % quantiles (at level 0.95) of 10,000 resamples from a fixed start. Simulated on two-way random
    effects, it covers 94 to 96 % with five and more seeds, whether seeds, images or neither decide; where seeds and images both do,
    92 % with three seeds and 88 % with two, as so few do not show their spread.

    Args:
        variant_correct: (S seeds, N images) of 0 and 1, or of bools.
        baseline_correct: the same seeds and images of the baseline.

    Returns:
        None for a single seed; [0, 0] where the two are right on the same images for every seed.

    Raises:
        ValueError: the shapes differ or are not two-dimensional, there is no seed or fewer than two images, or something else than 0 and 1.
    """
    first, second = np.asarray(variant_correct), np.asarray(baseline_correct)
    if first.shape != second.shape or first.ndim != 2 or first.shape[0] < 1 or first.shape[1] < 2:
        raise ValueError(f"needs the same seeds and images on both sides (seeds, images), not shapes {first.shape} and {second.shape}")
    if not (np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all()):
        raise ValueError("holds something other than 0 and 1: compare the predictions with the labels first")
    if len(first) == 1:
        return None
    difference = first.astype(np.float64) - second.astype(np.float64)  # (seed, image)
    observed = float(difference.mean())
    variance, resampled_variance, freedom = _two_way(difference)
    if resampled_variance == 0:
        return Interval(observed, observed, level)
    tails = [(1 - level) / 2, (1 + level) / 2]
    stretch = student(tails[1], freedom) / stats.norm.ppf(tails[1]) * math.sqrt(variance / resampled_variance)
    low, high = observed + stretch * (np.quantile(_resampled_means(difference), tails) - observed)
    return Interval(float(low), float(high), level)


def _two_way(difference: FloatArray) -> tuple[float, float, float]:
    """V, V* and ν of `hierarchical_bootstrap` for (seeds, images)."""
    num_seeds, num_images = difference.shape
    seeds, images = difference.mean(axis=1), difference.mean(axis=0)
    rest = float(((difference - seeds[:, None] - images + difference.mean()) ** 2).mean()) / difference.size
    of_seeds, of_images = float(seeds.var()) / num_seeds, float(images.var()) / num_images
    resampled = of_seeds + of_images + rest
    # From divisors n to degrees of freedom.
    of_seeds *= num_seeds / (num_seeds - 1)
    of_images *= num_images / (num_images - 1)
    rest *= difference.size / ((num_seeds - 1) * (num_images - 1))
    of_images = max(of_images - rest, 0.0)
    variance = of_seeds + of_images
    if variance == 0:
        return resampled, resampled, num_seeds - 1
    return variance, resampled, variance**2 / (of_seeds**2 / (num_seeds - 1) + of_images**2 / (num_images - 1))


def _resampled_means(difference: FloatArray) -> FloatArray:
    """(resamples,): the mean of (seeds, images) with both drawn anew with replacement."""
    num_seeds, num_images = difference.shape
    rng = np.random.default_rng(0)
    # Most images add nothing, however often they are drawn: with every seed both networks are right, or both are wrong.
    telling = np.ascontiguousarray(difference[:, difference.any(axis=0)].T, dtype=np.float32)  # (image, seed)
    draws = rng.binomial(num_images, len(telling) / num_images, size=_RESAMPLES)
    sums = np.empty((_RESAMPLES, num_seeds), dtype=np.float32)  # of whole numbers far below 2^24, so they are exact
    for start in range(0, _RESAMPLES, _BLOCK):
        block = draws[start : start + _BLOCK]
        drawn = rng.integers(len(telling), size=block.sum()) + np.repeat(np.arange(len(block)) * len(telling), block)
        weights = np.bincount(drawn, minlength=len(block) * len(telling)).reshape(len(block), len(telling))  # (resample, image)
        sums[start : start + _BLOCK] = weights.astype(np.float32) @ telling
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=_RESAMPLES)  # (resample, seed)
    means: FloatArray = (seeds * sums).sum(axis=1, dtype=np.float64) / difference.size
    return means


def vote(predictions: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The class that most seeds predict, image by image; of tied classes the one that the earliest seed predicts.

    The order of the seeds breaks ties and not that of the classes, so that no digit is favoured.

    Args:
        predictions: (seeds, images) predicted classes.

    Returns:
        (images,) of the same type.

    Raises:
        ValueError: not two-dimensional, or no seeds.
    """
    if predictions.ndim != 2 or not len(predictions):
        raise ValueError(f"needs predictions (seeds, images), not an array of shape {predictions.shape}")
    votes = (predictions[:, None] == predictions).sum(axis=1)  # (seed, image): how many seeds say what this one says
    winner: npt.NDArray[np.uint8] = np.take_along_axis(predictions, votes.argmax(axis=0)[None], axis=0)[0]
    return winner


def seeds_for_p(alpha: float, comparisons: int = 1) -> int:
    """The fewest seeds with which a sign-flip test can reject at all: comparisons · 2^(1 - n) <= alpha.

    Args:
        alpha: level of the family, in (0, 1).
        comparisons: tests that Holm's adjustment is over; its first step multiplies the least p by their number.
    """
    return max(1, math.ceil(1 + math.log2(comparisons / alpha)))


def smallest_p(n: int) -> float:
    """The least p that `sign_flip_p` can give over n differences: all signs equal, 2 of 2^n patterns, or 1 of the sampled ones."""
    return min(1.0, 2.0 ** (1 - n)) if n <= EXACT_SIGN_FLIPS else 1 / (_RANDOM_SIGN_FLIPS + 1)


def sign_flip_p(variant: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray) -> float:
    """Two-sided permutation p of the paired mean difference: the share of sign patterns at least as far from zero.

    If neither side is better, each difference is as likely with the other sign (R. A. Fisher, The Design of
    Experiments, 1935, section 21). Up to `EXACT_SIGN_FLIPS` pairs every pattern counts; beyond, a fixed sample of
    131,071 patterns and the observed one (Phipson and Smyth 2010), equal at every call.

    Raises:
        ValueError: as `paired_difference`.
    """
    difference = _differences(variant, baseline)
    n = summarize(difference).n
    size = float(np.abs(difference).sum())
    # Sums that are equal on paper differ in their last bits; they have to count as ties.
    threshold = abs(float(difference.sum())) - 1e-9 * size
    if n > EXACT_SIGN_FLIPS:
        signs = np.random.default_rng(0).integers(0, 2, size=(_RANDOM_SIGN_FLIPS, n), dtype=np.int8)
        sums = np.abs((2 * signs - 1) @ difference)
        return (int((sums >= threshold).sum()) + 1) / (_RANDOM_SIGN_FLIPS + 1)
    # A pattern and its mirror image have the same |sum|, so the first sign can stay as it is.
    sums = difference[:1]
    for value in difference[1:]:
        sums = np.concatenate((sums + value, sums - value))
    return float((np.abs(sums) >= threshold).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979): compare each with 0.05 and at most 5 % of families hold a false alarm.

    Args:
        p_values: the raw p of every comparison of one family, in any order.

    Returns:
        Adjusted p, in the order given, at most 1.
    """
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
