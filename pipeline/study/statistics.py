"""Summaries over seeds, and the differences and tests with which two commits are compared.

The seed is the unit: one value per training run. Intervals over seeds speak of training again on the same test images. The statistics
of verdicts are in `effects`. The same values always give the same numbers: sign patterns are enumerated, or drawn with a fixed start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pipeline.measures.definitions import FloatArray

LEVEL = 0.95
EXACT_SIGN_FLIPS = 20  # largest n whose 2^n sign patterns are all looked at (half a million sums by symmetry)
_RANDOM_SIGN_FLIPS = 2**17 - 1
ROUNDING = 1e-12  # share of the numbers' own size: a spread below it is their rounding


@dataclass(frozen=True)
class Interval:
    """A closed interval of the mean; `level` is its coverage."""

    low: float
    high: float
    level: float = LEVEL


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


def sign_flip_p(variant: Sequence[float] | FloatArray, baseline: Sequence[float] | FloatArray) -> float:
    """Two-sided permutation p of the paired mean difference: the share of sign patterns at least as far from zero.

    If neither side is better, each difference is as likely with the other sign (R. A. Fisher, The Design of
    Experiments, 1935, section 21). Up to `EXACT_SIGN_FLIPS` pairs every pattern counts; beyond, a fixed sample of
    131,071 patterns and the observed one (Phipson and Smyth 2010), equal at every call.

    Raises:
        ValueError: the lengths differ, or as `summarize`.
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
