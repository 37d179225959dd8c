"""Summaries over seeds, the vote of several, and p-values of one family.

The seed is the unit: one value per training run. Intervals over seeds speak of training again on the same test images. The statistics
of verdicts are in `effects`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pipeline.measures.definitions import FloatArray

LEVEL = 0.95
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
    interval: Interval | None


def summarize(values: Sequence[float] | FloatArray, *, limits: tuple[float, float] = (-math.inf, math.inf)) -> Summary:
    """Mean, spread and Student's t interval of the mean: mean ± t(n - 1) sd / √n (Student 1908).

    Simulated, it covers its level on normal values whatever n is; on accuracies whose errors are skewed (lognormal, σ = 0.5) 95 %
    become 92 % for n = 3 to 10. In a paired difference the skewness of the two sides cancels, and it covers 95 to 96 %.

    Args:
        values: (n,) finite numbers, one per seed.
        limits: what no value goes beyond, where the interval ends too: Student's goes beyond where one seed lies far off.

    Raises:
        ValueError: no values, not one-dimensional, or not finite.
    """
    array = row_of(values)
    n, size = array.size, float(np.abs(array).max())
    # Accuracies are shares of images, so values that are equal on paper often differ in their last bits. That is rounding and no spread,
    # and an interval made of it would be far too short.
    if np.ptp(array) <= ROUNDING * size:
        array = np.full(n, array[0])
        mean, sd = float(array[0]), 0.0
    else:
        mean, sd = float(array.mean()), float(array.std(ddof=1))
    interval = None
    if n > 1:
        half = float(student((1 + LEVEL) / 2, n - 1)) * sd / n**0.5
        interval = Interval(max(mean - half, limits[0]), min(mean + half, limits[1]))
    return Summary(n, mean, sd, interval)


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
