"""Captions of the first test scenes, where the decoder looks for each word, and scene error against epochs."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

from pipeline.captioning.grammar import Grammar, Words, grammar_of
from pipeline.measures import MEASURES
from pipeline.measures.definitions import BEAM_WIDTH, FloatArray
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import bands, draw_bars, error_axis, log_ticks, move_aside, same_but
from pipeline.report.figures.style import (
    COLOURS,
    DASHES,
    INK,
    MUTED,
    PAGE,
    WIDTH,
    Theme,
    greys_map,
    legend_below,
    line_styles,
    outline,
    png,
    style,
    tidy,
    weights_map,
)
from pipeline.report.text import counted, listed, percent
from pipeline.study import Training
from pipeline.study.training import Captions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SCENES, MAX_CAPTIONS = 6, 24  # in a figure; many models leave fewer scenes
MIN_DIGITS = 3  # of a scene that shows where a decoder looks

Kind = Literal["right", "wrong", "missing"]


# --- captions beside their scenes ---


@dataclass(frozen=True)
class Written:
    """A caption: whether it is true and complete, and its words compared with the nearest reference."""

    label: str
    right: bool
    words: tuple[tuple[str, Kind], ...]


@figure("captions")
def captions(material: Material) -> list[Drawing]:
    found = [(run, written) for run in material.runs if (written := run.captions) is not None]
    if not found:
        return []
    first = found[0][1]
    count = max(1, min(len(first.scenes), MAX_SCENES, MAX_CAPTIONS // len(found)))
    grammar = grammar_of(found[0][0].settings.data.dataset)
    rows = [[_written(material.label(run), grammar, one, scene) for run, one in found] for scene in range(count)]
    spoken = listed([f"{row[0].label} {sum(one.right for one in row)}" for row in zip(*rows, strict=True)])
    alt = f"The first {counted(count, 'test scene')} with the caption of each model. Of {count} are true and complete: {spoken}."
    caption = (
        f"The first {counted(count, 'test scene')}, chosen by their place alone, with the greedy caption of each model's first seed. "
        "A tick: true and complete, in any wording. The coloured words of a wrong caption differ from the nearest reference, whose words "
        "stand there in brackets; what they say may be true in other words."
    )
    return [Drawing(alt, caption, lambda theme: draw_captions(first.scenes[:count], rows, theme))]


def _written(label: str, grammar: Grammar, found: Captions, scene: int) -> Written:
    words = grammar.decode(found.greedy[0, scene].tolist())
    right = grammar.parse(words) == tuple(None if cell < 0 else int(cell) for cell in found.cells[scene])
    references = [grammar.decode(reference) for reference in found.references[scene].tolist()]
    return Written(label, right, tuple((word, "right") for word in words) if right else compared(words, references))


def compared(words: Words, references: Sequence[Words]) -> tuple[tuple[str, Kind], ...]:
    """A caption's words, 'wrong' where the nearest reference has others, and the reference's words there as 'missing'."""
    matchers = [SequenceMatcher(None, words, reference, autojunk=False) for reference in references]
    reference, matcher = max(zip(references, matchers, strict=True), key=lambda pair: pair[1].ratio())
    marked: list[tuple[str, Kind]] = []
    for same, start, end, from_, to in matcher.get_opcodes():
        marked += [(word, "right" if same == "equal" else "wrong") for word in words[start:end]]
        marked += [(word, "missing") for word in reference[from_:to] if same != "equal"]
    return tuple(marked)


def draw_captions(scenes: FloatArray, rows: Sequence[Sequence[Written]], theme: Theme) -> bytes:
    """PNG: a row for each scene with its picture and its captions, one below the other.

    Args:
        scenes: (scene, height, width), in [0, 1].
        rows: the captions of each scene.
    """
    side, line, gap, named = 1.0, 0.185, 0.2, 1.4  # inches; `named`: where the labels start
    labels = [textwrap.wrap(one.label, 24) for one in rows[0]]
    with style(theme):
        said = named + 0.12 + max(TextPath((0, 0), part, size=9).get_extents().width for label in labels for part in label) / 72
    places = int((WIDTH - said - 0.08) / _MONOSPACED)
    laid = [[(label, one, _lines(one.words, places)) for label, one in zip(labels, row, strict=True)] for row in rows]
    counts = [[max(len(label), len(lines)) for label, _, lines in row] for row in laid]
    written = [line * sum(count) + 0.04 * (len(count) - 1) for count in counts]
    heights = [max(side, tall) for tall in written]
    height = 0.1 + sum(heights) + gap * (len(rows) - 1)
    with style(theme):
        drawn = Figure(figsize=(WIDTH, height))
        right, wrong = COLOURS[theme][2], COLOURS[theme][1]
        colours = {"right": INK[theme], "wrong": wrong, "missing": MUTED[theme]}

        def write(x: float, y: float, text: str, colour: str, **options: Any) -> None:
            drawn.text(x / WIDTH, y / height, text, color=colour, fontsize=9, va="center", **options)

        top = height - 0.05
        for scene, row, tall, used in zip(scenes, laid, heights, written, strict=True):
            _picture(drawn.add_axes((0.02 / WIDTH, (top - side) / height, side / WIDTH, side / height)), scene, theme)
            y = top - (tall - used + line) / 2
            for label, one, lines in row:
                write(1.17, y, "\N{CHECK MARK}" if one.right else "\N{BALLOT X}", right if one.right else wrong, fontweight="bold")
                for number, part in enumerate(label):
                    write(named, y - number * line, part, MUTED[theme])
                for number, words in enumerate(lines):
                    for place, word, kind in words:
                        weight = "bold" if kind == "wrong" else "normal"
                        x = said + place * _MONOSPACED
                        write(x, y - number * line, word, colours[kind], family="DejaVu Sans Mono", fontweight=weight)
                y -= line * max(len(label), len(lines)) + 0.04
            top -= tall + gap
        return png(drawn)


_MONOSPACED = 9 * 0.602 / 72  # inches: width of a letter of DejaVu Sans Mono at 9 points


def _lines(words: Sequence[tuple[str, Kind]], places: int) -> list[list[tuple[int, str, Kind]]]:
    """Lines of at most `places` letters as [(place of the first letter, word, kind)]; adjacent missing words share a pair of brackets."""
    lines: list[list[tuple[int, str, Kind]]] = [[]]
    at = 0
    for number, (word, kind) in enumerate(words):
        if kind == "missing":
            before, after = (0 <= i < len(words) and words[i][1] == "missing" for i in (number - 1, number + 1))
            word = f"{'' if before else '['}{word}{'' if after else ']'}"
        if at + len(word) > places and lines[-1]:
            lines.append([])
            at = 0
        lines[-1].append((at, word, kind))
        at += len(word) + 1
    return lines


def _picture(axes: Axes, scene: FloatArray, theme: Theme) -> None:
    """A scene with the edges of its cells."""
    axes.imshow(scene, cmap=greys_map(theme), vmin=0, vmax=1, interpolation="nearest")
    _bare(axes, theme)
    middle = scene.shape[1] / 2 - 0.5
    axes.axvline(middle, color=MUTED[theme], linewidth=0.6)
    axes.axhline(middle, color=MUTED[theme], linewidth=0.6)


def _bare(axes: Axes, theme: Theme) -> None:
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(color=MUTED[theme], linewidth=0.6)


# --- where a decoder looks ---


@dataclass(frozen=True)
class Look:
    """A scene (height, width), the words of its caption and "end", and the decoder's attention before each: (level, word, grid, grid)."""

    scene: FloatArray
    words: tuple[str, ...]
    maps: FloatArray


@figure("gaze")
def gaze(material: Material) -> list[Drawing]:
    looking = [(run, found, found.attention) for run in material.runs if (found := run.captions) and found.attention is not None]
    plain = [one for one in looking if one[2].shape[1] == 1]
    plain.sort(key=lambda one: material.is_baseline(one[0]), reverse=True)
    meshed = [one for one in looking if one[2].shape[1] > 1]
    return [_gaze(material.label(one[0]), *one) for one in (*plain[:1], *meshed[:1])]


def _gaze(label: str, run: Training, found: Captions, attention: FloatArray) -> Drawing:
    levels = attention.shape[1]
    digits = (found.cells[: len(found.scenes)] >= 0).sum(1)
    chosen = np.flatnonzero(digits >= min(MIN_DIGITS, digits.max()))[: 1 if levels > 1 else 2].tolist()
    looks = [_look(found, attention, grammar_of(run.settings.data.dataset), scene) for scene in chosen]
    strongest = max(float(look.maps.max()) for look in looks)
    said = "; ".join(f'"{" ".join(look.words[:-1])}"' for look in looks)
    alt = f"{label}: maps of where the decoder looks in {counted(len(looks), 'test scene')} before each word of its caption: {said}."
    of = "The first test scene" if len(looks) == 1 else f"The first {len(looks)} test scenes"
    caption = (
        f"{label}, seed {run.seeds[0]}: where the decoder looks before it writes each word. {of} of {digits[chosen].min()} digits or more, "
        f"with the greedy caption. A map has {looks[0].maps[0, 0].size} places and is the mean over the decoder's blocks and heads"
        + (f", a row for each of the encoder's {levels} levels, the last the deepest" if levels > 1 else "")
        + f"; from 0 (the page's colour) to {strongest:.2f}; its weights sum to 1. The line is the edge of the digits."
    )
    return Drawing(alt, caption, lambda theme: draw_gaze(looks, theme), run.variant)


def _look(found: Captions, attention: FloatArray, grammar: Grammar, scene: int) -> Look:
    words = (*grammar.decode(found.greedy[0, scene].tolist()), "end")[: attention.shape[3]]
    weights = np.nan_to_num(attention.mean(0)[:, scene, : len(words)])  # (level, word, token)
    side = round(weights.shape[-1] ** 0.5)
    return Look(found.scenes[scene], words, weights.reshape(*weights.shape[:2], side, side))


def draw_gaze(looks: Sequence[Look], theme: Theme) -> bytes:
    """PNG: for each scene its picture and a map for each word, with the digits' edges; the levels of a meshed decoder below each other."""
    across, gap, titled = 10, 0.06, 0.24  # maps in a line; inches
    levels = len(looks[0].maps)
    left = 0.6 if levels > 1 else 0.02
    cell = (WIDTH - left - 0.02 - (across - 1) * gap) / across
    lines = [-(-(1 + len(look.words)) // across) for look in looks]
    tall = titled + levels * (cell + gap)
    height = sum(lines) * tall + 0.12 * (len(looks) - 1) + 0.02
    strongest = max(float(look.maps.max()) for look in looks)
    with style(theme):
        drawn = Figure(figsize=(WIDTH, height))
        top = height
        for look, count in zip(looks, lines, strict=True):
            extent = (0, look.scene.shape[1], look.scene.shape[0], 0)
            for tile, word in enumerate(("the scene", *look.words)):
                line, column = divmod(tile, across)
                for level in range(levels if tile else 1):
                    upper = top - line * tall - titled - level * (cell + gap)
                    corner = ((left + column * (cell + gap)) / WIDTH, (upper - cell) / height)
                    axes = drawn.add_axes((*corner, cell / WIDTH, cell / height))
                    if tile:
                        shown = look.maps[level, tile - 1]
                        axes.imshow(shown, cmap=weights_map(theme), vmin=0, vmax=strongest, interpolation="nearest", extent=extent)
                        outline(axes, look.scene, theme, 0.5)
                        _bare(axes, theme)
                    else:
                        _picture(axes, look.scene, theme)
                    if not level:
                        axes.set_title(word, fontsize=9.5, fontweight="normal" if not tile else "bold", loc="center", pad=3)
                    if levels > 1 and (tile == 1 or (tile and not column)):
                        drawn.text(0.02, (upper - cell / 2) / height, f"level {level + 1}", fontsize=9, va="center")
            top -= count * tall + 0.12
        return png(drawn)


# --- scene error against epochs ---


@dataclass(frozen=True)
class Budget:
    """One network's scene errors (seeds,) after each number of epochs, greedy and by beam search."""

    label: str
    epochs: tuple[int, ...]
    greedy: tuple[FloatArray, ...]
    beam: tuple[FloatArray, ...]
    is_baseline: bool = False


@figure("budget")
def budget(material: Material) -> list[Drawing]:
    runs = [run for run in material.runs if _errors(run) is not None]
    groups = same_but(runs, "train.epochs", "train.seeds")
    ordered = [sorted(members, key=lambda run: run.settings.train.epochs) for members in groups]
    if not any(len(members) > 1 for members in ordered):
        return []
    lines = []
    for members in ordered:
        # Labels such as "transformer, 6 epochs" begin with the name of a line of several; "7 epochs, self-critical" is a whole name.
        names = {material.label(run) for run in members}
        if len(members) > 1:
            names = {name.split(",")[0] for name in names}
        label = names.pop() if len(names) == 1 else " / ".join(material.label(run) for run in members)
        greedy, beam = zip(*(found for run in members if (found := _errors(run)) is not None), strict=True)
        epochs = tuple(run.settings.train.epochs for run in members)
        lines.append(Budget(label, epochs, greedy, beam, any(material.is_baseline(run) for run in members)))
    spoken = []
    for line in lines:
        steps = zip(line.epochs, line.greedy, line.beam, strict=True)
        said = listed([f"{epochs} epochs {percent(greedy.mean())} and {percent(beam.mean())} %" for epochs, greedy, beam in steps])
        spoken.append(f"{line.label}: {said}")
    alt = f"Scene error against the number of epochs, greedy and by beam search. {'; '.join(spoken)}."
    errors = [values[:, None] for line in lines for values in (*line.greedy, *line.beam)]
    caption = (
        "Share of the test scenes whose caption is not true and complete, against the number of epochs, each a training of its own, of "
        f"greedy captions (open) and of a beam of {BEAM_WIDTH} (filled), a little apart. {bands(runs, 'bars', errors=errors)} "
        "Both axes are logarithmic."
    )
    return [Drawing(alt, caption, lambda theme: draw_budget(lines, theme))]


def _errors(run: Training) -> tuple[FloatArray, FloatArray] | None:
    """Scene errors (seeds,), greedy and by beam search."""
    greedy, beam = (MEASURES[name].per_seed(run) for name in ("scene accuracy", "scene accuracy by beam search"))
    return None if greedy is None or beam is None else (1 - greedy, 1 - beam)


def draw_budget(lines: Sequence[Budget], theme: Theme) -> bytes:
    """PNG: scene error against the number of epochs, on logarithmic axes."""
    with style(theme):
        drawn = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        axes = drawn.subplots()
        styles = line_styles([line.is_baseline for line in lines], theme)
        for place, (line, own) in enumerate(zip(lines, styles, strict=True)):
            start = 8.0 * (place - (len(lines) - 1) / 2)  # points, because lines may have the same numbers of epochs
            for values, aside, dash, face in ((line.greedy, start - 2, DASHES, PAGE[theme]), (line.beam, start + 2, "-", own["color"])):
                means = [float(one.mean()) for one in values]
                drawn_line = axes.plot(line.epochs, means, **own, linestyle=dash, linewidth=1.6, markersize=5.5, markerfacecolor=face)
                bars = [draw_bars(axes, [epochs], one[:, None], own) for epochs, one in zip(line.epochs, values, strict=True)]
                move_aside([*drawn_line, *itertools.chain.from_iterable(bars)], aside)
        error_axis(axes, [one[:, None] for line in lines for one in (*line.greedy, *line.beam)])
        axes.set_title("Scene error on the test scenes (%, log scale)")
        axes.set_xlabel("epochs (log scale)")
        log_ticks(axes, sorted({epochs for line in lines for epochs in line.epochs}))
        tidy(axes)
        handles = [Line2D([], [], **own, label=line.label, markeredgewidth=0) for line, own in zip(lines, styles, strict=True)]
        muted: dict[str, Any] = {"color": MUTED[theme], "linewidth": 1.6, "marker": "o"}
        handles += [
            Line2D([], [], **muted, label=f"beam of {BEAM_WIDTH} (solid)"),
            Line2D([], [], **muted, markerfacecolor=PAGE[theme], linestyle=DASHES, label="greedy (dashed)"),
        ]
        legend_below(drawn, handles, handlelength=2.2)
        return png(drawn)
