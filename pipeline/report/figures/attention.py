"""Where trained networks attend."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import numbers
from pipeline.report.figures.style import WIDTH, Theme, greys_map, outline, png, style, weights_map
from pipeline.report.text import counted, listed
from pipeline.study import Training
from pipeline.study.training import Attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN_DIGIT = 3  # its strokes fill neither the whole image nor one place


@figure("attention_maps")
def attention_maps(material: Material) -> list[Drawing]:
    found = [(run, attention) for run in material.runs if run.grid > 1 and (attention := run.attention) is not None]
    if not found:
        return []
    n = numbers([run for run, _ in found])
    rows: list[tuple[str, FloatArray]] = []
    for run, attention in found:
        rows.append((f"{material.label(run)}\nseed {run.seeds[0]}", attention.rollout[0]))
        if len(run.seeds) > 1:
            rows.append((f"{material.label(run)}\nmean of {len(run.seeds)} seeds", attention.rollout.mean(axis=0)))
    images = found[0][1].images
    labels = listed([material.label(run) for run, _ in found])
    whose = " or ".join(dict.fromkeys(f"{attention.reader}'s" for _, attention in found))
    alt = f"The first test image of each digit, and maps of the {whose} attention rollout on the patches of {labels}."
    seeds = f"the first seed's, and the mean over n = {n} seeds" if n != "1" else "one seed's (n = 1)"
    caption = (
        f"The {whose} attention rollout on the patches, for the first test image of each digit: {seeds}. All maps share one "
        "scale, in % of all attention; the line is the digit's edge. Patches and other tokens share 100 %, so that alike they would have "
        f"{listed(list(dict.fromkeys(_percent(1 / attention.keys) for _, attention in found)))} % each."
    )
    drawn = [Drawing(alt, caption, lambda theme: draw_rollouts(images, rows, theme))]
    return drawn + [_heads(material.label(run), run, attention) for run, attention in found]


def _heads(label: str, run: Training, attention: Attention) -> Drawing:
    shown = attention.labels.index(_SHOWN_DIGIT) if _SHOWN_DIGIT in attention.labels else 0
    image, maps = attention.images[shown], attention.maps[shown]
    blocks, heads = maps.shape[:2]
    block, head = np.unravel_index(int(maps.reshape(blocks, heads, -1).max(axis=2).argmax()), (blocks, heads))
    alt = (
        f"{label}: maps of what the {attention.reader} attends to in each of {counted(blocks, 'block')} and {counted(heads, 'head')}, for "
        f"a test image of a {attention.labels[shown]}. The greatest single weight, {float(maps.max()):.2f}, is in block {block + 1}, head "
        f"{head + 1}."
    )
    caption = (
        f"{label}, seed {run.seeds[0]}: attention of the {attention.reader} to each patch, head by head and block by block, for the test "
        f"image of a {attention.labels[shown]}, whose edge is the line. In % of a head's attention; all {attention.keys} tokens alike "
        f"would have {_percent(1 / attention.keys)} % each. The colours follow the cube root, so that small weights are seen, too."
    )
    return Drawing(alt, caption, lambda theme: draw_heads(image, maps, theme), f"heads-{run.variant}")


def _percent(share: float) -> str:
    return f"{100 * share:.2g}"


def draw_rollouts(images: FloatArray, rows: Sequence[tuple[str, FloatArray]], theme: Theme) -> bytes:
    """PNG: a row of test images, one of each class, and a row of their maps for each of `rows`.

    Args:
        images: (image, height, width), in [0, 1]; of ten classes, ten.
        rows: (label of one or two lines, (image, grid, grid) shares of all attention).
    """
    with style(theme):
        left, gap, right = 1.55, 0.05, 0.62
        columns = len(images)
        cell = (WIDTH - left - right - (columns - 1) * gap) / max(columns, 10)
        drawn, grid = _tiles(1 + len(rows), columns, left=left, cell=cell, gap=gap, top=0.06, bottom=0.06)
        most = max(float(maps.max()) for _, maps in rows)
        scale = Normalize(0, most)
        extent = (0, images.shape[2], images.shape[1], 0)
        for number, image in enumerate(images):
            grid[0, number].imshow(image, cmap=greys_map(theme), vmin=0, vmax=1, interpolation="nearest", extent=extent)
            for axes, (_, maps) in zip(grid[1:, number], rows, strict=True):
                axes.imshow(maps[number], cmap=weights_map(theme), norm=scale, interpolation="nearest", extent=extent)
                outline(axes, image, theme)
        for axes, label in zip(grid[:, 0], ["test image", *(label for label, _ in rows)], strict=True):
            _beside(axes, "\n".join(textwrap.fill(part, 21) for part in label.split("\n")))
        _colour_bar(drawn, grid[1:, -1], theme, scale, MaxNLocator(nbins=5).tick_values(0, most))
        return png(drawn)


def draw_heads(image: FloatArray, maps: FloatArray, theme: Theme) -> bytes:
    """PNG: a map for each block and head, on one scale from 0 to the greatest weight.

    Args:
        image: (height, width), in [0, 1].
        maps: (blocks, heads, grid, grid), softmax weights.
    """
    with style(theme):
        across, down = "head", "block"
        if maps.shape[1] < maps.shape[0]:  # the longer side across
            maps, across, down = maps.swapaxes(0, 1), down, across
        rows, columns = maps.shape[:2]
        left, gap, right = 0.72, 0.07, 0.72
        cell = min(1.5, (WIDTH - left - right - (columns - 1) * gap) / columns)
        drawn, grid = _tiles(rows, columns, left=left, cell=cell, gap=gap, top=0.3, bottom=0.12)
        scale = PowerNorm(1 / 3, 0, float(maps.max()))
        extent = (0, image.shape[1], image.shape[0], 0)
        for axes, weights in zip(grid.flat, maps.reshape(-1, *maps.shape[2:]), strict=True):
            axes.imshow(weights, cmap=weights_map(theme), norm=scale, interpolation="nearest", extent=extent)
            outline(axes, image, theme)
        for c, axes in enumerate(grid[0], 1):
            axes.set_title(f"{across} {c}" if cell > 0.55 else f"{c}", fontsize=9, fontweight="normal", loc="center")
        for r, axes in enumerate(grid[:, 0], 1):
            _beside(axes, f"{down} {r}")
        _colour_bar(drawn, grid[:, -1], theme, scale, (0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1))
        return png(drawn)


def _colour_bar(drawn: Figure, column: Sequence[Axes], theme: Theme, scale: Normalize, ticks: Iterable[float]) -> None:
    """Draws the scale in % beside the last column of maps, with those of the ticks whose numbers do not touch."""
    top, bottom = column[0].get_position(), column[-1].get_position()
    width, height = drawn.get_size_inches()
    tall = min(top.y1 - bottom.y0, 3 / height)
    place = drawn.add_axes((top.x1 + 0.12 / width, top.y1 - tall, 0.11 / width, tall))
    bar = drawn.colorbar(ScalarMappable(scale, weights_map(theme)), cax=place)
    kept: list[float] = []
    for tick in ticks:
        if 0 <= float(scale(tick)) <= 1 and (not kept or float(scale(tick)) - float(scale(kept[-1])) > 0.16 / (tall * height)):
            kept.append(tick)
    bar.set_ticks(kept, labels=[f"{_percent(tick)} %" for tick in kept])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=9, length=2)
    bar.outline.set_visible(False)


def _tiles(rows: int, columns: int, *, left: float, cell: float, gap: float, top: float, bottom: float) -> tuple[Figure, Any]:
    """A figure of the pages' width with a grid of square axes without frames; all lengths in inches."""
    height = top + rows * cell + (rows - 1) * gap + bottom
    drawn = Figure(figsize=(WIDTH, height))
    grid = np.empty((rows, columns), dtype=object)
    for r, c in np.ndindex(rows, columns):
        x, y = left + c * (cell + gap), height - top - (r + 1) * cell - r * gap
        axes = drawn.add_axes((x / WIDTH, y / height, cell / WIDTH, cell / height))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_linewidth(0.4)
        grid[r, c] = axes
    return drawn, grid


def _beside(axes: Axes, text: str) -> None:
    """A row's name, left of its first axes."""
    axes.annotate(text, (0, 0.5), (-7, 0), xycoords="axes fraction", textcoords="offset points", ha="right", va="center", fontsize=9)
