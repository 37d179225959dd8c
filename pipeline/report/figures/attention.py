"""Where trained networks attend."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import numbers
from pipeline.report.figures.style import INK, PAGE, WIDTH, Theme, png, style
from pipeline.report.text import counted, listed
from pipeline.study import Training
from pipeline.study.training import Attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES_UNIFORM = 8.0  # attention of so many times the uniform weight, or of so small a part of it, has the full colour
_SHOWN_DIGIT = 3  # its strokes are neither everywhere nor at one place


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
    whose = "class token's" if all(attention.has_cls for _, attention in found) else "class token's (or, without one, the mean token's)"
    alt = f"The first test image of each digit, and maps of the {whose} attention rollout on the patches of {labels}."
    seeds = f"the first seed's, and the mean over n = {n} seeds" if n != "1" else "one seed's (n = 1)"
    caption = (
        f"The {whose} attention rollout on the patches, for the first test image of each digit: {seeds}. Each map goes from its own "
        "least value (the page's colour) to its own greatest; the line is the digit's edge."
    )
    drawn = [Drawing(alt, caption, lambda theme: draw_rollouts(images, rows, theme))]
    return drawn + [_heads(material.label(run), run, attention) for run, attention in found]


def _heads(label: str, run: Training, attention: Attention) -> Drawing:
    shown = attention.labels.index(_SHOWN_DIGIT) if _SHOWN_DIGIT in attention.labels else 0
    image, maps = attention.images[shown], attention.maps[shown]
    blocks, heads = maps.shape[:2]
    whose = "class token" if attention.has_cls else "mean token"
    block, head = np.unravel_index(int(maps.reshape(blocks, heads, -1).max(axis=2).argmax()), (blocks, heads))
    alt = (
        f"{label}: maps of what the {whose} attends to in each of {counted(blocks, 'block')} and {counted(heads, 'head')}, for a test "
        f"image of a {attention.labels[shown]}. The greatest single weight, {float(maps.max()):.2f}, is in block {block + 1}, head "
        f"{head + 1}."
    )
    caption = (
        f"{label}, seed {run.seeds[0]}: attention of the {whose} to each patch, head by head and block by block, for the test image of a "
        f"{attention.labels[shown]}, whose edge is the line. The page's colour is the weight that all {attention.keys} tokens would have "
        "if they shared it alike; warm colours are more, cold ones less."
    )
    return Drawing(alt, caption, lambda theme: draw_heads(image, maps, attention.keys, theme), f"heads-{run.variant}")


def draw_rollouts(images: FloatArray, rows: Sequence[tuple[str, FloatArray]], theme: Theme) -> bytes:
    """PNG: test images in a row, one of each class, and below them a row of maps each.

    Args:
        images: (image, height, width), in [0, 1]; of ten classes, ten.
        rows: (label, which may have two lines, and (image, grid, grid)): drawn from each map's own least to its own greatest value.
    """
    with style(theme):
        left, gap = 1.62, 0.05
        columns = len(images)
        cell = (WIDTH - left - 0.02 - (columns - 1) * gap) / max(columns, 10)
        drawn, grid = _tiles(1 + len(rows), columns, left=left, cell=cell, gap=gap, top=0.06, bottom=0.06)
        strong = ("#BFDDF0", "#3498CF", "#003B5C") if theme == "light" else ("#12405C", "#56B4E9", "#E2F3FD")
        palette = LinearSegmentedColormap.from_list("attention", [PAGE[theme], *strong])
        greys = LinearSegmentedColormap.from_list("ink", [PAGE[theme], INK[theme]])
        extent = (0, images.shape[2], images.shape[1], 0)
        for number, image in enumerate(images):
            grid[0, number].imshow(image, cmap=greys, vmin=0, vmax=1, interpolation="nearest", extent=extent)
            for axes, (_, maps) in zip(grid[1:, number], rows, strict=True):
                axes.imshow(maps[number], cmap=palette, interpolation="nearest", extent=extent)
                _outline(axes, image, theme)
        for axes, label in zip(grid[:, 0], ["test image", *(label for label, _ in rows)], strict=True):
            _beside(axes, "\n".join(textwrap.fill(part, 22) for part in label.split("\n")))
        return png(drawn)


def draw_heads(image: FloatArray, maps: FloatArray, tokens: int, theme: Theme) -> bytes:
    """PNG: a map for each block and head, in multiples of the weight that all tokens would have alike.

    Args:
        image: (height, width), in [0, 1].
        maps: (blocks, heads, grid, grid), softmax weights.
        tokens: how many keys share the weight of 1.
    """
    with style(theme):
        across, down = "head", "block"
        if maps.shape[1] < maps.shape[0]:  # the longer side across
            maps, across, down = maps.swapaxes(0, 1), down, across
        rows, columns = maps.shape[:2]
        left, gap, right = 0.72, 0.07, 1.25
        cell = min(1.5, (WIDTH - left - right - (columns - 1) * gap) / columns)
        drawn, grid = _tiles(rows, columns, left=left, cell=cell, gap=gap, top=0.3, bottom=0.12)
        # Ends that are no brighter than the ink, so that the digit's edge is seen on them.
        cold, warm = (
            (("#4C8FCC", "#B5D3EC"), ("#F5C3A0", "#D9652B")) if theme == "light" else (("#3F8FD0", "#1B4468"), ("#7A3B14", "#F0853F"))
        )
        palette = LinearSegmentedColormap.from_list("times uniform", [*cold, PAGE[theme], *warm])
        reach = float(np.log2(TIMES_UNIFORM))
        extent = (0, image.shape[1], image.shape[0], 0)
        for axes, weights in zip(grid.flat, maps.reshape(-1, *maps.shape[2:]), strict=True):
            times = np.log2(np.maximum(weights.astype(np.float64) * tokens, 2.0 ** -(2 * reach)))
            picture = axes.imshow(times, cmap=palette, vmin=-reach, vmax=reach, interpolation="nearest", extent=extent)
            _outline(axes, image, theme)
        for c, axes in enumerate(grid[0], 1):
            axes.set_title(f"{across} {c}" if cell > 0.55 else f"{c}", fontsize=9, fontweight="normal", loc="center")
        for r, axes in enumerate(grid[:, 0], 1):
            _beside(axes, f"{down} {r}")
        width, height = drawn.get_size_inches()
        tall = min(2.2, height - 0.42)
        place = (left + columns * (cell + gap) + 0.12) / width
        bar = drawn.colorbar(picture, cax=drawn.add_axes((place, (height - 0.3 - tall) / height, 0.12 / width, tall / height)))
        bar.set_ticks([-reach, 0, reach], labels=[f"1/{TIMES_UNIFORM:g}", "uniform", f"{TIMES_UNIFORM:g} times"])
        bar.ax.tick_params(labelsize=9, length=2)
        bar.outline.set_visible(False)
        return png(drawn)


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


def _outline(axes: Axes, image: FloatArray, theme: Theme) -> None:
    """The digit's edge, on axes that hold the image."""
    centres = np.arange(image.shape[0]) + 0.5
    axes.contour(centres, centres, image, levels=[0.4], colors=[INK[theme]], linewidths=0.7, alpha=0.9)
