"""The claims under test as data, and the rules that judge them.

A claim is one or more comparisons. A comparison is judged from its interval, never from a point: "supported" when the
interval lies wholly where the claim puts it, "contradicted" when wholly where the claim excludes it, else "not decided".
A claim is supported when all its comparisons are (each on its own 95 % interval: an intersection-union test needs no
adjustment), and contradicted when one is. As any one suffices for that, contradiction is read off the wider interval
that covers all of the claim's comparisons at once (Bonferroni), which holds false contradictions at 5 % a claim.

Claims about accuracy speak of trainings, and their unit is the seed. Claims about speed speak of the timing stage's interleaved
rounds, and their unit is the round; recorded times of trainings judge nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from pipeline.analysis.positions import nearness_correlation
from pipeline.analysis.statistics import LEVEL, FloatArray, Interval, paired_difference, summarize

Verdict = Literal["supported", "contradicted", "not decided"]
Measure = Literal["accuracy", "test loss", "unsteadiness", "nearness correlation", "step time", "attention time", "saved bytes"]

# At the constant learning rate one run's accuracy moves by up to 0.6 points from one epoch to the next (measured), so
# a difference of half a point is less than what stopping an epoch earlier or later changes.
ACCURACY_MARGIN = 0.005
# In nats. Half a point more wrong answers, each costing about two nats, is 0.01; twice that, because the loss also
# moves with how sure the right answers are.
LOSS_MARGIN = 0.02
# Random vectors give 0 and the fixed table gives 1 of itself: half-way is where "resembles" begins.
RESEMBLANCE_SHARE = 0.5
# "About 1.3 times" is a figure with two digits read off a curve: 15 % either way, from 1.13 to 1.50, still rounds to it as people speak.
ABOUT = 1.15
# Nearer to the square than to the powers 1.5 and 2.5.
SQUARE = (1.75, 2.25)
FEWEST_ROUNDS = 3  # two rounds have an interval, too, but one that a single slow round makes up
STEADY_EPOCHS = 10  # late epochs only: the first ones climb, which is learning and not unsteadiness


class Evidence(Protocol):
    """What a claim may ask of a variant; arrays are (seeds, epochs), accuracy a fraction."""

    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def test_accuracy(self) -> FloatArray: ...
    @property
    def test_loss(self) -> FloatArray: ...
    @property
    def grid(self) -> int: ...
    @property
    def patch_positions(self) -> FloatArray:
        """(seeds, grid^2, dim), without the class token's row; (seeds, 0, dim) where the variant adds none."""
        ...


class Timings(Protocol):
    """What a claim may ask of the timing stage's results. Everything is of the way in which the thesis computed, unless it says else."""

    def ratio(self, slower: str, faster: str) -> FloatArray:
        """(rounds,): step time of one variant divided by that of the other, of each undisturbed round.

        Raises:
            LookupError: one of them was not timed, or not with this study's settings; says so in a sentence's end.
        """
        ...

    def exponent(self, measure: str) -> FloatArray:
        """(rounds,) of a time, (1,) of bytes: the power of the token count with which it grows. Raises LookupError as `ratio` does."""
        ...


@dataclass(frozen=True)
class Comparison:
    """One measurable part of a claim: `rule` says how `variant` has to stand to `reference` in `measure`.

    `bound` is in the measure's own unit (accuracy as a fraction), `between` the claim's two ends; rules without a margin have none.
    """

    rule: str
    measure: Measure
    variant: str
    reference: str
    bound: float | None = None
    between: tuple[float, float] | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence somebody wrote, and what would show it right or wrong."""

    id: str
    source: str
    sentence: str
    measured: str
    bound_reason: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Finding:
    """What the data say of one comparison. `effect` is in the measure's unit, None where nothing could be formed."""

    comparison: Comparison
    verdict: Verdict
    why: str
    n: int
    effect: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Judgement:
    claim: Claim
    verdict: Verdict
    findings: tuple[Finding, ...]

    @property
    def deciding(self) -> Finding:
        """The finding the verdict hangs on: the first with the claim's own verdict, or of those supported the one nearest to its margin."""

        def used(finding: Finding) -> float:
            comparison = finding.comparison
            if comparison.rule != "equivalent" or finding.interval is None or comparison.bound is None:
                return 0.0
            return finding.interval.reach / comparison.bound

        same = [finding for finding in self.findings if finding.verdict == self.verdict]
        return max(same, key=used) if self.verdict == "supported" else same[0]


def _compare(
    rule: str, measure: Measure, *pairs: tuple[str, str], bound: float | None = None, between: tuple[float, float] | None = None
) -> tuple[Comparison, ...]:
    return tuple(Comparison(rule, measure, variant, reference, bound, between) for variant, reference in pairs)


_SIMILAR = (("patch-7", "base"), ("patch-2", "base"), ("patch-7", "patch-2"))
_MARGIN_REASON = (
    "Half a point: at the constant learning rate the accuracy of one run moves by up to 0.6 points from one epoch to the "
    "next, so less than that cannot matter to whoever picks between the two."
)
_TIMING_REASON = (
    "Judged on interleaved timings of training steps computed as published; epoch times of separate trainings also measure the machine's "
    "other work and judge nothing."
)
_ABOUT_REASON = f" The claim's figure is a rounded one, so {100 * (ABOUT - 1):.0f} % either way (a factor of {ABOUT}) is still it."

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        Claim(
            id="T1",
            source="thesis, 4.2",
            sentence="Fixed and learned position vectors reach a similar accuracy, and training with learned ones is somewhat steadier.",
            measured="Test accuracy after the last epoch; and unsteadiness, the standard deviation of the changes of test accuracy "
            f"from one epoch to the next over the last {STEADY_EPOCHS} epochs (all but the first of a shorter run). Both paired by seed.",
            bound_reason=_MARGIN_REASON + " Steadier means any smaller standard deviation.",
            comparisons=(
                *_compare("equivalent", "accuracy", ("sinusoidal", "base"), bound=ACCURACY_MARGIN),
                *_compare("less", "unsteadiness", ("base", "sinusoidal")),
            ),
        ),
        Claim(
            id="T2",
            source="thesis, 4.2",
            sentence="Learned position vectors come to resemble the fixed ones: near patches have similar vectors, far patches do not.",
            measured="Spearman's rank correlation, over all pairs of patches, of the cosine similarity of their position vectors with "
            "their nearness on the grid; one value per seed, against the value of the sinusoidal tables.",
            bound_reason="Vectors drawn at random give 0. Half of the fixed table's own correlation is where resemblance begins.",
            comparisons=_compare(
                "resembles", "nearness correlation", ("base", "sinusoidal"), ("base", "sincos2d"), bound=RESEMBLANCE_SHARE
            ),
        ),
        Claim(
            id="T3",
            source="thesis, 4.3",
            sentence="Without the class token, classifying from the first patch, accuracy is almost the same.",
            measured="Test accuracy after the last epoch, paired by seed.",
            bound_reason=_MARGIN_REASON,
            comparisons=_compare("equivalent", "accuracy", ("first", "base"), bound=ACCURACY_MARGIN),
        ),
        Claim(
            id="T4",
            source="thesis, 4.3",
            sentence="Without the class token an epoch is about 1.3 times faster, perhaps because of how the token is added.",
            measured="The time of a training step with the class token added image by image, as published, over that without one; "
            "the timing page also has the token added by one expand.",
            bound_reason=_TIMING_REASON + _ABOUT_REASON,
            comparisons=_compare("ratio", "step time", ("cls-loop", "first"), between=(1.3 / ABOUT, 1.3 * ABOUT)),
        ),
        Claim(
            id="T5",
            source="thesis, 4.4",
            sentence="Patches of 7, 4 and 2 pixels end at a similar loss and accuracy; patches of 14 pixels learn the least.",
            measured="Test accuracy and test loss after the last epoch, paired by seed.",
            bound_reason=_MARGIN_REASON
            + f" For the loss {LOSS_MARGIN} nats: twice the cost of half a point more wrong answers at two nats each. "
            "Least means any lower accuracy and any higher loss than each of the others.",
            comparisons=(
                *_compare("equivalent", "accuracy", *_SIMILAR, bound=ACCURACY_MARGIN),
                *_compare("equivalent", "test loss", *_SIMILAR, bound=LOSS_MARGIN),
                *_compare("less", "accuracy", ("patch-14", "patch-7"), ("patch-14", "base"), ("patch-14", "patch-2")),
                *_compare("more", "test loss", ("patch-14", "patch-7"), ("patch-14", "base"), ("patch-14", "patch-2")),
            ),
        ),
        Claim(
            id="T6",
            source="thesis, 4.4",
            sentence="An epoch with patches of 14 pixels is the slowest, perhaps because of the linear embedding.",
            measured="The time of a training step with patches of 14 pixels over that with 7, 4 and 2.",
            bound_reason=_TIMING_REASON + " Slowest means any ratio above 1.",
            comparisons=_compare(
                "ratio", "step time", ("patch-14", "patch-7"), ("patch-14", "base"), ("patch-14", "patch-2"), between=(1.0, math.inf)
            ),
        ),
        Claim(
            id="T7",
            source="thesis, 4.1.2",
            sentence="Cutting patches by tensor operations and attending to a batch at once make training 12 to 15 times faster "
            "than nested loops.",
            measured="The time of a training step with patches cut in three nested Python loops and attention computed image by image "
            "and head by head, over that of the published code; the same network and weights, both with the class token added image "
            "by image.",
            bound_reason=_TIMING_REASON + _ABOUT_REASON,
            comparisons=_compare("ratio", "step time", ("nested loops", "cls-loop"), between=(12 / ABOUT, 15 * ABOUT)),
        ),
        Claim(
            id="T9",
            source="thesis, 2.5 and 3.3",
            sentence="The cost of attention grows with the square of the number of tokens.",
            measured="The exponent of a power of the token count (least squares on logarithms, from 49 tokens on, as with fewer the calls "
            "themselves are the cost), fitted to the time of one block's attention alone, forward and backward, and to the bytes "
            "that it keeps for its backward pass.",
            bound_reason=f"An exponent from {SQUARE[0]} to {SQUARE[1]} is nearer to 2 than to 1.5 or 2.5. Bytes are counted "
            "and do not vary, so they have no interval.",
            comparisons=(
                *_compare("exponent", "attention time", ("attention", "tokens"), between=SQUARE),
                *_compare("exponent", "saved bytes", ("attention", "tokens"), between=SQUARE),
            ),
        ),
    )
}


def unsteadiness(accuracy: FloatArray) -> FloatArray:
    """Standard deviation of the changes of accuracy from epoch to epoch, per seed, over the last `STEADY_EPOCHS` epochs.

    Args:
        accuracy: (seeds, epochs); of a run of `STEADY_EPOCHS` epochs or fewer all but the first count.

    Returns:
        (seeds,), in the unit of `accuracy`.

    Raises:
        ValueError: fewer than four epochs leave fewer than two changes.
    """
    window = accuracy[:, 1:][:, -STEADY_EPOCHS:]
    if window.shape[1] < 3:
        raise ValueError("needs at least four epochs")
    deviation: FloatArray = np.diff(window, axis=1).std(axis=1, ddof=1)
    return deviation


def judge(claim: Claim, evidence: Mapping[str, Evidence], timings: Timings | None = None) -> Judgement:
    """Judges one claim from the variants and timings that there are; a comparison that lacks its own stays undecided."""
    wide = 1 - (1 - LEVEL) / len(claim.comparisons)
    findings = tuple(
        _judge_timing(comparison, timings, wide) if comparison.rule in TIMING_RULES else _judge_comparison(comparison, evidence, wide)
        for comparison in claim.comparisons
    )
    verdicts = {finding.verdict for finding in findings}
    verdict: Verdict = "contradicted" if "contradicted" in verdicts else "supported" if verdicts == {"supported"} else "not decided"
    return Judgement(claim, verdict, findings)


def _judge_comparison(comparison: Comparison, evidence: Mapping[str, Evidence], wide: float) -> Finding:
    missing = [name for name in (comparison.variant, comparison.reference) if name not in evidence]
    if missing:
        return Finding(comparison, "not decided", f"this study has no variant {' and no variant '.join(missing)}", 0)
    return RULES[comparison.rule](comparison, evidence[comparison.variant], evidence[comparison.reference], wide)


def _values(measure: Measure, evidence: Evidence) -> FloatArray:
    """(seeds,): the measure of one variant, seed by seed."""
    if measure == "accuracy":
        return evidence.test_accuracy[:, -1]
    if measure == "test loss":
        return evidence.test_loss[:, -1]
    if measure == "unsteadiness":
        return unsteadiness(evidence.test_accuracy)
    raise ValueError(f"no paired values of {measure}")


@dataclass(frozen=True)
class _Region:
    """Where the claim puts the effect (`inside`), and where it must not be (`outside`), as tests on an interval."""

    inside: Callable[[Interval], bool]
    outside: Callable[[Interval], bool]
    inside_text: str
    outside_text: str
    between_text: str


def _decide(comparison: Comparison, values: FloatArray, baseline: FloatArray | None, region: _Region, wide: float) -> Finding:
    """Verdict on the mean of `values`, or of their paired difference to `baseline`."""

    def interval_at(level: float) -> Interval | None:
        return (summarize(values, level=level) if baseline is None else paired_difference(values, baseline, level=level)).interval

    summary = summarize(values) if baseline is None else paired_difference(values, baseline)
    interval, wider = interval_at(LEVEL), interval_at(wide)

    def finding(verdict: Verdict, why: str) -> Finding:
        return Finding(comparison, verdict, why, summary.n, summary.mean, interval)

    if interval is None or wider is None:
        return finding("not decided", "one seed gives no interval")
    if summary.sd == 0:
        return finding("not decided", f"all {summary.n} seeds give the same value, so their spread, and with it an interval, is not known")
    if region.inside(interval):
        return finding("supported", region.inside_text)
    if region.outside(wider):
        return finding("contradicted", region.outside_text)
    if region.outside(interval):
        return finding("not decided", f"{region.outside_text}, but not the wider one that several comparisons in one claim ask for")
    return finding("not decided", region.between_text)


def _paired(comparison: Comparison, variant: Evidence, reference: Evidence, region: _Region, wide: float) -> Finding:
    if variant.seeds != reference.seeds:
        return Finding(comparison, "not decided", "the two were trained with different seeds, so they cannot be paired", 0)
    try:
        values, baseline = _values(comparison.measure, variant), _values(comparison.measure, reference)
    except ValueError as error:
        return Finding(comparison, "not decided", str(error), len(variant.seeds))
    return _decide(comparison, values, baseline, region, wide)


def _equivalent(comparison: Comparison, variant: Evidence, reference: Evidence, wide: float) -> Finding:
    assert comparison.bound is not None
    bound = comparison.bound
    region = _Region(
        inside=lambda i: i.reach < bound,
        outside=lambda i: i.low > bound or i.high < -bound,
        inside_text="the whole interval lies inside the margin",
        outside_text="the whole interval lies outside the margin",
        between_text="the interval reaches across the margin",
    )
    return _paired(comparison, variant, reference, region, wide)


def _less(comparison: Comparison, variant: Evidence, reference: Evidence, wide: float) -> Finding:
    region = _Region(
        inside=lambda i: i.high < 0,
        outside=lambda i: i.low > 0,
        inside_text="the whole interval lies below zero",
        outside_text="the whole interval lies above zero",
        between_text="the interval holds zero",
    )
    return _paired(comparison, variant, reference, region, wide)


def _more(comparison: Comparison, variant: Evidence, reference: Evidence, wide: float) -> Finding:
    region = _Region(
        inside=lambda i: i.low > 0,
        outside=lambda i: i.high < 0,
        inside_text="the whole interval lies above zero",
        outside_text="the whole interval lies below zero",
        between_text="the interval holds zero",
    )
    return _paired(comparison, variant, reference, region, wide)


def _resembles(comparison: Comparison, variant: Evidence, reference: Evidence, wide: float) -> Finding:
    """`variant`'s correlation over the seeds against the share `bound` of `reference`'s (a fixed table: one value)."""
    assert comparison.bound is not None
    for evidence in (variant, reference):
        if not evidence.patch_positions.shape[1] or evidence.grid < 2:
            return Finding(comparison, "not decided", "one of the two has no position vectors to compare", len(variant.seeds))
    values = np.array([nearness_correlation(vectors, variant.grid) for vectors in variant.patch_positions])
    table = float(np.mean([nearness_correlation(vectors, reference.grid) for vectors in reference.patch_positions]))
    threshold = comparison.bound * table
    if threshold <= 0:
        return Finding(comparison, "not decided", f"the fixed table itself correlates with nearness by {table:.2f} only", len(values))
    against = f"{threshold:.3f}, {100 * comparison.bound:g} % of the fixed table's {table:.3f}"
    region = _Region(
        inside=lambda i: i.low >= threshold,
        outside=lambda i: i.high < threshold,
        inside_text=f"the whole interval lies at or above {against}",
        outside_text=f"the whole interval lies below {against}",
        between_text=f"the interval reaches across {against}",
    )
    return _decide(comparison, values, None, region, wide)


def _judge_timing(comparison: Comparison, timings: Timings | None, wide: float) -> Finding:
    """Verdict on interleaved timings: a ratio of step times (on its logarithm, so that a ratio and its inverse are one), or an exponent."""
    if timings is None:
        return Finding(comparison, "not decided", "not timed: it needs the interleaved timings that `dvc repro timing` takes", 0)
    ratio = comparison.rule == "ratio"
    assert comparison.between is not None
    low, high = comparison.between
    try:
        values = timings.ratio(comparison.variant, comparison.reference) if ratio else timings.exponent(comparison.measure)
    except LookupError as error:
        return Finding(comparison, "not decided", str(error.args[0]), 0)
    if comparison.measure == "saved bytes":
        (exact,) = values
        inside = bool(low <= exact <= high)
        why = f"an exact count, {'inside' if inside else 'outside'} the claimed range"
        return Finding(comparison, "supported" if inside else "contradicted", why, 1, float(exact))
    if len(values) < FEWEST_ROUNDS:
        why = f"only {len(values)} undisturbed rounds of timings, where {FEWEST_ROUNDS} are the fewest that may judge"
        return Finding(comparison, "not decided", why, len(values))
    unit, back = (np.log, np.exp) if ratio else (float, float)
    range_text = f"above {low:g}" if math.isinf(high) else f"between {low:.3g} and {high:.3g}"
    region = _Region(
        inside=lambda i: i.low > unit(low) and i.high < unit(high),
        outside=lambda i: i.low > unit(high) or i.high < unit(low),
        inside_text=f"the whole interval lies {range_text}",
        outside_text=f"no part of the interval lies {range_text}",
        between_text=f"the interval lies only in part {range_text}",
    )
    finding = _decide(comparison, np.log(values) if ratio else values, None, region, wide)
    if finding.effect is None or finding.interval is None:
        return finding
    ends = replace(finding.interval, low=float(back(finding.interval.low)), high=float(back(finding.interval.high)))
    return replace(finding, effect=float(back(finding.effect)), interval=ends)


TIMING_RULES = ("ratio", "exponent")


def is_timed(claim: Claim) -> bool:
    """Whether the claim is judged on the timing stage's results."""
    return all(comparison.rule in TIMING_RULES for comparison in claim.comparisons)


RULES: dict[str, Callable[[Comparison, Evidence, Evidence, float], Finding]] = {
    "equivalent": _equivalent,
    "less": _less,
    "more": _more,
    "resembles": _resembles,
}
