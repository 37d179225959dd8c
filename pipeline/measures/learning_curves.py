"""How many times as many training images one network needs to be as accurate as another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.measures import NotFormed, Trained, median_error
from pipeline.measures.definitions import FloatArray


def images_ratio(needs: Mapping[int, float], than: Mapping[int, float]) -> float:
    """The ratio of training images at which two learning curves reach equal error.

    A curve is linear between its points, the logarithm of the images against that of the error. A point that is no better than one
    with fewer images is left out, so a curve gives the fewest images that reach an error. The ratio is the geometric mean over the
    errors that both curves reach, uniform on the logarithm of the error.

    Args:
        needs, than: errors by number of training images, two or more each, as fractions above 0.

    Returns:
        Above 1 where `needs` takes more images.

    Raises:
        NotFormed: a curve has an error that is 0 or no number, or there is no error that both reach.
    """
    (errors, images), (others, other_images) = (_inverse(curve) for curve in (needs, than))
    low, high = max(errors[0], others[0]), min(errors[-1], others[-1])
    if low > high:
        raise NotFormed("the two learning curves reach no error in common")
    inner = [error for error in (*errors, *others) if low < error < high]
    at = np.array(sorted({low, high, *inner}))
    apart = np.interp(at, errors, images) - np.interp(at, others, other_images)  # straight between these errors
    return float(np.exp(apart[0] if low == high else np.trapezoid(apart, at) / (high - low)))


def _inverse(curve: Mapping[int, float]) -> tuple[FloatArray, FloatArray]:
    """Logarithms of a curve's errors, in rising order, and of the fewest images that reach each."""
    sizes = sorted(curve)
    values = np.array([curve[size] for size in sizes], dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise NotFormed("a learning curve has an error that is 0 or no number, which has no logarithm")
    best = np.concatenate([[True], values[1:] < np.minimum.accumulate(values)[:-1]])
    return np.log(values[best])[::-1], np.log(np.array(sizes, dtype=np.float64)[best])[::-1]


def data_for_equal_accuracy(needs: Sequence[Trained], than: Sequence[Trained], seeds: Sequence[int]) -> FloatArray:
    """The ratio of training images at which two networks reach equal accuracy, seed by seed; see `images_ratio`.

    Args:
        needs, than: the trainings of either network, one for each number of training images; errors are medians of the last tests.
        seeds: those wanted, which every training has.

    Returns:
        (seeds,), above 1 where `needs` takes more images. On logarithms the ratio and its inverse are one.

    Raises:
        NotFormed: see `images_ratio`.
    """

    def curves(side: Sequence[Trained]) -> list[dict[int, float]]:
        errors = {one.settings.training_images: median_error(one.test_error)[[one.seeds.index(seed) for seed in seeds]] for one in side}
        return [{size: float(error[i]) for size, error in errors.items()} for i in range(len(seeds))]

    return np.array([images_ratio(*both) for both in zip(curves(needs), curves(than), strict=True)])
