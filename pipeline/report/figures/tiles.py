"""Rows of small images: digits, scenes, maps of attention, filters, similarities."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.base import GREYS, INK, MUTED, PAGE, SIGNS, WEIGHTS, WIDTH

ROWS, COLUMNS = 2, 6  # of images below a matrix
_NUMBERED = 12  # classes, up to which a matrix has its numbers
_MAPS = {"greys": GREYS, "weights": WEIGHTS, "signs": SIGNS}


@dataclass(frozen=True)
class Tile:
    """A small image, (height, width), or with colours of its own (height, width, 3) in [0, 1].

    Attributes:
        colours: of greys from 0 to 1, of weights from 0 to the figure's `top`, of signs from -1 to 1.
        over: a digit, (height, width) in [0, 1], whose edge is drawn over it.
        crossed: whether lines part it into four cells.
    """

    image: FloatArray
    colours: Literal["greys", "weights", "signs"] = "weights"
    title: str = ""
    over: FloatArray | None = None
    crossed: bool = False


def draw(rows: Sequence[tuple[str, Sequence[Tile]]], side: float, top: float = 1, power: float = 1, *, bar: bool = False) -> Figure:
    """A grid of tiles, with the name of each row at its left.

    Args:
        side: of a tile, in inches.
        top: the greatest weight. Colours of weights follow their `power`.
        bar: whether a bar beside the tiles names the last ones' colours, weights in %.
    """
    norms = {"greys": Normalize(0, 1), "weights": PowerNorm(power, 0, top), "signs": Normalize(-1, 1)}
    lines = max((tile.title.count("\n") + 1 for _, tiles in rows for tile in tiles if tile.title), default=0)
    titled = sum(any(tile.title for tile in tiles) for _, tiles in rows)
    columns = max(len(tiles) for _, tiles in rows)
    size = min(WIDTH, (side + 0.1) * columns + 2.3), max(1.4, (side + 0.06) * len(rows) + 0.16 * lines * titled + 0.1)
    drawn = Figure(figsize=size, layout="constrained")
    grid = drawn.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (name, tiles) in zip(grid, rows, strict=True):
        for axes, tile in zip(line, tiles, strict=False):
            draw_tile(axes, tile, norms[tile.colours])
        line[0].set_ylabel(textwrap.fill(name, 20), rotation=0, ha="right", va="center", fontsize=9)
    if bar:
        colours, percent = rows[-1][1][0].colours, PercentFormatter(1) if rows[-1][1][0].colours == "weights" else None
        scale = ScalarMappable(norms[colours], _MAPS[colours])
        beside = drawn.colorbar(
            scale, ax=grid, aspect=7 * size[1], fraction=0.03, pad=0.015, ticks=MaxNLocator(min(6, int(2 * size[1]))), format=percent
        )
        beside.ax.minorticks_off()
        beside.ax.tick_params(labelsize=9, length=2)
    return drawn


def draw_tile(axes: Axes, tile: Tile, norm: Normalize | None = None, fontsize: float = 9) -> None:
    height, width = (tile.image if tile.over is None else tile.over).shape[:2]
    axes.imshow(tile.image, cmap=_MAPS[tile.colours], norm=norm or Normalize(0, 1), interpolation="nearest", extent=(0, width, height, 0))
    if tile.over is not None:
        # Visible on bright and dark colours.
        for colour, wide, alpha in ((PAGE, 2.0, 0.7), (INK, 0.8, 1.0)):
            pixels = np.arange(width) + 0.5, np.arange(height) + 0.5
            axes.contour(*pixels, tile.over, levels=[0.4], colors=[colour], linewidths=wide, alpha=alpha)
    if tile.crossed:
        axes.axvline(width / 2, color=MUTED, linewidth=0.6)
        axes.axhline(height / 2, color=MUTED, linewidth=0.6)
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(color=MUTED, linewidth=0.4)
    axes.set_title(tile.title, fontsize=fontsize, fontweight="normal", loc="center", pad=3)


def draw_errors(variants: Sequence[tuple[str, FloatArray, Sequence[Tile]]]) -> Figure:
    """A matrix for each variant, side by side, on one scale of colours, which leaves out what is right; below each its images."""
    drawn = Figure(figsize=(WIDTH, 6.3), layout="constrained")
    off = [np.where(np.eye(len(shares), dtype=bool), 0, shares) for _, shares, _ in variants]
    parts = np.atleast_1d(np.asarray(drawn.subfigures(1, len(variants), wspace=0.03), dtype=object))
    for part, (label, shares, worst), coloured in zip(parts, variants, off, strict=True):
        above, below = part.subfigures(2, 1, height_ratios=[4.4, 1.9])
        numbers = np.vectorize(lambda share: f"{100 * share:.1f}" if share >= 0.0005 else "")(shares)
        axes = sns.heatmap(
            coloured, vmin=0, vmax=max(one.max() for one in off) or 1, cmap=WEIGHTS, cbar=False, square=True, ax=above.subplots(), fmt="",
            annot=numbers if len(shares) <= _NUMBERED else False, annot_kws={"fontsize": 7.5},
        )  # fmt: skip
        axes.tick_params(length=0, rotation=0)
        axes.set(title=label, xlabel="answer", ylabel="class")
        for place, axes in enumerate(below.subplots(ROWS, COLUMNS, squeeze=False).flat):
            axes.set_axis_off()
            if place < len(worst):
                draw_tile(axes, worst[place], fontsize=7.5)
    return drawn
