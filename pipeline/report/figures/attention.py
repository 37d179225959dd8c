"""Where trained networks attend, and how alike the position vectors of their patches are."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from pipeline.measures import positions
from pipeline.measures.definitions import FloatArray
from pipeline.report.figures import panels, tiles
from pipeline.report.figures.base import Material, Picture, figure
from pipeline.report.figures.panels import Line, Panel
from pipeline.report.figures.tiles import Tile
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
    rows = [(f"{material.label(run)}, n = {len(run.seeds)}", attention.rollout.mean(axis=0)) for run, attention in found]
    readers = " or ".join(dict.fromkeys(f"{attention.reader}'s" for _, attention in found))
    caption = (
        f"The {readers} attention rollout on the patches, for the first test image of each digit, mean over n seeds. All maps share one "
        "scale, in % of all attention, patches and other tokens together; the line is the digit's edge. With equal weights each of the "
        f"{found[0][1].keys} tokens of {found[0][0].variant} would have {100 / found[0][1].keys:.2g} %."
    )
    drawn = [Picture(caption, rollouts(found[0][1].images, rows))]
    drawn += [_heads(material.label(run), run, attention) for run, attention in found]
    return drawn + _distances(material, [run for run, _ in found]) + _filters(material, found)


def rollouts(images: FloatArray, rows: Sequence[tuple[str, FloatArray]], titles: Sequence[str] = ()) -> partial[Figure]:
    """A row of images, (image, height, width) in [0, 1], and for each of `rows` one of their maps, (image, grid, grid) shares.

    Args:
        titles: of the columns.
    """
    first = [Tile(image, "greys", title) for image, title in zip(images, titles or [""] * len(images), strict=False)]
    maps = [(name, [Tile(one, over=image) for one, image in zip(maps, images, strict=True)]) for name, maps in rows]
    top = max(float(maps.max()) for _, maps in rows)
    return partial(tiles.draw, [("image" if titles else "test image", first), *maps], 0.67, top, bar=True)


def _heads(label: str, run: Training, attention: Attention) -> Picture:
    shown = attention.labels.index(_SHOWN_DIGIT) if _SHOWN_DIGIT in attention.labels else 0
    maps = attention.maps[shown]
    caption = (
        f"{label}, seed {run.seeds[0]}: attention of the {attention.reader} to each patch, head by head and block by block, for the test "
        f"image of a {attention.labels[shown]}, whose edge is the line. In % of a head's attention; with equal weights each of the "
        f"{attention.keys} tokens would have {100 / attention.keys:.2g} %. The colours follow the cube root, so that small weights show."
    )
    named, image = "head " * (maps.shape[1] < 12), attention.images[shown]
    rows = [
        (f"block {row}", [Tile(one, title=f"{named}{column}" * (row == 1), over=image) for column, one in enumerate(line, 1)])
        for row, line in enumerate(maps, 1)
    ]
    draw = partial(tiles.draw, rows, min(1.1, 6.6 / maps.shape[1]), float(maps.max()), 1 / 3, bar=True)
    return Picture(caption, draw, f"heads-{run.variant}")


def _distances(material: Material, runs: Sequence[Training]) -> list[Picture]:
    lines = []
    for run in runs:
        columns = (f"attention_distance_{block}" for block in range(1, run.settings.model.blocks + 1))  # type: ignore[attr-defined]
        if found := [values for name in columns if (values := (run.evaluation or {}).get(name)) is not None]:
            lines.append(Line(material.label(run), tuple(range(1, len(found) + 1)), np.stack(found, axis=1), material.is_baseline(run)))
    first, places = runs[0], np.indices((runs[0].grid, runs[0].grid)).reshape(2, -1)
    even = np.hypot(*(places[:, :, None] - places[:, None])).mean() * first.settings.model.shape.size / first.grid
    caption = (
        "How far attention reaches, by block: distance between the centres of the patch that reads and the one that is read, weighted by "
        "attention, mean over heads and the first 1,000 test images. After Dosovitskiy et al. 2021, appendix D.7. Equal weights of the "
        f"{first.grid**2} patches of {first.variant} reach {even:.1f} pixels."
    )
    drawn = partial(panels.draw, [Panel("Attention distance (pixels)", "block", lines, "plain", "values")])
    return [Picture(caption, drawn, "distance")] if lines else []


def _filters(material: Material, found: Sequence[tuple[Training, Attention]]) -> list[Picture]:
    rows = []
    for run, attention in found:
        if attention.filters is not None:
            side = run.settings.model.shape.size // run.grid
            values, parts = np.linalg.svd(attention.filters, full_matrices=False)[1:]
            shown = parts[:_FILTERS].reshape(min(len(parts), _FILTERS), -1, side, side).mean(1)
            shares = 100 * values**2 / (values**2).sum()
            scaled = [(part / abs(part).max()).round(4) for part in shown]  # the last bits are the processor's
            parted = [Tile(part, "signs", f"{share:.0f}") for part, share in zip(scaled, shares, strict=False)]
            rows.append((f"{material.label(run)}, seed {run.seeds[0]}", parted))
    caption = (
        "What the patch embedding looks at: the first principal components of its filters, and the share of their squares that each has, "
        "in %. A component and its negative are the same."
    )
    return [Picture(caption, partial(tiles.draw, rows, 0.75), "filters")] if rows else []


@figure("position_similarity")
def position_similarity(material: Material) -> list[Picture]:
    """Cosine similarity of position vectors, patch by patch."""
    mosaics: list[Tile] = []
    for run in material.runs:
        if run.grid < 2 or (vectors := run.patch_positions) is None or not vectors.size or not np.isfinite(vectors).all():
            continue
        fixed = run.options["model.position"] != "learned"
        similarity = positions.cosine_similarity(vectors[:1] if fixed else vectors).round(4)  # the last bits are the processor's
        said = f"{material.label(run)}, {'fixed' if fixed else f'n = {len(similarity)}'}"
        mosaics.append(Tile(positions.similarity_mosaic(similarity.mean(axis=0).round(4), run.grid), "signs", said))
    caption = (
        "Cosine similarity of the position vector of each patch with those of all patches. Each small square belongs to the patch at its "
        "place in the image and maps the whole image. The class token's vector is left out. Learned vectors are those after the last "
        "epoch, the mean over n seeds is of their similarities, as the vectors of different seeds have no common axes."
    )
    rows = [("", mosaics[place : place + 2]) for place in range(0, len(mosaics), 2)]
    return [Picture(caption, partial(tiles.draw, rows, 3.7, bar=True))] if rows else []
