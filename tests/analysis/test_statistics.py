"""Every statistic against an independent computation: scipy's own routines, enumeration by hand, simulation."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.analysis.statistics import Interval, holm, paired_difference, sign_flip_p, smallest_p, summarize

VARIANT = [0.9731, 0.9702, 0.9745, 0.9718, 0.9690, 0.9722, 0.9738]
BASELINE = [0.9712, 0.9709, 0.9720, 0.9701, 0.9693, 0.9688, 0.9731]

values = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=9)


def test_summary_of_hand_worked_numbers() -> None:
    # 2, 4, 6: mean 4, squared deviations 4 + 0 + 4 over 2, and t(0.975, 2) = 4.30265 from any table.
    summary = summarize([2.0, 4.0, 6.0])
    assert (summary.n, summary.mean, summary.sd, summary.min, summary.max) == (3, 4.0, 2.0, 2.0, 6.0)
    assert summary.interval is not None
    assert summary.interval.high - 4.0 == pytest.approx(4.302652730 * 2 / math.sqrt(3), rel=1e-9)
    assert summary.interval.low + summary.interval.high == pytest.approx(8.0)


def test_one_value_has_no_interval() -> None:
    assert summarize([0.97]).interval is None
    assert summarize([0.97]).sd == 0.0


def test_equal_values_have_no_spread_even_where_their_mean_is_rounded() -> None:
    assert np.std([0.1] * 3, ddof=1) > 0  # what would otherwise come out
    summary = summarize([0.1] * 3)
    assert summary.sd == 0
    assert summary.interval == Interval(0.1, 0.1)


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [1.0, math.nan], [math.inf]])
def test_refuses_what_has_no_summary(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"needs a row|finite"):
        summarize(bad)


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_paired_interval_is_that_of_scipys_paired_t_test(level: float) -> None:
    difference = paired_difference(VARIANT, BASELINE, level=level)
    expected = stats.ttest_rel(VARIANT, BASELINE).confidence_interval(level)
    assert difference.interval is not None
    assert difference.interval.low == pytest.approx(expected.low, rel=1e-12)
    assert difference.interval.high == pytest.approx(expected.high, rel=1e-12)
    assert difference.mean == pytest.approx(np.mean(VARIANT) - np.mean(BASELINE))


def test_pairing_refuses_other_numbers_of_seeds() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        paired_difference(VARIANT, BASELINE[:-1])


def test_interval_reach_and_zero() -> None:
    assert Interval(-0.3, 0.1).reach == 0.3
    assert Interval(-0.1, 0.3).reach == 0.3
    assert not Interval(-0.1, 0.3).excludes_zero
    assert Interval(0.1, 0.3).excludes_zero
    assert Interval(-0.3, -0.1).excludes_zero


def _enumerated(differences: list[float]) -> float:
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(s >= observed for s in sums) / len(sums)


@given(values)
def test_sign_flip_p_is_the_share_of_all_patterns(differences: list[float]) -> None:
    assert sign_flip_p(differences, [0.0] * len(differences)) == pytest.approx(_enumerated(differences), abs=1e-12)


def test_sign_flip_p_agrees_with_scipys_permutation_test() -> None:
    expected = stats.permutation_test(
        (VARIANT, BASELINE), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert sign_flip_p(VARIANT, BASELINE) == pytest.approx(expected.pvalue, abs=1e-12)


def test_sign_flip_p_counts_ties_that_rounding_would_part() -> None:
    # 0.1 + 0.2 and 0.3 differ in the last bit: the four patterns that flip one or both of the pairs tie on paper.
    assert sign_flip_p([0.1, 0.2, -0.3], [0.0] * 3) == 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 6, 10, 20])
def test_smallest_p_is_reached_when_all_differences_agree(n: int) -> None:
    differences = np.linspace(1.0, 2.0, n)
    assert sign_flip_p(differences, np.zeros(n)) == pytest.approx(smallest_p(n), rel=1e-12)


def test_beyond_twenty_seeds_a_fixed_sample_stands_for_all_patterns() -> None:
    rng = np.random.default_rng(7)
    differences = rng.normal(0.35, 1.0, size=24)
    sampled = sign_flip_p(differences, np.zeros(24))
    assert sampled == sign_flip_p(differences, np.zeros(24))
    # All 2^24 patterns as the sums of two halves: an exact count, found another way.
    halves = [np.array([sum(p) for p in itertools.product(*((d, -d) for d in half))]) for half in (differences[:12], differences[12:])]
    threshold = abs(differences.sum()) - 1e-9
    order = np.sort(halves[1])
    above = len(order) - np.searchsorted(order, threshold - halves[0])
    below = np.searchsorted(order, -threshold - halves[0], side="right")
    exact = float((above + below).sum()) / 2**24
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact / 131_072))


def test_holm_on_hand_worked_numbers() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04, and the last may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.9]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_all_intersections(p_values: list[float]) -> None:
    """Holm's procedure is Bonferroni's test closed: a hypothesis' p is the largest over all families that hold it."""
    indices = range(len(p_values))
    families = [family for size in range(1, len(p_values) + 1) for family in itertools.combinations(indices, size)]
    closed = [max(min(1.0, len(f) * min(p_values[j] for j in f)) for f in families if i in f) for i in indices]
    assert holm(p_values) == pytest.approx(closed)


def _coverage_of_t(samples: np.ndarray) -> float:
    intervals = [summarize(sample).interval for sample in samples]
    return float(np.mean([interval is not None and interval.low <= 0 <= interval.high for interval in intervals]))


@pytest.mark.parametrize("n", [3, 10])
def test_t_interval_covers_and_the_bootstrap_is_too_short(n: int) -> None:
    """Why paired differences get Student's t: with few seeds it covers 95 %, and BCa, the better bootstrap, does not."""
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(4000, n))
    assert _coverage_of_t(samples) == pytest.approx(0.95, abs=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        bca = stats.bootstrap(
            (samples[:1000],), np.mean, axis=1, vectorized=True, n_resamples=999, batch=50, method="BCa", rng=np.random.default_rng(2)
        ).confidence_interval
    covered = float(np.mean((bca.low <= 0) & (bca.high >= 0)))
    # The two numbers are those of the docstring of pipeline.analysis.statistics.
    assert covered == pytest.approx({3: 0.72, 10: 0.90}[n], abs=0.02)
