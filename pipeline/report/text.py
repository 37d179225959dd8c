"""Numbers, settings, findings and verdicts as Markdown: accuracies in %, their differences in points, losses in nats."""

import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jinja2

from pipeline.measures import MEASURES, Measure
from pipeline.params import ComparisonSettings, Params
from pipeline.params.train import MAX_SEEDS
from pipeline.study.claims import Finding, Judgement, Why, is_ratio, region
from pipeline.study.ranking import Part
from pipeline.study.statistics import LEVEL, Interval

NBSP = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"
_BECAUSE = {
    Why.NO_RESULTS: "there are no results of {lacking}",
    Why.NOT_MEASURED: "{fault}",
    Why.NOT_FORMED: "{fault}",
    Why.SEEN: "the seeds of {lacking} had been seen when the claim was made",
    Why.NOT_TIMED: "the timing stage has not run (`dvc repro timing`)",
    Why.OTHER_DEVICE: "it is measured on a {other}, and on no {device} yet",
    Why.NO_INTERVAL: "over {n} there is no interval at this level",
    Why.NO_SPREAD: "all {n} give the same value, so their spread is not known",
    Why.FEW_SEEDS: "it has {n}, fewer than the first look",
    Why.INSIDE: "the whole interval lies {where}",
    Why.OUTSIDE: "no part of the interval lies {where}",
    Why.ACROSS: "at the levels of the rule only a part of the interval lies {where}",
    Why.UNREACHED: "seeds that did not reach it could put the interval elsewhere",
    Why.SHORT: "{lacking} saw fewer training images than the claim speaks of",
    Why.ONE_EPOCH: "one epoch does not show whether the effect has settled",
    Why.SMALL: "a part of the interval lies {where}, and all of it between 0.8 and 1.25{apart}",
    Why.CHANCE: "the train losses of {sides} stayed at that of a guess",
    Why.MOVED: "it moves from the last but one fifth of the epochs to the late ones, at a pace at which it may not stay where it is",
}
_DECIDES = {
    Why.MOVED: "a longer training",
    Why.ONE_EPOCH: "a longer training",
    Why.SHORT: "trainings that are shown {images} images",
    Why.OTHER_DEVICE: "timings on a {device}",
    Why.FEW_SEEDS: "the look at {look} seeds",
}


# --- numbers ---


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}".replace("-", MINUS)


def signed(value: float, digits: int = 2) -> str:
    """With its sign, which is a true minus; a value that rounds to zero has no sign."""
    text = f"{value:+,.{digits}f}"
    return text.replace("-", MINUS) if text.strip("+-0.") else text[1:]


def points(fraction: float) -> str:
    return signed(100 * fraction)


def interval(value: Interval | None, show: Callable[[float], str]) -> str:
    """`low to high` without a line break, or a dash for None."""
    return f"{show(value.low)}{NBSP}to{NBSP}{show(value.high)}" if value else "-"


def estimate(mean: float, ends: Interval | None, show: Callable[[float], str]) -> str:
    """`1.27 [1.25 to 1.29]`, where a line may break before the bracket alone; for None the mean alone."""
    return show(mean) + (f" [{interval(ends, show)}]" if ends else "")


def count(number: int) -> str:
    """A large count with a unit: 1.23 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # which rounds to it
            return f"{number / size:.3g} {unit}"
    return str(number)


def p_value(p: float) -> str:
    if p < 0.0001:  # no p is zero
        return "< 0.0001"
    return f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def digits(value: float) -> str:
    """Three digits, four where three would be those of 1, which is no effect of a ratio; from 100 on a whole number."""
    enough = value == 1 or f"{value:#.3g}" != "1.00"
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}" if enough else f"{value:#.4g}"


def three_decimals(value: float) -> str:
    """Three digits from 1 on, three decimals below; where all three would be zeros, one digit."""
    if abs(value) >= 1:
        return digits(value)
    return f"{value:.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:.0e}"


def seed_list(seeds: Sequence[int]) -> str:
    """`0 to 9`, or each seed where they are not consecutive."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


# --- measures ---


def value(measure: Measure, number: float) -> str:
    """A value of the measure in its printed unit, without the unit's name."""
    number *= measure.factor
    return (three_decimals(number) if measure.digits is None else f"{number:,.{measure.digits}f}").replace("-", MINUS)


def difference(measure: Measure, number: float) -> str:
    """A difference of two values of the measure, with its sign."""
    number *= measure.factor
    if measure.digits is not None:
        return signed(number, measure.digits)
    return f"{'+' if number > 0 else ''}{three_decimals(number)}".replace("-", MINUS)


def change(measure: Measure, number: float) -> str:
    """A difference of two values of the measure, with its sign; for a measure whose effects are ratios, the ratio."""
    return digits(number) if measure.ratio else difference(measure, number)


def effect(finding: Finding) -> str:
    """The effect of a comparison with its interval and unit, or a dash; after a ratio of trainings the difference."""
    if finding.effect is None:
        return "-"
    measure = MEASURES[finding.comparison.measure]
    unit = measure.of_difference
    if is_ratio(finding.comparison):
        show, unit = digits, "times"
    elif finding.comparison.rule in ("at least", "exponent"):
        show, unit = partial(value, measure), measure.of_value
    else:
        show = partial(difference, measure)
    said = with_unit(show(finding.effect), unit) + {"larger": " or more", "smaller": " or less", "": ""}[finding.may_be]
    if finding.interval:
        said += f" [{interval(finding.interval, show)}]"
    if measure.per_step:
        said += " as long (epochs times the time of a step)"
    if finding.plain is not None and measure.of_difference:
        said += f", {with_unit(difference(measure, finding.plain[0]), measure.of_difference)}"
    return said


def means(finding: Finding) -> str:
    """The mean of each side of a comparison of trainings, with its unit; empty where there are none."""
    measure = MEASURES[finding.comparison.measure]
    sides = dict(zip(finding.comparison.variants, finding.means, strict=False))
    return "; ".join(with_unit(f"{name} {value(measure, mean)}", measure.of_value) for name, mean in sides.items())


def part(one: Part) -> str:
    """A part of the network with its effect: `1 block, not 3 (1.38 [1.30 to 1.46])`."""
    return f"{one.name} ({estimate(one.ratio, one.interval, digits)})"


def compared(comparison: ComparisonSettings) -> str:
    """What was compared, in words: `first patch / cls, test error`."""
    measure = MEASURES[comparison.measure].phrase or comparison.measure
    if comparison.reference is None:
        return f"{comparison.variant}, {measure}"
    join = " against " if comparison.rule == "exponent" or comparison.pairs else " / " if is_ratio(comparison) else f" {MINUS} "
    return f"{comparison.variant}{join}{comparison.reference}, {measure}"


def sizes(finding: Finding) -> str:
    """The number of seeds (rounds) of a comparison: one number, or one for each side."""
    return listed([*map(str, finding.sizes if len({*finding.sizes}) > 1 else finding.sizes[:1])]) or "-"


def anchor(judgement: Judgement) -> str:
    """The anchor that a git host gives the heading of a claim's section."""
    return slug(f"{judgement.id}: {judgement.verdict}")


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


# --- what a finding means ---


def because(finding: Finding) -> str:
    """What led to the verdict, and the place of an observation's interval, as the end of a sentence."""
    ends, where = finding.interval, claimed(finding.comparison)
    words = {
        "lacking": listed(finding.lacking), "fault": finding.fault, "n": _values(finding, finding.n),
        "where": where, "apart": ", on one side of 1: the effect is there, and small" if ends and not ends.low <= 1 <= ends.high else "",
        "sides": listed(list(dict.fromkeys(finding.comparison.variants))), **_devices(finding),
    }  # fmt: skip
    said = _BECAUSE[finding.why].format(**words)
    if MEASURES[finding.comparison.measure].exact and finding.effect is not None:
        return f"an exact count, {'' if finding.verdict == 'supported' else 'not '}{where}"
    if finding.fault and finding.fault != said:
        said += f"; {finding.fault}"
    if finding.place and finding.why is not finding.place and finding.observed:
        said += f"; observed: {_BECAUSE[finding.place].format(**words)}"
    return said


def decides(finding: Finding, judgement: Judgement) -> str:
    """What would decide a comparison, in few words; empty where it is decided or nothing is known."""
    if finding.needed is not None:
        look = next((f"the look at {look}" for look in judgement.looks if look >= finding.needed), "beyond the last look")
        said = f"about {_values(finding, finding.needed)}" + f" ({look})" * bool(judgement.looks)
        return said if finding.needed <= MAX_SEEDS else f"more than {_values(finding, MAX_SEEDS)}"
    words = {"images": f"{judgement.images_shown or 0:,}", "look": (judgement.looks or (0,))[0], **_devices(finding)}
    return _DECIDES.get(finding.why, "").format(**words)


def _devices(finding: Finding) -> dict[str, str]:
    """Of a claim about time that was timed on another device, what it speaks of and that one."""
    device, other = ("GPU", "CPU") if finding.lacking == ("cuda",) else ("CPU", "GPU")
    return {"device": device, "other": other}


def claimed(comparison: ComparisonSettings) -> str:
    """Where the claim puts the effect, as in "it lies ..."."""
    low, high = region(comparison)
    if comparison.between is not None or is_ratio(comparison):
        if math.isinf(high):
            return f"above {low:.4g}"
        if math.isinf(low) or (low == 0 and is_ratio(comparison)):
            return f"below {high:.4g}"
        return f"between {low:.4g} and {high:.4g}"
    measure = MEASURES[comparison.measure]
    bound = high if comparison.rule in ("less", "equivalent") else low
    size = f"{measure.factor * bound:.6g}".replace("-", MINUS)
    unit = measure.of_value if comparison.rule == "at least" else measure.of_difference if bound else ""
    return {"less": "below ", "equivalent": "within ±"}.get(comparison.rule, "above ") + with_unit(size, unit)


def rule(finding: Finding) -> str:
    """The rule of a comparison, the same whatever the data say."""
    where = claimed(finding.comparison)
    if MEASURES[finding.comparison.measure].exact:
        return f"supported if the exact figure lies {where}, contradicted if not"
    inside, outside = (f"{100 * level:.3g} %" for level in (finding.levels.inside, finding.levels.outside))
    of = "of it" if inside == outside else f"of the {outside} interval"
    return f"supported if the whole {inside} interval lies {where}; contradicted if no part {of} does"


def listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def counted(number: int, thing: str) -> str:
    """`1 seed`, `10 seeds`."""
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


def with_unit(number: str, unit: str) -> str:
    """`+1 step`, `+2 steps`."""
    return f"{number} {unit.removesuffix('s') if number.lstrip(f'+{MINUS}') == '1' else unit}".rstrip()


def _values(finding: Finding, number: int) -> str:
    return counted(number, "round" if finding.comparison.rule in ("ratio", "exponent") else "seed")


# --- settings ---


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(plain(one) for one in value)}]"
    return "none" if value is None else str(value)


def differs(params: Params, variant: str, baseline: str | None = None) -> str:
    """The options in which a variant differs from the base, or from the experiment's baseline where that list is shorter.

    Neither the seeds count nor whether a divergence stops it.
    """

    def options(name: str | None) -> dict[str, Any]:
        settings = params.resolve(name) if name else None
        train, model = (settings.train, settings.model) if settings else (params.train, params.base)
        return model.model_dump() | train.model_dump(exclude={"seeds", "divergence"})

    def changes(reference: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}: {plain(value)}" for name, value in own.items() if name not in reference or reference[name] != value)

    own, other = options(variant), options(baseline)
    to_base, to_baseline = changes(options(None)) or "the base itself", f"as {baseline}, but {changes(other)}"
    comparable = baseline not in (None, variant) and own["architecture"] == other["architecture"]
    return to_baseline if comparable and len(to_baseline) < len(to_base) else to_base


# --- Markdown ---


def cell(text: object) -> str:
    """Text for a table's cell: one line, with escaped bars."""
    return " ".join(str(text).split()).replace("|", "\\|")


def quote(text: str) -> str:
    """A block quote, every line of it."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())


def page(template: str, **values: Any) -> bytes:
    rendered = environment().get_template(template).render(**values).strip()
    return (re.sub(r"\n{3,}", "\n\n", rendered) + "\n").encode()


@cache
def environment() -> jinja2.Environment:
    """The templates; they may call every function of this module, also as a filter."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report"), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    functions = dict(inspect.getmembers(sys.modules[__name__], inspect.isfunction))
    made.filters |= functions
    made.globals |= functions | {"MINUS": MINUS, "NBSP": NBSP, "LEVEL": LEVEL}
    return made
