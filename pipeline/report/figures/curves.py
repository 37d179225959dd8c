"""Learning curves: losses and test error by epoch."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pipeline.files import replacing
from pipeline.measures.definitions import FloatArray
from pipeline.report.figures import base
from pipeline.report.figures.base import Material, Picture, draw_line, figure
from pipeline.study import Training

MAX_LINES = 6  # in one panel; with more variants each has a panel
TOP_LOSS = 10.0  # nats, where the axis of losses ends at most: higher losses would press all others flat; a guess has 2.3


@dataclass(frozen=True)
class Curves:
    """One variant's curves, (seeds, epochs) each: losses in nats, errors as fractions."""

    label: str
    train_loss: FloatArray
    test_loss: FloatArray
    test_error: FloatArray
    is_baseline: bool = False


def _of(run: Training, label: str, is_baseline: bool = False) -> Curves:
    return Curves(label, run.train_loss, run.test_loss, run.test_error, is_baseline)


@figure("curves")
def curves(material: Material) -> list[Picture]:
    """Losses and test error after each epoch; of many variants a panel each."""
    lines = [_of(run, material.label(run), material.is_baseline(run)) for run in material.runs]
    scenes = any(run.settings.task == "captioning" for run in material.runs)
    error = "scene error on the validation scenes" if scenes else "test error"
    if len(lines) > MAX_LINES:
        caption = f"{error.capitalize()} after each epoch, one variant in each panel. The number is the mean error after the last epoch."
        return [Picture(caption, partial(draw_panels, lines))]
    caption = f"Losses and {error} after each epoch."
    return [Picture(caption, partial(draw_curves, lines))]


def draw_variant(run: Training, out_png: Path) -> None:
    """Writes one variant's own figure: losses and test error by epoch."""
    content = Picture("", partial(draw_curves, [_of(run, run.variant)])).png(out_png)
    with replacing(out_png) as temporary:
        temporary.write_bytes(content)


def draw_curves(lines: Sequence[Curves]) -> Figure:
    """Losses by epoch, train dashed and test solid, and test error, all variants in both panels."""
    drawn = Figure(figsize=(base.WIDTH, 3.9), layout="constrained")
    left, right = drawn.subplots(1, 2)
    styles = base.line_styles([line.is_baseline for line in lines])
    for i, (line, style) in enumerate(zip(lines, styles, strict=True)):
        _draw(left, line.train_loss, {**style, "marker": None, "linestyle": base.DASHES, "linewidth": 1.2, "alpha": 0.8})
        for axes, values in ((left, line.test_loss), (right, line.test_error)):
            step = max(1, values.shape[1] // 6)  # each line has its markers at other epochs
            _draw(axes, values, {**style, "markevery": slice(i * step // len(lines), None, step)})
    left.set_title("Loss (nats, log scale)")
    base.log_axis(left, "y")
    low, high = left.get_ylim()
    left.set_ylim(low, min(high, TOP_LOSS))
    base.log_axis(left, "y")
    right.set_title("Error (%, log scale)")
    _error_axis(right, lines)
    for axes in (left, right):
        _epoch_axis(axes, lines)
        axes.set_xlabel("epoch")
    handles = [Line2D([], [], **style, label=line.label) for line, style in zip(lines, styles, strict=True)]
    kinds: dict[str, Any] = {"train (dashed)": base.DASHES, "tested (solid)": "-"}
    handles += [Line2D([], [], color=base.MUTED, linestyle=dash, linewidth=1.4, label=label) for label, dash in kinds.items()]
    base.legend_below(drawn, handles, handlelength=2.2)
    return drawn


def draw_panels(lines: Sequence[Curves]) -> Figure:
    """Test error by epoch: a panel for each variant but the baseline, in colour, which stands in each in ink; shared axes."""
    baseline = next((line for line in lines if line.is_baseline), None)
    shown = [line for line in lines if line is not baseline]
    columns = 4 if len(shown) in (4, 7, 8) or len(shown) > 9 else 3
    rows = -(-len(shown) // columns)
    drawn = Figure(figsize=(base.WIDTH, 1.8 * rows + 0.8), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for place, (axes, line) in enumerate(zip(grid.flat, shown, strict=False)):
        if baseline:
            _draw(axes, baseline.test_error, {"color": base.INK, "zorder": 2.0, "linewidth": 1.1})
        _draw(axes, line.test_error, {"color": base.COLOURS[0], "zorder": 3.0})
        title = textwrap.fill(line.label, 84 // columns)
        axes.set_title(f"{title}\n{_last(line)}", fontsize=9, fontweight="normal")
        _error_axis(axes, lines)
        _epoch_axis(axes, lines)
        if place + columns >= len(shown):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("epoch")
    handles = [Line2D([], [], color=base.COLOURS[0], label="the panel's variant")]
    if baseline:
        handles.append(Line2D([], [], color=base.INK, linewidth=1.1, label=f"{baseline.label}, the baseline: {_last(baseline)}"))
    base.legend_below(drawn, handles, ncols=len(handles))
    drawn.supylabel("error (%, log scale)", fontsize=10)
    return drawn


def _last(line: Curves) -> str:
    return f"{100 * line.test_error[:, -1].mean():.2f} %"


def _draw(axes: Axes, values: FloatArray, style: dict[str, Any]) -> None:
    draw_line(axes, np.arange(1, values.shape[1] + 1), values, style)


def _error_axis(axes: Axes, lines: Sequence[Curves]) -> None:
    """The first tenth of the epochs may lie above its edge, so that the late ones can be told apart."""
    base.error_axis(axes, [line.test_error[:, line.test_error.shape[1] // 10 :] for line in lines])


def _epoch_axis(axes: Axes, lines: Sequence[Curves]) -> None:
    epochs = max(line.test_error.shape[1] for line in lines)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.set_xlim(1 - min(0.9, 0.02 * epochs + 0.2), epochs + 0.02 * epochs + 0.2)  # no epoch is 0
    base.tidy(axes)
