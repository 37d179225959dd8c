"""What changes from epoch to epoch: losses and accuracy, and the recorded time."""

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
from pipeline.report.figures.lines import accuracy_axis, band, bands, centre, draw_line
from pipeline.report.figures.style import COLOURS, DASHES, INK, MUTED, WIDTH, Theme, legend_below, line_styles, log_axis, png, style, tidy
from pipeline.report.text import counted, listed, percent
from pipeline.study import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 7  # as many as there are colours; of more variants each has its own panel
TOP_LOSS = 10.0  # nats: a loss above it would press all others flat; 2.3 is a guess's


@dataclass(frozen=True)
class Line:
    """One variant in a figure."""

    label: str
    run: Training
    is_baseline: bool = False


def _lines(material: Material) -> list[Line]:
    return [Line(material.label(run), run, material.is_baseline(run)) for run in material.runs]


def _panels(lines: Sequence[Line]) -> str:
    return "A panel each: its own line in colour, the baseline's in ink, all others' in grey. " if len(lines) > MAX_LINES else ""


# --- losses and accuracy ---


@figure("curves")
def curves(material: Material) -> list[Drawing]:
    lines = _lines(material)
    tested, accuracy = _tested(lines)
    final = {line.label: float(line.run.test_accuracy[:, -1].mean()) for line in lines}
    worst, best = min(final, key=lambda k: final[k]), max(final, key=lambda k: final[k])
    cut = cut_epochs(max(run.settings.train.epochs for run in material.runs))
    alt = (
        f"Curves over {_epochs(material)} of {listed(list(final))}: train and {tested} loss, and "
        f"{accuracy}, which ends between {percent(final[worst])} % ({worst}) and {percent(final[best])} % ({best})."
    )
    caption = (
        f"Train loss (dashed) and {tested} loss (solid), and {accuracy}, after each epoch. "
        f"{_panels(lines)}{bands(material.runs)} Train loss is averaged while the epoch goes on, so it can lie above "
        f"the {tested} loss. The loss axis is logarithmic"
        + (f" and ends at {TOP_LOSS:g} nats, above which some losses lie" if exceeds_loss_axis(lines) else "")
        + ", the accuracy axis spaced by the logarithm of the error"
        + (f"; what of the first {f'{cut} epochs' if cut > 1 else 'epoch'} lies below its edge is cut off." if cut else ".")
    )
    gaps = {}
    for line in lines:
        lost = int((~np.isfinite(line.run.train_loss) | ~np.isfinite(line.run.test_loss)).any(axis=1).sum())
        if lost:
            gaps[line.label] = f"{line.label}, {lost} of {counted(len(line.run.seeds), 'seed')}"
    if gaps:
        caption += (
            f" Losses that are not finite are left out ({listed(list(gaps.values()))}): their means are of the other seeds, and a line "
            "ends where no seed is left."
        )
    if critical := [line.label for line in lines if _self_critical(line.run)]:
        caption += f" The self-critical epochs of {listed(critical)} have no train loss, as what they minimise is no cross-entropy."
    return [Drawing(alt, caption, lambda theme: draw_curves(lines, theme))]


def _tested(lines: Sequence[Line]) -> tuple[str, str]:
    """What is tested after an epoch, and the name of its accuracy. A captioner is tested on validation scenes."""
    captioners = any("scenes.train" in line.run.options for line in lines)
    return ("validation", "scene accuracy on validation scenes") if captioners else ("test", "test accuracy")


def _self_critical(run: Training) -> int:
    """The last epochs, whose train loss is no cross-entropy."""
    return int(run.options.get("train.self_critical_epochs", 0))


def _train_loss(run: Training) -> FloatArray:
    """(seeds, epochs), NaN where it is no cross-entropy."""
    epochs = run.train_loss.shape[1]
    return np.where(np.arange(epochs) < epochs - _self_critical(run), run.train_loss, np.nan)


def _epochs(material: Material) -> str:
    """`30 epochs (best: 60)`, the baseline's number first."""
    epochs = {material.label(run): run.settings.train.epochs for run in material.runs}
    usual = next((run.settings.train.epochs for run in material.runs if material.is_baseline(run)), next(iter(epochs.values())))
    others = [f"{label}: {number}" for label, number in epochs.items() if number != usual]
    return counted(usual, "epoch") + (f" ({', '.join(others)})" if others else "")


def draw_curves(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: train and test loss by epoch, and test accuracy."""
    loss = _Block("Loss (nats, log scale)", lambda run: run.test_loss, _loss_axis, _train_loss)
    accuracy = _Block(f"{_tested(lines)[1].capitalize()} (%)", lambda run: run.test_accuracy, _accuracy_axis)
    return _by_epoch(lines, (loss, accuracy), theme, 3.9)


def cut_epochs(epochs: int) -> int:
    """How many of the first epochs the accuracy axis may leave below its edge, so that the late ones can be distinguished."""
    return epochs // 10


def _accuracy_axis(axes: Axes, lines: Sequence[Line]) -> None:
    accuracies = [line.run.test_accuracy for line in lines]
    accuracy_axis(axes, accuracies, [values[:, cut_epochs(values.shape[1]) :] for values in accuracies])


def exceeds_loss_axis(lines: Sequence[Line]) -> bool:
    """Whether part of a mean loss lies above the top of the figure's axis."""
    means = np.concatenate([centre(loss) for line in lines for loss in (_train_loss(line.run), line.run.test_loss)])
    return bool((means > TOP_LOSS).any())


def _loss_axis(axes: Axes, lines: Sequence[Line]) -> None:
    log_axis(axes, "y", top=TOP_LOSS if exceeds_loss_axis(lines) else None)


def draw_variant(run: Training, out_png: Path) -> None:
    """Writes one variant's own figure: loss and test accuracy by epoch."""
    with replacing(out_png) as temporary:
        temporary.write_bytes(draw_curves([Line(run.variant, run)], "light"))


# --- recorded time ---


@figure("epoch_time")
def epoch_time(material: Material) -> list[Drawing]:
    lines = _lines(material)
    medians = {line.label: float(np.median(line.run.seconds)) for line in lines}
    alt = f"Recorded seconds of each epoch; medians: {', '.join(f'{label} {value:.3g} s' for label, value in medians.items())}."
    shared = any(run.record.get("device") == "cuda" for run in material.runs)
    caption = (
        f"Wall time of each epoch's training as the runs recorded it. {_panels(lines)}{bands(material.runs)} "
        + ("On a GPU the seeds of a variant train together: a value is the time of all of them. " if shared else "")
        + "The variants ran one after another or side by side, on a machine that may have had other work: this figure describes "
        "the runs and cannot decide which variant is faster; that takes interleaved timings."
    )
    return [Drawing(alt, caption, lambda theme: draw_epoch_time(lines, theme))]


def draw_epoch_time(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: recorded seconds of each epoch; a logarithmic axis where the variants differ by more than a factor of four."""
    means = np.concatenate([line.run.seconds.mean(axis=0) for line in lines])
    logarithmic = bool(means.min() > 0 and means.max() / means.min() > 4)

    def axis(axes: Axes, lines: Sequence[Line]) -> None:
        if logarithmic:
            log_axis(axes, "y")
        else:
            axes.set_ylim(0, 1.08 * max(float(band(line.run.seconds)[1].max()) for line in lines))

    title = "Recorded time of an epoch (s, log scale)" if logarithmic else "Recorded time of an epoch (s)"
    return _by_epoch(lines, (_Block(title, lambda run: run.seconds, axis),), theme, 3.3)


# --- panels over epochs ---


@dataclass(frozen=True)
class _Block:
    """What one panel shows of a line by epoch, (seeds, epochs), and how its axis is made once all lines are drawn."""

    title: str
    solid: Callable[[Training], FloatArray]
    axis: Callable[[Axes, Sequence[Line]], None]
    dashed: Callable[[Training], FloatArray] | None = None

    def draw(self, axes: Axes, run: Training, own: dict[str, Any], *, index: int = 0, total: int = 1) -> None:
        """One line, with its markers at other epochs than those of the `total` lines in the panel."""
        for curve, dashed in ((self.dashed, True), (self.solid, False)):
            if curve:
                values = curve(run)
                step = max(1, values.shape[1] // 6)
                marks = slice((index * step) // total, None, step)
                draw_line(axes, np.arange(1, values.shape[1] + 1), values, {**own, "markevery": marks}, dashed=dashed)


def _epoch_axis(axes: Axes, lines: Sequence[Line]) -> None:
    epochs = max(line.run.test_loss.shape[1] for line in lines)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    pad = max(0.25, 0.02 * epochs)
    axes.set_xlim(1 - pad, epochs + pad)
    tidy(axes)


def _by_epoch(lines: Sequence[Line], blocks: Sequence[_Block], theme: Theme, height: float) -> bytes:
    """One panel per block with all lines in it; of more than `MAX_LINES` lines, one panel per line and block."""
    if len(lines) > MAX_LINES:
        return _panel_each(lines, blocks, theme)
    with style(theme):
        drawn = Figure(figsize=(WIDTH, height), layout="constrained")
        styles = line_styles([line.is_baseline for line in lines], theme)
        for axes, block in zip(drawn.subplots(1, len(blocks), squeeze=False)[0], blocks, strict=True):
            for i, (line, own) in enumerate(zip(lines, styles, strict=True)):
                block.draw(axes, line.run, own, index=i, total=len(lines))
            axes.set_title(block.title)
            block.axis(axes, lines)
            _epoch_axis(axes, lines)
        handles = [Line2D([], [], **own, label=line.label, markeredgewidth=0) for line, own in zip(lines, styles, strict=True)]
        if any(block.dashed for block in blocks):
            handles += [
                Line2D([], [], color=MUTED[theme], linestyle=DASHES, linewidth=1.3, label="train (dashed)"),
                Line2D([], [], color=MUTED[theme], linewidth=1.8, label=f"{_tested(lines)[0]} (solid)"),
            ]
        legend_below(drawn, handles, handlelength=2.2)
        return png(drawn)


def _panel_each(lines: Sequence[Line], blocks: Sequence[_Block], theme: Theme) -> bytes:
    """Small multiples, block under block: each variant in colour before the baseline in ink and all others in grey."""
    baseline: dict[str, Any] = {"color": INK[theme], "zorder": 2.5, "linewidth": 1.2}
    other: dict[str, Any] = {"color": MUTED[theme], "zorder": 2.0, "linewidth": 0.6}
    colour = COLOURS[theme][0]
    with style(theme):
        columns = 3 if len(lines) % 3 == 0 and len(lines) <= 9 else 4
        rows = -(-len(lines) // columns)
        drawn = Figure(figsize=(WIDTH, (1.6 * rows + 0.55) * len(blocks) + 0.5), layout="constrained")
        for part, block in zip(drawn.subfigures(len(blocks), 1, squeeze=False)[:, 0], blocks, strict=True):
            part.suptitle(block.title, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
            grid = part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
            for axes in grid.flat[len(lines) :]:
                axes.set_axis_off()
            for place, (axes, line) in enumerate(zip(grid.flat, lines, strict=False)):
                for behind in lines:
                    if behind is not line:
                        mean = centre(block.solid(behind.run))
                        axes.plot(np.arange(1, len(mean) + 1), mean, **(baseline if behind.is_baseline else {**other, "alpha": 0.6}))
                block.draw(axes, line.run, {"color": INK[theme] if line.is_baseline else colour, "marker": None, "zorder": 3.0})
                axes.set_title(textwrap.fill(line.label, 76 // columns), fontsize=9.5, fontweight="normal")
                block.axis(axes, lines)
                _epoch_axis(axes, lines)
                if place < grid.size - columns and place + columns < len(lines):
                    axes.set_xlabel("")
                else:
                    axes.tick_params(labelbottom=True)
        handles = [
            Line2D([], [], color=colour, linewidth=1.8, label="the panel's own"),
            *([Line2D([], [], **baseline, label="baseline")] if any(line.is_baseline for line in lines) else []),
            Line2D([], [], **{**other, "linewidth": 0.8}, label="the others"),
        ]
        if any(block.dashed for block in blocks):
            handles.append(Line2D([], [], color=colour, linestyle=DASHES, linewidth=1.3, label="its train loss (dashed)"))
        legend_below(drawn, handles, ncols=len(handles))
        return png(drawn)
