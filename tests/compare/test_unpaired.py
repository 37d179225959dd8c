"""Welch's difference against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.compare.unpaired import unpaired_difference


@given(
    sizes=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    spread=st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 10)),
    shift=st.floats(-5, 5),
    level=st.floats(0.5, 0.999),
    start=st.integers(0, 2**32 - 1),
)
def test_equal_to_scipy(sizes: tuple[int, int], spread: tuple[float, float], shift: float, level: float, start: int) -> None:
    rng = np.random.default_rng(start)
    first, second = (rng.normal(size=n) * s for n, s in zip(sizes, spread, strict=True))
    first = first + shift
    ours = unpaired_difference(first, second, level=level)
    theirs = stats.ttest_ind(first, second, equal_var=False)
    ends = theirs.confidence_interval(level)
    assert ours.interval is not None
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.interval.low, ours.interval.high) == pytest.approx((ends.low, ends.high), rel=1e-9, abs=1e-12)
    assert ours.mean == pytest.approx(first.mean() - second.mean(), abs=1e-12)
    assert ours.interval.level == level


def test_one_value_on_a_side_has_neither_interval_nor_p() -> None:
    assert unpaired_difference([0.5], [0.25, 0.5]) == (0.125, None, None)


def test_without_any_spread_there_is_no_test() -> None:
    mean, interval, p = unpaired_difference([0.5, 0.5, 0.5], [0.25, 0.25])
    assert (mean, p) == (0.25, None)
    assert interval is not None
    assert (interval.low, interval.high) == (0.25, 0.25)
