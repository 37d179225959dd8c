"""What all figures share: the picture with its caption, colours and type, the figures that experiments may name, and the axes.

A figure that experiments may name is one function, which `@figure` registers under its name; the name also stands in `Figure`
(pipeline/params/study.py), by which params.yaml is checked. It returns pictures that are not drawn yet: a stored picture of equal data
and code is kept as it is. `panels`, `rows` and `tiles` draw: lines against a number, a row for each variant or claim, small images.
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
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from PIL import Image, PngImagePlugin

from pipeline.params import ExperimentSettings
from pipeline.params import Figure as Kind
from pipeline.study import Training
from pipeline.system.provenance import code_hash

# A page shows 8.3 inches on 830 pixels: one point of type is 1.4 pixels, and 8 points are 11 pixels high.
WIDTH, DPI = 8.3, 170
# Okabe and Ito's colours, which colour-blind readers can distinguish, two of them darker for a contrast of 3:1. The baseline is in ink.
INK, PAGE, MUTED, GRID = "#1f2328", "#ffffff", "#818b98", "#e3e6ea"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC5A9E", "#B07D00", "#3498CF")
# Of 64 colours each, so that a file's 256 hold all of them, and a colour bar has no steps.
_map = partial(LinearSegmentedColormap.from_list, N=64)
WEIGHTS = _map("weights", [PAGE, "#B3D7EE", "#3391C9", "#00456B"])  # from 0
SIGNS = _map("signs", ["#0B4F8A", "#8DBDE0", PAGE, "#F2A27C", "#B2361B"])  # around 0
GREYS = _map("ink", [PAGE, INK])
DASHES = (0, (3.5, 1.8))
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
    "lines.markeredgewidth": 0,
    "pdf.fonttype": 42,
}


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


def _saved(draw: Callable[[], Figure], **options: Any) -> io.BytesIO:
    """Starts from matplotlib's own defaults, so that no matplotlibrc of the user changes the bytes."""
    buffer = io.BytesIO()
    with matplotlib.style.context(["default", sns.axes_style("whitegrid"), _STYLE]):
        draw().savefig(buffer, dpi=DPI, **options)
    return buffer


def png(draw: Callable[[], Figure], digest: str = "") -> bytes:
    """Equal inputs give equal bytes. 256 colours suffice for lines and for maps of one scale, and take a third of the bytes."""
    buffer, chunk = io.BytesIO(), PngImagePlugin.PngInfo()
    chunk.add_text("digest", digest)
    image = Image.open(_saved(draw, format="png", pil_kwargs={"compress_level": 1})).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, format="png", optimize=True, pnginfo=chunk)
    return buffer.getvalue()


def pdf(draw: Callable[[], Figure]) -> bytes:
    """A figure for a document: text stays text, lines stay lines."""
    return _saved(draw, format="pdf", metadata={"CreationDate": None}).getvalue()


# --- the figures of an experiment ---


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
        return REGISTERED.setdefault(kind, make)

    return register


def pictures(kind: Kind, material: Material) -> list[Picture]:
    """The figures of one kind, with their names."""
    start = f"{material.name}-{kind.replace('_', '-')}"
    made = REGISTERED[kind](material) if material.runs else []
    return [replace(picture, name="-".join(filter(None, (start, picture.name)))) for picture in made]


# --- axes ---


def tidy(axes: Axes, *, grid: Literal["x", "y"] = "y") -> None:
    """Leaves of the frame the lower edge, and of the grid the lines of one axis."""
    axes.grid(False, axis="x" if grid == "y" else "y")
    sns.despine(ax=axes, left=True)
    axes.tick_params(left=False, bottom=True, length=3)


def plain_numbers(axes: Axes, which: Literal["x", "y"], factor: float = 1) -> None:
    """Writes an axis's numbers, `factor` times a value, without powers of ten and with a true minus."""

    def shown(value: float, _: int) -> str:
        number = float(f"{factor * value:.6g}")
        text = f"{number:,.0f}" if abs(number) >= 1000 else np.format_float_positional(number, trim="-")
        return text.replace("-", "\N{MINUS SIGN}")

    getattr(axes, f"{which}axis").set_major_formatter(FuncFormatter(shown))


def log_axis(axes: Axes, which: Literal["x", "y"], factor: float = 1) -> None:
    """Makes an axis logarithmic, with plain numbers even where it spans less than a decade; `factor`: as `plain_numbers`."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    low, high = getattr(axes, f"get_{which}lim")()
    span = high / low
    subs = (1.0,) if span > 1e3 else (1.0, 2.0, 5.0) if span > 20 else (1.0, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]) if span <= 4 else LogLocator(subs=subs, numticks=20))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axes, which, factor)


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Draws the legend below all panels, in as many columns as fit: a character takes about 0.085 inches, a handle with its gaps 0.65."""
    labels = [str(handle.get_label()) for handle in handles]
    columns = max(1, int(WIDTH // (0.65 + 0.085 * max(map(len, labels)))))
    rows = -(-len(labels) // columns)
    figure.legend(list(handles), labels, loc="outside lower center", ncols=-(-len(labels) // rows), columnspacing=1.4, handlelength=2.2)
