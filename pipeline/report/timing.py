"""The timing page: the measurements of the timing stage, and the claims about time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from pipeline.params import Params
from pipeline.report import text
from pipeline.report.figures import timing as figures
from pipeline.report.figures.drawing import pictures
from pipeline.report.text import NBSP, digits, estimate
from pipeline.study.claims import Judgement
from pipeline.study.effects import MIN_ROUNDS
from pipeline.timing.results import MIN_TOKENS, Contrast, Timings
from pipeline.timing.subjects import WAYS, Way

PAGE = "timing.md"


def render(params: Params, timings: Timings, judgements: Sequence[Judgement], places: Mapping[str, str]) -> dict[str, bytes]:
    """The page and its pictures, by their path inside `reports/`. A pure function of the arguments and the template.

    Args:
        judgements: of the claims about times.
        places: by claim, the link to its section inside `reports/`. This page has the sections of those that no experiment has.
    """
    label = params.timing.label
    drawn = [figures.profile(timings, label), figures.growth(timings)]
    files = pictures(drawn, "timing")
    raw, pairs = timings.raw, _pairs(timings, judgements)

    def ratio(slower: str, faster: str) -> str:
        found = timings.relative(slower, faster)
        return estimate(*found, digits) if found else "-"

    def milliseconds(name: str) -> str:
        """Median and range over the rounds; a dash where it was not timed."""
        if name not in timings.measurements:
            return "-"
        seconds = timings.seconds(name)
        low, middle, high = (digits(1e3 * value) for value in (seconds.min(), timings.median(name), seconds.max()))
        return f"{middle} ({low} to {high})".replace(" ", NBSP)

    def exponent(measure: str, way: Way) -> str:
        found = timings.exponent_estimate(measure, way)
        return estimate(found.mean, found.interval(), lambda value: f"{value:.2f}") if found else "-"

    def between(way: Way, fewer: int, more: int) -> str:
        """The exponent of attention's time from one token count to the next."""
        found = timings.relative(f"attention/{way}/{more}", f"attention/{way}/{fewer}")
        return estimate(*found, lambda value: f"{math.log(value) / math.log(more / fewer):.2f}") if found else "-"

    def share(way: Way) -> str:
        """Attention's share of the profiled step with the most tokens; empty where that step took longer or shorter than every round."""
        name = timings.growth("growth", way)[-1]["name"]
        profile, seconds = raw["profiles"][name], timings.seconds(name)
        inside = seconds.min() <= profile["seconds"] <= seconds.max()
        return f"{profile['groups']['attention'] / profile['seconds']:.0%}".replace("%", " %") if inside else ""

    counts = [entry["tokens"] for entry in timings.growth("attention", "published") if entry["tokens"] >= MIN_TOKENS]
    page = text.page(
        "timing.md.j2",
        preview=params.preview,
        profile=params.profile,
        raw=raw,
        machine=raw["machine"],
        settings=raw["settings"],
        timings=timings,
        rounds=sum(entry["kept"] for entry in raw["rounds"]),
        discarded=[entry["foreign"] for entry in raw["rounds"] if not entry["kept"]],
        min_rounds=MIN_ROUNDS,
        min_tokens=MIN_TOKENS,
        judgements=judgements,
        places=places,
        own=[judgement for judgement in judgements if places[judgement.id].startswith(PAGE)],
        figures={drawing.name: drawing for drawing in drawn},
        ways=WAYS,
        way_labels=figures.WAY_LABELS,
        spoken=figures.SPOKEN,
        pairs=pairs,
        contrasts=_contrasts(timings, pairs),
        numbered=functools.partial(next, itertools.count(1)),
        ratio=ratio,
        milliseconds=milliseconds,
        exponent=exponent,
        between=between,
        spans=list(itertools.pairwise(counts)),
        attention_share=share,
        label=label,
        page=PAGE,
    )
    return files | {PAGE: page}


def _contrasts(timings: Timings, pairs: Sequence[tuple[str, str, str]]) -> list[Contrast]:
    """How the steps of the claims' pairs differ, each pair once, where the interval of their times' ratio excludes 1.

    Where it does not, the profiles of two single steps differ by chance.
    """
    once: dict[frozenset[str], tuple[str, str]] = {}
    for _, slower, faster in pairs:
        once.setdefault(frozenset((slower, faster)), (slower, faster))
    found = []
    for slower, faster in once.values():
        for way in WAYS:
            ratio = timings.relative(f"step/{way}/{slower}", f"step/{way}/{faster}")
            if ratio and ratio[1] and not ratio[1].low <= 1 <= ratio[1].high and (contrast := timings.contrast(way, slower, faster)):
                found.append(contrast)
    return found


def _pairs(timings: Timings, judgements: Sequence[Judgement]) -> list[tuple[str, str, str]]:
    """(claim, slower, faster) of the claims' ratios whose two sides were timed."""
    return [
        (judgement.id, part.variant, part.reference)
        for judgement in judgements
        for part in judgement.claim.comparisons
        if part.rule == "ratio" and part.reference and {part.variant, part.reference} <= set(timings.subjects())
    ]
