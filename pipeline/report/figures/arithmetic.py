"""Test error against the floating-point operations of a forward pass, and against parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.measures import late
from pipeline.measures.definitions import FloatArray
from pipeline.report.figures import base
from pipeline.report.figures.base import Material, Picture, band, figure, tidy


@dataclass(frozen=True)
class Point:
    """One variant: operations of an image's forward pass, parameters, and late test errors (seeds,) as fractions."""

    label: str
    flops: int
    parameters: int
    errors: FloatArray
    is_baseline: bool = False


@figure("arithmetic")
def arithmetic(material: Material) -> list[Picture]:
    """Test error against floating-point operations and against parameters."""
    points = [
        Point(material.label(run), run.flops, run.parameters, late(run.test_error), material.is_baseline(run))
        for run in material.runs
        if run.flops and run.parameters
    ]
    caption = (
        "Test error against the floating-point operations of an image's forward pass and against the parameters, on logarithmic axes. On "
        "the dotted line error times arithmetic is that of the baseline; below it the product is smaller."
    )
    return [Picture(caption, partial(draw_arithmetic, points))] if len(points) > 1 else []


def draw_arithmetic(points: Sequence[Point]) -> Figure:
    """Mean test errors with their bands, against both sizes; all axes are logarithmic."""
    drawn = Figure(figsize=(base.WIDTH, 4.4), layout="constrained")
    panels = drawn.subplots(1, 2, sharey=True)
    looks = [
        (base.INK if point.is_baseline else base.COLOURS[i % len(base.COLOURS)], base.MARKERS[i % len(base.MARKERS)])
        for i, point in enumerate(points)
    ]
    for axes, size in zip(panels, ("flops", "parameters"), strict=True):
        for point, (colour, marker) in zip(points, looks, strict=True):
            low, high = band(point.errors[:, None])
            axes.vlines(getattr(point, size), low, high, color=colour, linewidth=1.4)
            axes.plot([getattr(point, size)], [point.errors.mean()], marker, color=colour, markersize=7, markeredgewidth=0)
        axes.margins(x=0.12)
        base.log_axis(axes, "x", ",.3g", 1e-6 if size == "flops" else 1e-3)
        tidy(axes)
    base.error_axis(panels[0], [point.errors[:, None] for point in points])
    for baseline in (point for point in points if point.is_baseline):
        ends = np.array(panels[0].get_xlim())
        constant = baseline.errors.mean() * baseline.flops
        panels[0].plot(ends, constant / ends, color=base.MUTED, linestyle=":", linewidth=1.2, zorder=1, scalex=False, scaley=False)
    panels[0].set_title("Test error (%, log scale)")
    panels[0].set_xlabel("millions of operations of a forward pass (log scale)")
    panels[1].set_xlabel("thousands of parameters (log scale)")
    base.legend_below(
        drawn,
        [
            Line2D([], [], color=colour, marker=marker, linestyle="", markersize=7, label=point.label)
            for point, (colour, marker) in zip(points, looks, strict=True)
        ],
    )
    return drawn
