"""The figures of the pages, each for a light and a dark page. Equal inputs give equal bytes."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import matplotlib.style
import numpy as np
import seaborn as sns
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from PIL import Image
from scipy import stats
from scipy.optimize import isotonic_regression

from pipeline.files import replacing
from pipeline.measures.definitions import FloatArray
from pipeline.study import Training
from pipeline.study.statistics import LEVEL, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

# 8.3 inches on the 830 pixels of a page on a git host: one point of type is 1.4 pixels, and 9 points are legible.
WIDTH = 8.3
DPI = 170
INTERVAL_SEEDS = 6  # from here on bands are intervals; with fewer seeds they would be wider than the data, so they show the range
MOST_LINES = 7  # as many as there are colours; more variants than that have a panel each
TOP_LOSS = 10.0  # nats: a loss above it would press all others flat; 2.3 is a guess's
TIMES_UNIFORM = 8.0  # attention of so many times the uniform weight, or of so small a part of it, has the full colour

# Okabe and Ito's colours, told apart by colour-blind readers; the baseline has the ink's own colour. Two of them are
# lighter or darker than the original so that each has a contrast of 3:1 or more with its page.
_INK = {"light": "#1f2328", "dark": "#e6edf3"}
_PAGE = {"light": "#ffffff", "dark": "#0d1117"}
_MUTED = {"light": "#818b98", "dark": "#9198a1"}
_GRID = {"light": "#e3e6ea", "dark": "#2b323b"}
_COLOURS = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC5A9E", "#B07D00", "#3498CF"),
    "dark": ("#56B4E9", "#FF8A3D", "#20C997", "#E58BC1", "#F0C740", "#8FA8FF"),
}
_DASHES = (0, (3.5, 1.8))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_NICE_ACCURACY = (
    0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985,
    0.99, 0.9925, 0.995, 0.9965, 0.998, 0.999, 0.9995, 0.9998, 0.9999,
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One variant in a figure."""

    label: str
    run: Training
    is_baseline: bool = False


def band_kind(n: int) -> str:
    """What the shaded bands of a figure over n seeds are, for its caption; empty for one seed, which has none."""
    if n == 1:
        return ""
    return f"{100 * LEVEL:g} % Student t interval of that mean" if n >= INTERVAL_SEEDS else "lowest to highest seed"


def _centre(values: FloatArray) -> FloatArray:
    """(...,): mean over the seeds, the first axis, whose value is finite; NaN where none is."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _band(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lower and upper edge, (...,) each, of (seeds, ...); NaN where fewer than two seeds are finite."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    if len(values) < INTERVAL_SEEDS:
        low, high = np.where(finite, values, np.inf).min(axis=0), np.where(finite, values, -np.inf).max(axis=0)
    else:
        centre = _centre(values)
        squares = np.where(finite, np.where(finite, values, 0.0) - centre, 0.0) ** 2
        several = np.maximum(count, 2)
        half = stats.t.ppf((1 + LEVEL) / 2, several - 1) * np.sqrt(squares.sum(axis=0) / (several - 1) / several)
        low, high = centre - half, centre + half
    few = count < min(2, len(values))
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


@contextlib.contextmanager
def _style(theme: Theme) -> Iterator[None]:
    ink = _INK[theme]
    own: dict[str, Any] = {
        "font.family": ["DejaVu Sans"],  # ships with matplotlib, so the bytes do not depend on the machine's fonts
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 10,
        "xtick.labelsize": 9.5,
        "ytick.labelsize": 9.5,
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "figure.facecolor": _PAGE[theme],
        "savefig.facecolor": _PAGE[theme],
        "axes.facecolor": _PAGE[theme],
        "axes.edgecolor": ink,
        "grid.color": _GRID[theme],
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        "axes.linewidth": 0.8,
        "grid.linewidth": 0.8,
        "lines.linewidth": 1.7,
        "lines.markersize": 4.5,
    }
    # Start from matplotlib's own defaults: a matplotlibrc of the user has no say in the bytes.
    with matplotlib.style.context(["default", sns.axes_style("whitegrid"), own]):
        yield


def _png(figure: Figure, *, few_colours: bool = True) -> bytes:
    """The figure's bytes. Lines on a plain page need no more than 256 colours, which a third of the bytes hold."""
    buffer = io.BytesIO()
    # "optimize" is slow: once is enough.
    compression = {"compress_level": 1} if few_colours else {"optimize": True}
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs=compression)
    if not few_colours:
        return buffer.getvalue()
    image = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small = io.BytesIO()
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def _line_styles(lines: Sequence[Line] | Sequence[Series], theme: Theme) -> list[dict[str, Any]]:
    """Colour and marker of each line; the baseline is drawn in ink, on top."""
    others = iter(range(len(lines)))
    chosen: list[dict[str, Any]] = []
    for line in lines:
        if line.is_baseline:
            chosen.append({"color": _INK[theme], "marker": _MARKERS[0], "zorder": 3.5})
        else:
            i = next(others)
            chosen.append(
                {"color": _COLOURS[theme][i % len(_COLOURS[theme])], "marker": _MARKERS[1 + i % (len(_MARKERS) - 1)], "zorder": 3.0}
            )
    return chosen


def _draw(axes: Axes, values: FloatArray, style: dict[str, Any], *, index: int, total: int, dashed: bool = False) -> None:
    """Mean over the seeds as a line, with its band; markers of different lines sit at different epochs."""
    epochs = np.arange(1, values.shape[1] + 1)
    step = max(1, len(epochs) // 6)
    marks = slice((index * step) // max(total, 1), None, step)
    axes.plot(
        epochs, _centre(values), **style, linestyle=_DASHES if dashed else "-", markevery=marks, markeredgewidth=0,
        linewidth=1.3 if dashed else 1.8, markersize=3.5 if dashed else 5,
    )  # fmt: skip
    if len(values) > 1:
        low, high = _band(values)
        axes.fill_between(epochs, low, high, color=style["color"], alpha=0.09 if dashed else 0.16, linewidth=0, zorder=style["zorder"] - 1)


def _finish(axes: Axes, epochs: int) -> None:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    pad = max(0.25, 0.02 * epochs)
    axes.set_xlim(1 - pad, epochs + pad)
    axes.grid(False, axis="x")
    sns.despine(ax=axes, left=True)
    axes.tick_params(left=False, bottom=True, length=3)


def _log_ticks(axes: Axes, *, top: float | None = None) -> None:
    """A logarithmic axis with plain numbers, also where it spans less than a decade."""
    axes.set_yscale("log")
    if top is not None:
        axes.set_ylim(top=top)
    low, high = axes.get_ylim()
    if high / low <= 4:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    else:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def cut_epochs(epochs: int) -> int:
    """How many of the first epochs the accuracy axis may leave below its edge, so that the late ones can be told apart."""
    return epochs // 10


def _accuracy_axis(axes: Axes, accuracies: Sequence[FloatArray], shown: Sequence[FloatArray]) -> None:
    """Test accuracy in %, spaced by the logarithm of the error, so that 98 and 98.5 are as far apart as 92 and 94.

    Args:
        accuracies: (seeds, ...) of each line, fractions.
        shown: the parts of them that have to lie inside the axis.
    """
    errors = np.concatenate([1 - values.ravel() for values in accuracies])
    positive = errors[errors > 1e-12]
    floor = float(positive.min()) / 2 if positive.size else 1e-4  # a run without any error still has a place

    def forward(accuracy: FloatArray) -> FloatArray:
        height: FloatArray = -np.log10(np.maximum(1 - np.asarray(accuracy, dtype=np.float64), floor))
        return height

    def inverse(height: FloatArray) -> FloatArray:
        return 1 - 10.0 ** -np.asarray(height, dtype=np.float64)

    heights = forward(np.concatenate([edge for values in shown for edge in _band(values)]))
    pad = 0.04 * float(np.ptp(heights)) + 0.005
    low, high = inverse(np.array([heights.min() - pad, heights.max() + pad]))
    axes.set_yscale("function", functions=(forward, inverse))
    axes.set_ylim(max(low, 0.0), high)
    ticks = [tick for tick in _NICE_ACCURACY if low <= tick <= high]
    if len(ticks) < 3:
        ticks = [float(tick) for tick in MaxNLocator(nbins=5).tick_values(low, high) if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(_apart(ticks, forward, (high, max(low, 0.0)))))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.5g}"))


def _epoch_accuracy_axis(axes: Axes, lines: Sequence[Line]) -> None:
    accuracies = [line.run.test_accuracy for line in lines]
    _accuracy_axis(axes, accuracies, [values[:, cut_epochs(values.shape[1]) :] for values in accuracies])


def exceeds_loss_axis(lines: Sequence[Line]) -> bool:
    """Whether part of a mean loss lies above the top of the figure's axis."""
    means = np.concatenate([_centre(loss) for line in lines for loss in (line.run.train_loss, line.run.test_loss)])
    return bool((means[np.isfinite(means)] > TOP_LOSS).any())


def _loss_axis(axes: Axes, lines: Sequence[Line]) -> None:
    _log_ticks(axes, top=TOP_LOSS if exceeds_loss_axis(lines) else None)


def _apart(ticks: list[float], forward: Callable[[FloatArray], FloatArray], ends: tuple[float, float]) -> list[float]:
    """The ticks from the top down that keep a ninth of the axis between them, so that their numbers do not touch."""
    top, bottom = forward(np.array(ends))
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or abs(float(np.diff(forward(np.array([kept[-1], tick])))[0])) >= (top - bottom) / 9:
            kept.append(tick)
    return kept[::-1]


def _legend(figure: Figure, lines: Sequence[Line], styles: Sequence[dict[str, Any]], theme: Theme, *, dashes: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **style, label=line.label, markeredgewidth=0) for line, style in zip(lines, styles, strict=True)]
    if dashes:
        handles += [
            Line2D([], [], color=_MUTED[theme], linestyle=_DASHES, linewidth=1.3, label="train (dashed)"),
            Line2D([], [], color=_MUTED[theme], linewidth=1.8, label="test (solid)"),
        ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=_legend_columns([str(handle.get_label()) for handle in handles]),
        columnspacing=1.4,
        handlelength=2.2,
    )


def _legend_columns(labels: Sequence[str]) -> int:
    """As many columns as fit the width: a character is some 0.085 inches of it, a handle with its gaps 0.65."""
    columns = int(WIDTH // (0.65 + 0.085 * max(len(label) for label in labels)))
    rows = -(-len(labels) // max(1, columns))
    return -(-len(labels) // rows)


@dataclass(frozen=True)
class _Block:
    """What one panel shows of a line by epoch, and how its axis is made once all lines are drawn."""

    title: str
    solid: Callable[[Training], FloatArray]
    axis: Callable[[Axes, Sequence[Line]], None]
    dashed: Callable[[Training], FloatArray] | None = None


def _by_epoch(lines: Sequence[Line], blocks: Sequence[_Block], theme: Theme, height: float) -> bytes:
    """A panel a block with all lines in it; of many lines, a panel each."""
    if len(lines) > MOST_LINES:
        return _panel_each(lines, blocks, theme)
    with _style(theme):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        styles = _line_styles(lines, theme)
        for axes, block in zip(figure.subplots(1, len(blocks), squeeze=False)[0], blocks, strict=True):
            for i, (line, style) in enumerate(zip(lines, styles, strict=True)):
                if block.dashed:
                    _draw(axes, block.dashed(line.run), style, index=i, total=len(lines), dashed=True)
                _draw(axes, block.solid(line.run), style, index=i, total=len(lines))
            axes.set_title(block.title)
            block.axis(axes, lines)
            _finish(axes, max(line.run.test_loss.shape[1] for line in lines))
        _legend(figure, lines, styles, theme, dashes=any(block.dashed for block in blocks))
        return _png(figure)


def _panel_each(lines: Sequence[Line], blocks: Sequence[_Block], theme: Theme) -> bytes:
    """Small multiples, block under block: each variant in colour before the baseline in ink and all others in grey."""
    from matplotlib.lines import Line2D

    with _style(theme):
        columns = 3 if len(lines) % 3 == 0 and len(lines) <= 9 else 4
        rows = -(-len(lines) // columns)
        figure = Figure(figsize=(WIDTH, (1.6 * rows + 0.55) * len(blocks) + 0.5), layout="constrained")
        parts = figure.subfigures(len(blocks), 1, squeeze=False)[:, 0]
        colour = _COLOURS[theme][0]
        for part, block in zip(parts, blocks, strict=True):
            part.suptitle(block.title, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
            grid = part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
            for place, (axes, line) in enumerate(zip(grid.flat, [*lines, *[None] * (grid.size - len(lines))], strict=True)):
                if line is None:
                    axes.set_axis_off()
                    continue
                for other in lines:
                    if other is not line:
                        ink = {"color": _INK[theme], "zorder": 2.5, "linewidth": 1.2} if other.is_baseline else {
                            "color": _MUTED[theme], "zorder": 2.0, "linewidth": 0.6, "alpha": 0.6}  # fmt: skip
                        mean = _centre(block.solid(other.run))
                        axes.plot(np.arange(1, len(mean) + 1), mean, **ink)
                style = {"color": _INK[theme] if line.is_baseline else colour, "marker": None, "zorder": 3.0}
                if block.dashed:
                    _draw(axes, block.dashed(line.run), style, index=0, total=1, dashed=True)
                _draw(axes, block.solid(line.run), style, index=0, total=1)
                axes.set_title(textwrap.fill(line.label, 76 // columns), fontsize=9.5, fontweight="normal")
                block.axis(axes, lines)
                _finish(axes, max(other.run.test_loss.shape[1] for other in lines))
                if place < grid.size - columns and place + columns < len(lines):
                    axes.set_xlabel("")
                else:
                    axes.tick_params(labelbottom=True)
        handles = [
            Line2D([], [], color=colour, linewidth=1.8, label="the panel's own"),
            *([Line2D([], [], color=_INK[theme], linewidth=1.2, label="baseline")] if any(line.is_baseline for line in lines) else []),
            Line2D([], [], color=_MUTED[theme], linewidth=0.8, label="the others"),
        ]
        if any(block.dashed for block in blocks):
            handles.append(Line2D([], [], color=colour, linestyle=_DASHES, linewidth=1.3, label="its train loss (dashed)"))
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.4)
        return _png(figure)


def curves(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: train and test loss by epoch, and test accuracy."""
    loss = _Block("Loss (nats, log scale)", lambda run: run.test_loss, _loss_axis, lambda run: run.train_loss)
    accuracy = _Block("Test accuracy (%)", lambda run: run.test_accuracy, _epoch_accuracy_axis)
    return _by_epoch(lines, (loss, accuracy), theme, 3.9)


def epoch_time(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: recorded seconds of each epoch; a logarithmic axis where the variants differ by more than a factor of four."""
    means = np.concatenate([line.run.seconds.mean(axis=0) for line in lines])
    logarithmic = bool(means.min() > 0 and means.max() / means.min() > 4)

    def axis(axes: Axes, lines: Sequence[Line]) -> None:
        if logarithmic:
            _log_ticks(axes)
        else:
            axes.set_ylim(0, 1.08 * max(float(_band(line.run.seconds)[1].max()) for line in lines))

    title = "Recorded time of an epoch (s, log scale)" if logarithmic else "Recorded time of an epoch (s)"
    return _by_epoch(lines, (_Block(title, lambda run: run.seconds, axis),), theme, 3.3)


@dataclass(frozen=True)
class Dots:
    """One variant's values of a measure, (seeds,), in the unit of the axis; some may not be finite."""

    label: str
    values: FloatArray
    is_baseline: bool = False


def is_logarithmic(rows: Sequence[Dots]) -> bool:
    """Whether all values of a measure are above 0 and the variants' medians differ by more than a factor of twenty."""
    found = [finite for row in rows if (finite := row.values[np.isfinite(row.values)]).size]
    medians = [float(np.median(values)) for values in found]
    return bool(found) and min(float(values.min()) for values in found) > 0 and max(medians) / min(medians) > 20


def measure(rows: Sequence[Dots], title: str, theme: Theme) -> bytes:
    """PNG: a row a variant: every seed a ring, their mean a filled mark, its Student t interval a bar; what is not finite is counted."""
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 1.05 + 0.36 * len(rows)), layout="constrained")
        axes = figure.subplots()
        logarithmic = is_logarithmic(rows)
        smallest = min((float(v) for row in rows for v in row.values[np.isfinite(row.values)]), default=0.0)
        for place, row in enumerate(rows):
            colour = _INK[theme] if row.is_baseline else _COLOURS[theme][0]
            finite = row.values[np.isfinite(row.values)]
            # Seeds one below the other, so that equal values stay countable, and below the mean, which would hide them.
            spread = np.linspace(0.16, 0.4, len(row.values))
            axes.plot(
                finite, place + spread[np.isfinite(row.values)], linestyle="", marker="o", markersize=3.2, markerfacecolor="none",
                markeredgecolor=colour, markeredgewidth=0.8, alpha=0.75, zorder=3,
            )  # fmt: skip
            if finite.size:
                summary = summarize(finite)
                if summary.interval:
                    low = max(summary.interval.low, smallest / 2) if logarithmic else summary.interval.low
                    axes.plot([low, summary.interval.high], [place, place], color=colour, linewidth=4, alpha=0.35, zorder=2)
                axes.plot([summary.mean], [place], marker="D", markersize=6.5, color=colour, markeredgecolor=_PAGE[theme], zorder=4)
                if row.is_baseline:
                    axes.axvline(summary.mean, color=_MUTED[theme], linestyle=":", linewidth=1.2, zorder=1)
            if finite.size < len(row.values):
                axes.annotate(
                    f"{len(row.values) - finite.size} of {len(row.values)} not finite", (1, place), (4, 0),
                    xycoords=("axes fraction", "data"), textcoords="offset points", va="center", fontsize=9,
                )  # fmt: skip
        axes.set_title(title + (", log scale" if logarithmic else ""))
        if logarithmic:
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "\N{MINUS SIGN}")))
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.4)
        axes.grid(False, axis="y")
        sns.despine(ax=axes, left=True)
        axes.tick_params(left=False, bottom=True, length=3)
        return _png(figure)


@dataclass(frozen=True)
class Series:
    """One line over numbers that are not epochs: `values` is (seeds, len(x)), accuracies as fractions."""

    label: str
    x: tuple[float, ...]
    values: FloatArray
    is_baseline: bool = False


def _series(axes: Axes, lines: Sequence[Series], theme: Theme) -> list[dict[str, Any]]:
    styles = _line_styles(lines, theme)
    for line, style in zip(lines, styles, strict=True):
        axes.plot(line.x, _centre(line.values), **style, linewidth=1.8, markersize=5.5, markeredgewidth=0)
        if len(line.values) > 1:
            low, high = _band(line.values)
            axes.fill_between(line.x, low, high, color=style["color"], alpha=0.16, linewidth=0, zorder=style["zorder"] - 1)
    return styles


def _label_ends(axes: Axes, lines: Sequence[Series], styles: Sequence[dict[str, Any]], height: float) -> None:
    """Writes each line's name at its end, moved apart where they would touch; limits and scales have to be set before.

    Args:
        height: of the axes, in inches, roughly.
    """
    to_axes = (axes.transScale + axes.transLimits).transform
    ends = np.array([float(to_axes((line.x[-1], _centre(line.values)[-1]))[1]) for line in lines])
    for line, style, place in zip(lines, styles, _spread(ends, 13 / 72 / height), strict=True):
        axes.annotate(
            line.label, (line.x[-1], _centre(line.values)[-1]), (1.05, place), xycoords="data", textcoords="axes fraction", va="center",
            fontsize=9.5, fontweight="bold" if line.is_baseline else "normal", color=style["color"], annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": style["color"], "linewidth": 0.7, "alpha": 0.7, "shrinkA": 1, "shrinkB": 5, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def _spread(places: FloatArray, gap: float) -> FloatArray:
    """The nearest places, by least squares, that keep the order and are at least `gap` apart."""
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    spread = np.empty(len(places))
    spread[order] = isotonic_regression(places[order] - steps).x + steps
    return spread


def data_size(lines: Sequence[Series], theme: Theme) -> bytes:
    """PNG: test accuracy against the number of training images, on logarithmic axes."""
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        axes = figure.subplots()
        styles = _series(axes, lines, theme)
        _accuracy_axis(axes, [line.values for line in lines], [line.values for line in lines])
        axes.set_title("Test accuracy (%)")
        axes.set_xlabel("training images (log scale)")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted({x for line in lines for x in line.x})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(False, axis="x")
        sns.despine(ax=axes, left=True)
        axes.tick_params(left=False, bottom=True, length=3)
        _label_ends(axes, lines, styles, 3.0)
        return _png(figure)


def shifts(lines: Sequence[Series], theme: Theme) -> bytes:
    """PNG: test accuracy against the pixels by which the test images are shifted."""
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        axes = figure.subplots()
        styles = _series(axes, lines, theme)
        axes.set_title("Test accuracy (%)")
        axes.set_xlabel("shift (pixels)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axes.set_ylim(top=1.0)
        axes.grid(False, axis="x")
        sns.despine(ax=axes, left=True)
        axes.tick_params(left=False, bottom=True, length=3)
        _label_ends(axes, lines, styles, 3.0)
        return _png(figure)


def _tiles(rows: int, columns: int, *, left: float, cell: float, gap: float, top: float, bottom: float) -> tuple[Figure, Any]:
    """A figure of the pages' width with a grid of square axes without frames; all lengths in inches."""
    height = top + rows * cell + (rows - 1) * gap + bottom
    figure = Figure(figsize=(WIDTH, height))
    grid = np.empty((rows, columns), dtype=object)
    for r in range(rows):
        for c in range(columns):
            x, y = left + c * (cell + gap), height - top - (r + 1) * cell - r * gap
            axes = figure.add_axes((x / WIDTH, y / height, cell / WIDTH, cell / height))
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            for spine in axes.spines.values():
                spine.set_linewidth(0.4)
            grid[r, c] = axes
    return figure, grid


def _beside(axes: Axes, text: str) -> None:
    """A row's name, left of its first axes."""
    axes.annotate(
        text, (0, 0.5), (-7, 0), xycoords="axes fraction", textcoords="offset points", ha="right", va="center", fontsize=9
    )  # fmt: skip


def _outline(axes: Axes, image: FloatArray, theme: Theme) -> None:
    """The digit's edge, on axes that hold the image."""
    centres = np.arange(image.shape[0]) + 0.5
    axes.contour(centres, centres, image, levels=[0.4], colors=[_INK[theme]], linewidths=0.7, alpha=0.9)


def rollouts(images: FloatArray, rows: Sequence[tuple[str, FloatArray]], theme: Theme) -> bytes:
    """PNG: test images in a row, one of each class, and below them a row of maps each.

    Args:
        images: (image, height, width), in [0, 1]; of ten classes, ten.
        rows: (label, which may have two lines, and (image, grid, grid)): drawn from each map's own least to its own greatest value.
    """
    with _style(theme):
        left, gap = 1.62, 0.05
        columns = len(images)
        cell = (WIDTH - left - 0.02 - (columns - 1) * gap) / max(columns, 10)
        figure, grid = _tiles(1 + len(rows), columns, left=left, cell=cell, gap=gap, top=0.06, bottom=0.06)
        strong = ("#BFDDF0", "#3498CF", "#003B5C") if theme == "light" else ("#12405C", "#56B4E9", "#E2F3FD")
        palette = LinearSegmentedColormap.from_list("attention", [_PAGE[theme], *strong])
        greys = LinearSegmentedColormap.from_list("ink", [_PAGE[theme], _INK[theme]])
        extent = (0, images.shape[2], images.shape[1], 0)
        for number, image in enumerate(images):
            grid[0, number].imshow(image, cmap=greys, vmin=0, vmax=1, interpolation="nearest", extent=extent)
            for r, (_, maps) in enumerate(rows):
                axes = grid[1 + r, number]
                axes.imshow(maps[number], cmap=palette, interpolation="nearest", extent=extent)
                _outline(axes, image, theme)
        for r, label in enumerate(["test image", *(label for label, _ in rows)]):
            _beside(grid[r, 0], "\n".join(textwrap.fill(part, 22) for part in label.split("\n")))
        return _png(figure)


def heads(image: FloatArray, maps: FloatArray, tokens: int, theme: Theme) -> bytes:
    """PNG: a map for each block and head, in multiples of the weight that all tokens would have alike.

    Args:
        image: (height, width), in [0, 1].
        maps: (blocks, heads, grid, grid), softmax weights.
        tokens: how many keys share the weight of 1.
    """
    with _style(theme):
        blocks, num_heads = maps.shape[:2]
        turned = num_heads < blocks  # the longer side across
        rows, columns = (num_heads, blocks) if turned else (blocks, num_heads)
        left, gap, right = 0.72, 0.07, 1.25
        cell = min(1.5, (WIDTH - left - right - (columns - 1) * gap) / columns)
        figure, grid = _tiles(rows, columns, left=left, cell=cell, gap=gap, top=0.3, bottom=0.12)
        # Ends that are no brighter than the ink, so that the digit's edge is seen on them.
        cold, warm = (
            (("#4C8FCC", "#B5D3EC"), ("#F5C3A0", "#D9652B")) if theme == "light" else (("#3F8FD0", "#1B4468"), ("#7A3B14", "#F0853F"))
        )
        palette = LinearSegmentedColormap.from_list("times uniform", [*cold, _PAGE[theme], *warm])
        reach = float(np.log2(TIMES_UNIFORM))
        extent = (0, image.shape[1], image.shape[0], 0)
        for block in range(blocks):
            for head in range(num_heads):
                axes = grid[head, block] if turned else grid[block, head]
                times = np.log2(np.maximum(maps[block, head].astype(np.float64) * tokens, 2.0 ** -(2 * reach)))
                picture = axes.imshow(times, cmap=palette, vmin=-reach, vmax=reach, interpolation="nearest", extent=extent)
                _outline(axes, image, theme)
        across, down = ("block", "head") if turned else ("head", "block")
        for c in range(columns):
            grid[0, c].set_title(f"{across} {c + 1}" if cell > 0.55 else f"{c + 1}", fontsize=9, fontweight="normal", loc="center")
        for r in range(rows):
            _beside(grid[r, 0], f"{down} {r + 1}")
        width, height = figure.get_size_inches()
        tall = min(2.2, height - 0.42)
        place = (left + columns * (cell + gap) + 0.12) / width
        bar = figure.colorbar(picture, cax=figure.add_axes((place, (height - 0.3 - tall) / height, 0.12 / width, tall / height)))
        bar.set_ticks([-reach, 0, reach], labels=[f"1/{TIMES_UNIFORM:g}", "uniform", f"{TIMES_UNIFORM:g} times"])
        bar.ax.tick_params(labelsize=9, length=2)
        bar.outline.set_visible(False)
        return _png(figure)


def position_similarity(panels: Sequence[tuple[str, FloatArray]], theme: Theme) -> bytes:
    """PNG: mosaics (from `positions.similarity_mosaic`), two a row; red is alike, blue is opposite."""
    with _style(theme):
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(WIDTH if columns == 2 else WIDTH / 2 + 0.5, 4.05 * rows), layout="constrained")
        figure.get_layout_engine().set(wspace=0.05, hspace=0.03)  # type: ignore[union-attr,call-arg]
        grid = figure.subplots(rows, columns, squeeze=False)
        # White (dark on a dark page) is a right angle, so the page's own colour means "nothing in common".
        palette = sns.color_palette("vlag" if theme == "light" else "icefire", as_cmap=True)
        for axes, panel in zip(grid.flat, [*panels, *[None] * (grid.size - len(panels))], strict=True):
            axes.set_axis_off()
            if panel is not None:
                image = axes.imshow(panel[1], cmap=palette, vmin=-1, vmax=1, interpolation="nearest")
                axes.set_title(panel[0], fontweight="normal")
        bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02, ticks=[-1, -0.5, 0, 0.5, 1])
        bar.set_label("cosine similarity")
        bar.outline.set_visible(False)
        return _png(figure, few_colours=False)


def variant_curves(run: Training, out_png: Path) -> None:
    """Writes one variant's own small figure: loss and test accuracy by epoch, every seed thin, their mean bold."""
    line = Line(run.variant, run)
    with _style("light"):
        figure = Figure(figsize=(7, 2.9), layout="constrained")
        loss, accuracy = figure.subplots(1, 2)
        epochs = np.arange(1, line.run.test_loss.shape[1] + 1)
        blue, orange = _COLOURS["light"][:2]
        many = len(line.run.seeds) > 1
        for axes, values, colour, label in (
            (loss, line.run.train_loss, orange, "train"),
            (loss, line.run.test_loss, blue, "test"),
            (accuracy, line.run.test_accuracy, blue, "test"),
        ):
            if many:
                axes.plot(epochs, np.where(np.isfinite(values), values, np.nan).T, color=colour, linewidth=0.6, alpha=0.45)
            axes.plot(epochs, _centre(values), color=colour, label=label, marker="o" if len(epochs) == 1 else None)
        loss.set_title("Loss (nats, log scale)")
        _loss_axis(loss, [line])
        loss.legend()
        accuracy.set_title("Test accuracy (%)")
        _epoch_accuracy_axis(accuracy, [line])
        for axes in (loss, accuracy):
            _finish(axes, len(epochs))
        seeds = f"{len(line.run.seeds)} seeds thin, their mean bold" if many else f"seed {line.run.seeds[0]}"
        figure.suptitle(f"{run.variant} ({seeds})", fontsize=10.5)
        png = _png(figure)
    with replacing(out_png) as temporary:
        temporary.write_bytes(png)


def shares(panels: Sequence[tuple[str, Sequence[tuple[str, Mapping[str, float]]]]], theme: Theme) -> bytes:
    """PNG: bars of equal length, cut into the shares of their parts, with their milliseconds at the end.

    Args:
        panels: (title, [(label of a bar, seconds of each part)]), the same parts and labels in all.
    """
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        parts = list(panels[0][1][0][1])
        colours = [*_COLOURS[theme], _INK[theme], _MUTED[theme]]
        for axes, (title, bars) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            places = np.arange(len(bars))
            totals = np.array([sum(seconds.values()) for _, seconds in bars])
            left = np.zeros(len(bars))
            for part, colour in zip(parts, colours, strict=True):
                width = 100 * np.array([seconds[part] for _, seconds in bars]) / totals
                axes.barh(places, width, left=left, color=colour, height=0.68, linewidth=0, label=part)
                left += width
            for place, total in zip(places, totals, strict=True):
                number = f"{1e3 * total:#.3g}" if total < 0.09995 else f"{1e3 * total:,.0f}"
                axes.text(102, place, f"{number} ms", va="center", fontsize=9.5)
            axes.set_title(title)
            axes.set_xlabel("% of a step")
            axes.set_xlim(0, 128)
            axes.set_xticks([0, 25, 50, 75, 100])
            axes.set_yticks(places, [label for label, _ in bars])
            axes.set_ylim(len(bars) - 0.5, -0.5)
            axes.grid(False)
            sns.despine(ax=axes, left=True)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, columnspacing=1.4)
        return _png(figure)


def growth(panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]]], theme: Theme) -> bytes:
    """PNG: lines on two logarithmic axes, with a dotted line of slope 2 through the end of the highest of each panel.

    Args:
        panels: (title, [(label, x, y)]), the same labels in all.
    """
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            for i, (label, x, y) in enumerate(lines):
                colour = _COLOURS[theme][i // 2]
                dash = "-" if i % 2 == 0 else _DASHES
                axes.plot(x, y, color=colour, marker=_MARKERS[i % len(_MARKERS)], linestyle=dash, label=label, markeredgewidth=0)
            highest = max(lines, key=lambda line: line[2][-1])
            counts = np.array(highest[1], dtype=np.float64)
            axes.plot(counts, highest[2][-1] * (counts / counts[-1]) ** 2, color=_MUTED[theme], linestyle=":", linewidth=1.2, zorder=1)
            axes.set_xscale("log")
            axes.set_yscale("log")
            smallest = min(min(line[2]) for line in lines)
            axes.set_ylim(0.6 * smallest, 1.8 * highest[2][-1])
            axes.set_title(title)
            axes.set_xlabel("tokens")
            axes.xaxis.set_major_locator(FixedLocator(list(counts)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            sns.despine(ax=axes, left=True)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=_legend_columns(labels), columnspacing=1.4)
        return _png(figure)
