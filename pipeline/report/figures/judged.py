"""The picture of a judgement: the curves of both networks, and each seed at the looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures import base
from pipeline.report.figures.base import Picture, draw_line

Side = tuple[str, FloatArray, FloatArray]  # name, (seeds, epochs) of test error, (seeds,) of the measure


def picture(sides: Sequence[Side], title: str, looks: Sequence[int]) -> Picture:
    caption = (
        "Left: test error after each epoch, mean over the seeds, with its 95 % interval as a band. Right: each seed as a dot; the short"
        " lines are the means at each look, over the seeds up to the dotted line."
    )
    return Picture(caption, partial(draw_judged, sides, title, looks), "judge")


def draw_judged(sides: Sequence[Side], title: str, looks: Sequence[int]) -> Figure:
    """Two panels: curves, and seeds in the order in which they were looked at."""
    drawn = Figure(figsize=(base.WIDTH, 3.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    styles = base.line_styles([True, False])
    for (_, errors, values), style in zip(sides, styles, strict=True):
        draw_line(left, np.arange(1, errors.shape[1] + 1), errors, {**style, "marker": None})
        right.plot(np.arange(1, len(values) + 1), values, linestyle="none", marker=style["marker"], color=style["color"], alpha=0.75)
        before = 0
        for look in looks:
            right.hlines(values[:look].mean(), before + 0.5, look + 0.5, color=style["color"], linewidth=1.4)
            before = look
    base.error_axis(left, [errors[:, errors.shape[1] // 10 :] for _, errors, _ in sides])
    left.set(title="Test error (%, log scale)", xlabel="epoch")
    for look in looks:
        right.axvline(look + 0.5, color=base.MUTED, linestyle=":", linewidth=1)
    right.set(title=title, xlabel="seed, in the order of looks")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        base.tidy(axes)
    base.legend_below(drawn, [Line2D([], [], **style, label=name) for (name, _, _), style in zip(sides, styles, strict=True)])
    return drawn
