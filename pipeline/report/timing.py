"""The timing page: what the timing stage measured, and what it says of the claims about time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np

from pipeline.measures.definitions import FloatArray
from pipeline.params import Params
from pipeline.report import drawings, figures, text
from pipeline.report.drawings import SPOKEN, WAY_LABELS
from pipeline.report.text import NBSP, digits
from pipeline.study.claims import MIN_ROUNDS, Judgement
from pipeline.study.statistics import summarize
from pipeline.timing.results import MIN_TOKENS, Timings
from pipeline.timing.subjects import WAYS, Way

_EXPONENTS = {"time of a step": "step time", "time of attention alone": "attention time", "bytes that attention keeps": "saved bytes"}


def render(params: Params, timings: Timings, judgements: Sequence[Judgement], environment: jinja2.Environment) -> dict[str, bytes]:
    """The page and its pictures, by their path inside `reports/`. A pure function of params.yaml, the timings and the template."""
    label = params.timing.label
    drawn = {"profile": drawings.timing_profile(timings, label), "growth": drawings.timing_growth(timings)}
    files = {text.picture_path("timing", name, theme): drawn[name].draw(theme) for name in drawn for theme in figures.THEMES}
    rounds, subjects = timings.raw["rounds"], timings.subjects()
    page = text.page(
        environment,
        "timing.md.j2",
        preview=params.preview,
        profile=params.profile,
        raw=timings.raw,
        machine=timings.raw["machine"],
        settings=timings.raw["settings"],
        timings=timings,
        counted=sum(entry["kept"] for entry in rounds),
        discarded=[entry["foreign"] for entry in rounds if not entry["kept"]],
        fewest=MIN_ROUNDS,
        least_tokens=MIN_TOKENS,
        judgements=judgements,
        adjusted={},
        figures={name: text.Picture(name, drawing.alt, drawing.caption) for name, drawing in drawn.items()},
        ways=WAYS,
        way_labels=WAY_LABELS,
        subjects=subjects,
        both=timings.subjects("fast"),
        groups=list(next(iter(timings.raw["profiles"].values()))["groups"]),
        tokens=[entry["tokens"] for entry in timings.growth("growth", "published")],
        pairs=_pairs(timings, judgements),
        parts=[sentence for pair in _pairs(timings, judgements) for sentence in _parts(timings, params, *pair[1:])],
        token_growth=[_token_growth(timings, way) for way in WAYS],
        ratio=lambda slower, faster: _ratio(timings, slower, faster),
        milliseconds=lambda name: _milliseconds(timings, name),
        exponents=[(what, [_exponent(timings, measure, way) for way in WAYS]) for what, measure in _EXPONENTS.items()],
        label=label,
        commits=[timings.raw["git_commit"]] if timings.raw.get("git_commit") else [],
        dirty=bool(timings.raw.get("git_dirty")),
    )
    return files | {"timing.md": page}


def _pairs(timings: Timings, judgements: Sequence[Judgement]) -> list[tuple[str, str, str]]:
    """(claim, slower, faster) of the claims' ratios of which both sides were timed."""
    return [
        (judgement.id, part.variant, part.reference)
        for judgement in judgements
        for part in judgement.claim.comparisons
        if part.rule == "ratio" and part.reference and {part.variant, part.reference} <= set(timings.subjects())
    ]


def _summary(values: FloatArray, show: Any) -> str:
    """`1.27 [1.25 to 1.29]`: the mean with its interval; without one where there is one value."""
    summary = summarize(values)
    ends = "" if summary.interval is None else f" [{show(summary.interval.low)} to {show(summary.interval.high)}]"
    return f"{show(summary.mean)}{ends}".replace(" ", NBSP)


def _ratio(timings: Timings, slower: str, faster: str) -> str:
    """Of two measurements' names: geometric mean over the rounds with Student's t interval on the logarithms; a dash where one lacks."""
    if not {slower, faster} <= timings.measurements.keys():
        return "-"
    return _summary(np.log(timings.seconds(slower) / timings.seconds(faster)), lambda value: digits(float(np.exp(value))))


def _milliseconds(timings: Timings, name: str) -> str:
    """Median and range over the rounds; a dash where it was not timed."""
    if name not in timings.measurements:
        return "-"
    seconds = timings.seconds(name)
    low, middle, high = (digits(1e3 * float(value)) for value in (seconds.min(), np.median(seconds), seconds.max()))
    return f"{middle} ({low} to {high})".replace(" ", NBSP)


def _exponent(timings: Timings, measure: str, way: Way) -> str:
    try:
        values = timings.exponent(measure, way)
    except LookupError:
        return "-"
    return _summary(values, lambda value: f"{value:.2f}") if len(values) else "-"


# --- the answers, sentence by sentence, each chosen by the numbers ---


def _parts(timings: Timings, params: Params, slower: str, faster: str) -> list[str]:
    """Of one comparison: the ratio in each way, and the part of the step in which the two differ most."""
    sentences = []
    for way in WAYS:
        names = [f"step/{way}/{subject}" for subject in (slower, faster)]
        profiles = timings.raw["profiles"]
        if not set(names) <= profiles.keys():
            continue
        one, other = (profiles[name] for name in names)
        part = max(one["groups"], key=lambda group: abs(one["groups"][group] - other["groups"][group]))
        times, calls, totals = (
            [digits(1e3 * profile["groups"][part]) for profile in (one, other)],
            [f"{profile['operators'][part]:,}" for profile in (one, other)],
            [f"{sum(profile['operators'].values()):,}" for profile in (one, other)],
        )
        sentences.append(
            f"{SPOKEN[way]}, {params.timing.label(slower)} takes {_ratio(timings, *names)} times as long as "
            f"{params.timing.label(faster)}. The profiled steps differ most in the part {part}: {times[0]} ms and {calls[0]} operators "
            f"against {times[1]} ms and {calls[1]}. The whole step calls {totals[0]} operators against {totals[1]}."
        )
    return sentences


def _token_growth(timings: Timings, way: Way) -> str:
    """How step time and memory grow with the tokens."""
    steps, alone = timings.growth("growth", way), timings.growth("attention", way)
    first, last = steps[0], steps[-1]
    times = [float(np.median(timings.seconds(entry["name"]))) for entry in (first, last)]
    kept = [entry["saved_bytes"] for entry in (alone[0], alone[-1])]
    growth = last["tokens"] / first["tokens"]
    profile = timings.raw["profiles"][last["name"]]
    return (
        f"{SPOKEN[way]}, from {first['tokens']} to {last['tokens']} tokens ({growth:g} times as many, {growth**2:,.0f} times the pairs) a "
        f"step takes {digits(times[1] / times[0])} times as long, and attention keeps {digits(kept[1] / kept[0])} times the bytes for its "
        f"backward pass. With {last['tokens']} tokens attention is {profile['groups']['attention'] / profile['seconds']:.0%} of the "
        "profiled step."
    )
