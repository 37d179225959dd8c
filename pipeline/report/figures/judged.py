"""The picture of a judgement: the curves of both networks, and each seed at the looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.base import MUTED, WIDTH, Picture, legend_below, tidy
from pipeline.report.figures.panels import Panel, draw_panel, error_limits, line_styles, of_epochs

Side = tuple[str, FloatArray, FloatArray]  # name, (seeds, epochs) of test error, (seeds,) of the measure


def picture(sides: Sequence[Side], title: str, looks: Sequence[int]) -> Picture:
    caption = (
        "Left: test error after each epoch, mean over the seeds, with its 95 % interval as a band. Right: each seed as a dot; the short"
        " lines are the means at each look, over the seeds up to the dotted line."
    )
    return Picture(caption, partial(draw_judged, sides, title, looks), "judge")


def draw_judged(sides: Sequence[Side], title: str, looks: Sequence[int]) -> Figure:
    """Two panels: curves, and seeds in the order in which they were looked at."""
    drawn = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    lines = [of_epochs(name, errors, not place) for place, (name, errors, _) in enumerate(sides)]
    handles = draw_panel(left, Panel("Test error (%, log scale)", "epoch", lines, "errors", "epochs"), error_limits(lines))
    for (_, _, values), style in zip(sides, line_styles(lines), strict=True):
        right.plot(np.arange(1, len(values) + 1), values, style["marker"], color=style["color"], alpha=0.75)
        for before, look in zip((0, *looks), looks, strict=False):
            right.hlines(values[:look].mean(), before + 0.5, look + 0.5, color=style["color"], linewidth=1.4)
    for look in looks:
        right.axvline(look + 0.5, color=MUTED, linestyle=":", linewidth=1)
    right.set(title=title, xlabel="seed, in the order of looks")
    right.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    tidy(right)
    legend_below(drawn, handles)
    return drawn
