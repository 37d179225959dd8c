"""Verdicts on made-up runs whose truth is known."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.measures import TIMING_RULES
from pipeline.params import ClaimSettings, ComparisonSettings, Params
from pipeline.study import Training, claims
from pipeline.study.claims import PRECEDENCE, Finding, Judgement, Levels, Why, is_ratio, measure_values
from pipeline.study.effects import RankEstimate, look_level
from pipeline.system.paths import CURVES
from tests.helpers import ends

LENGTH = 1_800_000
SPREAD = 1e-4 * np.array([-1.5, -0.5, 0.5, 1.5])  # of four seeds; its mean is 0


@dataclass(frozen=True)
class Runs(Training):
    """Hand-made evidence."""

    images_shown: int = 2 * LENGTH  # as long as the longest training that a claim of the study speaks of
    num_steps: int = 900
    ends_at_zero: bool = False
    predictions: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def settings(self) -> Any:
        train = SimpleNamespace(ends_at_zero=self.ends_at_zero)
        return SimpleNamespace(images_shown=self.images_shown, num_steps=self.num_steps, num_outputs=10, train=train)


def curve(accuracy: np.ndarray, *, train: float = 0.05, loss: np.ndarray | None = None, **changes: Any) -> Runs:
    """Of a test accuracy (seeds, epochs), one train loss, and a test loss (seeds,)."""
    losses = {"train_loss": np.full(accuracy.shape, train), "test_loss": np.full(accuracy.T.shape, 0.1 if loss is None else loss).T}
    return Runs("a", {}, tuple(range(len(accuracy))), losses | {"test_accuracy": accuracy}, **changes)


def ending(*accuracies: float, epochs: int = 12, **changes: Any) -> Runs:
    """These accuracies in every epoch."""
    return curve(np.repeat(np.array(accuracies)[:, None], epochs, axis=1), **changes)


def runs(mean: float = 0.97, *, n: int = 10, noise: float = 0.001, seed: int = 0, **changes: Any) -> Runs:
    """Seeds whose accuracy is exactly `mean` on average."""
    luck = np.random.default_rng(seed).normal(size=n)
    return ending(*(mean + noise * (luck - luck.mean())), **{"loss": 0.1 + noise * luck, **changes})


def steps(*values: float) -> Runs:
    return runs(n=len(values), evaluation={"steps_to_loss": np.array(values)})


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


def test_a_training_without_an_error_has_half_of_one(study: Params) -> None:
    """So that the ratio to it can be formed; of the others nothing changes."""
    curves = dict.fromkeys(CURVES, np.array([[1.0], [0.75]]))
    perfect = Training("a", {"config": study.resolve("base").model_dump(mode="json")}, (0, 1), curves)
    assert perfect.test_error.tolist() == [[0.5 / 10_000], [0.25]]
    arrays = {"seeds": np.array([0, 1]), "labels": np.zeros(8), "predictions": np.array([[0] * 8, [0] * 6 + [1] * 2])}
    assert replace(perfect, stored=lambda: arrays).test_error.tolist() == [[0.5 / 8], [0.25]]  # of data that another folder describes
    written = {"greedy_scene_accuracy": np.array([1.0, 0.75])}
    captions = Training("b", {"config": study.resolve("caption").model_dump(mode="json")}, (0, 1), curves, evaluation=written)
    assert measure_values("scene error", captions).tolist() == [0.5 / 5_000, 0.25]


def test_a_side_alone_is_judged_by_its_bound() -> None:
    side = ending(0.91, 0.93, 0.95, 0.97)
    alone = [found(compare("at least", reference=None, bound=bound), a=side).verdict for bound in (0.8, 0.95, 0.99)]
    assert alone == ["supported", "not decided", "contradicted"]  # 94 ± 4.1 %
    # A level is no ratio, whatever the measure's effects are: 6 ± 4.1 % of errors, which is not "0.06 times", nor nearly 1.
    error = found(compare("at least", "late test error", reference=None, bound=0.01), a=side)
    assert (error.verdict, error.effect, is_ratio(error.comparison)) == ("supported", pytest.approx(0.06), False)
    assert ends(error.interval) == pytest.approx((0.0189, 0.1011), abs=1e-4)
    guesses = ending(0.09, 0.11, 0.1, 0.12)
    assert found(compare("at least", "late test error", reference=None, bound=0.9), a=guesses).verdict == "not decided"


_spreads = st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=12).filter(lambda values: np.ptp(values) > 1e-4)


@given(_spreads, st.floats(-0.1, 0.1), st.sampled_from(["less", "more", "equivalent"]), st.integers(1, 5), st.integers(2, 40))
@settings(deadline=None, max_examples=40)
def test_moving_the_bound_judges_anew(differences: list[float], bound: float, rule: str, times: int, epochs: int) -> None:
    """For every bound and any number of epochs without movement the verdict follows from where scipy's interval lies.

    The interval does not depend on the bound.
    """
    n = len(differences)
    a, b = (ending(*side, epochs=epochs) for side in (0.9 + np.array(differences), [0.9] * n))
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
    assert ends(finding.interval) == pytest.approx((low, high), abs=1e-12)
    if min(abs(end - edge) for end in (low, high, wide_low, wide_high) for edge in (bound, -bound)) > 1e-9:
        assert finding.verdict == expected
        if expected == "not decided":
            assert finding.why is Why.ACROSS


# --- claims of several comparisons ---


class _Times:
    """Timings with a few rounds that barely differ."""

    def __init__(self, count: float = 2.0, rounds: int = 9) -> None:
        self._count, self._rounds = count, rounds

    def ratio(self, slower: str, faster: str) -> np.ndarray:
        return 1.3 * np.linspace(0.999, 1.001, self._rounds)

    def exponent(self, measure: str, subject: str) -> np.ndarray:
        return np.array([self._count])


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
    evidence |= {
        "short": replace(evidence["a"], images_shown=LENGTH - 1),
        "rising": curve(evidence["a"].test_accuracy + 0.01 * np.arange(-11, 1)),
    }
    evidence |= dict.fromkeys(("as a", "a too"), evidence["a"])
    evidence |= {name: runs(0.1, seed=i, train=2.3017) for i, name in enumerate(("stuck", "stuck too"))}
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
    stuck, learns = runs(0.1, train=2.3017), runs(0.97, seed=1)
    compared = compare("more", "late test error", paired=False, bound=1.05)
    assert found(compared, a=stuck, b=runs(0.15, train=2.3017)).observed
    assert found(compared, a=stuck, b=learns).verdict == "supported"  # that it learns nothing is what the other side shows
    assert found(compare("more", "diverged", paired=False, bound=-0.9), a=stuck, b=stuck).verdict == "supported"  # which is its subject


def test_a_time_to_an_accuracy_is_epochs_times_the_time_of_a_step() -> None:
    """Half as many epochs of 1.3 times as long a step. The error of the timings is that of its own interval."""
    a, b = (curve(np.where(np.arange(12) >= n, 0.97, 0.9) + np.zeros((10, 1))) for n in (2, 5))
    comparison = compare("less", "time to an accuracy", bound=0.952, paired=False)
    judgement = judge("X", claim(comparison), {"a": a, "b": b}, _Times())
    assert judgement.verdict == "supported"
    assert judgement.deciding.effect == pytest.approx(3 / 6 * 1.3)
    _, high = ends(RankEstimate(np.log(_Times().ratio("a", "b"))).interval())
    assert ends(judgement.deciding.interval)[1] == pytest.approx(3 / 6 * math.exp(high), rel=1e-5)
    of_gpu = claim(comparison).model_copy(update={"device": "cuda"})
    elsewhere = claims.judge("X", of_gpu, {"a": a, "b": b}, {"cpu": _Times()}, images_shown=LENGTH)
    assert (elsewhere.verdict, elsewhere.deciding.observed, elsewhere.deciding.effect) == ("not run", True, judgement.deciding.effect)
    assert judge("X", claim(comparison), {"a": a, "b": b}).verdict == "not run"
    assert judge("X", claim(comparison), {"a": a, "b": b}, _Times(rounds=3)).verdict == "not run"


@pytest.mark.parametrize(
    ("first", "second", "verdict", "deciding"),
    [
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


def test_a_supported_claim_hangs_on_the_comparison_nearest_to_its_margin() -> None:
    evidence = {"a": runs(0.971, noise=0.0005), "b": runs(0.97, seed=1, noise=0.0005)}
    near, far = compare("less", bound=0.002), compare("equivalent", bound=0.1)
    for order in ((near, far), (far, near)):
        judgement = judge("X", claim(*order), evidence)
        assert judgement.verdict == "supported"
        assert judgement.deciding.comparison == near


# --- trainings that are too short, and effects that still move ---


@pytest.mark.parametrize("comparison", [compare("more"), compare("at least", "ensemble accuracy", reference=None, bound=0.9)])
def test_a_short_run_gives_no_verdict_whatever_its_numbers(comparison: ComparisonSettings) -> None:
    votes = (np.random.default_rng(0).uniform(size=(10, 200)) < 0.9).astype(np.uint8), np.ones(200, np.uint8)
    made = {name: runs(0.9 + 0.02 * i, seed=i, predictions=votes) for i, name in enumerate("abc")}
    full = found(comparison, **made)
    for short in "abc":
        finding = found(comparison, **{**made, short: replace(made[short], images_shown=LENGTH - 1)})
        if short not in comparison.variants:
            assert finding == full
            continue
        assert (finding.verdict, finding.why, finding.lacking, finding.needed) == ("short run", Why.SHORT, (short,), None)
        assert (finding.n, finding.effect, finding.interval, finding.place) == (full.n, full.effect, full.interval, full.place)
        assert finding.observed


def test_the_length_is_the_claims_own_or_the_studys() -> None:
    evidence = {"a": runs(0.95, images_shown=LENGTH), "b": runs(seed=1, images_shown=LENGTH)}
    own = claim(compare("less")).model_copy(update={"images_shown": LENGTH + 1})
    shorter = own.model_copy(update={"images_shown": 1})
    assert [judge("X", one, evidence).verdict for one in (claim(compare("less")), own)] == ["supported", "short run"]
    longer = [judge("X", one, evidence, images_shown=LENGTH + 1).verdict for one in (claim(compare("less")), shorter)]
    assert longer == ["short run", "supported"]


def test_single_tests_that_collapse_do_not_unsettle_a_median() -> None:
    luck = 0.002 * np.arange(6)[:, None] + np.zeros((6, 30))
    collapsing = 0.95 + luck
    collapsing[:, 20] = 0.5  # in the last but one fifth
    comparison, other = compare("more", "median test error", bound=1.05, paired=False), curve(0.97 + luck)
    assert found(comparison, a=curve(collapsing), b=other) == found(comparison, a=curve(0.95 + luck), b=other)
    comparison = comparison.model_copy(update={"measure": "late test error"})
    assert found(comparison, a=curve(collapsing), b=other).why is Why.MOVED


def _last_two_fifths(before: np.ndarray, late: np.ndarray, epochs: int = 20) -> Runs:
    """Accuracy `before` in all fifths of the epochs but the last, `late` in the last."""
    last = epochs // 5
    return curve(np.concatenate([np.repeat(before[:, None], epochs - last, axis=1), np.repeat(late[:, None], last, axis=1)], axis=1))


@pytest.mark.parametrize(
    ("comparison", "effect", "moved", "settled"),
    [
        (compare("equivalent", bound=0.005), 0.000, -0.0011, False),
        (compare("more", bound=-0.005), 0.002, -0.0013, True),
        (compare("more", bound=-0.005), 0.002, -0.0015, False),
        (compare("more", bound=-0.005), 0.002, 0.0300, True),  # away from the bound
    ],
)
def test_an_effect_that_would_cross_a_bound_at_its_pace_is_not_settled(
    comparison: ComparisonSettings, effect: float, moved: float, settled: bool
) -> None:
    """Five fifths more are another training of that length."""
    evidence = {"a": _last_two_fifths(0.9 + effect - moved + SPREAD, 0.9 + effect + SPREAD), "b": ending(*[0.9] * 4)}
    finding = found(comparison, **evidence)
    still = found(comparison, a=ending(*(0.9 + effect + SPREAD)), b=evidence["b"])
    assert still.verdict == "supported"
    if settled:
        assert finding == still
    else:
        assert (finding.verdict, finding.interval, finding.place, finding.why) == ("not settled", still.interval, still.place, Why.MOVED)


def test_the_pace_is_followed_through_another_training_of_the_same_length() -> None:
    """A fifth of nine epochs is one epoch, so that nine such steps are another training, and not five."""
    for epochs, verdict in ((9, "not settled"), (10, "supported")):
        a = _last_two_fifths(0.9029 + SPREAD, 0.902 + SPREAD, epochs)
        assert found(compare("more", bound=-0.005), a=a, b=curve(np.full((4, epochs), 0.9))).verdict == verdict


def test_a_movement_that_may_be_noise_does_not_count() -> None:
    """By Welch's interval of what every seed moved, at the level of the verdict; more seeds tell."""
    noise = 0.005 * np.array([1.0, -1.0, 1.0, -1.0])
    for times in (1, 12):
        late, moved = 0.9 + 0.002 + np.tile(SPREAD, times), -0.0015 + np.tile(noise, times)
        finding = found(compare("more", bound=-0.005, paired=False), a=_last_two_fifths(late - moved, late), b=ending(*[0.9] * 4 * times))
        interval = stats.ttest_1samp(moved, 0).confidence_interval(0.95)
        assert (interval.low < 0 < interval.high) == (times == 1)
        assert finding.verdict == ("supported" if times == 1 else "not settled")


def test_a_training_that_ends_at_a_rate_of_0_has_nothing_to_settle() -> None:
    a, b = _last_two_fifths(0.9 + 0.04 + SPREAD, 0.9 + 0.02 + SPREAD), ending(*[0.9] * 4)
    assert found(compare("more", bound=0.01), a=a, b=b).verdict == "not settled"
    a, b = (replace(side, ends_at_zero=True) for side in (a, b))
    assert found(compare("more", bound=0.01), a=a, b=b).verdict == "supported"
    assert found(compare("more", bound=0.01), a=a, b=replace(b, ends_at_zero=False)).verdict == "not settled"


# --- seeds that count ---


def test_of_a_claim_made_after_results_only_later_seeds_count() -> None:
    early = runs(0.96, n=4)  # the claim holds in the seeds that led to it alone
    a = ending(*early.accuracy, *runs(0.9, n=4).accuracy)
    made = claim(compare("at least", reference=None, bound=0.95, paired=False))
    assert judge("X", made, {"a": early}).verdict == "supported"
    later = made.model_copy(update={"first_seed": 4})
    assert judge("X", later, {"a": a}).verdict == "contradicted"
    assert judge("X", later, {"a": a}).findings[0].sizes == (4,)
    finding = judge("X", later, {"a": early}).findings[0]
    assert (finding.verdict, finding.why, finding.lacking) == ("not run", Why.SEEN, ("a",))


def test_a_comparison_takes_the_seeds_that_all_sides_have() -> None:
    a, b = runs(n=10), replace(runs(seed=1, n=9), seeds=(11, 9, 2, 5, 3, 8, 4, 7, 6))
    common = [2, 3, 4, 5, 6, 7, 8, 9]
    difference = [a.accuracy[seed] - b.accuracy[b.seeds.index(seed)] for seed in common]
    for looks, k in {(6, 10, 20): 6, (4, 6, 7, 20): 7, (8,): 8, (): 8, (9, 20): 8}.items():
        judgement = judge("X", claim(compare("equivalent", bound=0.005)), {"a": a, "b": b}, looks=looks)
        assert judgement.looks == looks
        assert (judgement.deciding.n, judgement.deciding.effect) == (k, pytest.approx(np.mean(difference[:k])))
    assert (judgement.verdict, judgement.deciding.why) == ("not decided", Why.FEW_SEEDS)


def test_unpaired_sides_bring_their_own_seeds_up_to_their_own_look() -> None:
    """And none is more than one look ahead: the error rates of verdicts are counted for such orders only."""
    a, b = runs(n=8, seed=1), replace(runs(n=12, seed=2), seeds=tuple(range(100, 112)))
    comparison = compare("less", paired=False)
    finding = judge("X", claim(comparison), {"a": a, "b": b}, looks=(6, 10, 20)).deciding
    assert finding.sizes == (6, 10)
    test = stats.ttest_ind(a.accuracy[:6], b.accuracy[:10], equal_var=False).confidence_interval(look_level((6, 10, 20)))
    assert ends(finding.interval) == pytest.approx(tuple(test))
    few = judge("X", claim(comparison), {"a": a, "b": runs(n=5)}, looks=(6, 10, 20)).deciding
    assert (few.verdict, few.why) == ("not decided", Why.FEW_SEEDS)
    assert judge("X", claim(comparison), {"a": runs(n=25, seed=2), "b": runs(n=12)}, looks=(6, 10, 20)).deciding.sizes == (20, 10)


# --- what is lacking, and what cannot be used ---


def test_a_missing_variant_is_not_run_and_is_named() -> None:
    finding = found(compare("less", variant="c"), a=runs())
    assert (finding.verdict, finding.why, finding.lacking) == ("not run", Why.NO_RESULTS, ("c", "b"))
    finding = found(compare("less", "attention entropy"), a=runs(evaluation={"attention_entropy": np.ones(10)}), b=runs())
    assert (finding.verdict, finding.why, "evaluated" in finding.fault) == ("not run", Why.NOT_MEASURED, True)


def test_what_has_no_effect_or_no_spread_decides_nothing() -> None:
    """On a small test set accuracies can coincide by rounding; an interval of width zero would then say too much."""
    finding = found(compare("equivalent", bound=0.005), a=runs(noise=0), b=runs(noise=0, seed=1))
    assert (finding.verdict, finding.why) == ("not decided", Why.NO_SPREAD)
    finding = found(compare("equivalent", bound=0.005), a=runs(), b=replace(runs(seed=1), seeds=tuple(range(10, 20))))
    assert (finding.verdict, finding.why) == ("not decided", Why.NOT_FORMED)  # there are no pairs
    finding = found(compare("less"), a=runs(0.95, epochs=1), b=runs(seed=1, epochs=1))
    assert (finding.verdict, finding.why) == ("not settled", Why.ONE_EPOCH)
    lost = runs(0.97, seed=1, loss=np.array([0.1, 0.1, 0.1, math.nan, 0.1, math.inf, 0.1, 0.1, 0.1, 0.1]))
    finding = found(compare("less", "test loss"), a=runs(), b=lost)
    assert (finding.verdict, finding.why, "3, 5" in finding.fault) == ("not decided", Why.NOT_FORMED, True)
    assert found(compare("less"), a=runs(0.95), b=lost).verdict == "supported"  # accuracy is there all the same


# --- ratios, votes and series ---


def test_a_ratio_of_errors_worked_by_hand() -> None:
    """Errors of 2, 4 and 8 % against 1, 2 and 4 %: logarithms ln 2 apart, each side's variance (ln 2)², error ln 2 √(2/3), freedom 4."""
    comparison = compare("less", "late test error", bound=1.0, paired=False)
    finding = found(comparison, a=ending(0.98, 0.96, 0.92), b=ending(0.99, 0.98, 0.96))
    half = stats.t.ppf(0.975, 4) * math.log(2) * math.sqrt(2 / 3)
    assert (finding.effect, finding.region, finding.sizes) == (pytest.approx(2.0), (0.0, 1.0), (3, 3))
    assert ends(finding.interval) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert finding.plain is not None
    assert finding.plain[0] == pytest.approx(0.14 / 3 - 0.07 / 3)
    of_two = found(comparison, 2, a=ending(0.98, 0.96, 0.92), b=ending(0.99, 0.98, 0.96))  # contradicted by a wider one
    assert (of_two.interval, of_two.plain) == (finding.interval, finding.plain)


@pytest.mark.parametrize(
    ("rule", "bound", "variant", "verdict"),
    [
        ("more", 1.05, "slow", "supported"),  # a larger effect supports it all the more
        ("more", 1.5, "slow", "not decided"),  # it is below 1.5, and might not be
        ("more", 1.2, "slow", "not decided"),  # it is within a quarter, and might not be
        ("less", 0.95, "quick", "supported"),  # now the effect may be smaller
        ("equivalent", 1.5, "slow", "not decided"),
    ],
)
def test_a_bound_of_an_effect_decides_on_its_own_side_alone(rule: str, bound: float, variant: str, verdict: str) -> None:
    """Of `slow` no seed reaches it within 900 steps, of `quick` all do after some 750: the ratio is 1.2 or more."""
    evidence = {"slow": steps(*[901] * 6), "quick": steps(745, 750, 755, 748, 752, 750)}
    (reference,) = {"slow", "quick"} - {variant}
    finding = found(compare(rule, "steps to a train loss of 0.5", variant, reference, paired=False, bound=bound), **evidence)
    assert finding.verdict == verdict
    assert (finding.why is Why.UNREACHED) == (verdict == "not decided")
    assert finding.may_be == ("larger" if variant == "slow" else "smaller")


# --- timings ---


def test_a_ratio_is_judged_on_logarithms() -> None:
    comparison = compare("ratio", "step time", between=(1.13, 1.5))
    looked = judge("X", claim(comparison), {}, _Times(), looks=(6, 10, 20))  # of seeds, which rounds are not
    logs = ends(RankEstimate(np.log(_Times().ratio("a", "b"))).interval())
    assert (looked.looks, ends(looked.deciding.interval)) == ((), pytest.approx(np.exp(logs)))


def test_saved_bytes_are_an_exact_count() -> None:
    comparison = compare("exponent", "saved bytes", "attention", "tokens", between=(1.75, 2.25))
    assert judge("X", claim(comparison), {}, _Times(count=1.76)).verdict == "supported"
    finding = judge("X", claim(comparison), {}, _Times(count=1.74)).findings[0]
    assert (finding.verdict, finding.effect, finding.interval) == ("contradicted", 1.74, None)
