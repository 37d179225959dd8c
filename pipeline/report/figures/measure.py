"""The experiment's own measure, seed by seed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.report import text
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import numbers
from pipeline.report.figures.style import COLOURS, INK, MUTED, PAGE, WIDTH, Theme, log_axis, plain_numbers, png, style, tidy
from pipeline.study.statistics import LEVEL, summarize

_TITLE = 66  # letters that fit into a line above the axes


@dataclass(frozen=True)
class Dots:
    """One variant's values of a measure, (seeds,), in the unit of the axis; some may not be finite."""

    label: str
    values: FloatArray
    is_baseline: bool = False

    @property
    def finite(self) -> FloatArray:
        return self.values[np.isfinite(self.values)]


@figure("measure")
def measure(material: Material) -> list[Drawing]:
    # By default that on which verdicts and tables rest, and not the last epoch's, of which the curves have more.
    chosen = MEASURES["late accuracy" if material.experiment.measure == "accuracy" else material.experiment.measure]
    found = {run.variant: values for run in material.runs if (values := chosen.per_seed(run)) is not None}
    shown = [run for run in material.runs if run.variant in found]
    if not shown:
        return []
    rows = [Dots(material.label(run), chosen.factor * found[run.variant], material.is_baseline(run)) for run in shown]
    of_finite = [values[np.isfinite(values)] for values in (found[run.variant] for run in shown)]
    means = [text.value(chosen, float(values.mean())) if values.size else "none finite" for values in of_finite]
    spoken = ", ".join(f"{row.label} {mean}" for row, mean in zip(rows, means, strict=True))
    alt = f"{chosen.title} of each seed, by variant. Means: {spoken}{f' {chosen.of_value}' if chosen.of_value else ''}."
    caption = f"{chosen.note} Rings: the seeds of each variant (n = {numbers(shown)}); diamond: mean"
    caption += f"; bar: its {100 * LEVEL:g} % Student t interval." if max(len(row.values) for row in rows) > 1 else "."
    if any(row.is_baseline for row in rows):
        caption += f" Dotted: the mean of {material.experiment.label(material.experiment.baseline)}, the baseline."
    if is_logarithmic(rows) and any(_reaches_zero(row) for row in rows):
        caption += " A bar that runs to the left edge is of an interval that reaches 0."
    if any(row.finite.size < row.values.size for row in rows):
        caption += " Values that are not finite are counted at the right and left out of the means."
    if lacking := [material.label(run) for run in material.runs if run.variant not in found]:
        caption += f" {text.listed(lacking)} {'have' if len(lacking) > 1 else 'has'} no such measure."
    title = chosen.title + (f" ({chosen.of_value})" if chosen.of_value else "")
    return [Drawing(alt, caption, lambda theme: draw_measure(rows, title, theme))]


def _reaches_zero(row: Dots) -> bool:
    interval = summarize(row.finite).interval if row.finite.size else None
    return interval is not None and interval.low <= 0


def is_logarithmic(rows: Sequence[Dots]) -> bool:
    """Whether all finite values are above 0 and the variants' medians differ by more than a factor of twenty."""
    found = [row.finite for row in rows if row.finite.size]
    medians = [float(np.median(values)) for values in found]
    return bool(found) and min(float(values.min()) for values in found) > 0 and max(medians) / min(medians) > 20


def draw_measure(rows: Sequence[Dots], title: str, theme: Theme) -> bytes:
    """PNG: a row per variant with a ring per seed, the mean, its Student t interval and the number of values that are not finite."""
    with style(theme):
        logarithmic = is_logarithmic(rows)
        lines = textwrap.wrap(title + (", log scale" if logarithmic else ""), _TITLE)
        drawn = Figure(figsize=(WIDTH, 0.85 + 0.2 * len(lines) + 0.36 * len(rows)), layout="constrained")
        axes = drawn.subplots()
        endless: list[tuple[int, str]] = []
        smallest = min((float(row.finite.min()) for row in rows if row.finite.size), default=0.0)
        for place, row in enumerate(rows):
            colour = INK[theme] if row.is_baseline else COLOURS[theme][0]
            # One ring below the other, so that equal values can be counted, and all below the mean, which would hide them.
            spread = np.linspace(0.16, 0.4, len(row.values))
            axes.plot(
                row.finite, place + spread[np.isfinite(row.values)], linestyle="", marker="o", markersize=3.2, markerfacecolor="none",
                markeredgecolor=colour, markeredgewidth=0.8, alpha=0.75, zorder=3,
            )  # fmt: skip
            if row.finite.size:
                summary = summarize(row.finite)
                if summary.interval:
                    low, high = summary.interval.low, summary.interval.high
                    if logarithmic and _reaches_zero(row):
                        endless.append((place, colour))
                        low = smallest / 2  # so far the axis reaches
                    axes.plot([low, high], [place, place], color=colour, linewidth=4, alpha=0.35, zorder=2, solid_capstyle="butt")
                axes.plot([summary.mean], [place], marker="D", markersize=6.5, color=colour, markeredgecolor=PAGE[theme], zorder=4)
                if row.is_baseline:
                    axes.axvline(summary.mean, color=MUTED[theme], linestyle=":", linewidth=1.2, zorder=1)
            if lost := len(row.values) - row.finite.size:
                axes.annotate(
                    f"{lost} of {len(row.values)} not finite", (1, place), (4, 0),
                    xycoords=("axes fraction", "data"), textcoords="offset points", va="center", fontsize=9,
                )  # fmt: skip
        axes.set_title("\n".join(lines))
        if logarithmic:
            log_axis(axes, "x")
            ends = axes.get_xlim()
            for place, colour in endless:
                axes.plot([ends[0], smallest / 2], [place, place], color=colour, linewidth=4, alpha=0.35, zorder=2, solid_capstyle="butt")
            axes.set_xlim(ends)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
            plain_numbers(axes, "x")
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.4)
        tidy(axes, grid="x")
        return png(drawn)
