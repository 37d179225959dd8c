"""Every statistic against an independent computation: scipy's own routines, enumeration by hand. test_coverage.py has the simulations."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.study import statistics
from pipeline.study.statistics import (
    Interval,
    hierarchical_bootstrap,
    holm,
    paired_difference,
    seeds_for_p,
    sign_flip_p,
    smallest_p,
    summarize,
    vote,
)

VARIANT = [0.9731, 0.9702, 0.9745, 0.9718, 0.9690, 0.9722, 0.9738]
BASELINE = [0.9712, 0.9709, 0.9720, 0.9701, 0.9693, 0.9688, 0.9731]

values = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=9)


def test_summary_of_hand_worked_numbers() -> None:
    # 2, 4, 6: mean 4, squared deviations 4 + 0 + 4 over 2, and t(0.975, 2) = 4.30265.
    summary = summarize([2.0, 4.0, 6.0])
    assert (summary.n, summary.mean, summary.sd, summary.min, summary.max) == (3, 4.0, 2.0, 2.0, 6.0)
    assert summary.interval is not None
    assert summary.interval.high - 4.0 == pytest.approx(4.302652730 * 2 / math.sqrt(3), rel=1e-9)
    assert summary.interval.low + summary.interval.high == pytest.approx(8.0)


def test_next_value_by_hand_and_by_counting() -> None:
    """1, 2, 3: 2 ± 4.3027 · 1 · √(4/3); and of normal values one more lies inside in 95 % of cases."""
    found = statistics.next_value([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2 - 4.96828, 2 + 4.96828), abs=1e-4)
    assert statistics.next_value([1.0]) is None
    assert statistics.next_value([2.0, 2.0]) == Interval(2.0, 2.0, 0.95)
    draws = np.random.default_rng(0).normal(size=(1000, 7))
    ends = [statistics.next_value(row[:6]) for row in draws]
    inside = np.mean([end is not None and end.low <= row[6] <= end.high for end, row in zip(ends, draws, strict=True)])
    assert inside == pytest.approx(0.95, abs=0.021)  # three standard errors


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
@settings(max_examples=40)
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


@pytest.mark.parametrize("n", [1, 2, 3, 6, 10, 20, 21, 40])
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
@settings(max_examples=40)
def test_holm_is_the_closed_test_of_all_intersections(p_values: list[float]) -> None:
    """Holm's procedure is Bonferroni's test closed: a hypothesis' p is the largest over all families that hold it."""
    indices = range(len(p_values))
    families = [family for size in range(1, len(p_values) + 1) for family in itertools.combinations(indices, size)]
    closed = [max(min(1.0, len(f) * min(p_values[j] for j in f)) for f in families if i in f) for i in indices]
    assert holm(p_values) == pytest.approx(closed)


def test_differences_that_are_equal_on_paper_have_no_spread() -> None:
    # Both pairs are 29 images of 10,000 apart, but not in their last bits.
    variant, baseline = [0.9631, 0.9731], [0.9602, 0.9702]
    assert np.ptp(np.subtract(variant, baseline)) > 0
    difference = paired_difference(variant, baseline)
    assert difference.sd == 0
    assert difference.interval == Interval(difference.mean, difference.mean)


def _right(rng: np.random.Generator, num_seeds: int, num_images: int, accuracy: float = 0.9) -> np.ndarray:
    return rng.random((num_seeds, num_images)) < accuracy


def test_hierarchical_bootstrap_against_all_resamples_by_hand() -> None:
    """3 seeds and 5 images: every draw of seeds with every draw of images, and the stretch from sums of squares."""
    rng = np.random.default_rng(11)
    variant, baseline = _right(rng, 3, 5, 0.8), _right(rng, 3, 5, 0.4)
    table = variant.astype(int) - baseline.astype(int)
    seeds, images = (np.array(list(itertools.product(range(n), repeat=n))) for n in (3, 5))
    means = table[seeds[:, :, None, None], images].mean(axis=(1, 3)).ravel()
    grand = table.mean()
    of_seeds = sum((table[s].mean() - grand) ** 2 for s in range(3)) / 2 / 3
    of_images = sum((table[:, i].mean() - grand) ** 2 for i in range(5)) / 4 / 5
    of_rest = sum((table[s, i] - table[s].mean() - table[:, i].mean() + grand) ** 2 for s in range(3) for i in range(5)) / 8 / 15
    variance = of_seeds + max(of_images - of_rest, 0)
    freedom = variance**2 / (of_seeds**2 / 2 + max(of_images - of_rest, 0) ** 2 / 4)
    for level in (0.5, 0.9):
        upper = (1 + level) / 2
        stretch = stats.t.ppf(upper, freedom) / stats.norm.ppf(upper) * math.sqrt(variance / np.var(means))
        expected = grand + stretch * (np.quantile(means, [1 - upper, upper]) - grand)
        interval = hierarchical_bootstrap(variant, baseline, level=level)
        assert interval is not None
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=0.02)


def test_resampling_spreads_as_the_moments_of_its_multinomial_weights_say() -> None:
    """E[(w' D v)^2] from the covariances of the weights w of the seeds and v of the images: a matrix product, no resample."""
    rng = np.random.default_rng(12)
    table = _right(rng, 6, 300, 0.9).astype(float) - _right(rng, 6, 300, 0.85)
    seeds, images = np.eye(6) - 1 / 6, np.eye(300) - 1 / 300
    exact = (
        (seeds @ table).sum(axis=1) @ (seeds @ table).sum(axis=1)
        + (table @ images).sum(axis=0) @ (table @ images).sum(axis=0)
        + np.trace(seeds @ table @ images @ table.T)
    ) / table.size**2
    _, resampled, _ = statistics._two_way(table)
    assert resampled == pytest.approx(exact, rel=1e-9)
    means = statistics._resampled_means(table)
    assert means.mean() == pytest.approx(table.mean(), abs=4 * math.sqrt(exact / len(means)))
    assert means.var() == pytest.approx(exact, rel=4 * math.sqrt(2 / len(means)))


def test_two_way_variance_is_unbiased() -> None:
    """On normal effects of known variances; the plain resampling's own is not, which the stretch makes up for."""
    rng = np.random.default_rng(13)
    num_seeds, num_images = 5, 40
    tables = (
        rng.normal(0, 0.3, size=(4000, num_seeds, 1))
        + rng.normal(0, 1.0, size=(4000, 1, num_images))
        + rng.normal(0, 1.5, size=(4000, num_seeds, num_images))
    )
    truth = 0.3**2 / num_seeds + 1.0**2 / num_images + 1.5**2 / (num_seeds * num_images)
    estimates = np.array([statistics._two_way(table)[:2] for table in tables])
    assert estimates[:, 0].mean() == pytest.approx(truth, rel=0.03)
    assert tables.mean(axis=(1, 2)).var() == pytest.approx(truth, rel=4 * math.sqrt(2 / 4000))
    assert estimates[:, 1].mean() > 1.2 * truth


@pytest.mark.parametrize("always_better", [False, True])
def test_hierarchical_bootstrap_of_seeds_that_agree_is_the_interval_over_images(always_better: bool) -> None:
    rng = np.random.default_rng(14)
    variant, baseline = _right(rng, 1, 2000, 0.97), _right(rng, 1, 2000, 0.95)
    if always_better:  # then the only chance is how many of the images that tell the two apart are drawn
        baseline &= variant
    interval = hierarchical_bootstrap(np.repeat(variant, 4, axis=0), np.repeat(baseline, 4, axis=0))
    expected = stats.ttest_rel(variant[0].astype(float), baseline[0].astype(float)).confidence_interval()
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.05 * (expected.high - expected.low))


def test_hierarchical_bootstrap_is_the_same_at_every_call_and_turns_with_the_sides() -> None:
    rng = np.random.default_rng(15)
    variant, baseline = _right(rng, 4, 200, 0.9), _right(rng, 4, 200, 0.8)
    interval, turned = hierarchical_bootstrap(variant, baseline), hierarchical_bootstrap(baseline, variant)
    assert interval is not None
    assert turned is not None
    assert interval == hierarchical_bootstrap(variant.astype(int), baseline.astype(float))
    assert (turned.low, turned.high) == pytest.approx((-interval.high, -interval.low), abs=1e-12)
    wider = hierarchical_bootstrap(variant, baseline, level=0.99)
    assert wider is not None
    assert wider.low < interval.low < interval.high < wider.high


def test_hierarchical_bootstrap_is_no_point_where_what_differs_cancels() -> None:
    """Two seeds and two images: each seed gains one image and loses the other, the other seed the other way round."""
    variant = np.array([[1, 0], [0, 1]])
    interval = hierarchical_bootstrap(variant, 1 - variant)
    assert interval is not None
    assert interval.low < -0.5
    assert interval.high > 0.5


def test_hierarchical_bootstrap_of_no_difference_and_of_one_seed() -> None:
    right = _right(np.random.default_rng(16), 3, 50)
    assert hierarchical_bootstrap(right, right) == Interval(0, 0)
    assert hierarchical_bootstrap(right[:1], ~right[:1]) is None


@pytest.mark.parametrize(
    ("variant", "baseline", "match"),
    [
        (np.ones((2, 5)), np.ones((3, 5)), "same seeds and images"),
        (np.ones((2, 5)), np.ones((2, 4)), "same seeds and images"),
        (np.ones(5), np.ones(5), "same seeds and images"),
        (np.ones((2, 1)), np.ones((2, 1)), "same seeds and images"),
        (np.ones((0, 5)), np.ones((0, 5)), "same seeds and images"),
        (np.full((2, 5), 7), np.ones((2, 5)), "0 and 1"),
        (np.ones((2, 5)), np.full((2, 5), math.nan), "0 and 1"),
    ],
)
def test_hierarchical_bootstrap_refuses_what_cannot_be_paired(variant: np.ndarray, baseline: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        hierarchical_bootstrap(variant, baseline)


def test_vote_of_hand_worked_predictions() -> None:
    # A majority; all agree; a tie of 7 and 1, and the first seed says 7; a tie of 5 and 3 that the first seed has no part in.
    predictions = np.array([[7, 4, 7, 9], [1, 4, 1, 5], [1, 4, 1, 3], [2, 4, 7, 3], [1, 4, 8, 5]], dtype=np.uint8)
    assert vote(predictions).tolist() == [1, 4, 7, 5]
    assert vote(predictions).dtype == np.uint8


@given(
    st.integers(1, 7).flatmap(lambda seeds: st.lists(st.lists(st.integers(0, 9), min_size=seeds, max_size=seeds), min_size=1, max_size=6))
)
@settings(max_examples=50)
def test_vote_is_the_most_common_class_first_met_first(images: list[list[int]]) -> None:
    """collections.Counter keeps the order in which classes are first met, and `most_common` breaks ties by it."""
    expected = [Counter(votes).most_common(1)[0][0] for votes in images]
    assert vote(np.array(images, dtype=np.uint8).T).tolist() == expected


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 5, 3)])
def test_vote_refuses_what_is_no_table(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="seeds, images"):
        vote(np.zeros(shape, dtype=np.uint8))


@pytest.mark.parametrize(("alpha", "comparisons", "expected"), [(0.05, 1, 6), (0.05, 20, 10), (0.05, 5, 8), (0.01, 1, 8), (0.25, 1, 3)])
def test_seeds_for_p_is_where_the_best_result_first_passes_holm(alpha: float, comparisons: int, expected: int) -> None:
    def passes(n: int) -> bool:
        best = sign_flip_p(np.linspace(1, 2, n), np.zeros(n))
        return min(holm([best] + [1.0] * (comparisons - 1))) <= alpha

    assert seeds_for_p(alpha, comparisons) == expected
    assert passes(expected)
    assert not passes(expected - 1)
