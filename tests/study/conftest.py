"""What the simulations share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats


@pytest.fixture
def remembered_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Student's t quantiles are computed once for each level and degree of freedom.

    scipy takes most of the time of a simulation to find the same few of them thousands of times over; the numbers are its own.
    """
    quantile = stats.t.ppf
    known: dict[tuple[float, bytes], Any] = {}

    def remembered(level: float, freedom: Any) -> Any:
        key = (level, np.asarray(freedom, dtype=np.float64).tobytes())
        if key not in known:
            known[key] = quantile(level, freedom)
        return known[key]

    monkeypatch.setattr(stats.t, "ppf", remembered)
