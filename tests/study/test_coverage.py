"""Coverage of intervals and error rates of tests, counted on simulated data whose truth is known.

Every simulation has a fixed start, so its count is the same at every run. Tolerances are four Monte-Carlo standard errors, or two
points of coverage.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.study import statistics
from pipeline.study.statistics import (
    Interval,
    hierarchical_bootstrap,
    paired_difference,
    summarize,
)


def _covers(interval: Interval | None, truth: float) -> bool:
    return interval is not None and interval.low <= truth <= interval.high


def _error(rate: float, trials: int) -> float:
    """Four standard errors of a counted rate."""
    return 4 * math.sqrt(rate * (1 - rate) / trials)


@pytest.mark.parametrize(("n", "level"), [(2, 0.95), (3, 0.99), (10, 0.95)])
def test_t_interval_covers_the_mean_of_normal_values(n: int, level: float) -> None:
    samples = np.random.default_rng(1).normal(0.97, 0.002, size=(4000, n))
    covered = np.mean([_covers(summarize(sample, level=level).interval, 0.97) for sample in samples])
    assert covered == pytest.approx(level, abs=_error(level, 4000))


def _skewed(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
    """Accuracies near 1 whose errors are lognormal, so that a bad seed is farther off than a good one; and their true mean."""
    wrong = 0.02 * np.exp(rng.normal(0, 0.5, size=shape))
    return 1 - rng.binomial(10_000, wrong) / 10_000, 1 - 0.02 * math.exp(0.5**2 / 2)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_t_interval_on_skewed_accuracies(n: int) -> None:
    """Skewness costs the interval of one network's mean three points of coverage; in a paired difference it cancels."""
    samples, truth = _skewed(np.random.default_rng(2), (2000, n))
    others, _ = _skewed(np.random.default_rng(3), (2000, n))
    covered = np.mean([_covers(summarize(sample).interval, truth) for sample in samples])
    paired = np.mean([_covers(paired_difference(*pair).interval, 0.0) for pair in zip(samples, others, strict=True)])
    assert covered == pytest.approx(0.92, abs=_error(0.92, 2000))
    assert paired == pytest.approx(0.95, abs=0.02)


def _trainings(rng: np.random.Generator, num_seeds: int, of_seeds: float, of_images: float) -> tuple[np.ndarray, np.ndarray]:
    """(seeds, 400 images) right or wrong of two networks that are equally good at images of this kind.

    Some images are hard for both; `of_images` is how much harder for one than for the other, `of_seeds` how trainings of one differ.
    """
    hard = rng.normal(size=400)

    def network() -> np.ndarray:
        own = hard + rng.normal(0, of_images, size=400) + rng.normal(0, of_seeds, size=(num_seeds, 1))
        right: np.ndarray = 1.5 + own + rng.normal(size=(num_seeds, 400)) > 0
        return right

    return network(), network()


@pytest.mark.parametrize(
    ("num_seeds", "of_seeds", "of_images", "counted"),
    [
        (2, 0.2, 0.5, 0.88),
        (3, 0.2, 0.5, 0.92),
        (5, 0.2, 0.5, 0.95),
        (10, 0.0, 0.0, 0.96),
        (10, 0.5, 0.0, 0.95),
        (10, 0.0, 1.0, 0.94),
    ],
)
def test_hierarchical_bootstrap_covers_over_seeds_and_images(
    num_seeds: int, of_seeds: float, of_images: float, counted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coverage that its docstring gives: near the level from five seeds on, whether seeds, images or neither decide."""
    monkeypatch.setattr(statistics, "_RESAMPLES", 500)
    rng = np.random.default_rng(5)
    covered = np.mean([_covers(hierarchical_bootstrap(*_trainings(rng, num_seeds, of_seeds, of_images)), 0.0) for _ in range(200)])
    assert covered == pytest.approx(counted, abs=_error(0.95, 200))
