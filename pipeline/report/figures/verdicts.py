"""A figure of all verdicts: the deciding effect of each claim in units of its margin."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.measures import MEASURES
from pipeline.report.figures.base import COLOURS, INK, MUTED, PAGE, WIDTH, Picture, legend_below, plain_numbers, tidy
from pipeline.report.text import compared, without_machine
from pipeline.study.claims import Judgement, Verdict, is_ratio, region

REACH = 4.0  # margins shown to either side; an arrow at the edge stands for what lies beyond
_MAX_LABEL = 68  # characters
_SENTENCE_LINE, _SENTENCE_LINES = 66, 2  # characters, and lines of them


@dataclass(frozen=True)
class _Line:
    """A claim's deciding comparison. `effect`, the interval's ends and the region's ends are in margins."""

    label: str
    verdict: Verdict
    effect: float
    low: float
    high: float
    region: tuple[float, float]


def _line(judgement: Judgement, label: str) -> _Line | None:
    """The line of a claim; None where its deciding comparison has no interval.

    The margin is the distance from no effect to the bound; of a region with two ends, half of their distance, counted from the middle.
    A bound at no effect, or on a level of accuracy, has no margin: there the unit is half the interval's width, and the bound stands at 1.
    """
    finding = judgement.deciding
    if finding.effect is None or finding.interval is None:
        return None
    scale = (lambda x: math.log(x) if x > 0 else -math.inf) if is_ratio(finding.comparison) else float
    effect, low, high = (scale(x) for x in (finding.effect, finding.interval.low, finding.interval.high))
    ends = tuple(scale(x) for x in region(finding.comparison))
    bound = ends[0] if math.isfinite(ends[0]) else ends[1]
    is_level = finding.comparison.rule == "at least" and MEASURES[finding.comparison.measure].of_value == "%"
    if all(map(math.isfinite, ends)):
        start, unit = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    elif finding.comparison.rule in ("less", "more", "at least") and bound and not is_level:
        start, unit = 0.0, abs(bound)
    else:
        unit = (high - low) / 2 or 1.0
        start = bound - unit if math.isfinite(ends[0]) else bound + unit
    effect, low, high, first, last = ((x - start) / unit for x in (effect, low, high, *ends))
    return _Line(label, judgement.verdict, effect, low, high, (first, last))


def _label(judgement: Judgement) -> str:
    """The claim and its deciding comparison. Where that is too long, its reference is left out, and then what is at its end."""
    comparison, left_out = judgement.deciding.comparison, "\N{HORIZONTAL ELLIPSIS}"
    text = f"{judgement.id} {compared(comparison)}"
    if len(text) > _MAX_LABEL:
        text = f"{judgement.id} {compared(comparison, lambda name: name if name == comparison.variant else left_out)}"
    return textwrap.shorten(text, _MAX_LABEL, placeholder=" \N{HORIZONTAL ELLIPSIS}", break_on_hyphens=False).replace(" ", "  ", 1)


def _sentence(judgement: Judgement) -> str:
    """The claim's own words, in a few lines."""
    text = f"{judgement.id}  {without_machine(judgement.claim.sentence.rstrip('.'))}"
    wrapped = textwrap.wrap(text, _SENTENCE_LINE, max_lines=_SENTENCE_LINES, placeholder=" \N{HORIZONTAL ELLIPSIS}")
    return "\n".join(wrapped)


_COLOURS: dict[Verdict, str] = {  # what is observed and decides nothing is muted, and its signs are open
    "supported": COLOURS[0],
    "contradicted": COLOURS[1],
    "no effect of more than a quarter": COLOURS[4],
    "not decided": INK,
    "learned nothing": MUTED,
    "not settled": MUTED,
    "short run": MUTED,
    "not run": MUTED,  # a claim about time that was timed on another kind of device
}


def forest(judgements: Sequence[Judgement], *, sentences: bool = False) -> Picture | None:
    """A forest plot of the claims that have an effect; None where none has.

    Args:
        sentences: whether a row is labelled with the claim's words rather than with what was compared.
    """
    label = _sentence if sentences else _label
    lines = [line for judgement in judgements if (line := _line(judgement, label(judgement))) is not None]
    caption = (
        "The deciding effect of each claim with its interval, in units of the claim's margin. Green: where the claim puts it; 0 is no "
        "effect. Open signs are observations, which decide nothing. [How to read it](method.md#the-figure-of-all-claims)."
    )
    return Picture(caption, partial(draw_forest, lines), "verdicts") if lines else None


def draw_forest(lines: Sequence[_Line]) -> Figure:
    """A row per claim with its region, interval and effect, in margins."""
    row = 0.06 + 0.135 * max(line.label.count("\n") + 1 for line in lines)  # inches
    drawn = Figure(figsize=(WIDTH, 1.1 + row * len(lines)), layout="constrained")
    axes = drawn.add_subplot()
    axes.hlines(range(len(lines)), -REACH, REACH, color=MUTED, linewidth=0.6, alpha=0.3, zorder=0.5)
    for place, line in enumerate(lines):
        start, end = np.clip(line.region, -REACH, REACH)
        axes.barh(place, end - start, 0.86, left=start, color=COLOURS[2], alpha=0.2, linewidth=0)
        colour = _COLOURS[line.verdict]
        face = PAGE if colour == MUTED else colour
        axes.plot(
            np.clip([line.low, line.high], -REACH, REACH), [place, place], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=3
        )
        for edge, beyond, marker in ((-REACH, line.low < -REACH, "<"), (REACH, line.high > REACH, ">")):
            if beyond:
                axes.plot([edge], [place], marker=marker, color=colour, markerfacecolor=face, markersize=6, clip_on=False, zorder=4)
        if abs(line.effect) <= REACH:
            axes.plot([line.effect], [place], marker="o", color=colour, markerfacecolor=face, markersize=5.5, zorder=5)
    for x in (-1, 0, 1):
        axes.axvline(x, color=MUTED, linewidth=0.9, linestyle=":" if x else "-", zorder=1)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.tick_params(axis="y", labelsize=7.5, pad=9)  # room for an arrow
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(-REACH, REACH)
    axes.set_xticks(range(-int(REACH), int(REACH) + 1))
    plain_numbers(axes, "x")
    axes.set_xlabel("effect, in margins of its claim")
    tidy(axes, grid="x")
    axes.grid(False)
    axes.tick_params(axis="x", labeltop=True)
    handles = [
        Line2D([], [], color=colour, marker="o", linewidth=2.2, label=verdict, markerfacecolor=PAGE if colour == MUTED else colour)
        for verdict, colour in _COLOURS.items()
        if any(line.verdict == verdict for line in lines)
    ]
    legend_below(drawn, handles)
    return drawn
