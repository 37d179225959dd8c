"""The timing page: the measurements of the timing stage, and the claims about time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.params import Params
from pipeline.report import text
from pipeline.report.figures import Picture
from pipeline.report.figures import timing as figures
from pipeline.report.figures.base import named
from pipeline.report.text import digits, estimate
from pipeline.study.claims import Judgement
from pipeline.study.effects import MIN_ROUNDS
from pipeline.timing.results import MIN_TOKENS, Timings, main_device
from pipeline.timing.subjects import WAYS, Way

PAGE = "timing.md"


def render(
    params: Params, timed: Mapping[str, Timings], judgements: Sequence[Judgement], places: Mapping[str, str]
) -> dict[str, bytes | Picture]:
    """The page and its pictures, by their path inside `reports/`. A pure function of the arguments and the template.

    Args:
        timed: by the kind of device, at least one.
        judgements: of the claims about times.
        places: by claim, the link to its section inside `reports/`. This page has the sections of those that no experiment has.
    """

    from pipeline.models import count_flops

    timings = main_device(timed)
    assert timings is not None

    def label(subject: str) -> str:
        return named(subject, params.timing.label(subject))

    drawn = [figures.growth(timings)]
    raw, pairs = timings.raw, _pairs(timings, judgements)

    def ratio(slower: str, faster: str) -> str:
        found = timings.relative(slower, faster)
        return estimate(*found, digits) if found else "-"

    def milliseconds(name: str, of: Timings = timings) -> str:
        """Median and range over the rounds; a dash where it was not timed."""
        if name not in of.measurements:
            return "-"
        seconds = of.seconds(name)
        low, middle, high = (digits(1e3 * value) for value in (seconds.min(), of.median(name), seconds.max()))
        return f"{middle} ({low} to {high})"

    def exponent(measure: str, way: Way) -> str:
        found = timings.exponent_estimate(measure, way)
        return estimate(found.mean, found.interval(), lambda value: f"{value:.2f}") if found else "-"

    page = text.page(
        "timing.md.j2",
        preview=params.preview,
        raw=raw,
        machine=raw["machine"],
        settings=raw["settings"],
        timings=timings,
        timed=timed,
        calls={way: sum(raw["profiles"][f"step/{way}/{timings.subjects()[0]}"]["operators"].values()) for way in WAYS},
        multiply_adds=3 * raw["settings"]["batch_size"] * count_flops(params.base) / 2,
        rounds=sum(entry["kept"] for entry in raw["rounds"]),
        discarded=[entry["foreign"] for entry in raw["rounds"] if not entry["kept"]],
        min_rounds=MIN_ROUNDS,
        min_tokens=MIN_TOKENS,
        judgements=judgements,
        places=places,
        own=[judgement for judgement in judgements if places[judgement.id].startswith(PAGE)],
        growth=drawn[0],
        ways=WAYS,
        way_labels=figures.WAY_LABELS,
        pairs=pairs,
        ratio=ratio,
        milliseconds=milliseconds,
        exponent=exponent,
        label=label,
    )
    return {PAGE: page, **{f"timing/{picture.name}.png": picture for picture in drawn}}


def _pairs(timings: Timings, judgements: Sequence[Judgement]) -> list[tuple[str, str, str]]:
    """(claim, slower, faster) of the claims' ratios whose two sides were timed."""
    return [
        (judgement.id, part.variant, part.reference)
        for judgement in judgements
        for part in judgement.claim.comparisons
        if part.rule == "ratio" and part.reference and {part.variant, part.reference} <= set(timings.subjects())
    ]
