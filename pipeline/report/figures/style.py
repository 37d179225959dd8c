"""The style of all figures: two themes, their colours, axes and legends. Equal inputs give equal bytes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import matplotlib.style
import numpy as np
import seaborn as sns
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from PIL import Image

from pipeline.measures.definitions import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

# A page on a git host shows 8.3 inches on 830 pixels: one point of type is 1.4 pixels, and 9 points are legible.
WIDTH = 8.3
DPI = 170

# Okabe and Ito's colours, which colour-blind readers can distinguish. Two are lighter or darker than the original, so that each has a
# contrast of 3:1 or more with its page. The baseline is drawn in ink.
INK = {"light": "#1f2328", "dark": "#e6edf3"}
PAGE = {"light": "#ffffff", "dark": "#0d1117"}
MUTED = {"light": "#818b98", "dark": "#9198a1"}
_GRID = {"light": "#e3e6ea", "dark": "#2b323b"}
COLOURS = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC5A9E", "#B07D00", "#3498CF"),
    "dark": ("#56B4E9", "#FF8A3D", "#20C997", "#E58BC1", "#F0C740", "#8FA8FF"),
}
# Colours of weights from small to large, and of negative and positive numbers; 0 has the page's colour. Both end before the ink's
# brightness.
_WEIGHTS = {"light": ("#B3D7EE", "#3391C9", "#00456B"), "dark": ("#1A5078", "#3B93CB", "#A5D8F8")}
_SIGNS = {
    "light": (("#0B4F8A", "#8DBDE0"), ("#F2A27C", "#B2361B")),
    "dark": (("#8CCBF7", "#24618F"), ("#9A4420", "#FFB68F")),
}
DASHES = (0, (3.5, 1.8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


@contextlib.contextmanager
def style(theme: Theme) -> Iterator[None]:
    ink = INK[theme]
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
        "figure.facecolor": PAGE[theme],
        "savefig.facecolor": PAGE[theme],
        "axes.facecolor": PAGE[theme],
        "axes.edgecolor": ink,
        "grid.color": _GRID[theme],
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        "axes.linewidth": 0.8,
        "grid.linewidth": 0.8,
        "lines.linewidth": 1.7,
        "lines.markersize": 4.5,
    }
    # Start from matplotlib's own defaults, so that no matplotlibrc of the user changes the bytes.
    with matplotlib.style.context(["default", sns.axes_style("whitegrid"), own]):
        yield


def png(figure: Figure, *, few_colours: bool = True) -> bytes:
    """The figure's bytes. 256 colours suffice for lines on a plain page and take a third of the bytes."""
    buffer = io.BytesIO()
    # "optimize" is slow, so only the last encoding has it.
    compression = {"compress_level": 1} if few_colours else {"optimize": True}
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs=compression)
    if not few_colours:
        return buffer.getvalue()
    image = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small = io.BytesIO()
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def weights_map(theme: Theme) -> LinearSegmentedColormap:
    """Colours of weights: 0 has the page's colour."""
    return LinearSegmentedColormap.from_list("weights", [PAGE[theme], *_WEIGHTS[theme]])


def signs_map(theme: Theme) -> LinearSegmentedColormap:
    """Colours of signed numbers: 0 has the page's colour, negative ones are blue, positive ones red or orange."""
    cold, warm = _SIGNS[theme]
    return LinearSegmentedColormap.from_list("signs", [*cold, PAGE[theme], *warm])


def greys_map(theme: Theme) -> LinearSegmentedColormap:
    """Colours of an image's ink."""
    return LinearSegmentedColormap.from_list("ink", [PAGE[theme], INK[theme]])


def outline(axes: Axes, image: FloatArray, theme: Theme, width: float = 0.8) -> None:
    """Draws the edge of a digit, (height, width) in [0, 1], on axes of its pixels, visible on bright and dark colours."""
    rows, columns = (np.arange(side) + 0.5 for side in image.shape)
    for colour, wide, alpha in ((PAGE[theme], 2.6 * width, 0.7), (INK[theme], width, 1.0)):
        axes.contour(columns, rows, image, levels=[0.4], colors=[colour], linewidths=wide, alpha=alpha)


def line_styles(baselines: Sequence[bool], theme: Theme) -> list[dict[str, Any]]:
    """Colour, marker and order of each line; the baseline is drawn in ink, on top."""
    others = iter(range(len(baselines)))
    chosen: list[dict[str, Any]] = []
    for is_baseline in baselines:
        if is_baseline:
            chosen.append({"color": INK[theme], "marker": MARKERS[0], "zorder": 3.5})
        else:
            i = next(others)
            marker = MARKERS[1 + i % (len(MARKERS) - 1)]
            chosen.append({"color": COLOURS[theme][i % len(COLOURS[theme])], "marker": marker, "zorder": 3.0})
    return chosen


def tidy(axes: Axes, *, grid: Literal["x", "y"] = "y") -> None:
    """Leaves of the frame the lower edge, and of the grid the lines of one axis."""
    axes.grid(False, axis="x" if grid == "y" else "y")
    sns.despine(ax=axes, left=True)
    axes.tick_params(left=False, bottom=True, length=3)


def plain_numbers(axes: Axes, which: Literal["x", "y"], show: str = "g", factor: float = 1) -> None:
    """Writes an axis's numbers without powers of ten and with a true minus.

    Args:
        show: Python's format of a number.
        factor: of the numbers over the values.
    """
    formatter = FuncFormatter(lambda value, _: f"{factor * value:{show}}".replace("-", "\N{MINUS SIGN}"))
    getattr(axes, f"{which}axis").set_major_formatter(formatter)


def log_axis(axes: Axes, which: Literal["x", "y"], *, top: float | None = None) -> None:
    """Makes an axis logarithmic, with plain numbers even where it spans less than a decade."""
    axes.set(**{f"{which}scale": "log"})
    if top is not None:
        axes.set(**{f"{which}lim": (None, top)})
    axis = getattr(axes, f"{which}axis")
    low, high = getattr(axes, f"get_{which}lim")()
    span = high / low
    subs = (1.0,) if span > 1e3 else (1.0, 2.0, 5.0) if span > 20 else (1.0, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]) if span <= 4 else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axes, which)


def legend_below(figure: Figure, handles: Sequence[Any], **options: Any) -> None:
    """Draws the legend below all panels, in as many columns as fit: a character takes about 0.085 inches, a handle with its gaps 0.65."""
    labels = [str(handle.get_label()) for handle in handles]
    columns = max(1, int(WIDTH // (0.65 + 0.085 * max(len(label) for label in labels))))
    rows = -(-len(labels) // columns)
    chosen = {"ncols": -(-len(labels) // rows), "columnspacing": 1.4, **options}
    figure.legend(list(handles), labels, loc="outside lower center", **chosen)
