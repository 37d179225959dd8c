"""Every statistic against an independent computation: scipy's own routines, enumeration by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.study.statistics import holm, summarize, vote
from tests.helpers import ends


def test_summary_of_hand_worked_numbers() -> None:
    # 2, 4, 6: mean 4, squared deviations 4 + 0 + 4 over 2, and t(0.975, 2) = 4.30265.
    summary, half = summarize([2.0, 4.0, 6.0]), 4.302652730 * 2 / math.sqrt(3)
    assert (summary.n, summary.mean, summary.sd) == (3, 4.0, 2.0)
    assert ends(summary.interval) == pytest.approx((4 - half, 4 + half), rel=1e-9)
    assert ends(summarize([0.2, 0.4, 0.9], limits=(0, 1)).interval) == (0.0, 1.0)  # beyond which no share lies
    for bad in ([], [[1.0, 2.0]], [1.0, math.nan]):
        with pytest.raises(ValueError, match=r"needs a row|finite"):
            summarize(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [3, 10])
def test_t_interval_on_skewed_accuracies(n: int) -> None:
    """Errors are lognormal, a bad seed farther off than a good one: that costs a mean's interval three points, a difference's none."""
    rng = np.random.default_rng(2)
    samples, others = (1 - rng.binomial(10_000, 0.02 * np.exp(rng.normal(0, 0.5, (2000, n)))) / 10_000 for _ in range(2))
    means = [summarize(sample).interval for sample in samples]
    pairs = [summarize(ours - theirs).interval for ours, theirs in zip(samples, others, strict=True)]
    for intervals, truth, level in ((means, 1 - 0.02 * math.exp(0.5**2 / 2), 0.92), (pairs, 0.0, 0.95)):
        covered = np.mean([one is not None and one.low <= truth <= one.high for one in intervals])
        assert covered == pytest.approx(level, abs=0.025)  # four standard errors of the count


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(max_examples=40)
def test_holm_is_the_closed_test_of_all_intersections(p_values: list[float]) -> None:
    """Holm's procedure is Bonferroni's test closed: a hypothesis' p is the largest over all families that hold it."""
    indices = range(len(p_values))
    families = [family for size in range(1, len(p_values) + 1) for family in itertools.combinations(indices, size)]
    closed = [max(min(1.0, len(f) * min(p_values[j] for j in f)) for f in families if i in f) for i in indices]
    assert holm(p_values) == pytest.approx(closed)


def test_vote_of_hand_worked_predictions() -> None:
    # A majority; all agree; a tie of 7 and 1, and the first seed says 7; a tie of 5 and 3 that the first seed has no part in.
    predictions = np.array([[7, 4, 7, 9], [1, 4, 1, 5], [1, 4, 1, 3], [2, 4, 7, 3], [1, 4, 8, 5]], dtype=np.uint8)
    assert vote(predictions).tolist() == [1, 4, 7, 5]
    assert vote(predictions).dtype == np.uint8
