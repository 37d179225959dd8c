"""Coverage of intervals and error rates of tests, counted on simulated data whose truth is known.

Every simulation has a fixed start, so its count is the same at every run. Tolerances are four Monte-Carlo standard errors, or two
points of coverage.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.study.statistics import (
    Interval,
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
