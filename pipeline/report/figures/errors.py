"""What is taken for what: confusion matrices, and the test images that most seeds answer wrongly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipeline.measures.definitions import FloatArray
from pipeline.report.figures.base import GREYS, INK, PAGE, WEIGHTS, WIDTH, Material, Picture, bare, figure
from pipeline.study import Training

_ROWS, _COLUMNS = 2, 6  # of images below a matrix
_NUMBERED = 12  # classes, up to which a matrix has its numbers


@dataclass(frozen=True)
class Errors:
    """A variant's errors.

    Attributes:
        confusion: (class, answer), the share of a class's test images that have this answer, mean over the seeds.
        images: (image, height, width) in [0, 1], those that most seeds answer wrongly; None where the test images are not here.
        said: for each of them its class, the commonest wrong answer, and how many seeds are wrong.
    """

    label: str
    confusion: FloatArray
    images: FloatArray | None
    said: tuple[str, ...]


@figure("errors")
def errors(material: Material) -> list[Picture]:
    """What is taken for what, and the test images that most seeds answer wrongly."""
    known = [run for run in material.runs if run.predictions is not None]
    if not known:
        return []
    others = [run for run in known if not material.is_baseline(run)]
    best = max(others, key=lambda run: float(run.accuracy.mean()), default=None)
    shown = [run for run in known if material.is_baseline(run)] + ([best] if best else [])
    caption = (
        "What is taken for what after the last epoch, by the baseline and by the other variant with the fewest errors: of the test images "
        "of a class the share (%) that is answered as each class, mean over the seeds. Below: the images that most seeds answer wrongly, "
        "with the right class, the commonest wrong answer, and how many seeds are wrong."
    )
    return [Picture(caption, partial(draw_errors, [_of(run, material) for run in shown]))]


def _of(run: Training, material: Material) -> Errors:
    assert run.predictions is not None
    predictions, labels = (array.astype(np.int64) for array in run.predictions)
    classes = run.settings.model.shape.classes
    counts = np.zeros((classes, classes))
    np.add.at(counts, (np.broadcast_to(labels, predictions.shape), predictions), 1)
    wrong = (predictions != labels).sum(0)
    worst = [int(image) for image in np.argsort(-wrong, kind="stable")[: _ROWS * _COLUMNS] if wrong[image]]
    said = []
    for image in worst:
        answers = predictions[predictions[:, image] != labels[image], image]
        said.append(f"{labels[image]} as {np.bincount(answers).argmax()}\n{wrong[image]} of {len(predictions)}")
    images = None
    if material.test_images is not None:
        pixels = np.asarray(material.test_images[worst], dtype=np.float64) / 255
        images = pixels.reshape(len(worst), math.prod(pixels.shape[1:-2]), *pixels.shape[-2:]).mean(1)  # grey, of three channels too
    return Errors(material.label(run), counts / np.maximum(counts.sum(1, keepdims=True), 1), images, tuple(said))


def draw_errors(variants: Sequence[Errors]) -> Figure:
    """A matrix for each variant, side by side, on one scale of colours; below each its images."""
    drawn = Figure(figsize=(WIDTH, 6.3), layout="constrained")
    off = [np.where(np.eye(len(one.confusion), dtype=bool), 0, one.confusion) for one in variants]
    scale = Normalize(0, max(float(shares.max()) for shares in off) or 1.0)
    parts = np.atleast_1d(np.asarray(drawn.subfigures(1, len(variants), wspace=0.03), dtype=object))
    for part, one, shares in zip(parts, variants, off, strict=True):
        above, below = part.subfigures(2, 1, height_ratios=[4.4, 1.9])
        _matrix(above.subplots(), one, shares, scale)
        for place, axes in enumerate(below.subplots(_ROWS, _COLUMNS, squeeze=False).flat):
            axes.set_axis_off()
            if place < len(one.said):
                axes.set_axis_on()
                bare(axes)
                axes.set_box_aspect(1)
                axes.set_title(one.said[place], fontsize=7.5, fontweight="normal", loc="center", pad=2)
                if one.images is not None:
                    axes.imshow(one.images[place], cmap=GREYS, vmin=0, vmax=1, interpolation="nearest")
    return drawn


def _matrix(axes: Any, one: Errors, shares: FloatArray, scale: Normalize) -> None:
    axes.imshow(shares, cmap=WEIGHTS, norm=scale, interpolation="nearest")
    classes = len(shares)
    if classes <= _NUMBERED:
        for (right, answer), share in np.ndenumerate(one.confusion):
            if share >= 0.0005:
                bright = right != answer and scale(share) > 0.55
                axes.text(answer, right, f"{100 * share:.1f}", ha="center", va="center", fontsize=7.5, color=PAGE if bright else INK)
        axes.set(xticks=range(classes), yticks=range(classes))
    axes.grid(False)
    axes.tick_params(length=0)
    axes.set_title(one.label)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
