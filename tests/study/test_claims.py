"""Verdicts on made-up runs whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.measures import MEASURES, TIMING_RULES, NotMeasured
from pipeline.measures.definitions import EMPTY_ROWS, SIZES
from pipeline.params import ClaimSettings, ComparisonSettings, Params
from pipeline.report import words
from pipeline.study import claims, load
from pipeline.study.claims import (
    OBSERVATIONS,
    PRECEDENCE,
    Finding,
    Judgement,
    Levels,
    Why,
    measure_values,
)
from pipeline.study.effects import RankEstimate, look_level, vote_estimate
from tests.helpers import ROOT

GRID = 5
EPOCHS = 12
LENGTH = 1_800_000


@dataclass(frozen=True)
class Runs:
    """Hand-made evidence: (seeds,) values of the last epoch, of train loss and gradient norm also of the first."""

    accuracy: np.ndarray
    seeds: tuple[int, ...]
    loss: np.ndarray
    last_train_loss: np.ndarray
    first_train_loss: np.ndarray
    first_norm: np.ndarray
    jitter: np.ndarray
    patch_positions: np.ndarray = field(default_factory=lambda: np.zeros((1, 0, 8)))
    grid: int = GRID
    epochs: int = EPOCHS
    images_shown: int = 2 * LENGTH  # as long as the longest training that a claim of the study speaks of
    num_steps: int = 2345

    ends_at_zero: bool = False
    slope: float = 0.0  # by which accuracy still rises from one epoch to the next
    shift_accuracy: np.ndarray | None = None
    attention_entropy: np.ndarray | None = None
    ink_correlation: np.ndarray | None = None
    right: np.ndarray | None = None  # (seeds, images): whether a prediction is right
    captions: dict[str, np.ndarray] = field(default_factory=dict)  # other columns of the evaluation
    flops: int = 1_000_000
    parameters: int = 10_000
    training_images: int = 60_000

    @property
    def supervised_epochs(self) -> int:
        return self.epochs

    @property
    def evaluation(self) -> dict[str, np.ndarray]:
        columns = {"attention_entropy": self.attention_entropy, "ink_correlation": self.ink_correlation, **self.captions}
        if self.shift_accuracy is not None:
            columns |= {f"shift_{i + 1}": column for i, column in enumerate(self.shift_accuracy.T)}
        return {name: column for name, column in columns.items() if column is not None}

    @property
    def predictions(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Class 1 is right."""
        return None if self.right is None else (self.right.astype(np.uint8), np.ones(self.right.shape[1], dtype=np.uint8))

    @property
    def num_outputs(self) -> int:
        return 10

    @property
    def test_accuracy(self) -> np.ndarray:
        back = np.arange(self.epochs)[::-1]
        return self.accuracy[:, None] - self.slope * back - np.where(back % 2 == 0, 0.0, 1.0) * self.jitter[:, None]

    @property
    def test_error(self) -> np.ndarray:
        return 1 - self.test_accuracy

    @property
    def test_loss(self) -> np.ndarray:
        return self.loss[:, None] + 0.01 * np.arange(self.epochs)[::-1]

    @property
    def train_loss(self) -> np.ndarray:
        return np.stack([self.first_train_loss, *[self.last_train_loss] * (self.epochs - 1)], axis=1)

    @property
    def gradient_norm(self) -> np.ndarray:
        return np.stack([self.first_norm, *[np.full(len(self.seeds), 0.01)] * (self.epochs - 1)], axis=1)


_COLUMNS = {
    "greedy_scene_accuracy": 0.93,
    "beam_scene_accuracy": 0.95,
    "greedy_exact_match": 0.92,
    "greedy_share_commonest": 0.22,
    "greedy_cider_d": 4.2,
    "own_ink_correlation": 0.2,
    "deletion": 0.1,
    "own_deletion": 0.05,
    "saturated_attention": 0.05,
    "score_gradient_start": 0.5,
    "positions_1d": 0.3,
    "position_changes_1d": 0.6,
    "state_gradient": -1.0,
    "loss_spikes": 2.0,
    "steps_to_loss": 300.0,
    **{f"size_{size}": 0.9 for size in SIZES},
    **{f"rows_{rows}": 0.9 for rows in EMPTY_ROWS},
}


def runs(mean: float = 0.97, *, n: int = 10, noise: float = 0.001, seed: int = 0, evaluated: bool = False, **changes: Any) -> Runs:
    """Accuracy is exactly `mean` on average; the other measures have values of their own."""
    rng = np.random.default_rng(seed)
    luck = rng.normal(size=n)
    made = Runs(
        accuracy=mean + noise * (luck - luck.mean()),
        seeds=tuple(range(n)),
        loss=0.1 + noise * rng.normal(size=n),
        last_train_loss=0.05 + noise * rng.normal(size=n),
        first_train_loss=0.6 + 0.02 * rng.normal(size=n),
        first_norm=1 + 0.1 * rng.normal(size=n),
        jitter=0.002 * (1 + 0.05 * rng.normal(size=n)),
    )
    if evaluated:
        made = replace(
            made,
            shift_accuracy=made.accuracy[:, None] - np.array([0.02, 0.1, 0.3, 0.5]) + noise * rng.normal(size=(n, 4)),
            attention_entropy=2 + 0.1 * rng.normal(size=n),
            ink_correlation=0.3 + 0.05 * rng.normal(size=n),
            right=rng.uniform(size=(n, 200)) < mean,
            patch_positions=_vectors(n, 0.2, seed),
            captions={name: level + noise * rng.normal(size=n) for name, level in _COLUMNS.items()},
        )
    return replace(made, **changes)


def ending(*accuracies: float) -> Runs:
    """These accuracies in every epoch."""
    return runs(n=len(accuracies), accuracy=np.array(accuracies), jitter=np.zeros(len(accuracies)))


def compare(rule: str, measure: str = "accuracy", variant: str = "a", reference: str | None = "b", **more: Any) -> ComparisonSettings:
    """A comparison, paired unless `more` says otherwise: seeds that share their noise let a verdict be worked out by hand."""
    if reference is not None and rule not in TIMING_RULES:
        more = {"paired": True, **more}
    return ComparisonSettings.model_validate({"rule": rule, "measure": measure, "variant": variant, "reference": reference, **more})


def claim(*comparisons: ComparisonSettings) -> ClaimSettings:
    return ClaimSettings(source="somebody", sentence="So it is.", measured="This.", margin="Because.", comparisons=comparisons)


def judge(id: str, claim: ClaimSettings, evidence: Mapping[str, Runs], timings: Any = None, **options: Any) -> Judgement:
    timed = {} if timings is None else {"cpu": timings, "cuda": timings}
    return claims.judge(id, claim, evidence, timed, **{"images_shown": LENGTH, **options})


def found(comparison: ComparisonSettings, times: int = 1, **evidence: Runs) -> Finding:
    """The finding about this comparison in a claim that makes it `times` times, which widens the interval that contradicts."""
    return judge("X", claim(*[comparison] * times), evidence).findings[0]


# --- the rules ---


def test_a_comparison_worked_by_hand() -> None:
    """Differences 1, 2, 3, 4 points: mean 2.5, sd 1.29099; t(3) = 3.18245 at 95 %, 4.17653 at 97.5 %; half-widths 2.05426 and 2.69594."""
    evidence = {"a": ending(0.91, 0.93, 0.95, 0.97), "b": ending(0.90, 0.91, 0.92, 0.93)}
    finding = found(compare("less"), **evidence)
    assert finding.interval is not None
    assert (finding.n, finding.effect) == (4, pytest.approx(0.025))
    assert (finding.interval.low, finding.interval.high) == pytest.approx((0.0044574, 0.0455426), abs=1e-7)
    assert finding.verdict == "contradicted"  # 0.446 > 0
    assert found(compare("less"), 2, **evidence).verdict == "not decided"  # -0.196 < 0 in the wider interval
    assert found(compare("more"), **evidence).verdict == "supported"
    assert found(compare("more", bound=0.004), **evidence).verdict == "supported"
    assert found(compare("more", bound=0.005), **evidence).verdict == "not decided"
    assert found(compare("less", bound=0.046), **evidence).verdict == "supported"
    assert found(compare("equivalent", bound=0.046), **evidence).verdict == "supported"
    assert found(compare("equivalent", bound=0.045), **evidence).verdict == "not decided"
    assert found(compare("equivalent", bound=0.004), **evidence).verdict == "contradicted"


def test_a_training_without_an_error_has_half_of_one() -> None:
    """So that the ratio to it can be formed; of the others nothing changes."""
    trainings = load(ROOT).trainings
    ours, theirs = trainings["base"], trainings["patch-7"]
    accuracy = ours.test_accuracy.copy()
    accuracy[0] = 1
    perfect = replace(ours, curves={**ours.curves, "test_accuracy": accuracy})
    assert np.array_equal(perfect.test_error[1:], 1 - accuracy[1:])
    assert (perfect.test_error[0] == 0.5 / 10_000).all()
    finding = claims.judge(
        "X", claim(compare("less", "late test error", paired=False)), {"a": perfect, "b": theirs}, images_shown=LENGTH
    ).findings[0]
    assert finding.interval is not None
    assert finding.plain is not None
    captions = trainings["caption"]
    column = np.ones(len(captions.seeds))
    perfect = replace(captions, evaluation={**(captions.evaluation or {}), "greedy_scene_accuracy": column})
    assert measure_values("scene error", perfect).tolist() == [0.5 / 5_000] * len(column)


def test_a_difference_of_differences_worked_by_hand() -> None:
    """(a - b) is 1, 2, 3, 4 points and (c - d) is 0, 1, 0, 1: left are 1, 1, 3, 3 points, mean 2, sd 1.154701, half-width 1.837388."""
    evidence = {
        "a": ending(0.91, 0.93, 0.95, 0.97),
        "b": ending(0.90, 0.91, 0.92, 0.93),
        "c": ending(0.8, 0.81, 0.8, 0.81),
        "d": ending(0.8, 0.8, 0.8, 0.8),
    }
    finding = found(compare("more", minus=("c", "d")), **evidence)
    assert finding.interval is not None
    assert (finding.effect, finding.interval.low, finding.interval.high) == pytest.approx((0.02, 0.00162612, 0.03837388), abs=1e-7)
    assert finding.verdict == "supported"
    assert found(compare("more", minus=("d", "c")), **evidence).effect == pytest.approx(0.03)


def test_at_least_looks_at_the_mean_itself() -> None:
    """90, 91, 92, 93 %: mean 91.5, the same half-width of 2.05426 points as differences of 1, 2, 3, 4 have."""
    evidence = {"a": ending(0.90, 0.91, 0.92, 0.93)}
    bounds = (0.894, 0.895, 0.935, 0.936)
    by_bound = {bound: found(compare("at least", reference=None, bound=bound), **evidence).verdict for bound in bounds}
    assert by_bound == {0.894: "supported", 0.895: "not decided", 0.935: "not decided", 0.936: "contradicted"}


_spreads = st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=12).filter(lambda values: np.ptp(values) > 1e-4)


@given(_spreads, st.floats(-0.1, 0.1), st.sampled_from(["less", "more", "equivalent"]), st.integers(1, 5), st.integers(2, 40))
@settings(deadline=None, max_examples=40)
def test_moving_the_bound_judges_anew(differences: list[float], bound: float, rule: str, times: int, epochs: int) -> None:
    """For every bound and any number of epochs without movement the verdict follows from where scipy's interval lies.

    The interval does not depend on the bound.
    """
    n = len(differences)
    a, b = (replace(ending(*side), epochs=epochs) for side in (0.9 + np.array(differences), [0.9] * n))
    bound = max(abs(bound), 1e-6) if rule == "equivalent" else bound

    def interval(level: float) -> tuple[float, float]:
        low, high = stats.ttest_rel(a.accuracy, b.accuracy).confidence_interval(level)
        return low, high

    (low, high), (wide_low, wide_high) = interval(0.95), interval(1 - 0.05 / times)
    if rule == "less":
        expected = "supported" if high < bound else "contradicted" if wide_low > bound else "not decided"
    elif rule == "more":
        expected = "supported" if low > bound else "contradicted" if wide_high < bound else "not decided"
    else:
        out = wide_low > bound or wide_high < -bound
        expected = "supported" if -bound < low and high < bound else "contradicted" if out else "not decided"
    finding = found(compare(rule, bound=bound), times, a=a, b=b)
    assert finding.interval is not None
    assert (finding.interval.low, finding.interval.high) == pytest.approx((low, high), abs=1e-12)
    if min(abs(end - edge) for end in (low, high, wide_low, wide_high) for edge in (bound, -bound)) > 1e-9:
        assert finding.verdict == expected
        if expected == "not decided":
            assert finding.why is Why.ACROSS


def test_one_of_many_comparisons_decides_a_claim_by_the_wider_interval_only() -> None:
    """A 95 % interval excludes a zero effect here, and the Bonferroni interval over four comparisons does not."""
    reference = runs(seed=2)
    pattern = np.random.default_rng(4).normal(size=10)
    pattern = (pattern - pattern.mean()) / pattern.std(ddof=1)  # mean 0, sd 1: t = 10^0.5 * shift
    shift = stats.t.ppf(0.98, 9) / 10**0.5
    variant = replace(reference, accuracy=reference.accuracy + 0.001 * (pattern + shift))
    assert stats.ttest_rel(variant.accuracy, reference.accuracy).pvalue == pytest.approx(0.04)
    assert found(compare("less"), 1, a=variant, b=reference).verdict == "contradicted"
    together = found(compare("less"), 4, a=variant, b=reference)
    assert together.verdict == "not decided"
    assert together.needed is not None  # the ratio of the two quantiles, and of the half-width to the distance
    assert together.needed == math.ceil(10 * (stats.t.ppf(1 - 0.05 / 8, 9) / stats.t.ppf(0.98, 9)) ** 2)
    assert found(compare("more"), 4, a=variant, b=reference).verdict == "supported"  # support needs no adjustment
    names = ("a", "c", "d", "e")  # of a claim of any it is support that needs it
    of_any = claim(*(compare("more", variant=name) for name in names)).model_copy(update={"any": True})
    finding = judge("X", of_any, {"b": reference, **dict.fromkeys(names, variant)}).findings[0]
    assert finding.verdict == "not decided"
    assert finding.interval is not None
    assert finding.interval.level == 0.95  # the narrower one, which is shown
    assert finding.levels == Levels(inside=1 - 0.05 / 4, outside=0.95)


# --- claims of several comparisons ---


class _Times:
    """Timings with a few rounds that barely differ."""

    def __init__(self, ratio: float = 1.3, time: float = 2.0, count: float = 2.0, rounds: int = 9) -> None:
        self._ratio, self._time, self._count, self._rounds = ratio, time, count, rounds

    def ratio(self, slower: str, faster: str) -> np.ndarray:
        if "untimed" in (slower, faster):
            raise LookupError("untimed was timed with other settings")
        return self._ratio * np.linspace(0.999, 1.001, self._rounds)

    def exponent(self, measure: str) -> np.ndarray:
        return np.array([self._count]) if measure == "saved bytes" else self._time + np.linspace(-0.001, 0.001, self._rounds)


_SHOWING: dict[str, ComparisonSettings] = {
    "supported": compare("less", variant="a"),
    "contradicted": compare("more", variant="as a"),
    "no effect of more than a quarter": compare("less", "late test error", variant="near", bound=0.952, paired=False),
    "not decided": compare("more", variant="a too", bound=-0.02),
    "not run": compare("less", variant="nobody"),
    "short run": compare("less", variant="short"),
    "learned nothing": compare("less", variant="stuck", reference="stuck too"),
    "not settled": compare("less", variant="rising"),
}


@pytest.mark.parametrize(("of_any", "first", "last"), [(False, "contradicted", "supported"), (True, "supported", "contradicted")])
def test_precedence(of_any: bool, first: str, last: str) -> None:
    """One contradiction at full length suffices, and support needs all comparisons; of a claim of any it is the other way round."""
    evidence = {"a": runs(0.95, noise=0.001), "b": runs(0.97, seed=1), "near": runs(0.97, seed=7, noise=0.003)}
    evidence |= {"short": replace(evidence["a"], images_shown=LENGTH - 1), "rising": replace(evidence["a"], slope=0.01)}
    evidence |= dict.fromkeys(("as a", "a too"), evidence["a"])
    evidence |= {name: runs(0.1, seed=i, last_train_loss=np.full(10, 2.3017)) for i, name in enumerate(("stuck", "stuck too"))}
    order = (first, *PRECEDENCE[1:-1], last)
    for verdicts in combinations_with_replacement(PRECEDENCE, 2):
        one = claim(*(_SHOWING[verdict] for verdict in verdicts)).model_copy(update={"any": of_any})
        judgement = judge("X", one, evidence)
        assert tuple(finding.verdict for finding in judgement.findings) == verdicts
        assert judgement.verdict == min(verdicts, key=order.index)
        assert judgement.deciding.verdict == judgement.verdict


def test_no_effect_of_more_than_a_quarter_is_an_equivalence() -> None:
    """Where a claim is not decided, the whole interval lies between 0.8 and 1.25. Differences in points have no such verdict."""
    pattern = np.linspace(-1, 1, 10)
    b = ending(*(1 - 0.03 * np.exp(0.05 * pattern)))
    cases = ((0.96, 0.05, 0.952), (0.96, 0.4, 0.952), (0.81, 0.05, 0.83), (1.23, 0.06, 1.22))  # ratio, spread, bound
    for (ratio, spread, bound), verdict in zip(cases, ("no effect", "not decided", "not decided", "not decided"), strict=True):
        a = ending(*(1 - 0.03 * ratio * np.exp(spread * pattern[::-1])))
        finding = found(compare("less", "late test error", bound=bound, paired=False), a=a, b=b)
        interval = stats.ttest_ind(np.log(1 - a.accuracy), np.log(1 - b.accuracy), equal_var=False).confidence_interval(0.95)
        assert interval.low < math.log(bound) < interval.high
        assert (interval.low > -math.log(1.25) and interval.high < math.log(1.25)) == (verdict == "no effect")
        assert finding.verdict.startswith(verdict)
    assert found(compare("less", "late accuracy", paired=False), a=b, b=replace(b, seeds=b.seeds[::-1])).verdict == "not decided"


def test_networks_at_the_loss_of_a_guess_have_learned_nothing() -> None:
    stuck, learns = runs(0.1, last_train_loss=np.full(10, 2.3017)), runs(0.97, seed=1)
    compared = compare("more", "late test error", paired=False, bound=1.05)
    finding = found(compared, a=stuck, b=replace(stuck, accuracy=stuck.accuracy + 0.05))
    assert (finding.verdict, finding.why, finding.observed) == ("learned nothing", Why.CHANCE, True)
    assert found(compared, a=stuck, b=learns).verdict == "supported"  # that it learns nothing is what the other side shows
    assert found(compare("more", "diverged", paired=False, bound=0.1), a=stuck, b=stuck).verdict == "not decided"  # which is its subject


def test_a_count_has_no_interval() -> None:
    sides = {"a": runs(parameters=100), "b": runs(seed=1, parameters=200)}
    for bound, verdict in ((0.952, "supported"), (0.4, "contradicted")):
        finding = found(compare("less", "parameters", bound=bound, paired=False), **sides)
        assert (finding.verdict, finding.interval, finding.effect) == (verdict, None, pytest.approx(0.5))


def test_a_time_to_an_accuracy_is_epochs_times_the_time_of_a_step() -> None:
    """Half as many epochs of 1.3 times as long a step. The error of the timings is that of its own interval."""
    a, b = (curve(np.where(np.arange(12) >= n, 0.97, 0.9) + np.zeros((10, 1))) for n in (2, 5))
    comparison = compare("less", "time to an accuracy", bound=0.952, paired=False)
    judgement = judge("X", claim(comparison), {"a": a, "b": b}, _Times())
    assert judgement.verdict == "supported"
    assert judgement.deciding.effect == pytest.approx(3 / 6 * 1.3)
    rounds = RankEstimate(np.log(1.3 * np.linspace(0.999, 1.001, 9))).interval()
    assert rounds is not None
    assert judgement.deciding.interval is not None
    assert judgement.deciding.interval.high == pytest.approx(3 / 6 * math.exp(rounds.high), rel=1e-5)
    assert judge("X", claim(comparison), {"a": a, "b": b}).verdict == "not run"
    assert judge("X", claim(comparison), {"a": a, "b": b}, _Times(rounds=3)).verdict == "not run"


@pytest.mark.parametrize(
    ("first", "second", "verdict", "deciding"),
    [
        (("above", "above"), ("below", "above"), "supported", 0),  # one variant that beats both suffices
        (("above", "below"), ("below", "above"), "contradicted", 1),  # either variant beats one only
        (("above", "below"), ("above", "nobody"), "not run", 3),  # the second may still beat both
        (("below", "nobody"), ("below", "below"), "contradicted", 0),  # what was not run can save neither
    ],
)
def test_a_case_is_one_variants_comparisons(first: tuple[str, str], second: tuple[str, str], verdict: str, deciding: int) -> None:
    """The claim wants `x` and `y` to lie below their references. They lie between the two."""
    evidence = {name: runs(accuracy, seed=i, noise=0.001) for i, (name, accuracy) in enumerate({"above": 0.97, "below": 0.93}.items())}
    evidence |= {name: runs(0.95, seed=5, noise=0.001) for name in ("x", "y")}
    comparisons = [compare("less", variant=name, reference=other) for name, others in (("x", first), ("y", second)) for other in others]
    one = claim(*comparisons).model_copy(update={"any": True})
    judgement = judge("X", one, evidence)
    assert judgement.verdict == verdict
    assert judgement.deciding is judgement.findings[deciding]
    assert judgement.findings[0].levels == Levels(0.975, 0.975)
    uneven = claim(*comparisons[1:]).model_copy(update={"any": True})  # one comparison of `x`, two of `y`
    assert judge("X", uneven, evidence).findings[0].levels == Levels(0.975, 0.975)


def test_a_supported_claim_hangs_on_the_comparison_nearest_to_its_margin() -> None:
    evidence = {"a": runs(0.971, noise=0.0005), "b": runs(0.97, seed=1, noise=0.0005)}
    near, far = compare("less", bound=0.002), compare("equivalent", bound=0.1)
    for order in ((near, far), (far, near)):
        judgement = judge("X", claim(*order), evidence)
        assert judgement.verdict == "supported"
        assert judgement.deciding.comparison == near
    # Near is in widths of its own interval: the narrow one is closer to the bound, and the wide one would cross it sooner.
    pattern = np.linspace(-1, 1, 10)
    evidence = {"b": ending(*[0.9] * 10), "a": ending(*(0.9 - 0.001 + 1e-5 * pattern)), "c": ending(*(0.9 - 0.002 + 1e-3 * pattern))}
    narrow, wide = compare("less"), compare("less", variant="c")
    judgement = judge("X", claim(narrow, wide), evidence)
    assert (judgement.verdict, judgement.deciding.comparison) == ("supported", wide)


def test_the_margin_of_a_ratio_is_near_on_logarithms() -> None:
    """No ratio reaches 0, so an effect close to it lies far inside of a claim of fewer errors."""
    pattern = np.linspace(-1, 1, 10)
    evidence = {name: ending(*(1 - error * np.exp(spread * pattern))) for name, error, spread in (
        ("b", 0.1, 0.01), ("strong", 0.005, 0.6), ("weak", 0.07, 0.08)
    )}  # fmt: skip
    strong, weak = (compare("less", "late test error", name, bound=0.952, paired=False) for name in ("strong", "weak"))
    judgement = judge("X", claim(strong, weak), evidence)
    assert (judgement.verdict, judgement.deciding.comparison) == ("supported", weak)
    interval = judgement.findings[0].interval
    assert interval is not None
    assert interval.low / (interval.high - interval.low) < 1.5  # in ratios the strong one is nearer, to 0


def test_an_undecided_claim_hangs_on_the_comparison_that_will_settle_it() -> None:
    evidence = {"a": runs(0.9705, noise=0.001), "b": runs(0.97, seed=1, noise=0.001)}
    early, late = compare("less", bound=0.0012), compare("less", bound=0.0007)
    inside = judge("X", claim(early, late), evidence)
    assert [finding.verdict for finding in inside.findings] == ["not decided"] * 2
    assert inside.deciding.comparison == late  # it takes both to support
    leaving = compare("less", bound=0.0001)
    outside = judge("X", claim(early, late, leaving), evidence)
    assert outside.deciding.comparison == leaving  # it takes one to contradict


# --- trainings that are too short, and effects that still move ---

_TRAINED = [
    compare("equivalent", bound=0.005),
    compare("at least", reference=None, bound=0.96),
    compare("more", minus=("c", "d")),
    compare("less", "first-epoch loss"),
    compare("at least", "ensemble accuracy", reference=None, bound=0.9),
    compare("less", "late test error", bound=0.952, paired=False),
]  # fmt: skip


@given(
    comparison=st.sampled_from(_TRAINED),
    means=st.lists(st.floats(0.1, 0.999), min_size=4, max_size=4),
    noise=st.floats(1e-6, 0.05),
    n=st.integers(1, 12),
    epochs=st.integers(1, 40),
    short=st.sampled_from("abcd"),
    shown=st.integers(1, LENGTH - 1),
)
@settings(deadline=None, max_examples=40)
def test_a_short_run_gives_no_verdict_whatever_its_numbers(
    comparison: ComparisonSettings, means: list[float], noise: float, n: int, epochs: int, short: str, shown: int
) -> None:
    made = {
        name: runs(mean, noise=noise, n=n, seed=i, epochs=epochs, evaluated=True)
        for i, (name, mean) in enumerate(zip("abcd", means, strict=True))
    }
    full = found(comparison, **made)
    made[short] = replace(made[short], images_shown=shown)
    finding = found(comparison, **made)
    sides = {comparison.variant, comparison.reference, *(comparison.minus or ())}
    if short not in sides:
        assert finding == full
        return
    assert finding.verdict == "short run"
    assert (finding.why, finding.lacking, finding.needed) == (Why.SHORT, (short,), None)
    assert (finding.n, finding.effect, finding.interval, finding.region) == (full.n, full.effect, full.interval, full.region)
    if full.verdict not in OBSERVATIONS:
        assert (finding.place, finding.observed) == (full.place, full.effect is not None)
    assert judge("X", claim(*[comparison] * 3), made).verdict == "short run"


def test_the_length_is_the_claims_own_or_the_studys() -> None:
    evidence = {"a": runs(0.95, images_shown=LENGTH), "b": runs(seed=1, images_shown=LENGTH)}
    own = claim(compare("less")).model_copy(update={"images_shown": LENGTH + 1})
    shorter = own.model_copy(update={"images_shown": 1})
    assert [judge("X", one, evidence).verdict for one in (claim(compare("less")), own)] == ["supported", "short run"]
    assert [judge("X", one, evidence, images_shown=LENGTH + 1).verdict for one in (claim(compare("less")), shorter)] == [
        "short run",
        "supported",
    ]
    assert [judge("X", one, evidence).images_shown for one in (claim(compare("less")), own)] == [LENGTH, LENGTH + 1]
    assert judge("X", claim(compare("ratio", "step time", between=(1.1, 1.5))), {}, _Times()).images_shown is None


@dataclass(frozen=True)
class Curve(Runs):
    """Evidence with an accuracy of its own in every epoch."""

    curve: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))  # (seeds, epochs)

    @property
    def test_accuracy(self) -> np.ndarray:
        return self.curve


def curve(accuracy: np.ndarray) -> Curve:
    made = runs(n=len(accuracy), accuracy=accuracy[:, -1], epochs=accuracy.shape[1])
    return Curve(**vars(made), curve=accuracy)


def _last_two_fifths(before: np.ndarray, late: np.ndarray) -> Curve:
    """20 epochs: accuracy `before` in all fifths but the last, `late` in the last."""
    return curve(np.concatenate([np.repeat(before[:, None], 16, axis=1), np.repeat(late[:, None], 4, axis=1)], axis=1))


@pytest.mark.parametrize(
    ("comparison", "effect", "moved", "settled"),
    [
        (compare("equivalent", bound=0.005), 0.000, 0.0009, True),
        (compare("equivalent", bound=0.005), 0.000, -0.0011, False),
        (compare("more", bound=-0.005), 0.002, -0.0013, True),
        (compare("more", bound=-0.005), 0.002, -0.0015, False),
        (compare("more", bound=-0.005), 0.002, 0.0300, True),  # away from the bound
        (compare("at least", reference=None, bound=0.9), 0.030, -0.0059, True),  # 93 % is 3 points above
        (compare("at least", reference=None, bound=0.9), 0.030, -0.0061, False),
    ],
)
def test_an_effect_that_would_cross_a_bound_at_its_pace_is_not_settled(
    comparison: ComparisonSettings, effect: float, moved: float, settled: bool
) -> None:
    """Five fifths more are another training of that length."""
    spread = 1e-4 * np.array([-1.5, -0.5, 0.5, 1.5])
    evidence = {"a": _last_two_fifths(0.9 + effect - moved + spread, 0.9 + effect + spread), "b": ending(*[0.9] * 4)}
    finding = found(comparison, **evidence)
    still = found(comparison, a=ending(*(0.9 + effect + spread)), b=evidence["b"])
    assert still.verdict == "supported"
    if settled:
        assert finding == still
    else:
        assert (finding.verdict, finding.interval, finding.place, finding.why) == ("not settled", still.interval, still.place, Why.MOVED)
        assert finding.moved is not None
        assert finding.moved[0] == pytest.approx(moved)


def test_a_movement_that_may_be_noise_does_not_count() -> None:
    """By Welch's interval of what every seed moved, at the level of the verdict; more seeds tell."""
    spread, noise = 1e-4 * np.array([-1.5, -0.5, 0.5, 1.5]), 0.005 * np.array([1.0, -1.0, 1.0, -1.0])
    for times in (1, 12):
        late, moved = 0.9 + 0.002 + np.tile(spread, times), -0.0015 + np.tile(noise, times)
        finding = found(compare("more", bound=-0.005, paired=False), a=_last_two_fifths(late - moved, late), b=ending(*[0.9] * 4 * times))
        interval = stats.ttest_1samp(moved, 0).confidence_interval(0.95)
        assert (interval.low < 0 < interval.high) == (times == 1)
        assert finding.verdict == ("supported" if times == 1 else "not settled")
    assert finding.moved is not None
    assert (finding.moved[1].low, finding.moved[1].high) == pytest.approx((interval.low, interval.high))


def test_a_training_that_ends_at_a_rate_of_0_has_nothing_to_settle() -> None:
    spread = 1e-4 * np.array([-1.5, -0.5, 0.5, 1.5])
    a, b = _last_two_fifths(0.9 + 0.04 + spread, 0.9 + 0.02 + spread), ending(*[0.9] * 4)
    assert found(compare("more", bound=0.01), a=a, b=b).verdict == "not settled"
    a, b = (replace(side, ends_at_zero=True) for side in (a, b))
    assert found(compare("more", bound=0.01), a=a, b=b).verdict == "supported"
    assert found(compare("more", bound=0.01), a=a, b=replace(b, ends_at_zero=False)).verdict == "not settled"
    one = claim(compare("more", bound=0.01))
    mixed, ended = ({"a": a, "b": replace(b, ends_at_zero=end)} for end in (False, True))
    assert [judge("X", one, evidence).settles for evidence in (mixed, ended, {"a": a})] == [True, False, True]
    # Also of trainings that were not run the page says whether an effect has to settle.
    assert [judge("X", one, {}, ended=names).settles for names in ((), ("a",), ("a", "b"))] == [True, True, False]


def test_of_a_claim_made_after_results_only_later_seeds_count() -> None:
    early, late = runs(0.96, n=4), runs(0.9, n=4)  # the claim holds in the seeds that led to it alone
    both = np.concatenate([early.accuracy, late.accuracy])
    a = replace(runs(0.9, n=8), accuracy=both)
    made = claim(compare("at least", reference=None, bound=0.95, paired=False))
    assert judge("X", made, {"a": early}).verdict == "supported"
    later = made.model_copy(update={"first_seed": 4})
    assert judge("X", later, {"a": a}).verdict == "contradicted"
    assert judge("X", later, {"a": a}).findings[0].sizes == (4,)
    finding = judge("X", later, {"a": early}).findings[0]
    assert (finding.verdict, finding.effect) == ("not run", None)
    assert (finding.why, finding.lacking) == (Why.SEEN, ("a",))


def test_one_epoch_has_not_settled_and_losses_that_were_lost_have_not() -> None:
    finding = found(compare("less"), a=runs(0.95, epochs=1), b=runs(seed=1, epochs=1))
    assert (finding.verdict, finding.why) == ("not settled", Why.ONE_EPOCH)
    assert found(compare("less", "first-epoch loss"), a=runs(0.95, epochs=1), b=runs(seed=1, epochs=1)).verdict.startswith("no effect")

    class Rough(Runs):
        @property
        def test_loss(self) -> np.ndarray:
            return np.where(np.arange(20).reshape(10, 2) == 8, math.inf, super().test_loss)  # seed 4, the first of two epochs

    finding = found(compare("less", "test loss"), a=Rough(**vars(runs(epochs=2))), b=runs(seed=1, epochs=2))
    assert (finding.verdict, finding.why) == ("not settled", Why.NOT_FORMED)


def test_the_measures_with_a_value_by_epoch_are_those_that_settle() -> None:
    assert {name for name, one in MEASURES.items() if one.by_epoch} == {
        "accuracy", "test loss", "late accuracy", "late test error", "median test error", "late train loss", "late train loss in nats",
        "accuracy gained", "error times arithmetic",
    }  # fmt: skip
    made = runs(slope=0.01)
    values = measure_values("accuracy", made, epochs=slice(8, 10))
    assert values == pytest.approx(made.accuracy - 0.025 - made.jitter / 2)
    assert measure_values("accuracy", made, seeds=(3, 1), epochs=slice(8, 10)) == pytest.approx(values[[3, 1]])


def test_effects_that_stand_still_are_seldom_called_moving() -> None:
    """Without a true difference, at 30 epochs and ten seeds, no more effects move than the level of the interval lets through."""
    rng = np.random.default_rng(5)
    moving = 0
    for _ in range(200):
        a, b = (curve(0.97 + 0.001 * rng.normal(size=(10, 1)) + 0.001 * rng.normal(size=(10, 30))) for _ in range(2))
        moving += found(compare("less", "late accuracy", paired=False), a=a, b=b).why is Why.MOVED
    assert moving / 200 < 0.08  # 5 %, and half of them towards the bound


# --- what is lacking, and what cannot be used ---


def test_a_missing_variant_is_not_run_and_is_named(study: Params) -> None:
    judgement = judge("T3", study.claims["T3"], {"base": runs()})
    assert judgement.verdict == "not run"
    assert (judgement.deciding.why, judgement.deciding.lacking) == (Why.NO_RESULTS, ("first",))
    two = judge("T5a", study.claims["T5a"], {"base": runs()}).findings[-1]
    assert (two.verdict, two.lacking) == ("not run", ("patch-7", "patch-2"))


@pytest.mark.parametrize("measure", ["accuracy lost to shifts", "attention entropy", "ink correlation"])
def test_what_was_not_evaluated_is_not_run(measure: str) -> None:
    with pytest.raises(NotMeasured, match="evaluated"):
        measure_values(measure, runs())  # type: ignore[arg-type]
    finding = found(compare("less", measure), a=runs(evaluated=True), b=runs())
    assert finding.verdict == "not run"
    assert finding.why is Why.NOT_MEASURED
    assert found(compare("less", measure), a=runs(evaluated=True), b=runs(evaluated=True)).effect == float(MEASURES[measure].ratio)


def test_equal_values_of_all_seeds_decide_nothing() -> None:
    """On a small test set accuracies can coincide by rounding; an interval of width zero would then say too much."""
    finding = found(compare("equivalent", bound=0.005), a=runs(noise=0), b=runs(noise=0, seed=1))
    assert finding.verdict == "not decided"
    assert finding.why is Why.NO_SPREAD


def test_a_comparison_takes_the_seeds_that_all_sides_have() -> None:
    a, b = runs(n=10), replace(runs(seed=1, n=9), seeds=(11, 9, 2, 5, 3, 8, 4, 7, 6))
    common = [2, 3, 4, 5, 6, 7, 8, 9]
    difference = [a.accuracy[seed] - b.accuracy[b.seeds.index(seed)] for seed in common]
    finding = found(compare("equivalent", bound=0.005), a=a, b=b)
    assert (finding.n, finding.effect) == (8, pytest.approx(np.mean(difference)))
    for looks, k in {(6, 10, 20): 6, (4, 6, 7, 20): 7, (8,): 8, (): 8, (9, 20): 8}.items():
        judgement = judge("X", claim(compare("equivalent", bound=0.005)), {"a": a, "b": b}, looks=looks)
        assert judgement.looks == looks
        assert (judgement.deciding.n, judgement.deciding.effect) == (k, pytest.approx(np.mean(difference[:k])))
    assert (judgement.verdict, judgement.deciding.why) == ("not decided", Why.FEW_SEEDS)
    alone = judge("X", claim(compare("at least", reference=None, bound=0.9)), {"a": a}, looks=(6, 20))
    assert (alone.deciding.n, alone.deciding.effect) == (6, pytest.approx(a.accuracy[:6].mean()))


def test_seeds_that_do_not_pair_decide_nothing() -> None:
    other = replace(runs(seed=1), seeds=tuple(range(10, 20)))
    finding = found(compare("equivalent", bound=0.005), a=runs(), b=other)
    assert finding.verdict == "not decided"
    assert finding.why is Why.NOT_FORMED
    alone = found(compare("at least", reference=None, bound=0.9), a=other)
    assert alone.verdict == "supported"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_sentence(value: float) -> None:
    loss = np.full(10, 0.1)
    loss[[3, 5]] = value
    finding = found(compare("less", "test loss"), a=runs(), b=runs(loss=loss))
    assert finding.verdict == "not decided"
    assert (finding.why, "3, 5" in finding.fault) == (Why.NOT_FORMED, True)
    assert found(compare("less"), a=runs(0.95), b=runs(seed=1, loss=loss)).verdict == "supported"  # accuracy is there all the same


# --- measures ---


def _vectors(n: int, noise: float, seed: int) -> np.ndarray:
    """(n, GRID^2, dim): sums of waves over the grid, near patches alike, and noise of its own for each seed."""
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(GRID**2), GRID)
    waves = np.stack([f(k * axis / GRID) for k in (1, 2) for axis in (row, column) for f in (np.sin, np.cos)], axis=1)
    return waves + noise * rng.normal(size=(n, *waves.shape))


def test_a_votes_interval_is_over_seeds() -> None:
    """Ten voters, each wrong on another tenth of the images: their vote and the vote of every half of them is always right."""
    right = np.array([[(image + seed) % 10 > 0 for image in range(100)] for seed in range(10)])
    certain = found(compare("at least", "ensemble accuracy", reference=None, bound=0.9), a=runs(right=right))
    assert certain.effect == 1.0
    rng = np.random.default_rng(2)
    vague = runs(right=rng.uniform(size=(10, 300)) < rng.beta(3, 1.5, 300))
    by_bound = {}
    for bound in (0.5, vague.accuracy.mean(), 0.99):
        finding = found(compare("at least", "ensemble accuracy", reference=None, bound=bound), a=vague)
        by_bound[round(float(bound), 2)] = finding.verdict
        assert vague.predictions is not None
        interval = vote_estimate(*vague.predictions).interval()
        assert finding.interval == interval
    assert by_bound[0.5] == "supported"
    assert by_bound[0.99] == "contradicted"
    looked = judge("X", claim(compare("at least", "ensemble accuracy", reference=None, bound=0.5)), {"a": vague}, looks=(6, 20))
    assert looked.deciding.sizes == (6,)
    assert looked.deciding.effect == vote_estimate(vague.predictions[0][:6], vague.predictions[1]).mean


# --- ratios, unpaired sides, and claims of any ---


def _errors(*errors: float, **changes: Any) -> Runs:
    return replace(ending(*(1 - np.array(errors))), **changes)


def test_a_ratio_of_errors_worked_by_hand() -> None:
    """Errors of 2, 4 and 8 % against 1, 2 and 4 %: logarithms ln 2 apart, each side's variance (ln 2)², error ln 2 √(2/3), freedom 4."""
    comparison = compare("less", "late test error", bound=1.0, paired=False)
    finding = found(comparison, a=_errors(0.02, 0.04, 0.08), b=_errors(0.01, 0.02, 0.04))
    half = stats.t.ppf(0.975, 4) * math.log(2) * math.sqrt(2 / 3)
    assert finding.interval is not None
    assert finding.effect == pytest.approx(2.0)
    assert (finding.interval.low, finding.interval.high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert finding.region == (0.0, 1.0)
    assert finding.sizes == (3, 3)
    assert finding.plain is not None
    assert finding.plain[0] == pytest.approx(0.14 / 3 - 0.07 / 3)
    assert finding.plain[1] is not None
    of_two = found(comparison, 2, a=_errors(0.02, 0.04, 0.08), b=_errors(0.01, 0.02, 0.04))  # contradicted by a wider one
    assert (of_two.interval, of_two.plain) == (finding.interval, finding.plain)


def test_unpaired_sides_bring_their_own_seeds_up_to_their_own_look() -> None:
    a, b = runs(n=8, seed=1), replace(runs(n=12, seed=2), seeds=tuple(range(100, 112)))
    comparison = compare("less", paired=False)
    finding = judge("X", claim(comparison), {"a": a, "b": b}, looks=(6, 10, 20)).deciding
    assert finding.sizes == (6, 10)
    test = stats.ttest_ind(a.accuracy[:6], b.accuracy[:10], equal_var=False).confidence_interval(look_level((6, 10, 20)))
    assert finding.interval is not None
    assert (finding.interval.low, finding.interval.high) == pytest.approx(tuple(test))
    few = judge("X", claim(comparison), {"a": a, "b": runs(n=5)}, looks=(6, 10, 20)).deciding
    assert (few.verdict, few.why) == ("not decided", Why.FEW_SEEDS)


def test_no_side_is_more_than_one_look_ahead() -> None:
    """The error rates of verdicts are counted for such orders only."""
    a, b = runs(n=7, seed=1), runs(n=25, seed=2)
    for sides, sizes in (({"a": a, "b": b}, (6, 10)), ({"a": b, "b": a}, (10, 6)), ({"a": b, "b": runs(n=12)}, (20, 10))):
        finding = judge("X", claim(compare("less", paired=False)), sides, looks=(6, 10, 20)).deciding
        assert (finding.sizes, finding.effect) == (
            sizes,
            pytest.approx(sides["a"].accuracy[: sizes[0]].mean() - sides["b"].accuracy[: sizes[1]].mean()),
        )
    assert judge("X", claim(compare("less", paired=False)), {"a": a, "b": b}).deciding.sizes == (7, 25)


# --- the study's claims by name ---


def test_data_for_equal_accuracy_is_judged_over_all_sizes(study: Params) -> None:
    """The transformer needs four times the images of the CNN, with a little scatter from seed to seed."""
    sizes = (100, 300, 1000, 3000, 10_000, 30_000, 60_000)
    rng = np.random.default_rng(0)

    def made(names: list[str], times: float) -> dict[str, Runs]:
        luck = 1 + 0.01 * rng.normal(size=10)
        return {
            name: _errors(*(luck * (size / times) ** -0.5), training_images=size, images_shown=2 * LENGTH)
            for name, size in zip(names, sizes, strict=True)
        }

    vit = [f"vit-{size}" for size in sizes[:-1]] + ["base"]
    cnn = [f"cnn-{size}" for size in sizes[:-1]] + ["cnn"]
    judgement = judge("T8", study.claims["T8"], made(vit, 4.0) | made(cnn, 1.0), looks=study.looks)
    assert judgement.verdict == "supported"
    assert judgement.deciding.effect == pytest.approx(4.0, rel=0.05)
    assert judge("T8", study.claims["T8"], made(vit, 1.0) | made(cnn, 1.0), looks=study.looks).verdict == "contradicted"


def test_a_network_that_learns_nothing_is_not_called_stable(study: Params) -> None:
    """T12a, where no training has a spike: those without residual connections never leave the loss of a guess."""
    claim = study.claims["T12a"].model_copy(update={"first_seed": 0})
    flat = {"loss_spikes": np.zeros(6)}
    learns, stuck = runs(n=6, captions=flat), runs(n=6, captions=flat, last_train_loss=np.full(6, 2.3017))
    residual, plain = ("depth-12", "depth-6"), ("depth-12-no-residual", "depth-6-no-residual")
    evidence = dict.fromkeys(residual, learns) | dict.fromkeys(plain, stuck)
    judgement = judge("T12a", claim, evidence, looks=study.looks)
    assert judgement.verdict == "supported"
    assert judgement.deciding.effect == 1.0
    assert judgement.deciding.means == (1.0, 0.0)
    assert judgement.deciding.interval is not None
    tail = (1 - look_level(study.looks)) / 2
    assert judgement.deciding.interval.low == pytest.approx(2 * tail ** (1 / 12) - 1, abs=1e-6)  # all of six against none
    evidence |= {"depth-6-no-residual": runs(n=6, captions={"loss_spikes": np.array([1.0, 0, 2, 0, 0, 0])})}
    judgement = judge("T12a", claim, evidence, looks=study.looks)
    assert judgement.verdict == "not decided"
    assert judgement.deciding.effect == pytest.approx(1 / 3)
    assert judgement.deciding.needed is not None
    turned = dict.fromkeys(residual, stuck) | dict.fromkeys(plain, learns)
    assert judge("T12a", claim, turned, looks=study.looks).verdict == "contradicted"


def test_an_image_blind_map_contradicts_t14(study: Params) -> None:
    """What it says of an image is worth nothing, though it goes with digits in general and blanking by it costs more than at random."""
    small = np.arange(-3.0, 3.0)
    blind = {"own_ink_correlation": 0.001 * small, "deletion": 0.25 + 0.01 * small, "own_deletion": 0.0005 * small}
    unseen = replace(runs(n=6, captions=blind), seeds=tuple(range(10, 16)))
    evidence = dict.fromkeys(("base", "full-attention"), unseen)
    for name in ("T14a", "T14b"):
        assert judge(name, study.claims[name], evidence, looks=study.looks).verdict == "contradicted"


# --- timings ---


def test_a_ratio_is_judged_on_logarithms() -> None:
    comparison = compare("ratio", "step time", between=(1.13, 1.5))
    by_ratio = {ratio: judge("X", claim(comparison), {}, _Times(ratio=ratio)).verdict for ratio in (1.3, 1.05, 1.6, 1.13)}
    assert by_ratio == {1.3: "supported", 1.05: "contradicted", 1.6: "contradicted", 1.13: "not decided"}
    looked = judge("X", claim(comparison), {}, _Times(rounds=6), looks=(6, 10, 20))  # of seeds, which rounds are not
    assert (looked.verdict, looked.looks, looked.findings[0].interval and looked.findings[0].interval.level) == ("supported", (), 0.95)
    finding = judge("X", claim(comparison), {}, _Times()).findings[0]
    interval = RankEstimate(np.log(1.3 * np.linspace(0.999, 1.001, 9))).interval()
    assert finding.interval is not None
    assert interval is not None
    assert (finding.interval.low, finding.interval.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert finding.region == pytest.approx((1.13, 1.5))
    slower = compare("ratio", "step time", between=(1.0, math.inf))
    assert judge("X", claim(slower), {}, _Times()).verdict == "supported"
    assert judge("X", claim(compare("ratio", "step time", between=(0.0, 1.5))), {}, _Times()).verdict == "supported"


def test_rounds_that_lack_are_told_from_timings_that_lack() -> None:
    comparison = compare("ratio", "step time", between=(1.13, 1.5))
    few = judge("X", claim(comparison), {}, _Times(rounds=5)).deciding
    assert (few.verdict, few.n, few.why) == ("not decided", 5, Why.NO_INTERVAL)
    nothing = judge("X", claim(comparison), {}, _Times(rounds=0)).deciding
    assert (nothing.verdict, nothing.n, nothing.why) == ("not decided", 0, Why.NO_INTERVAL)
    none = judge("X", claim(comparison), {}, None).deciding
    assert (none.verdict, none.why) == ("not run", Why.NOT_TIMED)
    other = judge("X", claim(compare("ratio", "step time", "untimed", between=(1.13, 1.5))), {}, _Times()).deciding
    assert (other.verdict, other.why) == ("not run", Why.NOT_MEASURED)
    vague = judge("X", claim(comparison), {}, _Times(ratio=1.1305)).deciding
    assert (vague.verdict, vague.why) == ("not decided", Why.ACROSS)


def test_saved_bytes_are_an_exact_count() -> None:
    comparison = compare("exponent", "saved bytes", "attention", "tokens", between=(1.75, 2.25))
    assert judge("X", claim(comparison), {}, _Times(count=1.76)).verdict == "supported"
    finding = judge("X", claim(comparison), {}, _Times(count=1.74)).findings[0]
    assert (finding.verdict, finding.effect, finding.interval) == ("contradicted", 1.74, None)
    both = claim(comparison, compare("exponent", "attention time", "attention", "tokens", between=(1.75, 2.25)))
    assert judge("X", both, {}, _Times()).verdict == "supported"
    assert judge("X", both, {}, _Times()).deciding.comparison.measure == "attention time"  # a count has no edge to be near


# --- the study's own claims ---


def _everything(study: Params, **changes: Any) -> dict[str, Runs]:
    return {name: replace(runs(seed=i, evaluated=True), **changes) for i, name in enumerate(study.variants)}


def _diverged(study: Params) -> dict[str, Runs]:
    nan, inf = np.full(10, math.nan), np.full(10, math.inf)
    evidence = _everything(study, loss=nan, last_train_loss=inf, first_train_loss=nan, first_norm=inf, attention_entropy=nan)
    lost = {"accuracy": np.full(10, 0.098), "patch_positions": np.full((10, 25, 4), math.inf)}
    return {name: replace(given, **lost) for name, given in evidence.items()}  # type: ignore[arg-type]


_STATES = {
    "everything": _everything,
    "nothing": lambda study: {},
    "half of it": lambda study: dict(list(_everything(study).items())[::2]),
    "not evaluated": lambda study: {name: runs(seed=i) for i, name in enumerate(study.variants)},
    "one seed": lambda study: {name: runs(seed=i, n=1, evaluated=True) for i, name in enumerate(study.variants)},
    "no spread": lambda study: {name: runs(evaluated=True) for name in study.variants},
    "diverged": _diverged,
}  # fmt: skip


# Of a claim's findings none is of both: those of trainings do not look at timings, nor those of timings at trainings.
@pytest.mark.parametrize(("state", "timings"), [*((state, None) for state in _STATES), ("everything", _Times())])
def test_every_claim_of_the_study_is_judged_in_any_state(study: Params, state: str, timings: _Times | None) -> None:
    evidence = _STATES[state](study)
    judgements = [judge(name, one, evidence, timings) for name, one in study.claims.items()]
    for judgement in judgements:
        assert judgement.verdict in PRECEDENCE
        assert judgement.deciding in judgement.findings
        for finding in judgement.findings:
            assert finding.needed is None or (finding.needed > finding.n and finding.why is Why.ACROSS)
            assert words.rule(finding).startswith("supported if ")
            said = f"{words.because(finding)} {words.decides(finding, judgement)}"
            assert len(said) > 10
            assert not {"nan", "None", "inf"} & set(said.split())
            for value in (finding.effect, finding.interval and finding.interval.low, finding.interval and finding.interval.high):
                assert value is None or math.isfinite(value)
    unseen = [judgement for judgement in judgements if not judgement.claim.first_seed]  # of others all of these seeds had been seen
    trained = [f for judgement in unseen for f in judgement.findings if f.comparison.rule not in TIMING_RULES]
    trained = [f for f in trained if not (MEASURES[f.comparison.measure].exact or MEASURES[f.comparison.measure].per_step)]
    verdicts = {finding.verdict for finding in trained if finding.comparison.measure != "ensemble accuracy"}
    if state == "everything":
        assert "supported" in verdicts
        assert "not run" not in verdicts
    elif state == "one seed":
        assert verdicts == {"not decided"}
    elif state == "nothing":
        assert verdicts == {"not run"}


def test_the_evidence_that_claims_ask_for_exists(study: Params) -> None:
    """What the evaluation probes a network for is asked of networks that have it, or their claims could never be decided."""
    asked = [
        (name, probe, variant)
        for name, one in study.claims.items()
        for comparison in one.comparisons
        if (probe := MEASURES[comparison.measure].probe)
        for variant in {comparison.variant, comparison.reference, *(comparison.minus or ())} & study.variants.keys()
    ]
    assert {"attention", "positions", "recurrence"} <= {probe for _, probe, _ in asked}
    assert [one for one in asked if one[2] not in study.probed(one[1])] == []


def test_seeds_that_never_reach_what_is_measured_make_a_bound_of_the_effect() -> None:
    """Their value, one more than all steps, is the least that it can be."""

    def steps(*values: float) -> Runs:
        return runs(n=6, captions={"steps_to_loss": np.array(values)}, num_steps=900)

    quick, slow = steps(290, 300, 310, 295, 305, 300), steps(*[901.0] * 6)
    comparison = compare("more", "steps to a train loss of 0.5", paired=False, bound=1.25)
    finding = found(comparison, a=slow, b=quick)
    assert (finding.effect, finding.may_be) == (pytest.approx(901 / 300, rel=1e-3), "larger")
    assert found(comparison, a=quick, b=steps(300, 310, 901, 305, 295, 901)).may_be == "smaller"
    assert found(comparison, a=quick, b=steps(400, 410, 420, 405, 415, 410)).may_be == ""
    fourth = compare("less", "steps to a train loss of 0.5", "b", "a", bound=5.0, minus=("d", "c"), paired=False)
    assert found(fourth, a=slow, b=quick, c=slow, d=quick).may_be == ""


@pytest.mark.parametrize(
    ("rule", "bound", "variant", "verdict"),
    [
        ("more", 1.05, "slow", "supported"),  # a larger effect supports it all the more
        ("more", 1.5, "slow", "not decided"),  # it is below 1.5, and might not be
        ("less", 1.5, "slow", "not decided"),
        ("less", 1.05, "slow", "contradicted"),
        ("less", 0.95, "quick", "supported"),  # now the effect may be smaller
        ("less", 0.5, "quick", "not decided"),
        ("more", 0.5, "quick", "not decided"),
        ("more", 0.95, "quick", "contradicted"),
        ("equivalent", 1.5, "slow", "not decided"),
    ],
)
def test_a_bound_of_an_effect_decides_on_its_own_side_alone(rule: str, bound: float, variant: str, verdict: str) -> None:
    """Of `slow` no seed reaches it within 900 steps, of `quick` all do after some 750: the ratio is 1.2 or more."""
    values = {"slow": np.array([901.0] * 6), "quick": np.array([745.0, 750, 755, 748, 752, 750])}
    evidence = {name: runs(n=6, captions={"steps_to_loss": steps}, num_steps=900) for name, steps in values.items()}
    (reference,) = {"slow", "quick"} - {variant}
    finding = found(compare(rule, "steps to a train loss of 0.5", variant, reference, paired=False, bound=bound), **evidence)
    assert finding.verdict == verdict
    assert (finding.why is Why.UNREACHED) == (verdict == "not decided")
