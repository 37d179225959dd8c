"""Every part by what its removal or exchange does to the test error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.report.figures.base import COLOURS, INK, MUTED, WIDTH, Picture, legend_below, log_axis, tidy
from pipeline.report.text import digits
from pipeline.study.ranking import SMALL, Part

_COLOURS = {"more": COLOURS[1], "fewer": COLOURS[0], "small": MUTED, "open": INK}
_SAID = {"more": "more errors by over a quarter", "fewer": "fewer by over a fifth", "small": "within a quarter", "open": "across a bound"}


def picture(parts: Sequence[Part]) -> Picture | None:
    """A dot for each part, sorted; None where there is no part."""
    caption = (
        "Each part of the network and of its training by what its removal or exchange does to the test error: ratio of the errors without "
        f"it to those with it, and its interval. Dotted lines: a quarter more errors, {SMALL:g}, and a fifth fewer, {1 / SMALL:g}."
    )
    rows = [(part.name, part.ratio, part.interval.low, part.interval.high, part.kind) for part in parts]
    return Picture(caption, partial(draw, rows), "ranking") if rows else None


def draw(rows: Sequence[tuple[str, float, float, float, str]]) -> Figure:
    """Rows of (name, ratio, low, high, kind), from top to bottom."""
    drawn = Figure(figsize=(WIDTH, 1.2 + 0.215 * len(rows)), layout="constrained")
    axes = drawn.add_subplot()
    for edge in (1 / SMALL, SMALL):
        axes.axvline(edge, color=MUTED, linewidth=0.9, linestyle=":", zorder=1)
    axes.axvline(1, color=MUTED, linewidth=0.9, zorder=1)
    for place, (_, ratio, low, high, kind) in enumerate(rows):
        axes.plot([low, high], [place, place], color=_COLOURS[kind], linewidth=2.4, alpha=0.45, solid_capstyle="butt", zorder=2)
        axes.plot([ratio], [place], "o", color=_COLOURS[kind], markersize=5.5, markeredgewidth=0, zorder=3)
    ends = np.array([(low, high) for _, _, low, high, _ in rows])
    axes.set_xlim(min(ends.min(), 1 / SMALL) / 1.06, max(ends.max(), SMALL) * 1.06)
    log_axis(axes, "x")
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.tick_params(axis="y", labelsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("test errors without the part over those with it, log scale")
    tidy(axes, grid="x")
    figures = axes.secondary_yaxis("right")
    figures.set_yticks(range(len(rows)), [digits(ratio) for _, ratio, *_ in rows])
    figures.tick_params(length=0, labelsize=8.5)
    figures.spines["right"].set_visible(False)
    kinds = dict.fromkeys(kind for *_, kind in rows)
    legend_below(drawn, [Line2D([], [], color=_COLOURS[kind], marker="o", linewidth=2.4, label=_SAID[kind]) for kind in kinds])
    return drawn
