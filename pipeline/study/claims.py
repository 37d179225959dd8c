"""The rules that judge the claims of claims.yaml; docs/method.md tells them to a reader, with their counted error rates.

Each comparison of a claim is judged by where its interval lies to the region in which the claim puts the effect, never by a point.
Support needs all comparisons, each on its own interval: an intersection-union test needs no adjustment (Berger 1982). One that is
contradicted suffices, so contradiction takes the interval that covers all of them at once (Bonferroni), which keeps false
contradictions at 5 % per claim. Of a claim of `any`, whose cases are the comparisons of one variant each, one case suffices: there
support takes an interval that covers all cases (the first step of Holm 1979), and contradiction, which needs all cases, one that covers
a case's comparisons only. Of several verdicts the claim has the first in `PRECEDENCE`.

The unit of trainings is the seed, that of timings the round; recorded times of trainings judge nothing. A count of bytes, parameters or
operations is exact and has no interval. Nothing is said in words here: `pipeline.report` makes sentences of a finding's fields.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from pipeline.measures import MEASURES, TIMING_RULES, NotFormed, NotMeasured
from pipeline.measures.definitions import FloatArray
from pipeline.params import ClaimSettings, ComparisonSettings, Measure
from pipeline.study.effects import Estimate, RankEstimate, ShareEstimate, contrast, effect, look_level, mapped, to_decide, vote_estimate
from pipeline.study.fixed import Fixed
from pipeline.study.statistics import LEVEL, Interval, student
from pipeline.study.training import Training

Verdict = Literal[
    "contradicted", "not run", "short run", "learned nothing", "not settled", "not decided", "no effect of more than a quarter", "supported"
]  # fmt: skip
PRECEDENCE: tuple[Verdict, ...] = get_args(Verdict)
DECIDED: tuple[Verdict, ...] = ("supported", "no effect of more than a quarter", "contradicted")
OBSERVATIONS: tuple[Verdict, ...] = ("short run", "learned nothing", "not settled")  # effect and interval are shown, and decide nothing
QUARTER = 1.25  # a ratio of errors of at most so much, either way, is no effect of more than a quarter
_Effect = Estimate | RankEstimate | ShareEstimate
FIFTH = 5  # an effect of the late epochs is compared with that of the fifth of the epochs before the last fifth


class Why(Enum):
    """What led to a verdict."""

    NO_RESULTS = auto()  # of a variant, see `Finding.lacking`
    NOT_MEASURED = auto()  # see `Finding.fault`
    NOT_FORMED = auto()  # see `Finding.fault`
    SEEN = auto()  # all seeds of a variant had been seen when the claim was made
    NOT_TIMED = auto()
    OTHER_DEVICE = auto()  # timed on another kind of device than the claim's source speaks of, see `Finding.lacking`
    NO_INTERVAL = auto()  # at the level, of so few values
    NO_SPREAD = auto()
    FEW_SEEDS = auto()  # fewer than the first look has
    INSIDE = auto()
    OUTSIDE = auto()
    ACROSS = auto()
    SMALL = auto()  # a part of the interval lies in the region, and all of it within a quarter of no effect
    UNREACHED = auto()  # seeds that never reached what is measured could undo the verdict
    SHORT = auto()
    ONE_EPOCH = auto()  # which does not show whether an effect has settled
    CHANCE = auto()  # no side's train loss left that of a guess
    MOVED = auto()


class Levels(NamedTuple):
    """Levels of two intervals: `inside` supports when it lies in the region, `outside` contradicts when no part of it does."""

    inside: float = LEVEL
    outside: float = LEVEL


@dataclass(frozen=True)
class Finding:
    """What the data say of one comparison.

    Attributes:
        place: where the interval lies, also of an observation; None without one.
        levels: of the rule.
        sizes: how many seeds of each side count: the first ones, up to its largest look. Of timings the number of rounds.
        effect: in the measure's unit, or a ratio; None where nothing could be formed.
        interval: of the effect, at the lower of the levels.
        plain: of a ratio of trainings, the difference in the measure's own unit with its interval; else None.
        means: of two or more sides of trainings, the mean of each in the order of `comparison.variants`, in the measure's own unit;
            geometric where the effect is a ratio; else empty.
        needed: values of each side with which the interval would just lie on one side of the bound, if mean and spread stay as they
            are: n (half width / distance to the bound)²; None where it is decided, or where no number would.
        may_be: "larger" or "smaller" where seeds of one side never reached what is measured, so that the effect is a bound; else empty.
        counted: by variant, the seeds that count.
        lacking: the variants that `why` speaks of.
        fault: the measure's own words, for people.
    """

    comparison: ComparisonSettings
    verdict: Verdict
    why: Why
    place: Why | None = None
    levels: Levels = field(default_factory=Levels)
    sizes: tuple[int, ...] = ()
    effect: float | None = None
    interval: Interval | None = None
    plain: tuple[float, Interval | None] | None = None
    means: tuple[float, ...] = ()
    needed: int | None = None
    may_be: str = ""
    counted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    fault: str = ""

    @property
    def region(self) -> tuple[float, float]:
        return region(self.comparison)

    @property
    def observed(self) -> bool:
        """Whether the effect is shown and decides nothing."""
        return (self.verdict in OBSERVATIONS or self.why is Why.OTHER_DEVICE) and self.effect is not None

    @property
    def n(self) -> int:
        """The fewest seeds (rounds) of a side."""
        return min(self.sizes, default=0)


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, and the findings about its comparisons in their order.

    Attributes:
        images_shown: training images that each side has to be shown; None for a claim about timings alone.
        looks: numbers of seeds at which it is judged; empty where all count, and for a claim about timings alone.
        settles: whether any of its effects has to have settled.
        fixed: whether it stood before the seeds that it counts; None where nobody asked `study.fixed`.
    """

    id: str
    claim: ClaimSettings
    verdict: Verdict
    findings: tuple[Finding, ...]
    images_shown: int | None = None
    looks: tuple[int, ...] = ()
    settles: bool = False
    fixed: Fixed | None = None

    @property
    def seeds(self) -> set[tuple[str, int]]:
        """The seeds that its findings count, each with its variant."""
        return {(variant, seed) for finding in self.findings for variant, own in finding.counted.items() for seed in own}

    @property
    def deciding(self) -> Finding:
        """The finding that decides the verdict: of those with the verdict, in cases with the verdict, the first, with three exceptions.

        Where the claim is supported it is the one nearest to the edge of its region. Where it is not decided it is the one that will
        settle the claim: of those outside of their region the one that needs the fewest seeds, and where there are none the one that
        needs the most. Of observations it is the first that has an effect, so that none is picked for what it shows.
        """
        cases = [case for case in _cases(self.claim, self.findings) if _of_case(case) == self.verdict]
        same = [finding for case in cases for finding in case if finding.verdict == self.verdict]
        if self.verdict == "supported":
            return min(same, key=_distance_to_edge)
        if self.verdict == "not decided":
            leaving = [one for one in same if one.effect is not None and not one.region[0] <= one.effect <= one.region[1]]
            return (min if leaving else max)(leaving or same, key=lambda one: one.needed or math.inf)
        if self.verdict in OBSERVATIONS:
            return next((finding for finding in same if finding.effect is not None), same[0])
        return same[0]


def _distance_to_edge(finding: Finding) -> float:
    """Distance of the interval from its region's nearest edge, in widths, of a ratio on logarithms; infinite for an exact count."""
    if finding.interval is None:
        return math.inf
    ends = np.array([*finding.region, finding.interval.low, finding.interval.high])
    low, high, first, last = _scaled(finding.comparison, ends).tolist()
    return float(min(first - low, high - last) / (last - first))


def is_timed(claim: ClaimSettings) -> bool:
    """Whether the claim is judged on the timing stage's results."""
    return all(comparison.rule in TIMING_RULES for comparison in claim.comparisons)


def judge(
    id: str,
    claim: ClaimSettings,
    trainings: Mapping[str, Training],
    timings: Mapping[str, Any] = MappingProxyType({}),
    *,
    images_shown: int,
    looks: tuple[int, ...] = (),
    ended: Collection[str] = (),
) -> Judgement:
    """Judges one claim from the variants and timings that are there. What is missing becomes a verdict, never an error.

    Args:
        timings: by the kind of device, the `Timings` of pipeline.timing.results, which this room may not import.
        images_shown: training images that each side has to be shown, where the claim does not say it itself.
        looks: numbers of seeds at which claims are judged, rising; without looks all seeds count.
        ended: variants, trained or not, whose learning rate falls to 0.

    Raises:
        UserError: predictions that the claim needs are damaged.
    """
    length = claim.images_shown or images_shown
    sizes = Counter(comparison.variant if claim.any else "" for comparison in claim.comparisons)
    findings = []
    for comparison in claim.comparisons:
        timed = comparison.rule in TIMING_RULES
        narrow = LEVEL if timed else look_level(looks)
        levels = Levels(inside=1 - (1 - narrow) / len(sizes), outside=1 - (1 - narrow) / max(sizes.values()))
        if timed:
            finding = _of_timings(comparison, timings, claim.device, levels)
        else:
            finding = _of_trainings(comparison, trainings, timings, claim.device, levels, length, looks, claim.first_seed)
        findings.append(replace(finding, levels=levels))
    verdicts = {_of_case(case) for case in _cases(claim, findings)}
    verdict = next(verdict for verdict in ("supported", *PRECEDENCE[1:-1], "contradicted") if verdict in verdicts)
    timed, settles = is_timed(claim), any(_has_to_settle(comparison, ended) for comparison in claim.comparisons)
    return Judgement(id, claim, verdict, tuple(findings), None if timed else length, () if timed else looks, settles)


def _cases(claim: ClaimSettings, findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], ...]:
    """What has to hold together: of a claim of `any` the comparisons of one variant, of another all."""
    if not claim.any:
        return (tuple(findings),)
    names = dict.fromkeys(finding.comparison.variant for finding in findings)
    return tuple(tuple(finding for finding in findings if finding.comparison.variant == name) for name in names)


def _of_case(case: Sequence[Finding]) -> Verdict:
    return min((finding.verdict for finding in case), key=PRECEDENCE.index)


# --- regions and values ---


def region(comparison: ComparisonSettings) -> tuple[float, float]:
    """Where the claim puts the effect: a ratio, or in the measure's unit. An end may be infinite."""
    if comparison.between is not None:
        return comparison.between
    ratio = is_ratio(comparison)
    bound = comparison.bound if comparison.bound is not None else float(ratio)
    if comparison.rule == "equivalent":
        return (1 / bound, bound) if ratio else (-bound, bound)
    if comparison.rule == "less":
        return (0.0 if ratio else -math.inf, bound)
    return (bound, math.inf)


def is_ratio(comparison: ComparisonSettings) -> bool:
    """Whether the effect is a ratio: of the geometric means of two variants, or of the medians of two timings. A level is none."""
    measure, compared = MEASURES[comparison.measure], comparison.rule not in ("at least", *TIMING_RULES)
    return comparison.rule == "ratio" or (measure.ratio and (compared or measure.series is not None))


def _scaled(comparison: ComparisonSettings, values: FloatArray) -> FloatArray:
    """The values on the scale on which the effect is judged: a ratio on logarithms."""
    if not is_ratio(comparison):
        return values
    with np.errstate(divide="ignore", invalid="ignore"):  # the logarithm of 0 is refused later, as not finite
        return np.log(values)


def measure_values(measure: Measure, training: Training, *, seeds: Sequence[int] | None = None, epochs: slice | None = None) -> FloatArray:
    """(seeds,) of a measure, finite, of all seeds or of these in their order.

    Args:
        epochs: the mean (or median, see `Measure`) over these in place of the measure's own, which has a value after every epoch.

    Raises:
        NotFormed: these runs have no such values; NotMeasured where the evaluation has to run first.
    """
    chosen = training.seeds if seeds is None else seeds
    entry = MEASURES[measure]
    if entry.values is None:
        raise NotFormed(f"{measure} is not a measure of each seed")
    if epochs is None:
        values = entry.values(training)
    else:
        assert entry.by_epoch is not None
        values = (np.median if entry.median else np.mean)(entry.by_epoch(training)[:, epochs], axis=1)
    values = values[[training.seeds.index(seed) for seed in chosen]]
    _refuse_infinite(values, chosen, f"the {measure}")
    return values


def _refuse_infinite(values: FloatArray, seeds: Sequence[int], what: str) -> None:
    if bad := [str(seed) for seed, value in zip(seeds, values, strict=True) if not math.isfinite(value)]:
        raise NotFormed(f"{what} was not finite (seeds {', '.join(bad)})")


def _counted(
    comparison: ComparisonSettings, sides: Mapping[str, Training], looks: tuple[int, ...], first_seed: int
) -> dict[str, tuple[int, ...]]:
    """The seeds of each side that count; none of a side whose seeds had all been seen.

    They are the first ones, up to the largest look that the side reaches, and of no side more than one look beyond the one with the
    fewest: error rates are counted for no other order.

    Raises:
        NotFormed: seeds that have to be paired have none in common.
    """
    own = {name: tuple(seed for seed in sorted(sides[name].seeds) if seed >= first_seed) for name in comparison.variants}
    if all(own.values()) and (comparison.paired or MEASURES[comparison.measure].series):
        first, *others = own.values()
        common = tuple(seed for seed in first if all(seed in other for other in others))
        if not common:
            raise NotFormed("there is no seed in common, so the sides cannot be paired")
        own = dict.fromkeys(own, common)
    own = {name: seeds[: max((look for look in looks if look <= len(seeds)), default=len(seeds))] for name, seeds in own.items()}
    most = next((look for look in looks if look > min(map(len, own.values()))), None)
    return {name: seeds[:most] for name, seeds in own.items()}


def _formed(
    comparison: ComparisonSettings, sides: Mapping[str, Training], seeds: Mapping[str, tuple[int, ...]], *, fifth: int = 0
) -> tuple[_Effect, tuple[FloatArray, ...]]:
    """The effect over these seeds, on the scale on which it is judged, and the values that it was formed from.

    Args:
        fifth: of which fifth of the epochs, counted from the last one as 1; 0: of the measure's own.

    Returns:
        the values in the measure's own unit, (seeds,) of each side; none where they are of no side alone.

    Raises:
        NotFormed: there is nothing to compare.
    """
    measure = MEASURES[comparison.measure]
    if comparison.measure == "ensemble accuracy":
        side = sides[comparison.variant]
        if (votes := side.predictions) is None:
            raise NotMeasured(f"{comparison.variant}: its predictions are not there")
        voters = [side.seeds.index(seed) for seed in seeds[comparison.variant]]
        return vote_estimate(votes[0][voters], votes[1]), ()
    if measure.series is not None:
        common = next(iter(seeds.values()))
        ours, theirs = zip(*(tuple(sides[name] for name in pair) for pair in comparison.pairs), strict=True)
        values = measure.series(ours, theirs, common)
        _refuse_infinite(_scaled(comparison, values), common, f"the {comparison.measure}")
        return effect(measure, values), ()
    parts = []
    for name in comparison.variants:
        total = sides[name].test_accuracy.shape[1]
        length = max(1, total // FIFTH)
        window = slice(total - fifth * length, total - (fifth - 1) * length) if fifth else None
        try:
            parts.append(measure_values(comparison.measure, sides[name], seeds=seeds[name], epochs=window))
            _refuse_infinite(_scaled(comparison, parts[-1]), seeds[name], f"the logarithm of the {measure.phrase or comparison.measure}")
        except NotFormed as error:
            raise type(error)(f"{name}: {error}") from None
    return effect(replace(measure, ratio=is_ratio(comparison)), *parts, paired=comparison.paired), tuple(parts)


# --- verdicts ---


def _of_trainings(
    comparison: ComparisonSettings,
    trainings: Mapping[str, Training],
    timings: Mapping[str, Any],
    device: str,
    levels: Levels,
    images_shown: int,
    looks: tuple[int, ...],
    first_seed: int,
) -> Finding:
    """The finding, which is an observation and no verdict where a training is too short or the effect still moves."""
    if lacking := tuple(name for name in dict.fromkeys(comparison.variants) if name not in trainings):
        return Finding(comparison, "not run", Why.NO_RESULTS, lacking=lacking)
    sides = {name: trainings[name] for name in comparison.variants}
    try:
        seeds = _counted(comparison, sides, looks, first_seed)
        if seen := tuple(name for name, own in seeds.items() if not own):
            return Finding(comparison, "not run", Why.SEEN, lacking=seen)
        estimate, parts = _formed(comparison, sides, seeds)
        if MEASURES[comparison.measure].per_step:
            estimate = _priced(comparison, estimate, _timed(timings, device))
        finding = _place(comparison, estimate, levels, [len(seeds[name]) for name in comparison.variants], parts, looks)
        finding = replace(finding, counted=seeds)
    except NotMeasured as error:
        return Finding(comparison, "not run", Why.NOT_MEASURED, fault=str(error))
    except NotFormed as error:
        finding = Finding(comparison, "not decided", Why.NOT_FORMED, fault=str(error))
    if short := tuple(name for name, side in sides.items() if side.settings.images_shown < images_shown):
        return replace(finding, verdict="short run", why=Why.SHORT, needed=None, lacking=short)
    if finding.interval is None:
        return finding
    if not MEASURES[comparison.measure].share and all(measure_values("diverged", sides[name], seeds=seeds[name]).all() for name in sides):
        return replace(finding, verdict="learned nothing", why=Why.CHANCE, needed=None)
    if _has_to_settle(comparison, {name for name, side in sides.items() if side.settings.train.ends_at_zero}):
        finding = _settled(finding, estimate.mean, sides, seeds)
        if finding.verdict == "not settled":
            return finding
    finding = _bounded(finding, parts, sides)
    return _elsewhere(finding, device) if MEASURES[comparison.measure].per_step and device not in timings else finding


def _priced(comparison: ComparisonSettings, estimate: _Effect, timings: Any) -> Estimate:
    """A ratio of numbers of steps, on logarithms, times that of the times of a step; the errors of both are independent.

    Raises:
        NotMeasured: the steps were not timed.
    """
    assert isinstance(estimate, Estimate)
    try:
        rounds = np.log(timings.ratio(comparison.variant, comparison.reference)) if timings is not None else np.array([])
    except LookupError as error:
        raise NotMeasured(str(error.args[0])) from None
    price = RankEstimate(rounds)
    if (ends := price.interval()) is None:
        raise NotMeasured("the time of its step was not measured, or in too few rounds")
    spread = (ends.high - ends.low) / 2 / float(student((1 + LEVEL) / 2, math.inf))
    return replace(estimate, mean=estimate.mean + price.mean, error=math.hypot(estimate.error, spread))


def _place(
    comparison: ComparisonSettings,
    estimate: _Effect,
    levels: Levels,
    sizes: Sequence[int],
    parts: tuple[FloatArray, ...] = (),
    looks: tuple[int, ...] = (),
) -> Finding:
    """The verdict, from where the interval lies: inside, outside or across an end of the region. A count has no interval."""
    show = math.exp if is_ratio(comparison) else float
    low, high = _scaled(comparison, np.array(region(comparison))).tolist()
    plain = None
    if parts and is_ratio(comparison):
        difference = effect(replace(MEASURES[comparison.measure], ratio=False), *parts, paired=comparison.paired)
        plain = (difference.mean, difference.interval(min(levels)))
    means = tuple(show(float(_scaled(comparison, part).mean())) for part in parts) if len(parts) > 1 else ()
    finding = Finding(comparison, "not decided", Why.NO_INTERVAL, sizes=tuple(sizes), effect=show(estimate.mean), means=means, plain=plain)
    if MEASURES[comparison.measure].exact:
        inside = finding.region[0] <= show(estimate.mean) <= finding.region[1]
        return replace(finding, verdict="supported" if inside else "contradicted", why=Why.INSIDE if inside else Why.OUTSIDE)
    inner, outer = estimate.interval(levels.inside), estimate.interval(levels.outside)
    if inner is None or outer is None:
        return finding
    if inner.low == inner.high:
        return replace(finding, why=Why.NO_SPREAD)
    finding = replace(finding, interval=mapped(min(inner, outer, key=lambda one: one.level), show), plain=plain)
    if looks and min(sizes) < looks[0]:
        return replace(finding, why=Why.FEW_SEEDS)
    if low < inner.low and inner.high < high:
        return replace(finding, verdict="supported", why=Why.INSIDE, place=Why.INSIDE)
    if outer.low > high or outer.high < low:
        return replace(finding, verdict="contradicted", why=Why.OUTSIDE, place=Why.OUTSIDE)
    trained = comparison.rule not in TIMING_RULES
    if trained and is_ratio(comparison) and max(abs(inner.low), abs(inner.high)) < math.log(QUARTER):
        return replace(finding, verdict="no effect of more than a quarter", why=Why.SMALL, place=Why.SMALL)
    decides = inner if low < estimate.mean < high else outer
    return replace(finding, why=Why.ACROSS, place=Why.ACROSS, needed=to_decide(estimate, min(sizes), decides.level, low, high))


def _has_to_settle(comparison: ComparisonSettings, ended: Collection[str]) -> bool:
    """Whether the effect is judged only once it has settled.

    That can be seen where the measure has a value after every epoch. Trainings whose learning rates all fall to 0 end there, and have
    nothing to settle.
    """
    return MEASURES[comparison.measure].by_epoch is not None and not {*comparison.variants} <= {*ended}


def _settled(finding: Finding, mean: float, sides: Mapping[str, Training], seeds: Mapping[str, tuple[int, ...]]) -> Finding:
    """The finding, "not settled" where its effect has not.

    The effect has not settled where it moved from the fifth of the epochs before the last fifth to the last, as far as its interval can
    tell at the level of the verdict, and would leave where it is now within another training of this length at that pace.
    What every seed moved is one value, so that the noise between seeds falls out.
    """
    comparison = finding.comparison
    if any(side.test_accuracy.shape[1] < 2 for side in sides.values()):
        return replace(finding, verdict="not settled", needed=None, why=Why.ONE_EPOCH)
    try:
        before, last = (_formed(comparison, sides, seeds, fifth=fifth)[1] for fifth in (2, 1))
    except NotFormed as error:
        return replace(finding, verdict="not settled", needed=None, why=Why.NOT_FORMED, fault=str(error))
    moved = (_scaled(comparison, now) - _scaled(comparison, then) for now, then in zip(last, before, strict=True))
    movement = contrast(*moved, paired=comparison.paired)
    assert finding.interval is not None
    ends = movement.interval(finding.interval.level)
    if ends is None or ends.low <= 0 <= ends.high:
        return finding
    small = finding.verdict == "no effect of more than a quarter"
    low, high = _scaled(comparison, np.array((1 / QUARTER, QUARTER) if small else finding.region)).tolist()
    total = max(side.test_accuracy.shape[1] for side in sides.values())
    windows = total / max(1, total // FIFTH)  # in another training of this length
    if (low < mean < high) == (low < mean + windows * movement.mean < high):
        return finding
    return replace(finding, verdict="not settled", needed=None, why=Why.MOVED)


def _bounded(finding: Finding, parts: tuple[FloatArray, ...], sides: Mapping[str, Training]) -> Finding:
    """The finding, not decided where seeds that never reached what is measured, whose values are the least that they can be, undo it."""
    comparison = finding.comparison
    limit = MEASURES[comparison.measure].unreached
    where = {
        "larger" if sign > 0 else "smaller"
        for name, part, sign in zip(comparison.variants, parts, (1, -1), strict=False)
        if limit and (part >= limit(sides[name]) - 0.5).any()
    }
    finding = replace(finding, may_be="".join(where) if len(where) == 1 else "")
    assert finding.interval is not None
    (low, high), interval = finding.region, finding.interval
    if finding.verdict == "supported":
        undoing = {"larger": math.isfinite(high), "smaller": math.isfinite(low) and (low > 0 or not is_ratio(comparison))}
    elif finding.verdict == "contradicted":
        undoing = {"larger": interval.high < low, "smaller": interval.low > high}
    elif finding.verdict == "no effect of more than a quarter":
        undoing = {"larger": True, "smaller": True}
    else:
        return finding
    return replace(finding, verdict="not decided", why=Why.UNREACHED) if any(undoing[one] for one in where) else finding


def _of_timings(comparison: ComparisonSettings, timings: Mapping[str, Any], device: str, levels: Levels) -> Finding:
    """The finding on the claim's kind of device; what was timed on another one alone is an observation.

    Ratios are judged on logarithms, so that a ratio and its inverse get the same verdict.
    """
    if not timings:
        return Finding(comparison, "not run", Why.NOT_TIMED)
    found = _timed(timings, device)
    finding = Finding(comparison, "not decided", Why.NO_INTERVAL)
    try:
        timed = comparison.rule == "ratio"
        values = found.ratio(comparison.variant, comparison.reference) if timed else found.exponent(comparison.measure, comparison.variant)
    except LookupError as error:
        finding = replace(finding, verdict="not run", why=Why.NOT_MEASURED, fault=str(error.args[0]))
    else:
        if len(values):
            finding = _place(comparison, RankEstimate(_scaled(comparison, values)), levels, [len(values)])
    exact = MEASURES[comparison.measure].exact  # the same everywhere
    return finding if device in timings or exact else _elsewhere(finding, device)


def _timed(timings: Mapping[str, Any], device: str) -> Any:
    """The timings of this kind of device, else of another one, else None."""
    return timings.get(device) or next(iter(timings.values()), None)


def _elsewhere(finding: Finding, device: str) -> Finding:
    """A finding of timings on another kind of device, which is an observation."""
    return replace(finding, verdict="not run", why=Why.OTHER_DEVICE, place=None, needed=None, lacking=(device,), fault="")
