"""The page about captioning's scenes: samples, their references, and the numbers of scenes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pipeline.captioning.grammar import EOS, PHRASINGS, Words, grammar_of
from pipeline.captioning.scenes import SPLITS, Scenes, Split, compose
from pipeline.data.datasets import Array, Dataset
from pipeline.params import DATASETS
from pipeline.report import text
from pipeline.report.figures.drawing import Drawing
from pipeline.report.figures.style import INK, MUTED, PAGE, WIDTH, Theme, png, style

# The samples: the first test scene with this number of images, and with or without a class that stands twice or more.
_SAMPLES = ((1, False), (2, False), (3, True), (4, False), (4, True))


def render(dataset: str, drawn: tuple[Scenes, Dataset] | None, preview: str | None) -> dict[str, bytes]:
    """The page and its picture for light and dark pages, by their path inside `reports/scenes/`.

    Args:
        drawn: the scenes and the images that they consist of; None where the data set has no captions.
        preview: why this study is not the full one, or None.
    """
    label = DATASETS[dataset].label
    if drawn is None:
        return {"README.md": text.page("scenes.md.j2", label=label, preview=preview, drawn=None)}
    scenes, images = drawn
    samples = _samples(scenes.test)
    grammar = grammar_of(dataset)
    references = [[grammar.decode(ids) for ids in scenes.test.captions[sample].tolist()] for sample in samples]
    cells = torch.from_numpy(scenes.test.cells[samples])
    pictures = compose(torch.from_numpy(images.test_images), cells).numpy()
    figure = Drawing(
        "Test scenes, and beside each its five references. The first reads: " + " ".join(references[0][0]) + ".",
        "The first test scene of each kind, from one image to four, with a class twice or more and without, and its references.",
        lambda theme: draw_samples(pictures, references, theme),
        "samples",
    )
    values = {
        "rows": [_numbers(split, getattr(scenes, split)) for split in SPLITS],
        "words": len(scenes.words),
        "longest": max(int((getattr(scenes, split).captions == EOS).argmax(-1).max()) for split in SPLITS),
        "digest": scenes.digest,
    }
    page = text.page("scenes.md.j2", label=label, preview=preview, drawn=figure, **values)
    return {"README.md": page, **{name.removeprefix("./"): content for name, content in figure.files(".").items()}}


def draw_samples(pictures: Array, references: Sequence[Sequence[Words]], theme: Theme) -> bytes:
    """PNG: a row for each scene with its picture and its references, each with the phrasing's name.

    Args:
        pictures: (scene, [channel,] height, width) uint8.
    """
    side, gap, top, named, said = 1.05, 0.2, 0.06, 1.3, 2.35  # inches
    height = 2 * top + len(pictures) * side + (len(pictures) - 1) * gap
    with style(theme):
        drawn = Figure(figsize=(WIDTH, height))
        greys = LinearSegmentedColormap.from_list("ink", [PAGE[theme], INK[theme]])
        for row, (picture, captions) in enumerate(zip(pictures, references, strict=True)):
            upper = height - top - row * (side + gap)
            axes = drawn.add_axes((0.02 / WIDTH, (upper - side) / height, side / WIDTH, side / height))
            axes.imshow(
                np.moveaxis(picture, 0, -1) if picture.ndim == 3 else picture, cmap=greys, vmin=0, vmax=255, interpolation="nearest"
            )
            middle = picture.shape[-1] / 2 - 0.5
            axes.axvline(middle, color=MUTED[theme], linewidth=0.6)
            axes.axhline(middle, color=MUTED[theme], linewidth=0.6)
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            for spine in axes.spines.values():
                spine.set(color=MUTED[theme], linewidth=0.6)
            for line, (phrasing, caption) in enumerate(zip(PHRASINGS, captions, strict=True)):
                place = (upper - side * (line + 0.5) / len(PHRASINGS)) / height
                drawn.text(named / WIDTH, place, phrasing, color=MUTED[theme], fontsize=9, va="center")
                drawn.text(said / WIDTH, place, " ".join(caption), fontsize=9, va="center")
        return png(drawn)


def _samples(split: Split) -> list[int]:
    """The places of the sample scenes that there are."""
    sizes, repeats = _sizes(split), _repeats(split)
    found = [np.flatnonzero((sizes == size) & (repeats == repeat)) for size, repeat in _SAMPLES]
    return [int(places[0]) for places in found if len(places)]


def _numbers(name: str, split: Split) -> dict[str, object]:
    return {
        "split": name,
        "by_size": np.bincount(_sizes(split), minlength=5)[1:].tolist(),
        "repeats": int(_repeats(split).sum()),
        "images": len(np.unique(split.cells[split.cells >= 0])),
        "source": "test" if name == "test" else "training",
    }


def _sizes(split: Split) -> np.ndarray:
    return (split.labels >= 0).sum(1)


def _repeats(split: Split) -> np.ndarray:
    """Whether a scene has a class twice or more."""
    ordered = np.sort(split.labels, axis=1)
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
