"""The experiment's own measure, seed by seed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from pipeline.measures import MEASURES
from pipeline.report.figures.base import COLOURS, INK, MUTED, WIDTH, Line, Material, Picture, figure, log_axis, plain_numbers, tidy
from pipeline.study.statistics import summarize


@figure("measure")
def measure(material: Material) -> list[Picture]:
    """The experiment's measure, seed by seed."""
    # By default that on which verdicts and tables rest, and not the last epoch's, of which the curves have more.
    chosen = MEASURES["late accuracy" if material.experiment.measure == "accuracy" else material.experiment.measure]
    rows = [
        Line(material.label(run), (), chosen.factor * values, material.is_baseline(run))
        for run in material.runs
        if (values := chosen.per_seed(run)) is not None
    ]
    title = chosen.title + (f" ({chosen.of_value})" if chosen.of_value else "")
    caption = f"{chosen.title} of each seed."
    return [Picture(caption, partial(draw_measure, rows, title))] if rows else []


def draw_measure(rows: Sequence[Line], title: str) -> Figure:
    """A row per variant, whose values are (seeds,), with a ring per seed, the mean, its Student t interval and what is not finite."""
    finite = [row.values[np.isfinite(row.values)] for row in rows]
    medians = [float(np.median(values)) for values in finite if values.size]
    logarithmic = bool(medians) and min(values.min() for values in finite if values.size) > 0 and max(medians) > 20 * min(medians)
    heading = textwrap.fill(title + (", log scale" if logarithmic else ""), 88)
    drawn = Figure(figsize=(WIDTH, 1.0 + 0.2 * heading.count("\n") + 0.42 * len(rows)), layout="constrained")
    axes = drawn.subplots()
    labels = []
    for place, (row, values) in enumerate(zip(rows, finite, strict=True)):
        lost = f"\n{len(row.values) - values.size} of {len(row.values)} not finite" if values.size < len(row.values) else ""
        labels.append(textwrap.fill(row.label, 30) + lost)
        if not values.size:
            continue
        colour, summary = INK if row.is_baseline else COLOURS[0], summarize(values)
        # One ring below the other, so that equal values can be counted, and all below the mean, which would hide them.
        below = place + np.linspace(0.14, 0.42, values.size)
        axes.plot(values, below, "o", markersize=3.2, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=0.8, alpha=0.75)
        if summary.interval:
            low = max(summary.interval.low, values.min() / 2) if logarithmic else summary.interval.low
            axes.plot([low, summary.interval.high], [place, place], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.plot([summary.mean], [place], "D", markersize=6, color=colour, markeredgewidth=0, zorder=4)
        if row.is_baseline:
            axes.axvline(summary.mean, color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
    if logarithmic:
        log_axis(axes, "x")
    else:
        plain_numbers(axes, "x")
    axes.set_title(heading)
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.4, -0.4)
    tidy(axes, grid="x")
    return drawn
