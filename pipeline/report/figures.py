"""The figures of the pages, each for a light and a dark page. Equal inputs give equal bytes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import matplotlib.style
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from PIL import Image
from scipy import stats

from pipeline.analysis.statistics import LEVEL, FloatArray
from pipeline.files import replacing
from pipeline.report.results import Epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

# 8.3 inches on the 830 pixels of a page on a git host: one point of type is 1.4 pixels, and 9 points are legible.
WIDTH = 8.3
DPI = 170
INTERVAL_SEEDS = 6  # from here on bands are intervals; with fewer seeds they would be wider than the data, so they show the range

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
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_NICE_ACCURACY = (
    0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985,
    0.99, 0.9925, 0.995, 0.9965, 0.998, 0.999, 0.9995, 0.9998, 0.9999,
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One variant in a figure."""

    label: str
    epochs: Epochs
    is_baseline: bool = False


def band_kind(n: int) -> str:
    """What the shaded bands of a figure over n seeds are, for its caption; empty for one seed, which has none."""
    if n == 1:
        return ""
    return f"{100 * LEVEL:g} % Student t interval of that mean" if n >= INTERVAL_SEEDS else "lowest to highest seed"


def _band(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lower and upper edge, (epochs,) each, of (seeds, epochs)."""
    n = len(values)
    if n < INTERVAL_SEEDS:
        return values.min(axis=0), values.max(axis=0)
    half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * values.std(axis=0, ddof=1) / n**0.5
    return values.mean(axis=0) - half, values.mean(axis=0) + half


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


def _line_styles(lines: Sequence[Line], theme: Theme) -> list[dict[str, Any]]:
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
        epochs, values.mean(axis=0), **style, linestyle=(0, (3.5, 1.8)) if dashed else "-", markevery=marks, markeredgewidth=0,
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


def _log_ticks(axes: Axes) -> None:
    """A logarithmic axis with plain numbers, also where it spans less than a decade."""
    axes.set_yscale("log")
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


def _accuracy_axis(axes: Axes, lines: Sequence[Line]) -> None:
    """Test accuracy in %, spaced by the logarithm of the error, so that 98 and 98.5 are as far apart as 92 and 94."""
    errors = np.concatenate([1 - line.epochs.test_accuracy.ravel() for line in lines])
    positive = errors[errors > 1e-12]
    floor = float(positive.min()) / 2 if positive.size else 1e-4  # a run without any error still has a place

    def forward(accuracy: FloatArray) -> FloatArray:
        height: FloatArray = -np.log10(np.maximum(1 - np.asarray(accuracy, dtype=np.float64), floor))
        return height

    def inverse(height: FloatArray) -> FloatArray:
        return 1 - 10.0 ** -np.asarray(height, dtype=np.float64)

    shown = [line.epochs.test_accuracy[:, cut_epochs(line.epochs.test_accuracy.shape[1]) :] for line in lines]
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
            Line2D([], [], color=_MUTED[theme], linestyle=(0, (3.5, 1.8)), linewidth=1.3, label="train (dashed)"),
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


def curves(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: train and test loss by epoch on the left, test accuracy on the right."""
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        loss, accuracy = figure.subplots(1, 2)
        styles = _line_styles(lines, theme)
        for i, (line, style) in enumerate(zip(lines, styles, strict=True)):
            _draw(loss, line.epochs.train_loss, style, index=i, total=len(lines), dashed=True)
            _draw(loss, line.epochs.test_loss, style, index=i, total=len(lines))
            _draw(accuracy, line.epochs.test_accuracy, style, index=i, total=len(lines))
        epochs = max(line.epochs.test_loss.shape[1] for line in lines)
        loss.set_title("Loss (nats, log scale)")
        _log_ticks(loss)
        accuracy.set_title("Test accuracy (%)")
        _accuracy_axis(accuracy, lines)
        for axes in (loss, accuracy):
            _finish(axes, epochs)
        _legend(figure, lines, styles, theme, dashes=True)
        return _png(figure)


def epoch_time(lines: Sequence[Line], theme: Theme) -> bytes:
    """PNG: recorded seconds of each epoch; a logarithmic axis where the variants differ by more than a factor of four."""
    with _style(theme):
        figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
        axes = figure.subplots()
        styles = _line_styles(lines, theme)
        for i, (line, style) in enumerate(zip(lines, styles, strict=True)):
            _draw(axes, line.epochs.seconds, style, index=i, total=len(lines))
        means = np.concatenate([line.epochs.seconds.mean(axis=0) for line in lines])
        if means.min() > 0 and means.max() / means.min() > 4:
            axes.set_title("Recorded time of an epoch (s, log scale)")
            _log_ticks(axes)
        else:
            axes.set_title("Recorded time of an epoch (s)")
            axes.set_ylim(0, 1.08 * max(float(_band(line.epochs.seconds)[1].max()) for line in lines))
        _finish(axes, max(line.epochs.seconds.shape[1] for line in lines))
        _legend(figure, lines, styles, theme, dashes=False)
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


def variant_curves(variant: str, epochs_csv: Path, out_png: Path) -> None:
    """Writes one variant's own small figure: loss and test accuracy by epoch, every seed thin, their mean bold.

    Raises:
        UserError: `epochs_csv` is missing or damaged.
    """
    line = Line(variant, Epochs.read(epochs_csv))
    with _style("light"):
        figure = Figure(figsize=(7, 2.9), layout="constrained")
        loss, accuracy = figure.subplots(1, 2)
        epochs = np.arange(1, line.epochs.test_loss.shape[1] + 1)
        blue, orange = _COLOURS["light"][:2]
        many = len(line.epochs.seeds) > 1
        for axes, values, colour, label in (
            (loss, line.epochs.train_loss, orange, "train"),
            (loss, line.epochs.test_loss, blue, "test"),
            (accuracy, line.epochs.test_accuracy, blue, "test"),
        ):
            if many:
                axes.plot(epochs, values.T, color=colour, linewidth=0.6, alpha=0.45)
            axes.plot(epochs, values.mean(axis=0), color=colour, label=label, marker="o" if len(epochs) == 1 else None)
        loss.set_title("Loss (nats, log scale)")
        _log_ticks(loss)
        loss.legend()
        accuracy.set_title("Test accuracy (%)")
        _accuracy_axis(accuracy, [line])
        for axes in (loss, accuracy):
            _finish(axes, len(epochs))
        seeds = f"{len(line.epochs.seeds)} seeds thin, their mean bold" if many else f"seed {line.epochs.seeds[0]}"
        figure.suptitle(f"{variant} ({seeds})", fontsize=10.5)
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
                dash = "-" if i % 2 == 0 else (0, (3.5, 1.8))
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
