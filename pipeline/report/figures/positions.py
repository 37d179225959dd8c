"""The similarity of the patches' position vectors."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from pipeline.measures import positions
from pipeline.measures.definitions import FloatArray
from pipeline.params import ModelSettings
from pipeline.report.figures.base import SIGNS, WIDTH, Material, Picture, figure


@figure("position_similarity")
def position_similarity(material: Material) -> list[Picture]:
    """Cosine similarity of position vectors, patch by patch."""
    panels: list[tuple[str, FloatArray]] = []
    for run in material.runs:
        model = run.settings.model
        if not isinstance(model, ModelSettings) or model.position == "none" or run.grid < 2 or not run.has_positions:
            continue
        vectors = run.patch_positions
        if not np.isfinite(vectors).all():
            continue
        fixed = model.position != "learned"
        similarity = positions.cosine_similarity(vectors[:1] if fixed else vectors).round(4)  # the last bits are the processor's
        seeds = "fixed" if fixed else f"seed {run.seeds[0]}"
        panels.append((f"{material.label(run)}, {seeds}", positions.similarity_mosaic(similarity[0], run.grid)))
        if len(similarity) > 1:
            mean = positions.similarity_mosaic(similarity.mean(axis=0).round(4), run.grid)
            panels.append((f"{material.label(run)}, mean over {len(similarity)} seeds", mean))
    caption = (
        "Cosine similarity of the position vector of each patch with those of all patches. Each small square belongs to the patch at its "
        "place in the image and maps the whole image. The class token's vector is left out. Learned vectors are those after the last "
        "epoch; a mean over seeds is of similarities, as the vectors of different seeds have no common axes."
    )
    return [Picture(caption, partial(draw_similarity, panels))] if panels else []


def draw_similarity(panels: Sequence[tuple[str, FloatArray]]) -> Figure:
    """Mosaics (from `positions.similarity_mosaic`), two a row; red or orange is alike, blue is opposite."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn = Figure(figsize=(WIDTH if columns == 2 else WIDTH / 2 + 0.5, 4.05 * rows), layout="constrained")
    grid = drawn.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (label, mosaic) in zip(grid.flat, panels, strict=False):
        image = axes.imshow(mosaic, cmap=SIGNS, vmin=-1, vmax=1, interpolation="nearest")
        axes.set_title(textwrap.fill(label, 50), fontweight="normal")
    bar = drawn.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.set_label("cosine similarity")
    bar.outline.set_visible(False)
    return drawn
