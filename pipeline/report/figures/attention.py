"""Where trained networks attend."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.base import GREYS, SIGNS, WEIGHTS, WIDTH, Line, Material, Picture, bare, figure, outline
from pipeline.report.figures.scaling import draw_lines
from pipeline.study import Training
from pipeline.study.training import Attention

_FILTERS = 8  # components
_SHOWN_DIGIT = 3  # its strokes fill neither the whole image nor one place


@figure("attention_maps")
def attention_maps(material: Material) -> list[Picture]:
    """Where trained transformers attend: rollouts, and maps of each head and block."""
    found = [(run, attention) for run in material.runs if run.grid > 1 and (attention := run.attention) is not None]
    if not found:
        return []
    rows: list[tuple[str, FloatArray]] = []
    for run, attention in found:
        rows.append((f"{material.label(run)}, seed {run.seeds[0]}", attention.rollout[0]))
        if len(run.seeds) > 1:
            rows.append((f"{material.label(run)}, mean of {len(run.seeds)} seeds", attention.rollout.mean(axis=0)))
    readers = " or ".join(dict.fromkeys(f"{attention.reader}'s" for _, attention in found))
    caption = (
        f"The {readers} attention rollout on the patches, for the first test image of each digit. All maps share one scale, in % of all "
        f"attention, patches and other tokens together; the line is the digit's edge. Alike, each of the {found[0][1].keys} tokens of "
        f"{found[0][0].variant} would have {100 / found[0][1].keys:.2g} %."
    )
    drawn = [Picture(caption, partial(draw_rollouts, found[0][1].images, rows))]
    drawn += [_heads(material.label(run), run, attention) for run, attention in found]
    return drawn + _distances(material, [run for run, _ in found]) + _filters(material, found)


def _distances(material: Material, runs: Sequence[Training]) -> list[Picture]:
    lines = []
    for run in runs:
        columns = (f"attention_distance_{block}" for block in range(1, run.settings.model.blocks + 1))  # type: ignore[attr-defined]
        found = [values for name in columns if (values := (run.evaluation or {}).get(name)) is not None]
        if found:
            x = tuple(float(block) for block in range(1, len(found) + 1))
            lines.append(Line(material.label(run), x, np.stack(found, axis=1), material.is_baseline(run)))
    caption = (
        "How far attention reaches, by block: distance between the centres of the patch that reads and the one that is read, weighted by "
        f"attention, mean over heads and the first 1,000 test images (Dosovitskiy et al. 2021, appendix D.7). {_even(runs[0])}"
    )
    drawn = partial(draw_lines, lines, "Attention distance (pixels)", "block", "distances")
    return [Picture(caption, drawn, "distance")] if lines else []


def _even(run: Training) -> str:
    places = np.indices((run.grid, run.grid)).reshape(2, -1)
    apart = np.hypot(*(places[:, :, None] - places[:, None])).mean() * run.settings.model.shape.size / run.grid
    return f"Equal weights of the {run.grid**2} patches of {run.variant} reach {apart:.1f} pixels."


def _filters(material: Material, found: Sequence[tuple[Training, Attention]]) -> list[Picture]:
    rows = []
    for run, attention in found:
        if attention.filters is not None:
            side = run.settings.model.shape.size // run.grid
            shares, parts = np.linalg.svd(attention.filters, full_matrices=False)[1:]
            tiles = parts[:_FILTERS].reshape(min(len(parts), _FILTERS), -1, side, side).mean(1)
            rows.append((f"{material.label(run)}, seed {run.seeds[0]}", tiles, shares[:_FILTERS] ** 2 / (shares**2).sum()))
    caption = (
        "What the patch embedding looks at: the first principal components of its filters, and the share of their squares that each has, "
        "in %. A component and its negative are the same."
    )
    return [Picture(caption, partial(draw_filters, rows), "filters")] if rows else []


def draw_filters(rows: Sequence[tuple[str, FloatArray, FloatArray]]) -> Figure:
    """For each network its components, (component, side, side), from negative to positive, and their shares."""
    drawn, grid = _tiles(len(rows), max(len(tiles) for _, tiles, _ in rows), 0.75)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (label, tiles, shares) in zip(grid, rows, strict=True):
        for axes, tile, share in zip(line, tiles, shares, strict=False):
            axes.set_axis_on()
            axes.imshow(tile, cmap=SIGNS, vmin=-abs(tile).max(), vmax=abs(tile).max(), interpolation="nearest")
            axes.set_title(f"{100 * share:.0f}", fontsize=9, fontweight="normal", loc="center")
            bare(axes, 0.4)
        _beside(line[0], label)
    return drawn


def _heads(label: str, run: Training, attention: Attention) -> Picture:
    shown = attention.labels.index(_SHOWN_DIGIT) if _SHOWN_DIGIT in attention.labels else 0
    caption = (
        f"{label}, seed {run.seeds[0]}: attention of the {attention.reader} to each patch, head by head and block by block, for the test "
        f"image of a {attention.labels[shown]}, whose edge is the line. In % of a head's attention; alike, each of the {attention.keys} "
        f"tokens would have {100 / attention.keys:.2g} %. The colours follow the cube root, so that small weights are seen, too."
    )
    return Picture(caption, partial(draw_heads, attention.images[shown], attention.maps[shown]), f"heads-{run.variant}")


def draw_rollouts(images: FloatArray, rows: Sequence[tuple[str, FloatArray]], titles: Sequence[str] = ()) -> Figure:
    """A row of images, (image, height, width) in [0, 1], and for each of `rows` one of their maps, (image, grid, grid) shares.

    Args:
        titles: of the columns.
    """
    scale = Normalize(0, max(float(maps.max()) for _, maps in rows))
    drawn, grid = _tiles(1 + len(rows), len(images), 0.67)
    for column, image in zip(grid.T, images, strict=True):
        column[0].imshow(image, cmap=GREYS, vmin=0, vmax=1, interpolation="nearest")
    for tiles, (label, maps) in zip(grid[1:], rows, strict=True):
        for axes, image, weights in zip(tiles, images, maps, strict=True):
            _map(axes, weights, image, scale)
        _beside(tiles[0], label)
    _beside(grid[0, 0], "image" if titles else "test image")
    for axes, title in zip(grid[0], titles, strict=False):
        axes.set_title(title, fontsize=9, fontweight="normal", loc="center")
    _colour_bar(drawn, grid, scale)
    return drawn


def draw_heads(image: FloatArray, maps: FloatArray) -> Figure:
    """A map for each block and head, on one scale from 0 to the greatest weight.

    Args:
        image: (height, width), in [0, 1].
        maps: (blocks, heads, grid, grid), softmax weights.
    """
    across, down = "head", "block"
    if maps.shape[1] < maps.shape[0]:  # the longer side across
        maps, across, down = maps.swapaxes(0, 1), down, across
    scale = PowerNorm(1 / 3, 0, float(maps.max()))
    drawn, grid = _tiles(maps.shape[0], maps.shape[1], min(1.5, 6.6 / maps.shape[1]))
    for place, axes in np.ndenumerate(grid):
        _map(axes, maps[place], image, scale)
    for column, axes in enumerate(grid[0], 1):
        axes.set_title(f"{across} {column}" if maps.shape[1] < 12 else str(column), fontsize=9, fontweight="normal", loc="center")
    for row, axes in enumerate(grid[:, 0], 1):
        _beside(axes, f"{down} {row}")
    _colour_bar(drawn, grid, scale)
    return drawn


def _tiles(rows: int, columns: int, side: float) -> tuple[Figure, Any]:
    """A figure with a grid of square axes without frames; `side`: of a square, in inches."""
    drawn = Figure(figsize=(WIDTH, max(1.4, (side + 0.06) * rows + 0.3)), layout="constrained")
    return drawn, drawn.subplots(rows, columns, squeeze=False)


def _map(axes: Any, weights: FloatArray, image: FloatArray, scale: Normalize) -> None:
    extent = (0, image.shape[1], image.shape[0], 0)
    axes.imshow(weights, cmap=WEIGHTS, norm=scale, interpolation="nearest", extent=extent)
    outline(axes, image)


def _beside(axes: Any, text: str) -> None:
    """A row's name, left of its first axes."""
    axes.set_ylabel(textwrap.fill(text, 20), rotation=0, ha="right", va="center", fontsize=9)


def _colour_bar(drawn: Figure, grid: Any, scale: Normalize) -> None:
    for axes in grid.flat:
        bare(axes, 0.4)
    height = drawn.get_size_inches()[1]
    bar = drawn.colorbar(ScalarMappable(scale, WEIGHTS), ax=grid, aspect=7 * height, fraction=0.03, pad=0.015)
    kept: list[float] = []
    for tick in (0, 0.001, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1):
        if tick <= float(scale.vmax or 1) and (not kept or float(scale(tick)) - float(scale(kept[-1])) > 0.25 / height):
            kept.append(tick)
    bar.set_ticks(kept, labels=[f"{100 * tick:.2g} %" for tick in kept])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=9, length=2)
    bar.outline.set_visible(False)
