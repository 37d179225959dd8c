"""Lines against a number: means over the seeds with their bands, in one panel or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from scipy import special

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.base import COLOURS, DASHES, INK, WIDTH, legend_below, log_axis, plain_numbers, tidy
from pipeline.study import Training
from pipeline.study.statistics import LEVEL

MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
INTERVAL_SEEDS = 6  # from here on bands are intervals; with fewer seeds they show the range, because intervals would be wider than that
REACH = 3.0  # factor from the mean up to which bands widen an axis of errors: one seed that fails must not press all others flat
TOP_LOSS = 10.0  # nats, where the axis of losses ends at most: higher losses would press all others flat; a guess has 2.3


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: in the legend; empty for a line that the legend leaves out.
        values: (seeds, len(x)); what is not finite is left out.
        dashed: in the colour of the line before.
    """

    label: str
    x: tuple[float, ...]
    values: FloatArray
    is_baseline: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines on two axes.

    Attributes:
        place: what the horizontal axis has.
        up: what the values are. Errors and accuracies are fractions, shown in %; but accuracies and plain ones have a logarithmic axis.
        across: epochs; values with a tick each; or counts on a logarithmic axis, with bars for bands, which between few of them
            could reach 0 and fill half of the figure.
        apart: inches between the bars of one count.
    """

    title: str
    place: str
    lines: Sequence[Line]
    up: Literal["errors", "accuracies", "losses", "changes", "plain"]
    across: Literal["epochs", "values", "counts"]
    apart: float = 0.0


def of_epochs(label: str, values: FloatArray, is_baseline: bool = False, dashed: bool = False) -> Line:
    """A learning curve, (seeds, epochs)."""
    return Line(label, tuple(range(1, values.shape[1] + 1)), values, is_baseline, dashed)


def same_but(runs: Sequence[Training], *varied: str) -> list[list[Training]]:
    """The runs in groups whose options differ in none but these, such as `train.epochs`."""
    groups: dict[str, list[Training]] = {}
    for run in runs:
        groups.setdefault(str(sorted((name, value) for name, value in run.options.items() if name not in varied)), []).append(run)
    return list(groups.values())


def centre(values: FloatArray) -> FloatArray:
    """(n,): mean of (seeds, n) over the finite values; NaN where there is none."""
    return pd.DataFrame(np.where(np.isfinite(values), values, np.nan)).mean().to_numpy()


def band(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lower and upper edge, (n,) each, of the band of (seeds, n); NaN where fewer than two seeds are finite.

    It is Student's t interval of the mean from `INTERVAL_SEEDS` seeds on, else the range of the seeds.
    """
    frame = pd.DataFrame(np.where(np.isfinite(values), values, np.nan))
    count = frame.count()
    if len(values) < INTERVAL_SEEDS:
        low, high = frame.min(), frame.max()
    else:
        half = special.stdtrit(np.maximum(count, 2) - 1, (1 + LEVEL) / 2) * frame.std() / np.sqrt(count)
        low, high = frame.mean() - half, frame.mean() + half
    return low.where(count > 1).to_numpy(), high.where(count > 1).to_numpy()


def draw(panels: Sequence[Panel]) -> Figure:
    """Panels side by side, with one legend. All axes of errors are alike."""
    legend = 0.11 * len({line.label for panel in panels for line in panel.lines})
    drawn = Figure(figsize=(WIDTH, 3.4 + legend), layout="constrained")
    limits = error_limits([line for panel in panels if panel.up == "errors" for line in panel.lines])
    handles: dict[str, Any] = {}
    for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for handle in draw_panel(axes, panel, limits):
            handles.setdefault(str(handle.get_label()), handle)
    legend_below(drawn, list(handles.values()))
    return drawn


def draw_panel(axes: Axes, panel: Panel, limits: tuple[float, float]) -> list[Any]:
    """Draws one panel; returns the lines that have a place in the legend. `limits`: of an axis of errors."""
    handles = []
    for i, (line, style) in enumerate(zip(panel.lines, line_styles(panel.lines), strict=True)):
        handles += (drawn := axes.plot(line.x, centre(line.values), label=line.label, **style))
        if panel.across == "counts":
            bars = axes.vlines(line.x, *band(line.values), color=style["color"], linewidth=1.4, alpha=0.6)
            moved = ScaledTranslation(panel.apart * (i - (len(panel.lines) - 1) / 2), 0, axes.figure.dpi_scale_trans)
            for one in (*drawn, bars):
                one.set_transform(axes.transData + moved)
        else:
            axes.fill_between(line.x, *band(line.values), color=style["color"], alpha=0.15, linewidth=0, zorder=style["zorder"] - 1)
    if panel.up == "errors":
        axes.set_ylim(limits)
        log_axis(axes, "y", 100)
    elif panel.up == "accuracies":
        plain_numbers(axes, "y", 100)
        axes.set_ylim(top=1.0)
    elif panel.up == "plain":
        plain_numbers(axes, "y")
    else:
        log_axis(axes, "y")
        if panel.up == "losses" and axes.get_ylim()[1] > TOP_LOSS:
            axes.set_ylim(top=TOP_LOSS)
            log_axis(axes, "y")
    ticks = sorted({x for line in panel.lines for x in line.x})
    if panel.across == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
        axes.set_xlim(1 - min(0.9, 0.02 * ticks[-1] + 0.2), 1.02 * ticks[-1] + 0.2)  # no epoch is 0
    elif panel.across == "values":
        axes.set_xticks(ticks)
    else:
        axes.margins(x=0.12)
        log_axis(axes, "x")
    axes.set_title(panel.title)
    axes.set_xlabel(panel.place)
    tidy(axes)
    return [handle for handle, line in zip(handles, panel.lines, strict=True) if line.label]


def line_styles(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Colour, marker and order of each line; the baseline is drawn in ink, on top. Curves have their markers at different epochs."""
    chosen: list[dict[str, Any]] = []
    others = 0
    for i, line in enumerate(lines):
        if line.dashed:
            chosen.append({**chosen[-1], "marker": "" if len(line.x) > 1 else "d", "linestyle": DASHES, "linewidth": 1.2})
            continue
        own = (INK, "o", 3.5) if line.is_baseline else (COLOURS[others % len(COLOURS)], MARKERS[others % len(MARKERS)], 3.0)
        others += not line.is_baseline
        step = max(1, len(line.x) // 6) if len(line.x) > 12 else 1
        chosen.append({**dict(zip(("color", "marker", "zorder"), own, strict=True)), "markevery": (i * step // len(lines), step)})
        if others > len(COLOURS) and not line.is_baseline:  # the colours begin again
            chosen[-1] |= {"linestyle": (0, (1, 1.2)), "markerfacecolor": "white", "markeredgewidth": 1.4}
    return chosen


def error_limits(lines: Sequence[Line]) -> tuple[float, float]:
    """Ends of an axis that holds the means and, up to a factor of `REACH` from them, the bands of errors, fractions each.

    The first tenth of the epochs of a curve may lie above it, so that the late ones can be told apart.
    """
    edges = [np.empty(0)]
    for line in lines:
        values = line.values[:, len(line.x) // 10 :]
        mean = centre(values)
        edges += [mean, *(np.clip(edge, mean / REACH, mean * REACH) for edge in band(values))]
    inside = np.concatenate(edges)
    inside = inside[inside > 0]  # neither 0 nor NaN has a logarithm
    low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.01, 1.0)
    pad = (high / low) ** 0.04 * 1.02
    return low / pad, high * pad
