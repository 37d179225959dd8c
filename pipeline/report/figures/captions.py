"""Captions of the first test scenes, where the decoder looks for each word, and scene error against epochs."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.captioning.grammar import Words, grammar_of
from pipeline.measures import MEASURES
from pipeline.measures.definitions import BEAM_WIDTH, FloatArray
from pipeline.report.figures import base
from pipeline.report.figures.base import Line, Material, Picture, bare, figure
from pipeline.report.figures.scaling import draw_lines

SCENES = 6  # in a figure
MIN_DIGITS = 3  # of a scene that shows where a decoder looks
_ACROSS = 8  # maps in a row


# --- captions beside their scenes ---


@figure("captions")
def captions(material: Material) -> list[Picture]:
    """The first test scenes, and a table of what each captioner says of them."""
    written = next((found for run in material.runs if (found := run.captions)), None)
    caption = (
        f"The first {SCENES} test scenes, chosen by their place alone. The table below has the greedy caption of each model's first seed."
    )
    return [Picture(caption, partial(draw_scenes, written.scenes[:SCENES]))] if written else []


def caption_rows(material: Material) -> list[list[str]]:
    """[scene, model, caption] of the scenes of the figure; a wrong caption has **other words than the nearest reference** [its words]."""
    rows = []
    found = [(run, written) for run in material.runs if (written := run.captions)]
    for scene in range(min((len(written.scenes[:SCENES]) for _, written in found), default=0)):
        for run, written in found:
            grammar = grammar_of(run.settings.data.dataset)
            words = grammar.decode(written.greedy[0, scene].tolist())
            right = grammar.parse(words) == tuple(None if cell < 0 else int(cell) for cell in written.cells[scene])
            said = " ".join(words) if right else marked(words, [grammar.decode(ids) for ids in written.references[scene].tolist()])
            rows.append([str(scene + 1), material.label(run), "right" if right else "wrong", said])
    return rows


def marked(words: Words, references: Sequence[Words]) -> str:
    """A caption compared with its nearest reference: **words that it alone has** [words that it lacks]."""
    matchers = [SequenceMatcher(None, words, reference, autojunk=False) for reference in references]
    reference, matcher = max(zip(references, matchers, strict=True), key=lambda pair: pair[1].ratio())
    parts = []
    for same, start, end, from_, to in matcher.get_opcodes():
        own, theirs = " ".join(words[start:end]), " ".join(reference[from_:to])
        parts += [own] if same == "equal" else [f"**{own}**"] * bool(own) + [f"[{theirs}]"] * bool(theirs)
    return " ".join(parts)


def draw_scenes(scenes: FloatArray) -> Figure:
    """The scenes, (scene, height, width) in [0, 1], in a row with their numbers."""
    drawn = Figure(figsize=(base.WIDTH, 1.7), layout="constrained")
    for number, (axes, scene) in enumerate(zip(drawn.subplots(1, len(scenes), squeeze=False)[0], scenes, strict=True), 1):
        _scene(axes, scene, f"scene {number}")
    return drawn


def _scene(axes: Axes, scene: FloatArray, title: str) -> None:
    """A scene with the edges of its cells."""
    axes.imshow(scene, cmap=base.GREYS, vmin=0, vmax=1, interpolation="nearest")
    bare(axes)
    for line in (axes.axvline, axes.axhline):
        line(scene.shape[1] / 2 - 0.5, color=base.MUTED, linewidth=0.6)
    axes.set_title(title, fontsize=9.5, fontweight="normal", loc="center")


# --- where a decoder looks ---


@figure("gaze")
def gaze(material: Material) -> list[Picture]:
    """Where a captioner's decoder looks before each word."""
    looking = [(run, found, found.attention) for run in material.runs if (found := run.captions) and found.attention is not None]
    looking.sort(key=lambda one: material.is_baseline(one[0]), reverse=True)
    drawn = []
    for has_levels in (False, True):
        for run, found, attention in [one for one in looking if (one[2].shape[1] > 1) == has_levels][:1]:
            digits = (found.cells[: len(found.scenes)] >= 0).sum(1)
            scene = int(np.flatnonzero(digits >= min(MIN_DIGITS, digits.max()))[0])
            words = (*grammar_of(run.settings.data.dataset).decode(found.greedy[0, scene].tolist()), "end")[: attention.shape[3]]
            weights = np.nan_to_num(attention.mean(0)[:, scene, : len(words)])  # (level, word, token)
            side = round(weights.shape[-1] ** 0.5)
            caption = (
                f"{material.label(run)}, seed {run.seeds[0]}: where the decoder looks before it writes each word of its greedy caption of "
                f"the first test scene of {MIN_DIGITS} digits or more. A map is the mean over the decoder's blocks and heads, from 0 "
                "(white) to the largest weight of the figure; the line is the edge of the digits."
                + (" Below each word: the levels of the encoder, the last the deepest." if has_levels else "")
            )
            draw = partial(draw_gaze, found.scenes[scene], words, weights.reshape(*weights.shape[:2], side, side))
            drawn.append(Picture(caption, draw, run.variant))
    return drawn


def draw_gaze(scene: FloatArray, words: Sequence[str], maps: FloatArray) -> Figure:
    """The scene, (height, width), and a map for each word, (level, word, grid, grid), with the digits' edges."""
    levels, lines = len(maps), -(-(1 + len(words)) // _ACROSS)
    drawn = Figure(figsize=(base.WIDTH, 1.12 * lines * levels + 0.25 * lines), layout="constrained")
    grid = drawn.subplots(lines * levels, _ACROSS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    _scene(grid[0, 0], scene, "the scene")
    grid[0, 0].set_axis_on()
    for place, word in enumerate(words, 1):
        for level in range(levels):
            axes = grid[place // _ACROSS * levels + level, place % _ACROSS]
            axes.set_axis_on()
            extent = (0, scene.shape[1], scene.shape[0], 0)
            axes.imshow(maps[level, place - 1], cmap=base.WEIGHTS, vmin=0, vmax=maps.max(), interpolation="nearest", extent=extent)
            base.outline(axes, scene, 0.5)
            bare(axes)
            if not level:
                axes.set_title(word, fontsize=9.5, loc="center")
    return drawn


# --- scene error against epochs ---


@figure("budget")
def budget(material: Material) -> list[Picture]:
    """Scene error against epochs, each a training of its own."""
    lines = []
    for measure, said in (("scene accuracy", "greedy"), ("scene accuracy by beam search", f"beam of {BEAM_WIDTH}")):
        found = {run.variant: values for run in material.runs if (values := MEASURES[measure].per_seed(run)) is not None}
        for members in base.same_but([run for run in material.runs if run.variant in found], "train.epochs", "train.seeds"):
            members.sort(key=lambda run: run.settings.train.epochs)
            values = pd.DataFrame({run.variant: pd.Series(1 - found[run.variant]) for run in members}).to_numpy()
            x = tuple(float(run.settings.train.epochs) for run in members)
            lines.append(Line(f"{' / '.join(run.variant for run in members)}, {said}", x, values, any(map(material.is_baseline, members))))
    if not any(len(line.x) > 1 for line in lines):
        return []
    caption = (
        "Share of the test scenes whose caption is not true and complete, against the number of epochs, each a training of its own. "
        "Both axes are logarithmic."
    )
    return [Picture(caption, partial(draw_lines, lines, "Scene error on the test scenes (%, log scale)", "epochs (log scale)", "errors"))]
