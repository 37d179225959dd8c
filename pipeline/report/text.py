"""Numbers, settings and verdicts as Markdown: accuracies in %, their differences in points, losses in nats."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jinja2

from pipeline.measures import MEASURES, Measure
from pipeline.params import ComparisonSettings, Params
from pipeline.report import words
from pipeline.report.words import MINUS, listed, with_unit
from pipeline.study.claims import Finding, Judgement, is_ratio
from pipeline.study.ranking import Part
from pipeline.study.statistics import LEVEL, Interval

NBSP = "\N{NO-BREAK SPACE}"


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
    """Three digits; from 100 on a whole number."""
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


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
    """The templates; they may call every function of this module and of `words`, also as a filter."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report"), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    functions = {name: one for module in (words, sys.modules[__name__]) for name, one in inspect.getmembers(module, inspect.isfunction)}
    made.filters |= functions
    made.globals |= functions | {"MINUS": MINUS, "NBSP": NBSP, "LEVEL": LEVEL}
    return made
