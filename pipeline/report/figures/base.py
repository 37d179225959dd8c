"""What all figures share: the picture with its caption, colours and type, means over seeds as lines, and the axes.

A figure that experiments may name is one function, which `@figure` registers under its name; the name also stands in `Figure`
(pipeline/params/study.py), by which params.yaml is checked. It returns pictures that are not drawn yet: a stored picture of equal data
and code is kept as it is.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import joblib
import matplotlib
import matplotlib.style
import numpy as np
import numpy.typing as npt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from PIL import Image, PngImagePlugin
from scipy import special

from pipeline.measures.definitions import FloatArray
from pipeline.params import ExperimentSettings
from pipeline.params import Figure as Kind
from pipeline.provenance import code_hash
from pipeline.study import Training
from pipeline.study.statistics import LEVEL

# A page shows 8.3 inches on 830 pixels: one point of type is 1.4 pixels, and 8 points are 11 pixels high.
WIDTH, DPI = 8.3, 170
# Okabe and Ito's colours, which colour-blind readers can distinguish, two of them darker for a contrast of 3:1. The baseline is in ink.
INK, PAGE, MUTED, GRID = "#1f2328", "#ffffff", "#818b98", "#e3e6ea"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC5A9E", "#B07D00", "#3498CF")
WEIGHTS = LinearSegmentedColormap.from_list("weights", [PAGE, "#B3D7EE", "#3391C9", "#00456B"])  # from 0
SIGNS = LinearSegmentedColormap.from_list("signs", ["#0B4F8A", "#8DBDE0", PAGE, "#F2A27C", "#B2361B"])  # around 0
GREYS = LinearSegmentedColormap.from_list("ink", [PAGE, INK])
DASHES = (0, (3.5, 1.8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, so the bytes do not depend on the machine's fonts
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "axes.edgecolor": INK,
    "grid.color": GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
}
INTERVAL_SEEDS = 6  # from here on bands are intervals; with fewer seeds they show the range, because intervals would be wider than that
REACH = 3.0  # factor from the mean up to which bands widen an axis of errors: one seed that fails must not press all others flat


# --- pictures ---


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Attributes:
        caption: its first sentence says what is shown, and stands in for the picture where none can be seen.
        draw: makes the figure of its arguments alone: arrays, numbers, words, or dataclasses of them.
        name: of the file, without ending; of an experiment's figure only what distinguishes several of one kind.
    """

    caption: str
    draw: partial[Figure]
    name: str = ""

    def png(self, stored: Path | None = None) -> bytes:
        """The file. `stored`: an earlier one, which is returned as it is where its data and code were the same."""
        digest = joblib.hash((_code(self.draw.func.__module__), self.draw.func.__name__, self.draw.args, self.draw.keywords))
        if stored is not None:
            with contextlib.suppress(OSError), Image.open(stored) as image:
                if image.info.get("digest") == digest:
                    return stored.read_bytes()
            print(f"drawing {stored}", flush=True)
        return png(self.draw, digest)

    def markdown(self, folder: str, place: str) -> str:
        """The picture and its caption, numbered by `place`. `folder`: its path from the page."""
        said = self.caption.split(". ")[0].rstrip(".").replace("[", "(").replace("]", ")")
        return f"![{said}]({folder}/{self.name}.png)\n\n*{place}{self.caption}*"


@cache
def _code(module: str) -> str:
    """What decides how a module's figures look, besides their data."""
    own = f"{module.removeprefix('pipeline.').replace('.', '/')}.py"
    return f"{code_hash(('report/figures/base.py', own))} {matplotlib.__version__}"


def png(draw: Callable[[], Figure], digest: str = "") -> bytes:
    """Equal inputs give equal bytes. 256 colours suffice for lines and for maps of one scale, and take a third of the bytes."""
    buffer, chunk = io.BytesIO(), PngImagePlugin.PngInfo()
    chunk.add_text("digest", digest)
    # Start from matplotlib's own defaults, so that no matplotlibrc of the user changes the bytes.
    with matplotlib.style.context(["default", sns.axes_style("whitegrid"), _STYLE]):
        draw().savefig(buffer, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})
    image = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small = io.BytesIO()
    image.save(small, format="png", optimize=True, pnginfo=chunk)
    return small.getvalue()


def pdf(draw: Callable[[], Figure]) -> bytes:
    """A figure for a document: text stays text, lines stay lines."""
    buffer = io.BytesIO()
    with matplotlib.style.context(["default", sns.axes_style("whitegrid"), _STYLE, {"pdf.fonttype": 42}]):
        draw().savefig(buffer, format="pdf", dpi=DPI, metadata={"CreationDate": None})
    return buffer.getvalue()


def named(name: str, label: str) -> str:
    """A variant's one name on all pages, with what a page calls it in parentheses where that says more."""
    said = label.removeprefix(f"{name}, ")
    return name if said.lower().replace(" ", "-") == name.lower() else f"{name} ({said})"


@dataclass(frozen=True)
class Material:
    """What an experiment's figures are made of.

    Attributes:
        name: the experiment's name.
        runs: its variants that were trained, in its order.
        train_images: size of the whole training set; None where it is not known.
        test_images: (image, ...) as `pipeline.data.datasets.Dataset` has them; None where they are not here.
    """

    name: str
    experiment: ExperimentSettings
    runs: Sequence[Training]
    train_images: int | None = None
    test_images: npt.NDArray[np.uint8] | None = None

    def label(self, run: Training) -> str:
        return named(run.variant, self.experiment.label(run.variant))

    def is_baseline(self, run: Training) -> bool:
        return run.variant == self.experiment.baseline


Make = Callable[[Material], list[Picture]]
REGISTERED: dict[Kind, Make] = {}


def figure(kind: Kind) -> Callable[[Make], Make]:
    """Registers the function that makes an experiment's figures of this kind; it returns none where there is nothing to draw yet."""

    def register(make: Make) -> Make:
        REGISTERED[kind] = make
        return make

    return register


def pictures(kind: Kind, material: Material) -> list[Picture]:
    """The figures of one kind, with their names."""
    start = f"{material.name}-{kind.replace('_', '-')}"
    made = REGISTERED[kind](material) if material.runs else []
    return [replace(picture, name="-".join(filter(None, (start, picture.name)))) for picture in made]


# --- lines: means over the seeds with bands ---


@dataclass(frozen=True)
class Line:
    """A line of a figure. `values`: (seeds, len(x)); what is not finite is left out."""

    label: str
    x: tuple[float, ...]
    values: FloatArray
    is_baseline: bool = False


def same_but(runs: Sequence[Training], *varied: str) -> list[list[Training]]:
    """The runs in groups whose options differ in none but these, such as `train.epochs`."""
    groups: dict[str, list[Training]] = {}
    for run in runs:
        rest = {name: value for name, value in run.options.items() if name not in varied}
        groups.setdefault(str(sorted(rest.items())), []).append(run)
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


def draw_line(axes: Axes, x: npt.ArrayLike, values: FloatArray, style: dict[str, Any]) -> None:
    """Draws the mean of (seeds, n) over the seeds as a line, and its band."""
    axes.plot(x, centre(values), **style)
    axes.fill_between(x, *band(values), color=style["color"], alpha=0.15, linewidth=0, zorder=style["zorder"] - 1)


def line_styles(baselines: Sequence[bool]) -> list[dict[str, Any]]:
    """Colour, marker and order of each line; the baseline is drawn in ink, on top."""
    chosen: list[dict[str, Any]] = []
    for is_baseline in baselines:
        i = sum(not one["zorder"] > 3 for one in chosen)
        own = (INK, MARKERS[0], 3.5) if is_baseline else (COLOURS[i % len(COLOURS)], MARKERS[1 + i % (len(MARKERS) - 1)], 3.0)
        chosen.append({**dict(zip(("color", "marker", "zorder"), own, strict=True)), "markeredgewidth": 0})
    return chosen


# --- axes ---


def tidy(axes: Axes, *, grid: Literal["x", "y"] = "y") -> None:
    """Leaves of the frame the lower edge, and of the grid the lines of one axis."""
    axes.grid(False, axis="x" if grid == "y" else "y")
    sns.despine(ax=axes, left=True)
    axes.tick_params(left=False, bottom=True, length=3)


def plain_numbers(axes: Axes, which: Literal["x", "y"], show: str = "g", factor: float = 1) -> None:
    """Writes an axis's numbers without powers of ten and with a true minus. `show`: Python's format of `factor` times a value."""
    formatter = FuncFormatter(lambda value, _: f"{factor * value:{show}}".replace("-", "\N{MINUS SIGN}"))
    getattr(axes, f"{which}axis").set_major_formatter(formatter)


def log_axis(axes: Axes, which: Literal["x", "y"], show: str = "g", factor: float = 1) -> None:
    """Makes an axis logarithmic, with plain numbers even where it spans less than a decade; `show`, `factor`: as `plain_numbers`."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    low, high = getattr(axes, f"get_{which}lim")()
    span = high / low
    subs = (1.0,) if span > 1e3 else (1.0, 2.0, 5.0) if span > 20 else (1.0, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]) if span <= 4 else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axes, which, show, factor)


def log_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """Makes the horizontal axis logarithmic, with these ticks but those that would touch the one before."""
    kept: list[float] = []
    for tick in sorted(ticks):
        if not kept or tick > kept[-1] * (max(ticks) / min(ticks)) ** 0.08:
            kept.append(tick)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes, "x", ",.0f")


def error_axis(axes: Axes, shown: Sequence[FloatArray]) -> None:
    """Makes the axis of errors in %, which is logarithmic.

    Args:
        shown: (seeds, n) each, fractions. The axis holds their means, and their bands up to a factor of `REACH` from the means.
    """
    edges = []
    for values in shown:
        mean = centre(values)
        edges += [mean, *(np.clip(edge, mean / REACH, mean * REACH) for edge in band(values))]
    inside = np.concatenate(edges)
    inside = inside[inside > 0]  # neither 0 nor NaN has a logarithm
    low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.01, 1.0)
    pad = (high / low) ** 0.04 * 1.02
    axes.set_ylim(low / pad, high * pad)
    log_axis(axes, "y", ".3g", 100)


def legend_below(figure: Figure, handles: Sequence[Any], **options: Any) -> None:
    """Draws the legend below all panels, in as many columns as fit: a character takes about 0.085 inches, a handle with its gaps 0.65."""
    labels = [str(handle.get_label()) for handle in handles]
    columns = max(1, int(WIDTH // (0.65 + 0.085 * max(map(len, labels)))))
    rows = -(-len(labels) // columns)
    chosen = {"ncols": -(-len(labels) // rows), "columnspacing": 1.4, **options}
    figure.legend(list(handles), labels, loc="outside lower center", **chosen)


def outline(axes: Axes, image: FloatArray, width: float = 0.8) -> None:
    """Draws the edge of a digit, (height, width) in [0, 1], on axes of its pixels, visible on bright and dark colours."""
    rows, columns = (np.arange(side) + 0.5 for side in image.shape)
    for colour, wide, alpha in ((PAGE, 2.6 * width, 0.7), (INK, width, 1.0)):
        axes.contour(columns, rows, image, levels=[0.4], colors=[colour], linewidths=wide, alpha=alpha)


def bare(axes: Axes, width: float = 0.6) -> None:
    """Leaves of an image's axes a thin frame."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(color=MUTED, linewidth=width)
