"""The rules that judge the claims of params.yaml.

A claim is one or more comparisons, and each rule puts the effect of a comparison into a region: the difference within a
margin, the mean above a bound. A comparison is judged from its interval, never from a point: "supported" when the whole
interval lies inside the region, "contradicted" when no part of it does, else "not decided"; "not run" when what it
compares was not trained, evaluated or timed. Two things are exact and have no interval: a count of bytes, and the difference of
two trainings that are the same to the last bit.

A claim is supported when all its comparisons are, each on its own 95 % interval: an intersection-union test needs no
adjustment (Berger 1982). It is contradicted when one is. As any one suffices for that, contradiction is read off the wider interval
that covers all of the claim's comparisons at once (Bonferroni), which holds false contradictions at 5 % per claim. Of several
verdicts the first of `PRECEDENCE` is the claim's: a claim with a comparison that was not run is not supported.

A comparison of trainings is judged when each of them was shown as many images as the claim speaks of ("short run" if not), and when
its effect has settled ("not settled" if not, see `_moved`). Else its effect and interval are an observation and no verdict. So only
trainings of full length contradict. One such comparison contradicts the claim even where another is a short run, because the
claim asserts all of its comparisons. Where none contradicts, one short run keeps the claim from every verdict.

A comparison takes the seeds that all its sides have: the first k of them, k the largest of the declared looks that they reach
(all of them before the first look, or without looks).

Each claim keeps its own 5 %. A reader who picks the most striking line of an experiment's page picks from all of them;
`adjusted_p` is for that reader.

Claims about accuracy speak of trainings, and their unit is the seed. Claims about speed speak of the timing stage's interleaved
rounds, and their unit is the round; recorded times of trainings judge nothing. A vote of all seeds is one model, and its unit is
the test image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.measures import MEASURES, TIMING_RULES, NotFormed, NotMeasured
from pipeline.measures.definitions import FloatArray
from pipeline.params import ClaimSettings, ComparisonSettings, Measure
from pipeline.params.train import MAX_SEEDS
from pipeline.study.statistics import (
    LEVEL,
    Interval,
    Summary,
    difference_of_differences,
    holm,
    image_interval,
    paired_difference,
    seeds_to_decide,
    sign_flip_p,
    smallest_p,
    summarize,
)
from pipeline.study.training import Training

Verdict = Literal["contradicted", "not run", "short run", "not settled", "not decided", "supported"]
PRECEDENCE: tuple[Verdict, ...] = ("contradicted", "not run", "short run", "not settled", "not decided", "supported")
OBSERVATIONS: tuple[Verdict, ...] = ("short run", "not settled")  # effect and interval are shown, and decide nothing
MIN_ROUNDS = 3  # two rounds have an interval, too, but one that a single slow round makes up
FIFTH = 5  # an effect is compared between the last fifth of the epochs and the fifth before


class Timings(Protocol):
    """What a claim may ask of the timing stage's results; `pipeline.timing.results`, which stands above this room, has them."""

    def ratio(self, slower: str, faster: str) -> FloatArray:
        """(rounds,): two subjects' step times as published, of each undisturbed round. Raises LookupError where one was not timed."""
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
        n: how many seeds (rounds, test images) it rests on: of seeds the first so many that all sides have.
        effect: in the measure's unit; None where nothing could be formed.
        interval: of the effect, at 95 %.
        region: where the claim puts the effect, in its unit; an end may be infinite.
        p: two-sided sign-flip p of the effect being at the bound; of `less` and `more` with at least six seeds, and no observation.
        seeds_needed: how many seeds (rounds) would probably decide it; None where it is decided, or none would.
        seeds_note: that number, or why there is none, as a clause; empty where it is decided or not run.
    """

    comparison: ComparisonSettings
    verdict: Verdict
    why: str
    rule_text: str
    n: int = 0
    effect: float | None = None
    interval: Interval | None = None
    region: tuple[float, float] | None = None
    p: float | None = None
    seeds_needed: int | None = None
    seeds_note: str = ""
    observed: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, and the findings about its comparisons in their order.

    Attributes:
        images_shown: training images that each side has to be shown; None for a claim about timings alone.
        looks: numbers of seeds at which it is judged; empty where all count, and for a claim about timings alone.
    """

    id: str
    claim: ClaimSettings
    verdict: Verdict
    findings: tuple[Finding, ...]
    images_shown: int | None = None
    looks: tuple[int, ...] = ()

    @property
    def deciding(self) -> Finding:
        """The finding that decides the verdict: of those with the claim's own verdict the first, with three exceptions.

        Of those supported it is the one nearest to the edge of its region. Of those not decided it is the one that will settle the
        claim: the one that needs the fewest seeds among those outside of their region, if there are any, else the one that needs
        the most. Of observations it is the first that has an effect, so that none is picked for what it shows.
        """
        same = [finding for finding in self.findings if finding.verdict == self.verdict]
        if self.verdict == "supported":
            return min(same, key=_distance_to_edge)
        if self.verdict == "not decided":
            leaving = [finding for finding in same if _outside(finding)]
            return min(leaving, key=_seeds_needed) if leaving else max(same, key=_seeds_needed)
        if self.verdict in OBSERVATIONS:
            return next((finding for finding in same if finding.effect is not None), same[0])
        return same[0]


def _distance_to_edge(finding: Finding) -> float:
    """Distance of the interval from its region's nearest edge, in half-widths; infinite for an exact count."""
    if finding.interval is None or finding.region is None:
        return math.inf
    (low, high), interval = finding.region, finding.interval
    return min(interval.low - low, high - interval.high) / (interval.high - interval.low)


def _outside(finding: Finding) -> bool:
    if finding.effect is None or finding.region is None:
        return False
    return not finding.region[0] <= finding.effect <= finding.region[1]


def _seeds_needed(finding: Finding) -> float:
    return math.inf if finding.seeds_needed is None else finding.seeds_needed


def is_timed(claim: ClaimSettings) -> bool:
    """Whether the claim is judged on the timing stage's results."""
    return all(comparison.rule in TIMING_RULES for comparison in claim.comparisons)


def judge(
    id: str,
    claim: ClaimSettings,
    evidence: Mapping[str, Training],
    timings: Timings | None = None,
    *,
    images_shown: int,
    looks: Sequence[int] = (),
) -> Judgement:
    """Judges one claim from the variants and timings that there are. Whatever these lack or hold becomes a verdict, never an error.

    Args:
        images_shown: training images that each side has to be shown, where the claim does not say it itself.
        looks: numbers of seeds at which claims are judged, rising; without any all common seeds count.
    """
    wide = 1 - (1 - LEVEL) / len(claim.comparisons)
    length = claim.images_shown or images_shown
    findings = tuple(_finding(comparison, evidence, timings, wide, length, looks) for comparison in claim.comparisons)
    verdicts = {finding.verdict for finding in findings}
    verdict = next(verdict for verdict in PRECEDENCE if verdict in verdicts)
    return Judgement(id, claim, verdict, findings) if is_timed(claim) else Judgement(id, claim, verdict, findings, length, tuple(looks))


def adjusted_p(judgements: Iterable[Judgement]) -> dict[ComparisonSettings, float]:
    """Holm-adjusted p over all directional comparisons of one experiment, whatever claims they belong to.

    At most 5 % of experiments without any effect hold a value of 0.05 or less. The verdicts rest on intervals and not on these.

    Args:
        judgements: those of the experiment's claims.

    Returns:
        By comparison, one that two claims share once. Without an entry: rules other than `less` and `more`, and comparisons over fewer
        than six seeds, whose p cannot reach 0.05.
    """
    raw = {finding.comparison: finding.p for judgement in judgements for finding in judgement.findings if finding.p is not None}
    return dict(zip(raw, holm(list(raw.values())), strict=True))


# --- measures ---


def measure_values(measure: Measure, evidence: Training, *, seeds: Sequence[int] | None = None, epochs: slice | None = None) -> FloatArray:
    """The measure of one variant, seed by seed.

    Args:
        seeds: those wanted, in this order; None for all.
        epochs: the mean over these in place of the last epoch, of a measure that has a value after every epoch.

    Returns:
        (seeds,), finite; accuracies as fractions.

    Raises:
        NotFormed: a ValueError that says in words why these runs have no such values; NotMeasured where the evaluation has to run first.
    """
    chosen = evidence.seeds if seeds is None else seeds
    entry = MEASURES[measure]
    if entry.values is None:
        raise NotFormed(f"{measure} is not a measure of each seed")
    values = entry.values(evidence) if epochs is None else getattr(evidence, entry.by_epoch)[:, epochs].mean(axis=1)
    values = values[_places(evidence, chosen)]
    bad = [str(seed) for seed, value in zip(chosen, values, strict=True) if not math.isfinite(value)]
    if bad:
        raise NotFormed(f"the {measure} of seed{'s' if len(bad) > 1 else ''} {listed(bad)} was not finite")
    return values


def _places(evidence: Training, seeds: Sequence[int]) -> list[int]:
    """Where these seeds stand among the evidence's own."""
    return [evidence.seeds.index(seed) for seed in seeds]


# --- rules ---


def rule_text(comparison: ComparisonSettings, wide: float = LEVEL) -> str:
    """The rule in words, for example "supported if the whole 95 % interval lies below 0; contradicted if no part of it does".

    Args:
        wide: level of the interval that contradicts, 1 - 0.05 / (number of the claim's comparisons).
    """
    where = _region_text(comparison)
    if comparison.measure == "saved bytes":
        return f"supported if the exact figure lies {where}, contradicted if not"
    of = "of it" if wide == LEVEL else f"of the {_percent(wide)} interval"
    return f"supported if the whole {_percent(LEVEL)} interval lies {where}; contradicted if no part {of} does"


def _region_text(comparison: ComparisonSettings) -> str:
    """Where the claim puts the effect, as in "it lies ..."."""
    bound = comparison.bound or 0.0
    if comparison.between is not None:
        low, high = comparison.between
        return f"above {low:.4g}" if math.isinf(high) else f"between {low:.4g} and {high:.4g}"
    if comparison.rule == "resembles":
        return f"above {100 * bound:g} % of {comparison.reference}'s"
    measure = MEASURES[comparison.measure]
    size = f"{measure.factor * bound:.6g}".replace("-", "\N{MINUS SIGN}")
    if comparison.rule == "at least":
        return f"above {size} {measure.of_value}".rstrip()
    if comparison.rule == "equivalent":
        return f"within ±{size} {measure.of_difference}".rstrip()
    return f"{'below' if comparison.rule == 'less' else 'above'} {size} {measure.of_difference if bound else ''}".rstrip()


def _percent(level: float) -> str:
    return f"{100 * level:.3g} %"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class _Sample:
    """What an effect is the mean of, and the region that the claim puts it in.

    Attributes:
        at: the effect with its interval of a level.
        where: the region in words.
        unit: what the values are of, one each.
        show: from the values' scale to the effect's.
        p: sign-flip p of the effect being at the bound; None where the rule has no direction or the values are too few.
    """

    at: Callable[[float], Summary]
    region: tuple[float, float]
    where: str
    unit: Literal["seeds", "rounds", "test images"] = "seeds"
    show: Callable[[float], float] = float
    p: float | None = None


def _finding(
    comparison: ComparisonSettings,
    evidence: Mapping[str, Training],
    timings: Timings | None,
    wide: float,
    images_shown: int,
    looks: Sequence[int],
) -> Finding:
    rule = rule_text(comparison, wide)
    if comparison.rule not in TIMING_RULES:
        return _of_trainings(comparison, evidence, rule, wide, images_shown, looks)
    try:
        if timings is None:
            raise NotMeasured("not timed: it needs the interleaved timings that `dvc repro timing` takes")
        return _timed(comparison, timings, rule, wide)
    except (NotMeasured, LookupError) as error:
        return Finding(comparison, "not run", str(error.args[0]), rule)


def _of_trainings(
    comparison: ComparisonSettings, evidence: Mapping[str, Training], rule: str, wide: float, images_shown: int, looks: Sequence[int]
) -> Finding:
    """The finding, which is an observation and no verdict where a training is too short or the effect still moves."""
    sides = {name: evidence[name] for name in comparison.variants if name in evidence}
    try:
        if lacking := [name for name in dict.fromkeys(comparison.variants) if name not in sides]:
            raise NotMeasured(f"there are no results of {listed(lacking)}")
        seeds = _judged_seeds(sides, looks)
        sample = _trained(comparison, sides, seeds)
        finding = _same_training(comparison, sides, seeds, sample, rule) or _decide(comparison, sample, rule, wide)
    except NotMeasured as error:
        return Finding(comparison, "not run", str(error), rule)
    except NotFormed as error:
        finding = Finding(comparison, "not decided", str(error), rule, seeds_note="more seeds alone would not decide it")
    if short := {name: side.images_shown for name, side in sides.items() if side.images_shown < images_shown}:
        counts = listed([f"{count:,}" for count in dict.fromkeys(short.values())])
        who = f"{listed(list(short))} {'was' if len(short) == 1 else 'were'}"
        why = f"{who} shown {counts} training images, and the claim speaks of {images_shown:,}"
        return _observation(finding, "short run", why, f"trainings that are shown {images_shown:,} images")
    if not MEASURES[comparison.measure].by_epoch or finding.interval is None:
        return finding
    moved = _moved(comparison, sides, seeds, finding, wide)
    return _observation(finding, "not settled", moved, "a longer training") if moved else finding


def _observation(finding: Finding, verdict: Verdict, why: str, missing: str) -> Finding:
    """The finding as an observation; one without an effect observed nothing, and says why."""
    observed, why = (finding.why, why) if finding.effect is not None else ("", f"{why}; {finding.why}")
    return replace(finding, verdict=verdict, why=why, p=None, seeds_needed=None, seeds_note="", observed=observed, missing=missing)


def _judged_seeds(sides: Mapping[str, Training], looks: Sequence[int]) -> tuple[int, ...]:
    """The seeds that all sides have, in the first one's order, as far as the largest look that they reach.

    Raises:
        NotFormed: they have none in common.
    """
    first, *others = sides.values()
    common = tuple(seed for seed in first.seeds if all(seed in other.seeds for other in others))
    if not common:
        raise NotFormed(f"{listed(list(sides))} have no seed in common, so they cannot be paired")
    return common[: max((look for look in looks if look <= len(common)), default=len(common))]


def _moved(comparison: ComparisonSettings, sides: Mapping[str, Training], seeds: Sequence[int], finding: Finding, wide: float) -> str:
    """Why the effect has not settled, as the end of a sentence; empty where it has.

    The effect is formed once from each seed's mean over the last fifth of its epochs and once from the fifth before. It has settled
    where it moved by less than the claim's margin and both give one verdict, which is also that of the last epoch if that one
    supports or contradicts: what only the last epoch shows is the noise of the moment at which training stopped.

    The margin is that of `equivalent`, and that of `less` and `more` where it is not 0. A bound of 0, and the bound of `at least`,
    say on which side of a value the effect lies and not what is small. There the effect may move by half the half-width of its
    interval, which other seeds move it by, or by a fifth of its distance from the bound: at that pace it would take the whole
    training once more to reach it. The larger of the two counts.
    """

    def found(which: int) -> tuple[float, Finding]:
        sample = _trained(comparison, sides, seeds, fifth=which)
        return sample.at(LEVEL).mean, _decide(comparison, sample, "", wide)

    measure = MEASURES[comparison.measure]
    if any(getattr(side, measure.by_epoch).shape[1] < 2 for side in sides.values()):
        return "one epoch does not show whether the effect has settled"
    try:
        (before, earlier), (late, later) = found(2), found(1)
    except NotFormed as error:
        return f"over the last two fifths of the epochs {error}"
    assert finding.interval is not None
    assert finding.effect is not None
    bound = comparison.bound or 0.0
    if comparison.rule != "at least" and bound:
        allowed = abs(bound)
    else:
        allowed = max((finding.interval.high - finding.interval.low) / 4, abs(finding.effect - bound) / FIFTH)
    if abs(late - before) >= allowed:
        by, most = (f"{measure.factor * value:.3g}" for value in (abs(late - before), allowed))
        unit = measure.of_difference
        return f"between the last two fifths of the epochs the effect moved by {by} {unit}, and less than {most} would be settled"
    if earlier.verdict != later.verdict:
        return "the last two fifths of the epochs differ in where their intervals lie"
    if finding.verdict not in ("not decided", later.verdict):
        return "the last epoch's interval lies elsewhere than that of the last fifth of the epochs"
    return ""


def _trained(comparison: ComparisonSettings, sides: Mapping[str, Training], seeds: Sequence[int], *, fifth: int | None = None) -> _Sample:
    """What the comparison is about, of these seeds.

    Args:
        fifth: in place of the last epoch the mean over a fifth of the epochs: 1 for the last, 2 for the one before.

    Raises:
        NotFormed: there is nothing to compare.
    """
    names = comparison.variants
    bound, where = comparison.bound or 0.0, _region_text(comparison)
    if comparison.measure == "ensemble accuracy":
        votes = sides[comparison.variant].vote_correct
        if votes is None:
            raise NotMeasured(f"{comparison.variant}: its predictions are not there")
        return _Sample(lambda level: _share(votes, level), (bound, math.inf), where, "test images")

    def values(name: str) -> FloatArray:
        epochs = None
        if fifth is not None:
            total = sides[name].test_accuracy.shape[1]
            length = max(1, total // FIFTH)
            epochs = slice(total - fifth * length, total - (fifth - 1) * length)
        try:
            return measure_values(comparison.measure, sides[name], seeds=seeds, epochs=epochs)
        except NotFormed as error:
            raise type(error)(f"{name}: {error}") from None

    if comparison.rule == "resembles":
        own, table = values(names[0]), float(values(names[1]).mean())
        if bound * table <= 0:
            raise NotFormed(f"{names[1]}'s own vectors correlate with nearness by {table:.2f} only")
        where = f"above {bound * table:.3f}, {100 * bound:g} % of {names[1]}'s {table:.3f}"
        return _Sample(lambda level: summarize(own, level=level), (bound * table, math.inf), where)

    parts = [values(name) for name in names]
    p = None
    if comparison.rule in ("less", "more") and fifth is None and smallest_p(len(parts[0])) <= 1 - LEVEL:
        effects = parts[0] - parts[1] - (parts[2] - parts[3] if comparison.minus else 0.0)
        p = sign_flip_p(effects, np.full(len(effects), bound))
    region = {"equivalent": (-bound, bound), "less": (-math.inf, bound)}.get(comparison.rule, (bound, math.inf))
    return _Sample(lambda level: _paired(parts, level), region, where, p=p)


def _same_training(
    comparison: ComparisonSettings, sides: Mapping[str, Training], seeds: Sequence[int], sample: _Sample, rule: str
) -> Finding | None:
    """The finding where both trainings are one to the last bit: then the difference is zero, and nothing of it is estimated.

    Accuracies of a few test images can be equal by chance. The losses of several seeds in every epoch cannot.
    """
    if comparison.reference is None or comparison.minus is not None or comparison.rule == "resembles":
        return None
    ours, theirs = sides[comparison.variant], sides[comparison.reference]
    difference = sample.at(LEVEL)
    if difference.n < 2 or difference.mean != 0 or difference.sd != 0:
        return None
    for curve in ("train_loss", "test_loss", "test_accuracy"):
        values, others = (getattr(side, curve)[_places(side, seeds)] for side in (ours, theirs))
        if not (np.isfinite(values).all() and np.array_equal(values, others)):
            return None
    inside = sample.region[0] < 0 < sample.region[1]
    why = "both trainings are the same to the last bit, in every loss of every epoch and seed: the difference is zero, and not an estimate"
    return Finding(comparison, "supported" if inside else "contradicted", why, rule, difference.n, 0.0, region=sample.region)


def _paired(parts: Sequence[FloatArray], level: float) -> Summary:
    """Of one variant's values, of the difference of two, or of the difference of two differences."""
    if len(parts) == 1:
        return summarize(parts[0], level=level)
    if len(parts) == 2:
        return paired_difference(*parts, level=level)
    return difference_of_differences(*parts, level=level)


def _share(correct: npt.NDArray[np.bool_], level: float) -> Summary:
    summary = summarize(correct.astype(np.float64))
    return replace(summary, interval=image_interval(correct, level=level))


def _timed(comparison: ComparisonSettings, timings: Timings, rule: str, wide: float) -> Finding:
    """Ratios are judged on their logarithm, so that a ratio and its inverse are one. Raises LookupError where nothing was timed."""
    assert comparison.between is not None
    assert comparison.reference is not None
    low, high = comparison.between
    where = _region_text(comparison)
    show: Callable[[float], float] = float
    if comparison.rule == "ratio":
        values, show = np.log(timings.ratio(comparison.variant, comparison.reference)), math.exp
        low, high = (math.log(end) if end > 0 else -math.inf for end in (low, high))
    else:
        values = timings.exponent(comparison.measure)
    if comparison.measure == "saved bytes":
        (exact,) = values
        inside = bool(low <= exact <= high)
        why = f"an exact count, {'' if inside else 'not '}{where}"
        return Finding(comparison, "supported" if inside else "contradicted", why, rule, 1, float(exact), region=comparison.between)
    if len(values) < MIN_ROUNDS:
        why = f"only {len(values)} undisturbed rounds of timings, where {MIN_ROUNDS} are the fewest that may judge"
        note = "more rounds, on a machine without other work, would decide it"
        return Finding(comparison, "not decided", why, rule, len(values), region=comparison.between, seeds_note=note)
    return _decide(comparison, _Sample(lambda level: summarize(values, level=level), (low, high), where, "rounds", show), rule, wide)


def _decide(comparison: ComparisonSettings, sample: _Sample, rule: str, wide: float) -> Finding:
    """The verdict, from where the interval lies: inside, outside or across an end of the region."""
    summary, show = sample.at(LEVEL), sample.show
    interval, wider = summary.interval, sample.at(wide).interval
    low, high = sample.region
    finding = Finding(comparison, "not decided", "", rule, summary.n, show(summary.mean), region=(show(low), show(high)))
    if interval is None or wider is None:
        note = "one seed does not show how many would decide it"
        return replace(finding, why="one seed gives no interval", seeds_note=note)
    if interval.low == interval.high:
        why = f"all {summary.n} {sample.unit} give the same value, so their spread, and with it an interval, is not known"
        return replace(finding, why=why, seeds_note=f"without a spread it is not known how many {sample.unit} would decide it")

    finding = replace(finding, interval=Interval(show(interval.low), show(interval.high)), p=sample.p)
    if low < interval.low and interval.high < high:
        return replace(finding, verdict="supported", why=f"the whole interval lies {sample.where}")
    outside, clear = (i.low > high or i.high < low for i in (interval, wider))
    if clear:
        return replace(finding, verdict="contradicted", why=f"no part of the interval lies {sample.where}")
    why = f"only a part of the interval lies {sample.where}"
    if outside:
        why = f"no part of the interval lies {sample.where}, but some of the {_percent(wide)} interval of several comparisons"
    needed, note = _outlook(summary, sample, wide)
    return replace(finding, why=why, seeds_needed=needed, seeds_note=note)


def _outlook(summary: Summary, sample: _Sample, wide: float) -> tuple[int | None, str]:
    """How many seeds, or rounds, would probably decide what these do not, and that as a clause."""
    if sample.unit == "test images":
        return None, f"its interval is over the {summary.n:,} test images, and more seeds add none"
    needed = seeds_to_decide(summary, sample.region, level=LEVEL, outside_level=wide)
    if needed is None:
        return None, f"it lies too near to the edge of what is claimed for {MAX_SEEDS:,} {sample.unit} to decide it"
    needed = max(needed, summary.n + 1)  # where an interval touches the edge, rounding may count it as decided
    return needed, f"about {needed:,} {sample.unit} would probably decide it, if its mean and spread stay as they are"
