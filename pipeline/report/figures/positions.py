"""The similarity of the patches' position vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pipeline.measures import positions
from pipeline.measures.definitions import FloatArray
from pipeline.params import ModelSettings
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.style import WIDTH, Theme, png, signs_map, style
from pipeline.report.text import listed, signed
from pipeline.study import Training
from pipeline.study.claims import measure_values
from pipeline.study.statistics import Summary, summarize


@dataclass(frozen=True)
class SimilarityRow:
    """What a variant's position vectors are like, over its seeds; a fixed table has one value.

    Attributes:
        nearness: rank correlation of the similarity of two patches with their nearness.
        border: mean cosine similarity of two patches at the edge of the image.
        inner: the same of two that are not; None on a grid without three such patches, as `inner_nearness`.
        inner_nearness: as `nearness`, of patches that are not at the edge.
    """

    label: str
    fixed: bool
    nearness: Summary
    border: Summary
    inner: Summary | None
    inner_nearness: Summary | None


def _with_positions(runs: Sequence[Training]) -> list[Training]:
    """The runs with position vectors on a grid that are stored and finite."""
    return [
        run
        for run in runs
        if isinstance(model := run.settings.model, ModelSettings)
        and model.position != "none"
        and run.grid > 1
        and run.has_positions
        and np.isfinite(run.patch_positions).all()
    ]


def _is_fixed(run: Training) -> bool:
    return isinstance(run.settings.model, ModelSettings) and run.settings.model.position != "learned"


def similarity_rows(material: Material) -> list[SimilarityRow]:
    """A row for each variant with position vectors."""
    rows = []
    for run in _with_positions(material.runs):
        count = 1 if _is_fixed(run) else len(run.seeds)
        vectors, grid = run.patch_positions[:count], run.grid
        row, column = np.divmod(np.arange(grid**2), grid)
        edge = (np.minimum(row, column) == 0) | (np.maximum(row, column) == grid - 1)
        inside = vectors[:, ~edge]
        rows.append(
            SimilarityRow(
                material.label(run),
                _is_fixed(run),
                summarize(measure_values("nearness correlation", run)[:count]),
                _mean_similarity(vectors[:, edge]),
                _mean_similarity(inside) if grid > 3 else None,
                summarize(np.array([positions.nearness_correlation(one, grid - 2) for one in inside])) if grid > 3 else None,
            )
        )
    return rows


def _mean_similarity(vectors: FloatArray) -> Summary:
    """Of all pairs. `vectors`: (seed, patch, dim)."""
    first, second = np.triu_indices(vectors.shape[1], 1)
    return summarize(positions.cosine_similarity(vectors)[:, first, second].mean(1))


@figure("position_similarity")
def position_similarity(material: Material) -> list[Drawing]:
    panels: list[tuple[str, FloatArray]] = []
    for run in _with_positions(material.runs):
        label = material.label(run)
        similarity = positions.cosine_similarity(run.patch_positions[:1] if _is_fixed(run) else run.patch_positions)
        first = positions.similarity_mosaic(similarity[0], run.grid)
        if _is_fixed(run):
            panels.append((f"{label} (fixed)", first))
            continue
        panels.append((f"{label}, seed {run.seeds[0]}", first))
        if len(run.seeds) > 1:
            mosaic = positions.similarity_mosaic(similarity.mean(axis=0), run.grid)
            panels.append((f"{label}, mean over {len(run.seeds)} seeds", mosaic))
    if not panels:
        return []
    rows = similarity_rows(material)
    alt = (
        f"Mosaics of the cosine similarities of position vectors: {listed([label for label, _ in panels])}. "
        f"Rank correlation with nearness on the grid: {', '.join(f'{row.label} {signed(row.nearness.mean)}' for row in rows)}."
    )
    caption = (
        "Cosine similarity of the position vector of each patch with those of all patches. Each small square belongs to the patch at "
        "its place in the image and maps the whole image: red or orange is alike, blue is opposite, the page's colour is neither. The "
        "class token's vector is left out. Learned vectors are those after the last epoch; a mean over seeds is of similarities, as the "
        "vectors of different seeds have no common axes."
    )
    return [Drawing(alt, caption, lambda theme: draw_similarity(panels, theme))]


def draw_similarity(panels: Sequence[tuple[str, FloatArray]], theme: Theme) -> bytes:
    """PNG: mosaics (from `positions.similarity_mosaic`), two a row; red or orange is alike, blue is opposite."""
    with style(theme):
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        drawn = Figure(figsize=(WIDTH if columns == 2 else WIDTH / 2 + 0.5, 4.05 * rows), layout="constrained")
        drawn.get_layout_engine().set(wspace=0.05, hspace=0.03)  # type: ignore[union-attr,call-arg]
        grid = drawn.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, (label, mosaic) in zip(grid.flat, panels, strict=False):
            image = axes.imshow(mosaic, cmap=signs_map(theme), vmin=-1, vmax=1, interpolation="nearest")
            axes.set_title(label, fontweight="normal")
        bar = drawn.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.02, ticks=[-1, -0.5, 0, 0.5, 1])
        bar.set_label("cosine similarity")
        bar.outline.set_visible(False)
        return png(drawn, few_colours=False)
