"""The fit of a power law, against a known one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.timing.power_law import fit_power_law


def test_power_law_is_found_with_an_interval_that_covers_it() -> None:
    x = np.array([1.0, 2, 4, 8, 16, 32])
    exact = fit_power_law(x, 3 * x**1.5)
    assert (exact.exponent, exact.factor) == pytest.approx((1.5, 3))
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, len(x)))
    fit = fit_power_law(x, 3 * x**1.5 * noise)
    assert fit.low < 1.5 < fit.high
    assert fit.high - fit.low < 0.5


def test_two_points_give_a_slope_without_an_interval() -> None:
    fit = fit_power_law([49, 196], [1.0, 16.0])
    assert fit.exponent == pytest.approx(2)
    assert math.isnan(fit.low)
