"""The rules that judge the claims of params.yaml.

A claim is one or more comparisons. Each rule puts the effect of a comparison into a region, such as a ratio within a factor or a mean
above a bound. A comparison is judged from its interval, never from a point: "supported" when the whole interval lies inside the
region, "contradicted" when no part of it does, else "not decided". It is "not run" when what it compares was not trained, evaluated
or timed. A count of bytes is exact and has no interval.

A claim is supported when all its comparisons are, each on its own interval: an intersection-union test needs no adjustment (Berger
1982). It is contradicted when one is. Because any one suffices, contradiction takes the wider interval that covers all of the
claim's comparisons at once (Bonferroni), which keeps false contradictions at 5 % per claim. The claim has the verdict that comes
first in `PRECEDENCE`, so a claim with a comparison that was not run is not supported.

A claim that something holds in `any` case has a case for each variant, whose comparisons all have to hold. Each case is judged as
above, with two changes. One case supports the claim, so support takes an interval that covers all cases (Bonferroni; the first step of
Holm 1979). All cases have to be contradicted, so that takes an interval that covers one case's comparisons only.

The gate: a comparison of trainings is judged when each of them was shown as many images as the claim speaks of ("short run" if not),
and when its effect has settled ("not settled" if not, see `_moved`). Else its effect and interval are an observation and no verdict.
Not every effect has to settle, see `_has_to_settle`.
So only trainings of full length contradict. One such comparison contradicts the claim even where another is a short run, because the
claim asserts all of its comparisons. Where none contradicts, a claim with a short run has no verdict.

The looks: each side of a comparison counts its first k seeds, k the largest of the declared looks that it reaches. Before the first
look there is no verdict. Without looks all seeds count. The intervals have the level at which all looks together err in at most
5 % of cases.

Claims about accuracy speak of trainings, and their unit is the seed. Claims about speed speak of the timing stage's interleaved
rounds, and their unit is the round; recorded times of trainings judge nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from pipeline.measures import MEASURES, TIMING_RULES, NotFormed, NotMeasured
from pipeline.measures.definitions import FloatArray
from pipeline.params import ClaimSettings, ComparisonSettings, Measure
from pipeline.params.train import MAX_SEEDS
from pipeline.study.effects import (
    MAX_SEEDS_OF_SHARES,
    Estimate,
    RankEstimate,
    ShareEstimate,
    contrast,
    look_level,
    of_shares,
    paired_contrast,
    seeds_to_decide,
    share_contrast,
    vote_estimate,
)
from pipeline.study.statistics import LEVEL, Interval
from pipeline.study.training import Training

Verdict = Literal["contradicted", "not run", "short run", "not settled", "not decided", "supported"]
PRECEDENCE: tuple[Verdict, ...] = ("contradicted", "not run", "short run", "not settled", "not decided", "supported")
OBSERVATIONS: tuple[Verdict, ...] = ("short run", "not settled")  # effect and interval are shown, and decide nothing
FIFTH = 5  # an effect of the late epochs is compared with that of the fifth of the epochs before the last fifth
_DIFFER = "the last but one fifth of the epochs would give another verdict than the late epochs"
_HOPELESS = "would not decide it"  # how the note of a finding ends that more seeds do not help
OUTLIER = 5.0  # a seed this far from the median of its side is named; in units of 1.4826 median |x - median|
MIN_FOR_OUTLIERS = 5  # seeds of a side


class Timings(Protocol):
    """What a claim may ask of the timing stage's results. `pipeline.timing.results`, which this room may not import, has them."""

    def ratio(self, slower: str, faster: str) -> FloatArray:
        """(rounds,): two subjects' ratio of step times in each undisturbed round. Raises LookupError where one was not timed."""
        ...

    def exponent(self, measure: str) -> FloatArray:
        """(rounds,) of a time, (1,) of bytes: the power of the token count with which it grows. Raises LookupError as `ratio` does."""
        ...


@dataclass(frozen=True)
class Finding:
    """What the data say of one comparison.

    Attributes:
        why: what led to the verdict, as the end of a sentence.
        observed: of an observation, what the interval would have said, as the end of a sentence; else empty.
        missing: of an observation, what a verdict would take, in few words; else empty.
        rule_text: the rule in words, the same whatever the data say.
        sizes: how many seeds of each side count: the first ones, up to its largest look. Of timings the number of rounds.
        effect: in the measure's unit, or a ratio; None where nothing could be formed.
        interval: of the effect, at the level of the rule.
        region: where the claim puts the effect; an end may be infinite.
        plain: of a ratio of trainings, the difference in the measure's own unit with its interval; else None.
        means: of two or more sides of trainings, the mean of each in the order of `comparison.variants`, in the measure's own unit;
            geometric where the effect is a ratio; else empty.
        seeds_needed: the fewest and the most seeds per side (None: more than `MAX_SEEDS`) that would probably decide it; None where
            it is decided, or where no number would.
        seeds_note: the same as a clause, or why there is no number; empty where it is decided or not run.
        notes: what else a reader has to know, as sentences: seeds far from the others, a verdict that depends on one seed, too few
            seeds to support.
        hangs_on: (variant, seed) of each seed without which alone it would not be decided as it is.
        may_be: "larger" or "smaller" where seeds of one side never reached what is measured, so that the effect is a bound; else empty.
    """

    comparison: ComparisonSettings
    verdict: Verdict
    why: str
    rule_text: str = ""
    sizes: tuple[int, ...] = ()
    effect: float | None = None
    interval: Interval | None = None
    region: tuple[float, float] | None = None
    plain: tuple[float, Interval | None] | None = None
    means: tuple[float, ...] = ()
    seeds_needed: tuple[int, int | None] | None = None
    seeds_note: str = ""
    observed: str = ""
    missing: str = ""
    notes: tuple[str, ...] = ()
    hangs_on: frozenset[tuple[str, int]] = frozenset()
    may_be: str = ""

    @property
    def claimed(self) -> str:
        """Where the claim puts the effect, as in "it lies ..."."""
        return _region_text(self.comparison)

    @property
    def is_hopeless(self) -> bool:
        """Whether no number of seeds would probably decide it."""
        return self.seeds_note.endswith(_HOPELESS)

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
    """

    id: str
    claim: ClaimSettings
    verdict: Verdict
    findings: tuple[Finding, ...]
    images_shown: int | None = None
    looks: tuple[int, ...] = ()
    settles: bool = False

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
            leaving = [finding for finding in same if _outside(finding)]
            return min(leaving, key=_seeds_needed) if leaving else max(same, key=_seeds_needed)
        if self.verdict in OBSERVATIONS:
            return next((finding for finding in same if finding.effect is not None), same[0])
        return same[0]

    @property
    def hangs_on_seed(self) -> bool:
        """Whether the claim is decided, and would not be as it is without one seed of one variant."""
        cases = _cases(self.claim, self.findings)
        if self.verdict == "supported":
            undone = [
                frozenset[tuple[str, int]]().union(*(one.hangs_on for one in case)) for case in cases if _of_case(case) == "supported"
            ]
            return bool(frozenset.intersection(*undone))
        if self.verdict == "contradicted":
            against = [[one.hangs_on for one in case if one.verdict == "contradicted"] for case in cases]
            return any(frozenset.intersection(*hangs_on) for hangs_on in against)
        return False


def _distance_to_edge(finding: Finding) -> float:
    """Distance of the interval from its region's nearest edge, in widths, of a ratio on logarithms; infinite for an exact count."""
    if finding.interval is None or finding.region is None:
        return math.inf
    ends = np.array([*finding.region, finding.interval.low, finding.interval.high])
    low, high, first, last = _scaled(finding.comparison, ends).tolist()
    return float(min(first - low, high - last) / (last - first))


def _outside(finding: Finding) -> bool:
    if finding.effect is None or finding.region is None:
        return False
    return not finding.region[0] <= finding.effect <= finding.region[1]


def _seeds_needed(finding: Finding) -> float:
    return math.inf if finding.seeds_needed is None else finding.seeds_needed[0]


def is_timed(claim: ClaimSettings) -> bool:
    """Whether the claim is judged on the timing stage's results."""
    return all(comparison.rule in TIMING_RULES for comparison in claim.comparisons)


@dataclass(frozen=True)
class _Levels:
    """Levels of two intervals: `inside` supports when it lies in the region, `outside` contradicts when no part of it does."""

    inside: float
    outside: float

    @property
    def shown(self) -> float:
        return min(self.inside, self.outside)


def judge(
    id: str,
    claim: ClaimSettings,
    evidence: Mapping[str, Training],
    timings: Timings | None = None,
    *,
    images_shown: int,
    looks: tuple[int, ...] = (),
    ended: Collection[str] = (),
) -> Judgement:
    """Judges one claim from the variants and timings that are there. What is missing becomes a verdict, never an error.

    Args:
        images_shown: training images that each side has to be shown, where the claim does not say it itself.
        looks: numbers of seeds at which claims are judged, rising; without looks all seeds count.
        ended: variants, trained or not, whose learning rate falls to 0.

    Raises:
        UserError: predictions that the claim needs are damaged.
    """
    length = claim.images_shown or images_shown
    sizes = Counter(comparison.variant if claim.any else "" for comparison in claim.comparisons)
    num_cases, most = len(sizes), max(sizes.values())
    findings = []
    for comparison in claim.comparisons:
        timed = comparison.rule in TIMING_RULES
        narrow = LEVEL if timed else look_level(looks)
        levels = _Levels(inside=1 - (1 - narrow) / num_cases, outside=1 - (1 - narrow) / most)
        if timed:
            finding = _of_timings(comparison, timings, levels)
        else:
            finding = _of_trainings(comparison, evidence, levels, length, looks, claim.first_seed)
        findings.append(replace(finding, rule_text=_rule_text(comparison, levels)))
    verdicts = {_of_case(case) for case in _cases(claim, findings)}
    verdict = next(verdict for verdict in ("supported", *PRECEDENCE[1:-1], "contradicted") if verdict in verdicts)
    if is_timed(claim):
        return Judgement(id, claim, verdict, tuple(findings))
    settles = any(_has_to_settle(comparison, {*_ended(evidence), *ended}) for comparison in claim.comparisons)
    return Judgement(id, claim, verdict, tuple(findings), length, looks, settles)


def _cases(claim: ClaimSettings, findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], ...]:
    """What has to hold together: of a claim of `any` the comparisons of one variant, of another all."""
    cases: dict[str, list[Finding]] = {}
    for finding in findings:
        cases.setdefault(finding.comparison.variant if claim.any else "", []).append(finding)
    return tuple(map(tuple, cases.values()))


def _of_case(case: Sequence[Finding]) -> Verdict:
    return min((finding.verdict for finding in case), key=PRECEDENCE.index)


# --- measures ---


def measure_values(measure: Measure, evidence: Training, *, seeds: Sequence[int] | None = None, epochs: slice | None = None) -> FloatArray:
    """The measure of one variant, seed by seed.

    Args:
        seeds: those wanted, in this order; None for all.
        epochs: the mean over these in place of the measure's own, of a measure that has a value after every epoch.

    Returns:
        (seeds,), finite; accuracies as fractions.

    Raises:
        NotFormed: a ValueError that says in words why these runs have no such values; NotMeasured where the evaluation has to run first.
    """
    chosen = evidence.seeds if seeds is None else seeds
    entry = MEASURES[measure]
    if entry.values is None:
        raise NotFormed(f"{measure} is not a measure of each seed")
    if epochs is None:
        values = entry.values(evidence)
    else:
        assert entry.by_epoch is not None
        values = entry.by_epoch(evidence)[:, epochs].mean(axis=1)
    values = values[[evidence.seeds.index(seed) for seed in chosen]]
    _refuse_infinite(values, chosen, f"the {measure}")
    return values


def _refuse_infinite(values: FloatArray, seeds: Sequence[int], what: str) -> None:
    bad = [str(seed) for seed, value in zip(seeds, values, strict=True) if not math.isfinite(value)]
    if bad:
        raise NotFormed(f"{what} of seed{'s' if len(bad) > 1 else ''} {listed(bad)} was not finite")


# --- rules ---


def _rule_text(comparison: ComparisonSettings, levels: _Levels) -> str:
    """The rule in words, for example "supported if the whole 95 % interval lies below 0; contradicted if no part of it does"."""
    where = _region_text(comparison)
    if comparison.measure == "saved bytes":
        return f"supported if the exact figure lies {where}, contradicted if not"
    of = "of it" if levels.inside == levels.outside else f"of the {_percent(levels.outside)} interval"
    return f"supported if the whole {_percent(levels.inside)} interval lies {where}; contradicted if no part {of} does"


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
    """Whether the effect is a ratio: of the geometric means of two variants, or of the medians of two timings."""
    return comparison.rule == "ratio" or (MEASURES[comparison.measure].ratio and comparison.rule not in TIMING_RULES)


def _region_text(comparison: ComparisonSettings) -> str:
    """Where the claim puts the effect, as in "it lies ..."."""
    low, high = region(comparison)
    if comparison.between is not None or is_ratio(comparison):
        if math.isinf(high):
            return f"above {low:.4g}"
        return f"between {low:.4g} and {high:.4g}" if low > 0 else f"below {high:.4g}"
    measure = MEASURES[comparison.measure]
    bound = high if comparison.rule in ("less", "equivalent") else low
    size = f"{measure.factor * bound:.6g}".replace("-", "\N{MINUS SIGN}")
    unit = measure.of_value if comparison.rule == "at least" else measure.of_difference if bound else ""
    where = {"less": "below ", "equivalent": "within ±"}.get(comparison.rule, "above ")
    return f"{where}{size} {unit.removesuffix('s') if size == '1' else unit}".rstrip()


def _percent(level: float) -> str:
    return f"{100 * level:.3g} %"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- samples ---


@dataclass(frozen=True)
class _Sample:
    """What an effect is formed from, on the scale on which it is judged: a ratio on logarithms.

    Attributes:
        parts: the values of each side.
        seeds: the seeds of each side; empty where the values are of rounds.
        form: makes the estimate from the parts.
        plain: of a ratio of trainings, the difference in the measure's own unit; else None.
    """

    comparison: ComparisonSettings
    parts: tuple[FloatArray, ...]
    seeds: tuple[tuple[int, ...], ...]
    form: Callable[..., Estimate | RankEstimate | ShareEstimate]
    plain: Estimate | None = None

    @cached_property
    def estimate(self) -> Estimate | RankEstimate | ShareEstimate:
        estimate = self.form(*self.parts)
        is_share = MEASURES[self.comparison.measure].of_value == "%" and not is_ratio(self.comparison)
        return of_shares(estimate, len(self.parts)) if is_share else estimate

    @property
    def region(self) -> tuple[float, float]:
        """Where the claim puts the effect, on that scale."""
        low, high = _scaled(self.comparison, np.array(region(self.comparison))).tolist()
        return low, high

    def shown(self, value: float) -> float:
        """From that scale to the effect's."""
        return math.exp(value) if is_ratio(self.comparison) else value

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sides."""
        variants = self.comparison.variants
        return variants if len(variants) == len(self.parts) else ("both sides",)

    @property
    def apart(self) -> tuple[tuple[str, ...], ...]:
        """The variants that lose a seed together, see `without`: of a paired sample all of them."""
        one_by_one = len(self.comparison.variants) == len(self.parts) and self.form is not paired_contrast
        return tuple((name,) for name in self.names) if one_by_one else (tuple(dict.fromkeys(self.comparison.variants)),)

    def without(self, side: int, place: int) -> _Sample:
        """The sample without one seed of one side; a paired one loses it on all sides."""
        drop = range(len(self.parts)) if self.form is paired_contrast else (side,)
        parts = tuple(np.delete(part, place) if i in drop else part for i, part in enumerate(self.parts))
        seeds = tuple(tuple(np.delete(of, place)) if i in drop else of for i, of in enumerate(self.seeds))
        return replace(self, parts=parts, seeds=seeds)


def _scaled(comparison: ComparisonSettings, values: FloatArray) -> FloatArray:
    """The values on the scale on which the effect is judged."""
    if not is_ratio(comparison):
        return values
    with np.errstate(divide="ignore", invalid="ignore"):  # the logarithm of 0 is refused later, as not finite
        logs: FloatArray = np.log(values)
    return logs


def _trained(
    comparison: ComparisonSettings, sides: Mapping[str, Training], looks: tuple[int, ...], first_seed: int, *, epochs: bool = False
) -> _Sample:
    """What the comparison is about, of the seeds that count.

    Args:
        first_seed: seeds before it do not count.
        epochs: take the fifth of the epochs before the last fifth, in place of the measure's own.

    Raises:
        NotFormed: there is nothing to compare.
    """
    of_sides = {name: tuple(seed for seed in sides[name].seeds if seed >= first_seed) for name in comparison.variants}
    if seen := [name for name, seeds in of_sides.items() if not seeds]:
        raise NotMeasured(f"the seeds of {listed(seen)} had been seen when the claim was made, and only those from {first_seed} on count")
    if comparison.measure == "ensemble accuracy":
        side = sides[comparison.variant]
        seeds = _counted(of_sides[comparison.variant], looks)
        votes = side.predictions
        if votes is None:
            raise NotMeasured(f"{comparison.variant}: its predictions are not there")
        predictions, labels = votes[0][[side.seeds.index(seed) for seed in seeds]], votes[1]
        return _Sample(comparison, (np.zeros(len(seeds)),), (seeds,), lambda part: vote_estimate(predictions, labels))

    entry = MEASURES[comparison.measure]
    if entry.series is not None:
        seeds = _counted(_common(of_sides), looks)
        ours, theirs = zip(*(tuple(sides[name] for name in pair) for pair in comparison.pairs), strict=True)
        values = _scaled(comparison, entry.series(ours, theirs, seeds))
        _refuse_infinite(values, seeds, f"the {comparison.measure}")
        return _Sample(comparison, (values,), (seeds,), contrast)

    if comparison.paired:
        of_sides = dict.fromkeys(of_sides, _common(of_sides))
    counted = _side_by_side({name: _counted(seeds, looks) for name, seeds in of_sides.items()}, looks)

    def values_of(name: str) -> FloatArray:
        window = None
        if epochs:
            total = sides[name].test_accuracy.shape[1]
            length = max(1, total // FIFTH)
            window = slice(total - 2 * length, total - length)
        try:
            return measure_values(comparison.measure, sides[name], seeds=counted[name], epochs=window)
        except NotFormed as error:
            raise type(error)(f"{name}: {error}") from None

    raw = tuple(values_of(name) for name in comparison.variants)
    parts = tuple(_scaled(comparison, values) for values in raw)
    for name, part in zip(comparison.variants, parts, strict=True):
        _refuse_infinite(part, counted[name], f"{name}: the logarithm of the {MEASURES[comparison.measure].phrase or comparison.measure}")
    differ = paired_contrast if comparison.paired else contrast
    form = share_contrast if entry.share and not comparison.paired and comparison.minus is None else differ
    plain = differ(*raw) if is_ratio(comparison) else None
    plain = of_shares(plain, len(raw)) if entry.of_value == "%" else plain
    return _Sample(comparison, parts, tuple(counted[name] for name in comparison.variants), form, plain)


def _counted(seeds: tuple[int, ...], looks: tuple[int, ...]) -> tuple[int, ...]:
    """The first seeds, up to the largest look that they reach; all of them before the first look, and without looks."""
    return seeds[: max((look for look in looks if look <= len(seeds)), default=len(seeds))]


def _side_by_side(seeds: Mapping[str, tuple[int, ...]], looks: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """These seeds, of no side more than one look beyond the one with the fewest: error rates are counted for no other order."""
    fewest = min(map(len, seeds.values()))
    most = next((look for look in looks if look > fewest), None)
    return {name: of_side[:most] for name, of_side in seeds.items()}


def _common(seeds: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The seeds that all have, in the first one's order. Raises NotFormed where there are none."""
    first, *others = seeds.values()
    common = tuple(seed for seed in first if all(seed in other for other in others))
    if not common:
        raise NotFormed(f"{listed(list(seeds))} have no seed in common, so they cannot be paired")
    return common


# --- verdicts ---


def _of_trainings(
    comparison: ComparisonSettings,
    evidence: Mapping[str, Training],
    levels: _Levels,
    images_shown: int,
    looks: tuple[int, ...],
    first_seed: int,
) -> Finding:
    """The finding, which is an observation and no verdict where a training is too short or the effect still moves."""
    if lacking := [name for name in dict.fromkeys(comparison.variants) if name not in evidence]:
        return Finding(comparison, "not run", f"there are no results of {listed(lacking)}")
    sides = {name: evidence[name] for name in comparison.variants}
    sample = None
    try:
        sample = _trained(comparison, sides, looks, first_seed)
        finding = _decide(sample, levels, looks)
    except NotMeasured as error:
        return Finding(comparison, "not run", str(error))
    except NotFormed as error:
        finding = Finding(comparison, "not decided", str(error), seeds_note=f"more seeds alone {_HOPELESS}")
    if short := {name: side.images_shown for name, side in sides.items() if side.images_shown < images_shown}:
        counts = listed([f"{count:,}" for count in dict.fromkeys(short.values())])
        who = f"{listed(list(short))} {'was' if len(short) == 1 else 'were'}"
        why = f"{who} shown {counts} training images, and the claim speaks of {images_shown:,}"
        return _observation(finding, "short run", why, f"trainings that are shown {images_shown:,} images")
    if sample is None or finding.interval is None:
        return finding
    if _has_to_settle(comparison, _ended(evidence)) and (found := _unsettled(sample, sides, levels, looks, first_seed)):
        return _observation(replace(finding, notes=found.notes), "not settled", found.why, found.missing)
    finding = _undone(finding, _bounded(sample, sides))
    flips = _flips(sample, finding, levels)
    hangs_on = frozenset((name, seed) for names, seeds in flips for name in names for seed in seeds)
    notes = (*_unreached(sample, sides), *_unstable(sample, sides), *_notes(sample, finding, levels, flips))
    where = {where for *_, where in _bounded(sample, sides)}
    return replace(finding, notes=notes, hangs_on=hangs_on, may_be=where.pop() if len(where) == 1 else "")


def _unstable(sample: _Sample, sides: Mapping[str, Training]) -> list[str]:
    """A sentence of each side with unstable trainings: a loss spike and a training that learns nothing count alike."""
    notes = []
    for name, part, seeds in zip(sample.names, sample.parts, sample.seeds, strict=True):
        if sample.comparison.measure == "unstable" and part.any():
            diverged = measure_values("diverged", sides[name], seeds=seeds)
            spiked = part.sum() - (part * diverged).sum()
            notes.append(f"{diverged.sum():.0f} of the {len(part)} trainings of {name} learn nothing, {spiked:.0f} have a loss spike only.")
    return notes


def _bounded(sample: _Sample, sides: Mapping[str, Training]) -> list[tuple[str, int, int, str]]:
    """Each side with seeds that never reached what is measured, whose values are the least that they can be.

    Returns:
        (variant, seeds, seeds that did not reach it, "larger" or "smaller": what the effect may be).
    """
    limit = MEASURES[sample.comparison.measure].unreached
    found = []
    for name, part, sign in zip(sample.names, sample.parts, (1, -1, -1, 1), strict=False):
        if limit and (count := sum(sample.shown(value) >= limit(sides[name]) - 0.5 for value in part)):
            found.append((name, len(part), count, "larger" if sign > 0 else "smaller"))
    return found


def _undone(finding: Finding, bounded: Sequence[tuple[str, int, int, str]]) -> Finding:
    """The finding, not decided where seeds that never reached what is measured could undo its verdict."""
    if finding.interval is None or finding.region is None or finding.verdict not in ("supported", "contradicted"):
        return finding
    (low, high), interval = finding.region, finding.interval
    if finding.verdict == "supported":
        undoing = {"larger": math.isfinite(high), "smaller": math.isfinite(low) and (low > 0 or not is_ratio(finding.comparison))}
    else:
        undoing = {"larger": interval.high < low, "smaller": interval.low > high}
    if not any(undoing[where] for *_, where in bounded):
        return finding
    why = "seeds that did not reach it could put the interval elsewhere"
    return replace(finding, verdict="not decided", why=why, seeds_note=f"more seeds alone {_HOPELESS}")


def _unreached(sample: _Sample, sides: Mapping[str, Training]) -> list[str]:
    """A sentence of each side of `_bounded`."""
    return [
        f"{f'Only {seeds - count}' if count < seeds else 'None'} of the {seeds} seeds of {name} reached it, "
        f"so the effect may be {where} than is shown."
        for name, seeds, count, where in _bounded(sample, sides)
    ]


def _observation(finding: Finding, verdict: Verdict, why: str, missing: str) -> Finding:
    """The finding as an observation; one without an effect says why there is none."""
    observed, why = (finding.why, why) if finding.effect is not None else ("", f"{why}; {finding.why}")
    return replace(finding, verdict=verdict, why=why, seeds_needed=None, seeds_note="", observed=observed, missing=missing)


def _ended(evidence: Mapping[str, Training]) -> set[str]:
    """The variants whose learning rate falls to 0."""
    return {name for name, training in evidence.items() if training.ends_at_zero}


def _has_to_settle(comparison: ComparisonSettings, ended: Collection[str]) -> bool:
    """Whether the effect is judged only once it has settled.

    That can be seen where the measure has a value after every epoch. Trainings whose learning rates all fall to 0 end there, and have
    nothing to settle.
    """
    return MEASURES[comparison.measure].by_epoch is not None and not {*comparison.variants} <= {*ended}


@dataclass(frozen=True)
class _Unsettled:
    """Why an effect has not settled, as the end of a sentence; see `Finding` for the others."""

    why: str
    missing: str
    notes: tuple[str, ...] = ()


def _unsettled(
    sample: _Sample, sides: Mapping[str, Training], levels: _Levels, looks: tuple[int, ...], first_seed: int
) -> _Unsettled | None:
    """None where the effect of a sample has settled. One excursion of one seed may look like a movement, so such a seed is named."""
    longer, either = "a longer training", "more seeds or a longer training"
    if any(side.test_accuracy.shape[1] < 2 for side in sides.values()):
        return _Unsettled("one epoch does not show whether the effect has settled", longer)
    try:
        before = _trained(sample.comparison, sides, looks, first_seed, epochs=True)
    except NotFormed as error:
        return _Unsettled(f"over the last but one fifth of the epochs {error}", longer)
    moved = _moved(sample, before, levels, looks)
    if not moved or moved == _DIFFER:  # a small movement across a bound may be chance, which more seeds tell
        return _Unsettled(moved, either) if moved else None
    alone = [
        f"seed {seed} of {_together(sample, names)}"
        for i, (names, seeds) in enumerate(zip(sample.apart, sample.seeds, strict=False))
        for j, seed in enumerate(seeds)
        if len(seeds) > 3 and not _moved(sample.without(i, j), before.without(i, j), levels, ())
    ]
    if not alone:
        return _Unsettled(moved, longer)
    return _Unsettled(moved, either, (f"If {' or '.join(alone)} were left out, it would have settled.",))


def _moved(sample: _Sample, before: _Sample, levels: _Levels, looks: tuple[int, ...]) -> str:
    """How the effect moved, as the end of a sentence; empty where it has settled.

    The effect of the late epochs, `sample`, is compared with that of the fifth of the epochs before the last fifth, `before`. It has
    settled where it moved by less than the claim's margin and both give the same verdict.

    The margin is the bound's distance from no effect. A bound of no effect, and the bound of `at least`, have no such distance: they
    say on which side of a value the effect lies. A claim with a direction therefore also allows half the half-width of the interval,
    which is what other seeds change, and a fifth of the effect's distance from the bound: at that pace the effect would take the whole
    training once more to reach it. The largest of the three counts.
    """
    comparison = sample.comparison
    low, high = sample.region
    late, bound = sample.estimate, high if math.isinf(low) else low
    interval = late.interval(levels.shown)
    assert interval is not None
    allowed = abs(bound) if comparison.rule != "at least" else 0.0
    if comparison.rule != "equivalent":
        allowed = max(allowed, (interval.high - interval.low) / 4, abs(late.mean - bound) / FIFTH)
    by = abs(late.mean - before.estimate.mean)
    if by >= allowed:
        if is_ratio(comparison):
            return (
                f"from the last but one fifth of the epochs to the late ones the ratio moved by a factor of {math.exp(by):.3f}, "
                f"and only less than {math.exp(allowed):.3f} counts as settled"
            )
        measure = MEASURES[comparison.measure]
        was, most = (f"{measure.factor * value:.3g}" for value in (by, allowed))
        return (
            f"from the last but one fifth of the epochs to the late ones the effect moved by {was} {measure.of_difference}, "
            f"and only less than {most} counts as settled"
        )
    return _DIFFER if _decide(before, levels, looks).verdict != _decide(sample, levels, looks).verdict else ""


def _flips(sample: _Sample, finding: Finding, levels: _Levels) -> list[tuple[tuple[str, ...], list[int]]]:
    """The seeds without any one of which the comparison would not be decided as it is, with the variants that lose it."""
    if finding.verdict not in ("supported", "contradicted") or sample.comparison.measure == "ensemble accuracy":
        return []
    flips = []
    for i, (names, seeds) in enumerate(zip(sample.apart, sample.seeds, strict=False)):
        if len(seeds) > 2:
            # Not only the outlier: it widens the interval, so that leaving it out may confirm the verdict.
            flip = [seed for j, seed in enumerate(seeds) if _decide(sample.without(i, j), levels, ()).verdict != finding.verdict]
            if flip:
                flips.append((names, flip))
    return flips


def _together(sample: _Sample, names: tuple[str, ...]) -> str:
    """Variants that lose a seed together, in words."""
    return listed(names) if sample.form is paired_contrast or len(names) == 1 else sample.names[0]


def _notes(sample: _Sample, finding: Finding, levels: _Levels, flips: Sequence[tuple[tuple[str, ...], list[int]]]) -> tuple[str, ...]:
    """See `Finding.notes`. `flips`: what `_flips` found."""
    comparison = sample.comparison
    if comparison.measure == "ensemble accuracy":
        return ()
    notes = []
    for name, part, seeds in zip(sample.names, sample.parts, sample.seeds, strict=True):
        distance = np.abs(part - np.median(part))
        deviation = 1.4826 * float(np.median(distance))
        place = int(distance.argmax())
        if len(part) >= MIN_FOR_OUTLIERS and distance[place] > OUTLIER * deviation > 0:
            notes.append(f"Seed {seeds[place]} of {name} lies far from its others.")
    if flips:
        which = [
            f"{'seed' if len(seeds) == 1 else 'one of the seeds'} {listed([str(seed) for seed in seeds])} of {_together(sample, names)}"
            for names, seeds in flips
        ]
        notes.append(f"If {' or '.join(which)} were left out, it would not be {finding.verdict}.")
    estimate = sample.estimate
    if comparison.rule == "equivalent" and isinstance(estimate, Estimate):
        half, margin = estimate.half_width(levels.inside), sample.region[1]
        shown, allowed = (
            f"a factor of {math.exp(size):.3g}" if is_ratio(comparison) else f"{MEASURES[comparison.measure].factor * size:.3g}"
            for size in (half, margin)
        )
        too_few = "" if half < margin else ", so with so few seeds it could not have been supported"
        notes.append(f"Its interval reaches {shown} to either side, and the claim's margin is {allowed}{too_few}.")
    return tuple(notes)


def _of_timings(comparison: ComparisonSettings, timings: Timings | None, levels: _Levels) -> Finding:
    """Ratios are judged on logarithms, so that a ratio and its inverse get the same verdict."""
    if timings is None:
        return Finding(comparison, "not run", "not timed: it needs the interleaved timings that `dvc repro timing` takes")
    assert comparison.reference is not None
    try:
        timed = comparison.rule == "ratio"
        values = timings.ratio(comparison.variant, comparison.reference) if timed else timings.exponent(comparison.measure)
    except LookupError as error:
        return Finding(comparison, "not run", str(error.args[0]))
    claimed = low, high = region(comparison)
    if comparison.measure == "saved bytes":
        (exact,) = values
        inside = bool(low <= exact <= high)
        why = f"an exact count, {'' if inside else 'not '}{_region_text(comparison)}"
        return Finding(comparison, "supported" if inside else "contradicted", why, sizes=(1,), effect=float(exact), region=claimed)
    if not len(values):
        note = "rounds on a machine without other work would decide it"
        return Finding(comparison, "not decided", "no round was undisturbed", region=claimed, seeds_note=note)
    return _decide(_Sample(comparison, (_scaled(comparison, values),), (), RankEstimate), levels, ())


def _decide(sample: _Sample, levels: _Levels, looks: tuple[int, ...]) -> Finding:
    """The verdict, from where the interval lies: inside, outside or across an end of the region."""
    comparison, estimate, show = sample.comparison, sample.estimate, sample.shown
    sizes = tuple(len(part) for part in sample.parts)
    fewest = min(sizes)
    (low, high), where = sample.region, _region_text(comparison)
    unit = "seeds" if sample.seeds else "rounds"
    means = tuple(show(float(part.mean())) for part in sample.parts) if sample.seeds and len(sizes) > 1 else ()
    finding = Finding(comparison, "not decided", "", sizes=sizes, effect=show(estimate.mean), means=means, region=region(comparison))
    inner, outer = estimate.interval(levels.inside), estimate.interval(levels.outside)
    if inner is None or outer is None:
        why = f"{fewest} {unit if fewest > 1 else unit[:-1]} give{'s' if fewest == 1 else ''} no interval at this level"
        return replace(finding, why=why, seeds_note=f"more {unit} may decide it")
    if inner.low == inner.high:
        why = f"all {fewest} {unit} give the same value, so their spread, and with it an interval, is not known"
        return replace(finding, why=why, seeds_note=f"without a spread it is not known how many {unit} would decide it")

    shown = inner if levels.inside <= levels.outside else outer
    plain = (sample.plain.mean, sample.plain.interval(levels.shown)) if sample.plain else None
    finding = replace(finding, interval=Interval(show(shown.low), show(shown.high), shown.level), plain=plain)
    if sample.seeds and looks and fewest < looks[0]:
        why = f"it has {fewest} seed{'s' if fewest > 1 else ''}"
        return replace(finding, why=why, seeds_note=f"the first look is at {looks[0]} seeds")
    if low < inner.low and inner.high < high:
        return replace(finding, verdict="supported", why=f"the whole interval lies {where}")
    if outer.low > high or outer.high < low:
        return replace(finding, verdict="contradicted", why=f"no part of the interval lies {where}")
    why = f"only a part of the interval lies {where}"
    if inner.low > high or inner.high < low:
        why = f"no part of the interval lies {where}, but some of the {_percent(levels.outside)} interval of several comparisons"
    elif low < outer.low and outer.high < high:
        why = f"the interval lies {where}, but not the whole {_percent(levels.inside)} interval of several comparisons"
    needed, note = _outlook(sample, levels, looks)
    return replace(finding, why=why, seeds_needed=needed, seeds_note=note)


def _outlook(sample: _Sample, levels: _Levels, looks: tuple[int, ...]) -> tuple[tuple[int, int | None] | None, str]:
    """`Finding.seeds_needed` and `Finding.seeds_note`."""
    estimate = sample.estimate
    if isinstance(estimate, RankEstimate):
        return None, "a new timing with more rounds, their number chosen before it, may decide it"
    needed = seeds_to_decide(estimate, sample.region, level=levels.inside, outside_level=levels.outside)
    if needed is None:
        most = MAX_SEEDS_OF_SHARES if isinstance(estimate, ShareEstimate) else MAX_SEEDS
        return None, f"{most:,} seeds {_HOPELESS}"
    fewest, largest = (None if n is None else max(n, min(estimate.sizes) + 1) for n in needed)  # rounding may count a touch as decided
    assert fewest is not None
    if largest is None:
        said = f"at least {fewest:,} seeds"
    else:
        said = f"{fewest:,} to {largest:,} seeds" if largest > fewest else f"about {largest:,} seeds"
    said += " would probably decide it, if its mean stays as it is"
    if looks:
        later = [look for look in looks if look > min(estimate.sizes)]
        enough = next((look for look in later if look >= fewest), None)
        which = "last look" if enough is None else "next look" if enough == later[0] else "first look with so many"
        said += f"; the {which} has {enough or looks[-1]}"
    return (fewest, largest), said
