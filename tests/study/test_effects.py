"""Effects and their intervals against independent computations: scipy's own tests, enumeration, simulation of a random walk."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.study import effects
from pipeline.study.effects import RankEstimate, ShareEstimate, common_look_level, contrast, look_level, to_decide, vote_estimate
from pipeline.study.proposals import LOOKS
from pipeline.study.statistics import vote
from tests.helpers import ends

# --- means and differences ---


@given(
    sizes=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    spread=st.tuples(st.floats(0.01, 3), st.floats(0.01, 3)),
    shift=st.floats(-2, 2),
    level=st.floats(0.5, 0.999),
    start=st.integers(0, 100),
)
@settings(deadline=None, max_examples=40)
def test_two_sides_are_scipys_welch_test(
    sizes: tuple[int, int], spread: tuple[float, float], shift: float, level: float, start: int
) -> None:
    rng = np.random.default_rng(start)
    ours, theirs = rng.normal(shift, spread[0], sizes[0]), rng.normal(0, spread[1], sizes[1])
    found, test = contrast(ours, theirs), stats.ttest_ind(ours, theirs, equal_var=False)
    assert ends(found.interval(level)) == pytest.approx(tuple(test.confidence_interval(level)))
    assert found.p == pytest.approx(test.pvalue)
    assert found.freedom == pytest.approx(test.df)
    both = contrast(ours, theirs, 2 * theirs, ours)
    assert both.mean == pytest.approx(2 * ours.mean() - 3 * theirs.mean())
    assert both.error == pytest.approx(np.hypot(found.error, contrast(2 * theirs, ours).error))
    assert ends(contrast(ours).interval(level)) == pytest.approx(tuple(stats.ttest_1samp(ours, 0).confidence_interval(level)))
    assert (contrast(ours[:1], theirs).interval(), contrast(ours[:1], theirs).p) == (None, None)


@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 2), min_size=2, max_size=10))
@settings(max_examples=40)
def test_pairs_are_the_t_interval_of_their_differences(rows: list[tuple[float, ...]]) -> None:
    a, b = (np.array(side) for side in zip(*rows, strict=True))
    found = contrast(a, b, paired=True)
    assert found.mean == pytest.approx((a - b).mean(), abs=1e-9)
    if np.ptp(a - b) > 1e-6:
        assert found.error == pytest.approx(stats.sem(a - b), rel=1e-6)
        assert found.freedom == pytest.approx(len(rows) - 1)


def test_differences_that_are_equal_on_paper_have_no_spread() -> None:
    ours, theirs = np.array([0.9631, 0.9731, 0.9502]), np.array([0.9602, 0.9702, 0.9473])
    assert np.ptp(ours - theirs) > 0
    assert contrast(ours, theirs, paired=True).error == 0
    same = contrast([0.97, 0.97], [0.97, 0.97])
    assert (same.mean, same.error, same.p) == (0.0, 0.0, None)


# --- shares ---


def test_shares_by_hand() -> None:
    """All of six against none has a chance of p^6 (1 - q)^6, at most ((1 + p - q) / 2)^12."""
    found = ShareEstimate((6, 0), (6, 6))
    assert found.mean == 1.0
    assert ends(found.interval(0.95)) == pytest.approx((2 * 0.025 ** (1 / 12) - 1, 1.0), abs=1e-6)
    one = ShareEstimate((3,), (4,))
    exact = stats.binomtest(3, 4).proportion_ci(0.9, "exact")
    assert (one.mean, *ends(one.interval(0.9))) == pytest.approx((0.75, exact.low, exact.high))
    assert effects.limited(contrast([0.5, 0.6]), 1, (-math.inf, math.inf)).limits == (-math.inf, math.inf)


@pytest.mark.parametrize("sizes", [(6, 6), (20, 10)])
def test_shares_are_covered_wherever_they_lie(sizes: tuple[int, int]) -> None:
    """Over all outcomes of both sides, weighted by their chance, for any pair of true shares."""
    level = look_level((6, 10, 20))
    counts = [np.arange(size + 1) for size in sizes]
    intervals = [[ShareEstimate((i, j), sizes).interval(level) for j in counts[1].tolist()] for i in counts[0].tolist()]
    low, high = (np.array([[getattr(one, end) for one in row] for row in intervals]) for end in ("low", "high"))
    for p, q in itertools.product(np.linspace(0, 1, 21), repeat=2):
        chance = np.outer(stats.binom.pmf(counts[0], sizes[0], p), stats.binom.pmf(counts[1], sizes[1], q))
        missed = [float((chance * outside).sum()) for outside in (low > p - q + 1e-9, high < p - q - 1e-9)]
        assert max(missed) <= (1 - level) / 2 + 1e-4  # true shares between those that are tried


# --- ranks ---


@given(st.lists(st.integers(-1000, 1000), min_size=effects.MIN_ROUNDS, max_size=12, unique=True), st.sampled_from([0.95, 0.9]))
@settings(deadline=None, max_examples=40)
def test_the_rank_interval_holds_what_scipys_signed_rank_test_does_not_reject(values: list[int], level: float) -> None:
    rows = np.array(values) + np.random.default_rng(0).uniform(0, 0.4, len(values))  # no ties
    found = RankEstimate(rows)
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(rows, 2))
    assert found.mean == pytest.approx(np.median(means))
    for end, inside in zip(ends(found.interval(level)), (1e-7, -1e-7), strict=True):
        assert stats.wilcoxon(rows - end - inside, method="exact").pvalue > 1 - level
        assert stats.wilcoxon(rows - end + inside, method="exact").pvalue <= 1 - level
    # 2 of 2^n sign patterns are as far out as all of one sign: n = 5 gives 93.75 %.
    assert RankEstimate(rows[: effects.MIN_ROUNDS - 1]).interval(0.95) is None


def test_seeds_of_shares_that_would_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of any number on both sides ends at 1 / n, not at 1 / √n: an interval of 53 leaves a tenth out, and one of 52 does not."""
    level = look_level((6, 10, 20, 100))
    assert to_decide(ShareEstimate((5,), (10,)), 10, level, 0.5001) == 1001  # more than anybody asks for
    monkeypatch.setattr(effects, "_MOST", 101)  # each interval of a thousand seeds takes long
    assert to_decide(ShareEstimate((0, 0), (12, 12)), 12, level, 0.1, math.inf) == 53
    highest = [ShareEstimate((0, 0), (n, n)).interval(level).high for n in (52, 53)]
    assert highest[1] < 0.1 < highest[0]


# --- looks ---


@pytest.mark.parametrize(("looks", "error"), [((6, 10, 20), None), ((3, 6), None), (LOOKS, 0.05), (LOOKS, 0.01)])
def test_all_looks_together_err_at_the_rate_that_their_level_is_for(looks: tuple[int, ...], error: float | None) -> None:
    """The share of random walks in which some look's interval misses the true mean of zero; each side's spread is known to be 1.

    Either side may be one look ahead, or with an `error` both have the same number of seeds.
    """
    level = look_level(looks) if error is None else common_look_level(looks, error)
    steps = itertools.pairwise(np.repeat(looks, 2).tolist()) if error is None else zip(looks, looks, strict=True)
    rng, trials, missed = np.random.default_rng(0), 200_000, np.zeros(200_000, dtype=bool)
    sums, counts = np.zeros((2, trials)), [0, 0]
    for sizes in steps:
        for side, size in enumerate(sizes):
            if size > counts[side]:
                sums[side] += rng.normal(0, math.sqrt(size - counts[side]), trials)
                counts[side] = size
        z = (sums[0] / counts[0] - sums[1] / counts[1]) / math.sqrt(1 / counts[0] + 1 / counts[1])
        missed |= np.abs(z) > stats.norm.ppf((1 + level) / 2)
    assert missed.mean() == pytest.approx(effects.TOGETHER * (error or 0.05) / 0.05, rel=0.057)


def test_a_single_look_is_at_95_percent() -> None:
    assert look_level(()) == look_level((6,)) == common_look_level((6,)) == pytest.approx(0.95)
    assert 0.9883 < look_level((6, 10, 20)) < 0.9885


# --- the vote ---


def test_the_votes_error_is_the_delete_half_jackknife_by_hand() -> None:
    """Four voters, two left out: the votes of the six pairs, of which the earlier one decides."""
    predictions = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=np.uint8)
    labels = np.ones(4, dtype=np.uint8)
    found = vote_estimate(predictions, labels)
    assert found.mean == (vote(predictions) == labels).mean()
    pairs = [(vote(predictions[list(kept)]) == labels).mean() for kept in itertools.combinations(range(4), 2)]
    assert found.error == pytest.approx(np.std(pairs))  # (S - d) / d = 1
    assert found.freedom == 3
    assert math.isnan(vote_estimate(predictions[:1], labels).error)
