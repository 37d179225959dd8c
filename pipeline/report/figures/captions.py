"""Captions of the first test scenes, and where the decoder looks for each word."""

from functools import partial

import numpy as np

from pipeline.captioning.grammar import grammar_of
from pipeline.report.figures import tiles
from pipeline.report.figures.base import Material, Picture, figure
from pipeline.report.figures.tiles import Tile

SCENES = 6  # in a figure
MIN_DIGITS = 3  # of a scene that shows where a decoder looks
_ACROSS = 8  # maps in a row


@figure("captions")
def captions(material: Material) -> list[Picture]:
    """The first test scenes, and a table of what each captioner says of them."""
    written = next((found for run in material.runs if (found := run.captions)), None)
    caption = (
        f"The first {SCENES} test scenes, chosen by their place alone. The table below has the greedy caption of each model's first seed."
    )
    scenes = [Tile(scene, "greys", f"scene {i}", crossed=True) for i, scene in enumerate(written.scenes[:SCENES], 1)] if written else []
    return [Picture(caption, partial(tiles.draw, [("", scenes)], 1.3))] if scenes else []


def caption_rows(material: Material) -> list[list[str]]:
    """[scene, model, right or wrong, caption] of the scenes of the figure."""
    rows = []
    found = [(run, written) for run in material.runs if (written := run.captions)]
    for scene in range(min((len(written.scenes[:SCENES]) for _, written in found), default=0)):
        for run, written in found:
            grammar = grammar_of(run.settings.data.dataset)
            words = grammar.decode(written.greedy[0, scene].tolist())
            right = grammar.parse(words) == tuple(None if cell < 0 else int(cell) for cell in written.cells[scene])
            rows.append([str(scene + 1), material.label(run), "right" if right else "wrong", " ".join(words)])
    return rows


@figure("gaze")
def gaze(material: Material) -> list[Picture]:
    """Where a captioner's decoder looks before each word."""
    looking = [(run, found, found.attention) for run in material.runs if (found := run.captions) and found.attention is not None]
    if not looking:
        return []
    run, found, attention = max(looking, key=lambda one: material.is_baseline(one[0]))
    digits = (found.cells[: len(found.scenes)] >= 0).sum(1)
    place = int(np.flatnonzero(digits >= min(MIN_DIGITS, digits.max()))[0])
    words = (*grammar_of(run.settings.data.dataset).decode(found.greedy[0, place].tolist()), "end")[: attention.shape[3]]
    weights = np.nan_to_num(attention[:, -1, place, : len(words)].mean(0))  # (word, token), of the deepest level
    side, scene = round(weights.shape[-1] ** 0.5), found.scenes[place]
    caption = (
        f"{material.label(run)}, seed {run.seeds[0]}: where the decoder looks before it writes each word of its greedy caption of the "
        f"first test scene of {MIN_DIGITS} digits or more. A map is the mean over the decoder's blocks and heads, from 0 (white) to the "
        "largest weight of the figure; the line is the edge of the digits."
    )
    maps = [Tile(one, title=word, over=scene) for word, one in zip(words, weights.reshape(-1, side, side), strict=True)]
    line = [Tile(scene, "greys", "the scene", crossed=True), *maps]
    rows = [("", line[start : start + _ACROSS]) for start in range(0, len(line), _ACROSS)]
    return [Picture(caption, partial(tiles.draw, rows, 1.0, float(weights.max())), run.variant)]
