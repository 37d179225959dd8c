"""Test error against the floating-point operations of a forward pass, and against parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import bands, draw_bars, error_axis, same_but
from pipeline.report.figures.style import MUTED, WIDTH, Theme, line_styles, log_axis, png, style, tidy
from pipeline.report.text import count, percent
from pipeline.study import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

_JOINED = ("blocks", "patch")  # a line joins variants that differ in the first of these alone; where there are none, in the second


@dataclass(frozen=True)
class Point:
    """One variant: operations of an image's forward pass, parameters, and test errors (seeds,) as fractions."""

    label: str
    flops: int
    parameters: int
    errors: FloatArray
    is_baseline: bool = False


@figure("arithmetic")
def arithmetic(material: Material) -> list[Drawing]:
    runs = [run for run in material.runs if run.flops and run.parameters]
    if len(runs) < 2:
        return []
    lines = [[_point(material, run) for run in line] for line in _lines(runs)]
    points = [point for line in lines for point in line]
    spoken = "; ".join(f"{point.label} {percent(point.errors.mean())} % at {count(point.flops)}" for point in points)
    alt = f"Test error against the floating-point operations of an image's forward pass: {spoken}."
    caption = (
        f"{MEASURES['late test error'].note} Against the floating-point operations of an image's forward pass"
        + (" and the number of parameters" if _sizes_differ(points) else "")
        + f". {bands(runs, 'bars', 'Points', [point.errors[:, None] for point in points])} All axes are logarithmic."
    )
    if any(len(line) > 1 for line in lines):
        caption += " Lines join variants that differ in one number alone."
    if baseline := next((point for point in points if point.is_baseline), None):
        caption += f" On the dotted line error times arithmetic is that of {baseline.label}, the baseline; below it the product is smaller."
    return [Drawing(alt, caption, lambda theme: draw_arithmetic(lines, theme))]


def _point(material: Material, run: Training) -> Point:
    assert run.flops is not None
    assert run.parameters is not None
    errors = MEASURES["late test error"].per_seed(run)
    assert errors is not None
    return Point(material.label(run), run.flops, run.parameters, errors, material.is_baseline(run))


def _lines(runs: Sequence[Training]) -> list[list[Training]]:
    """The variants in lines whose models differ in one number alone, in the order of their operations."""
    groups: list[list[Training]] = []
    for option in _JOINED:
        groups = same_but(runs, f"model.{option}", "train.seeds")
        if len(groups) < len(runs):
            break
    return [sorted(line, key=lambda run: run.flops or 0) for line in groups]


def _sizes_differ(points: Sequence[Point]) -> bool:
    """Whether the numbers of parameters differ enough for a panel."""
    sizes = [point.parameters for point in points]
    return max(sizes) > 2 * min(sizes)


def draw_arithmetic(lines: Sequence[Sequence[Point]], theme: Theme) -> bytes:
    """PNG: test error against floating-point operations, and against parameters where these differ; all axes are logarithmic."""
    points = [point for line in lines for point in line]
    sizes: list[tuple[str, Callable[[Point], int]]] = [("floating-point operations of a forward pass", lambda point: point.flops)]
    if _sizes_differ(points):
        sizes.append(("parameters", lambda point: point.parameters))
    styles = line_styles([False] * len(lines), theme)
    with style(theme):
        drawn = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        panels = drawn.subplots(1, len(sizes), squeeze=False, sharey=True, width_ratios=[3, 2][: len(sizes)])[0]
        for axes, (name, size) in zip(panels, sizes, strict=True):
            for line, own in zip(lines, styles, strict=True):
                x, y = [size(point) for point in line], [float(point.errors.mean()) for point in line]
                axes.plot(x, y, **own, linewidth=1.3, markersize=6.5, markeredgewidth=0)
                for point in line:
                    draw_bars(axes, [size(point)], point.errors[:, None], own)
            axes.margins(x=0.12)
            log_axis(axes, "x")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(round(value))))
            axes.set_xlabel(f"{name} (log scale)")
            tidy(axes)
        error_axis(panels[0], [point.errors[:, None] for point in points])
        panels[0].set_title("Test error (%, log scale)")
        first = panels[0]
        if baseline := next((point for point in points if point.is_baseline), None):
            ends = np.array(first.get_xlim())
            constant = float(baseline.errors.mean()) * baseline.flops
            first.plot(ends, constant / ends, color=MUTED[theme], linestyle=":", linewidth=1.2, zorder=1, scalex=False, scaley=False)
        _name(first, [(point, own) for line, own in zip(lines, styles, strict=True) for point in line])
        return png(drawn)


_PLACES = ((7, 7), (7, -7), (-7, 7), (-7, -7), (9, 0), (-9, 0), (0, 11), (0, -11), (9, 16), (9, -16), (-9, 16), (-9, -16))  # points


def _name(axes: Axes, named: Sequence[tuple[Point, dict[str, Any]]]) -> None:
    """Writes each variant's name beside its point, at the place that hides least of points, lines and other names."""
    drawn = axes.get_figure(root=True)
    assert drawn is not None
    drawn.draw_without_rendering()
    inside = axes.get_window_extent()
    spots = [axes.transData.transform((point.flops, float(point.errors.mean()))) for point, _ in named]
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in spots]
    bars = [bar for found in axes.collections if isinstance(found, LineCollection) for bar in found.get_segments()]
    for path in (*(np.asarray(line.get_xydata()) for line in axes.lines), *bars):
        for one, next_ in itertools.pairwise(axes.transData.transform(path)):
            steps = np.linspace(one, next_, 2 + int(np.hypot(*(next_ - one)) / 8))
            taken += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in steps]
    for point, own in named:
        texts = [_beside(axes, point, own, place) for place in _PLACES]
        boxes = [text.get_window_extent() for text in texts]
        hidden = [
            sum(box.overlaps(other) for other in taken) + 100 * (not (inside.x0 < box.x0 and box.x1 < inside.x1 and inside.y0 < box.y0))
            for box in boxes
        ]
        best = hidden.index(min(hidden))
        taken += [boxes[best]] * 10  # two names on each other are worse than a name on a line
        for text in (*texts[:best], *texts[best + 1 :]):
            text.remove()


def _beside(axes: Axes, point: Point, own: dict[str, Any], place: tuple[int, int]) -> Annotation:
    x, y = place
    text = axes.annotate(
        point.label, (point.flops, float(point.errors.mean())), place, textcoords="offset points", color=own["color"], fontsize=9,
        ha="left" if x > 0 else "right" if x < 0 else "center", va="bottom" if y > 0 else "top" if y < 0 else "center",
        fontweight="bold" if point.is_baseline else "normal", zorder=5,
        bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
    )  # fmt: skip
    text.set_in_layout(False)
    return text
