"""A row for each variant, part or claim: its effect with its interval, from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.base import COLOURS, MUTED, PAGE, WIDTH, legend_below, log_axis, plain_numbers, tidy


@dataclass(frozen=True)
class Row:
    """A row of a figure.

    Attributes:
        label: may have several lines.
        low, high: of the interval; NaN where there is none.
        kind: in the legend, empty for none.
        hollow: whether its sign is open.
        seeds: (seeds,), a ring each below the row.
        region: where the row's claim puts the effect.
        right: what stands at the right edge.
    """

    label: str
    effect: float
    low: float
    high: float
    colour: str
    kind: str = ""
    hollow: bool = False
    seeds: FloatArray | None = None
    region: tuple[float, float] | None = None
    right: str = ""


def draw(
    rows: Sequence[Row], title: str, place: str, *, inches: float, fontsize: float, logarithmic: bool = False,
    ends: tuple[float, float] | None = None, solid: Sequence[float] = (), dotted: Sequence[float] = (),
) -> Figure:  # fmt: skip
    """Rows of intervals.

    Args:
        inches: height of a row.
        ends: of the horizontal axis; an arrow stands for what lies beyond.
        solid, dotted: where vertical lines stand.
    """
    drawn = Figure(figsize=(WIDTH, 1.1 + 0.2 * title.count("\n") + inches * len(rows)), layout="constrained")
    axes = drawn.subplots()
    first, last = ends or (-math.inf, math.inf)
    for x in (*solid, *dotted):
        axes.axvline(x, color=MUTED, linewidth=0.9, linestyle="-" if x in solid else ":", zorder=1)
    for y, row in enumerate(rows):
        look = _look(row)
        if row.region:
            left, right = np.clip(row.region, first, last)
            axes.axhline(y, color=MUTED, linewidth=0.6, alpha=0.3, zorder=0.5)
            axes.barh(y, right - left, 0.86, left=left, color=COLOURS[2], alpha=0.2, linewidth=0)
        if row.seeds is not None:
            # One ring below the other, so that equal values can be counted, and all below the mean, which would hide them.
            below = y + np.linspace(0.14, 0.42, row.seeds.size)
            axes.plot(
                row.seeds, below, "o", markersize=3.2, markerfacecolor="none", markeredgecolor=row.colour, markeredgewidth=0.8, alpha=0.75
            )
        axes.plot(np.clip([row.low, row.high], first, last), [y, y], color=row.colour, linewidth=2.6, alpha=0.55, solid_capstyle="butt")
        for edge, beyond, marker in ((first, row.low < first, "<"), (last, row.high > last, ">")):
            if beyond:
                axes.plot([edge], [y], marker, markersize=6, clip_on=False, zorder=4, **look)
        if first <= row.effect <= last:
            axes.plot([row.effect], [y], "D" if row.seeds is not None else "o", markersize=5.5, zorder=5, **look)
    if ends:
        axes.set_xlim(ends)
    (log_axis if logarithmic else plain_numbers)(axes, "x")
    axes.set_title(title)
    axes.set_xlabel(place)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    tidy(axes, grid="x")
    axes.tick_params(axis="y", labelsize=fontsize, pad=9 if ends else 4)  # room for an arrow
    if any(row.region for row in rows):
        axes.grid(False)
        axes.tick_params(axis="x", labeltop=True)
    if any(row.right for row in rows):
        beside = axes.secondary_yaxis("right")
        beside.set_yticks(range(len(rows)), [row.right for row in rows])
        beside.tick_params(length=0, labelsize=fontsize)
        beside.spines["right"].set_visible(False)
    if any(row.kind for row in rows):
        kinds = {row.kind: Line2D([], [], marker="o", linewidth=2.4, label=row.kind, **_look(row)) for row in rows}
        legend_below(drawn, list(kinds.values()))
    return drawn


def _look(row: Row) -> dict[str, Any]:
    return {"color": row.colour, "markerfacecolor": PAGE if row.hollow else row.colour, "markeredgewidth": float(row.hollow)}
