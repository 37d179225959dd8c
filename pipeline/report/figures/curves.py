"""Learning curves: losses and test error by epoch."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pipeline.files import replacing
from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import MAX_BANDS, bands, centre, draw_bars, draw_line, error_axis, move_aside
from pipeline.report.figures.style import COLOURS, DASHES, INK, MUTED, WIDTH, Theme, legend_below, line_styles, log_axis, png, style, tidy
from pipeline.report.text import counted, listed, percent
from pipeline.study import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 6  # in one panel; with more variants each has a panel
MAX_TIMES = 6.0  # times the baseline's last error, where the axis of the panels ends: higher errors would press all curves flat
FAR = 3.0  # times the error of the epochs around, from which a test is named
FAR_POINTS = 5.0  # and so many points above it
EXCURSIONS = "Errors of a seed far above those before and after it"
TOP_LOSS = 10.0  # nats, where the axis of losses ends: higher losses would press all others flat; a guess has 2.3


@dataclass(frozen=True)
class Line:
    """One variant in a figure."""

    label: str
    run: Training
    is_baseline: bool = False

    @property
    def last(self) -> float:
        """The mean test error after the last epoch, a fraction."""
        return float(self.run.test_error[:, -1].mean())


@figure("curves")
def curves(material: Material) -> list[Drawing]:
    lines = [Line(material.label(run), run, material.is_baseline(run)) for run in material.runs]
    tested, error = _tested(lines)
    worst, best = (choose(lines, key=lambda line: line.last) for choose in (max, min))
    ends = f"between {percent(best.last)} % ({best.label}) and {percent(worst.last)} % ({worst.label})"
    many = len(lines) > MAX_LINES
    alt = (
        f"Curves over {_epochs(material)} of {'; '.join(line.label for line in lines)}: "
        + ("" if many else f"train and {tested} loss, and ")
        + f"{error}, which ends "
        + (ends if len(lines) > 1 else f"at {percent(best.last)} %")
        + "."
    )
    cut = cut_epochs(max(run.settings.train.epochs for run in material.runs))
    above = f"; errors of the first {f'{cut} epochs' if cut > 1 else 'epoch'} above its edge are cut off." if cut else "."
    whole = many or len(lines) <= MAX_BANDS
    errors = [run.test_error if whole else run.test_error[:, -1:] for run in material.runs]
    drawn = bands(material.runs, "bands" if whole else "bars at the ends of the lines", errors=errors)
    if many:
        behind, limit = "", ""
        if any(line.is_baseline for line in lines):
            behind, limit = " before the baseline, in ink,", f", and which ends at {MAX_TIMES:g} times the baseline's last error at most"
        caption = (
            f"{error.capitalize()} after each epoch, on a logarithmic axis that all panels share{limit}{above} Each panel has one variant, "
            f"in colour,{behind} and the number is the error after the last epoch. {drawn}"
        )
        if beyond := [line.label for line in lines if line.last > _top(lines)]:
            caption += f" An arrow: the error lies above the axis ({'; '.join(beyond)})."
    else:
        caption = (
            f"Train loss (dashed) and {tested} loss (solid), and {error}, after each epoch. {drawn} Train loss is averaged while the epoch "
            f"goes on, so it can lie above the {tested} loss. Both axes are logarithmic"
            + (f", and that of losses ends at {TOP_LOSS:g} nats, above which some lie" if exceeds_loss_axis(lines) else "")
            + above.replace("its edge", "the edge of the errors' axis")
        )
    gaps = []
    for line in lines:
        lost = int((~np.isfinite(line.run.curves["train_loss"]) | ~np.isfinite(line.run.test_loss)).any(axis=1).sum())
        if lost:
            gaps.append(f"{line.label}, {lost} of {counted(len(line.run.seeds), 'seed')}")
    if gaps and many:
        caption += f" Seeds whose losses are not finite in the end: {listed(gaps)}."
    elif gaps:
        caption += (
            f" Losses that are not finite are left out ({listed(gaps)}): their means are of the other seeds, and a line "
            "ends where no seed is left."
        )
    if not many and (critical := [line.label for line in lines if line.run.taught_epochs < line.run.test_loss.shape[1]]):
        caption += f" The self-critical epochs of {listed(critical)} have no train loss, as what they minimise is no cross-entropy."
    if found := excursions(lines):
        caption += f" {EXCURSIONS}: {'; '.join(found)}."
    return [Drawing(alt, caption, lambda theme: draw_curves(lines, theme))]


def excursions(lines: Sequence[Line]) -> list[str]:
    """The tests of one seed that make a peak in the mean over the seeds, in words.

    Such a test's error is more than `FAR` times, and `FAR_POINTS` points above, all of the two epochs before and the two after, or the
    one after. Of the last test nothing tells whether the training recovers.
    """
    found = []
    for line in lines:
        for seed, error in zip(line.run.seeds, line.run.test_error, strict=True):
            for epoch in range(2, len(error) - 1):
                around = max(*error[epoch - 2 : epoch], *error[epoch + 1 : epoch + 3])
                if error[epoch] > max(FAR * around, around + FAR_POINTS / 100):
                    found.append(f"{line.label}, seed {seed}, epoch {epoch + 1}: {percent(float(error[epoch]))} %")
    return found


def _tested(lines: Sequence[Line]) -> tuple[str, str]:
    """The kind of data that is tested after an epoch, and the name of its error."""
    captioners = any("scenes.train" in line.run.options for line in lines)
    return ("validation", "scene error on validation scenes") if captioners else ("test", "test error")


def _epochs(material: Material) -> str:
    """`30 epochs (best: 60)`: the baseline's number and the variants with another one."""
    epochs = {material.label(run): run.settings.train.epochs for run in material.runs}
    usual = next((run.settings.train.epochs for run in material.runs if material.is_baseline(run)), next(iter(epochs.values())))
    others = [f"{label}: {number}" for label, number in epochs.items() if number != usual]
    return counted(usual, "epoch") + (f" ({', '.join(others)})" if others else "")


def draw_curves(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: train and test loss by epoch, and test error; with more than `MAX_LINES` lines test error alone, in a panel each."""
    loss = _Block("Loss (nats, log scale)", lambda run: run.test_loss, _loss_axis, lambda run: run.train_loss)
    error = _Block(f"{_tested(lines)[1].split(' on ')[0].capitalize()} (%, log scale)", lambda run: run.test_error, _error_axis)
    return _panel_each(lines, error, theme) if len(lines) > MAX_LINES else _together(lines, (loss, error), theme)


def cut_epochs(epochs: int) -> int:
    """How many first epochs the axis of errors may cut off, so that the late ones can be distinguished."""
    return epochs // 10


def _error_axis(axes: Axes, lines: Sequence[Line]) -> None:
    error_axis(axes, [line.run.test_error[:, cut_epochs(line.run.test_error.shape[1]) :] for line in lines])


def _top(lines: Sequence[Line]) -> float:
    """The highest error that panels show."""
    baseline = next((line.last for line in lines if line.is_baseline), 0.0)
    return MAX_TIMES * baseline or 1.0


def exceeds_loss_axis(lines: Sequence[Line]) -> bool:
    """Whether part of a mean loss lies above `TOP_LOSS`."""
    means = np.concatenate([centre(loss) for line in lines for loss in (line.run.train_loss, line.run.test_loss)])
    return bool((means > TOP_LOSS).any())


def _loss_axis(axes: Axes, lines: Sequence[Line]) -> None:
    log_axis(axes, "y", top=TOP_LOSS if exceeds_loss_axis(lines) else None)


def draw_variant(run: Training, out_png: Path) -> None:
    """Writes one variant's own figure: loss and test error by epoch."""
    with replacing(out_png) as temporary:
        temporary.write_bytes(draw_curves([Line(run.variant, run)], "light"))


# --- panels over epochs ---


@dataclass(frozen=True)
class _Block:
    """The contents of a panel: curves (seeds, epochs) of a training, and what makes the axis once all lines are drawn."""

    title: str
    solid: Callable[[Training], FloatArray]
    axis: Callable[[Axes, Sequence[Line]], None]
    dashed: Callable[[Training], FloatArray] | None = None

    def draw(self, axes: Axes, run: Training, own: dict[str, Any], *, index: int = 0, total: int = 1) -> None:
        """Draws line `index` of `total`, with its markers at other epochs than theirs."""
        for curve, dashed in ((self.dashed, True), (self.solid, False)):
            if curve:
                values = curve(run)
                epochs = np.arange(1, values.shape[1] + 1)
                step = max(1, values.shape[1] // 6)
                marked = {**own, "markevery": slice((index * step) // total, None, step)}
                draw_line(axes, epochs, values, marked, dashed=dashed, banded=total <= MAX_BANDS)
                if total > MAX_BANDS and not dashed:
                    move_aside(draw_bars(axes, epochs[-1:], values[:, -1:], own), _BESIDE * (index + 2))


_BESIDE = 3.5  # points between the bars at the lines' ends; the first is two of them away


def _epoch_axis(axes: Axes, lines: Sequence[Line], *, bars: int = 0) -> None:
    """`bars`: the number for which there is room at the right."""
    epochs = max(line.run.test_loss.shape[1] for line in lines)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    pad = min(0.9, max(0.25, 0.02 * epochs))  # no epoch is 0
    axes.set_xlim(1 - pad, epochs + pad + bars * 0.014 * epochs)
    tidy(axes)


def _together(lines: Sequence[Line], blocks: Sequence[_Block], theme: Theme) -> bytes:
    """A panel for each block, with all lines."""
    with style(theme):
        drawn = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        styles = line_styles([line.is_baseline for line in lines], theme)
        for axes, block in zip(drawn.subplots(1, len(blocks), squeeze=False)[0], blocks, strict=True):
            for i, (line, own) in enumerate(zip(lines, styles, strict=True)):
                block.draw(axes, line.run, own, index=i, total=len(lines))
            axes.set_title(block.title)
            block.axis(axes, lines)
            _epoch_axis(axes, lines, bars=len(lines) if len(lines) > MAX_BANDS else 0)
            axes.set_xlabel("epoch")
        handles = [Line2D([], [], **own, label=line.label, markeredgewidth=0) for line, own in zip(lines, styles, strict=True)]
        handles += [
            Line2D([], [], color=MUTED[theme], linestyle=DASHES, linewidth=1.3, label="train (dashed)"),
            Line2D([], [], color=MUTED[theme], linewidth=1.8, label=f"{_tested(lines)[0]} (solid)"),
        ]
        legend_below(drawn, handles, handlelength=2.2)
        return png(drawn)


def _panel_each(lines: Sequence[Line], block: _Block, theme: Theme) -> bytes:
    """A panel for each variant but the baseline, with shared axes: the variant in colour, the baseline in ink."""
    baseline = next((line for line in lines if line.is_baseline), None)
    shown = [line for line in lines if line is not baseline]
    colour, top = COLOURS[theme][0], _top(lines)
    with style(theme):
        columns = 4 if len(shown) in (4, 7, 8) or len(shown) > 9 else 3
        rows = -(-len(shown) // columns)
        drawn = Figure(figsize=(WIDTH, 1.75 * rows + 1.0), layout="constrained")
        drawn.suptitle(f"{block.title} by epoch", fontsize=10.5, fontweight="bold", x=0.01, ha="left")
        grid = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        for place, (axes, line) in enumerate(zip(grid.flat, shown, strict=False)):
            if baseline:
                block.draw(axes, baseline.run, {"color": INK[theme], "marker": None, "zorder": 2.0, "linewidth": 1.1})
            block.draw(axes, line.run, {"color": colour, "marker": None, "zorder": 3.0})
            axes.set_title(textwrap.fill(line.label, 60 // columns, break_on_hyphens=False), fontsize=9.5, fontweight="normal")
            axes.set_title(f"{percent(line.last)} %", fontsize=9.5, fontweight="bold", color=colour, loc="right")
            block.axis(axes, lines)
            low, high = axes.get_ylim()
            axes.set_ylim(low, min(high, top))
            if line.last > top:
                axes.plot([line.run.test_error.shape[1]], [top], marker="^", color=colour, markersize=7, clip_on=False, zorder=4)
            _epoch_axis(axes, lines)
            axes.tick_params(labelbottom=place + columns >= len(shown))
        handles = [Line2D([], [], color=colour, linewidth=1.8, label="the panel's own")]
        if baseline:
            handles.append(
                Line2D([], [], color=INK[theme], linewidth=1.1, label=f"the baseline, {baseline.label}: {percent(baseline.last)} %")
            )
        legend_below(drawn, handles, ncols=len(handles))
        return png(drawn)
