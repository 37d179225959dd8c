"""Fits a power law by least squares on logarithms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_LEVEL = 0.95


@dataclass(frozen=True)
class PowerLaw:
    """y = factor * x^exponent; `low` and `high` are the exponent's 95 % Student t interval, NaN for two points."""

    exponent: float
    low: float
    high: float
    factor: float


def fit_power_law(x: Iterable[float], y: Iterable[float]) -> PowerLaw:
    """Fits pairs of positive numbers, at least two of them with different x."""
    from scipy import stats

    log_x, log_y = np.log(list(x)), np.log(list(y))
    line = stats.linregress(log_x, log_y)
    half = float(stats.t.ppf((1 + _LEVEL) / 2, len(log_x) - 2) * line.stderr)
    return PowerLaw(float(line.slope), float(line.slope) - half, float(line.slope) + half, float(np.exp(line.intercept)))
