"""Figures against something else than epochs: number of training images, shifts and sizes of the test images, the first steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipeline.measures import first_changes, late, longer_accuracy, shift_accuracy, size_accuracy
from pipeline.measures.definitions import EMPTY_ROWS, FIRST_STEPS, SHIFTS, SIZES
from pipeline.params import ARCHITECTURES
from pipeline.report.figures import base
from pipeline.report.figures.base import Line, Material, Picture, figure


@figure("data_size")
def data_size(material: Material) -> list[Picture]:
    """Test error against the number of training images."""
    images = {run.variant: number for run in material.runs if (number := run.settings.train.train_images or material.train_images)}
    groups = base.same_but([run for run in material.runs if run.variant in images], "train.train_images", "train.seeds")
    architectures = [members[0].settings.model.architecture for members in groups]
    lines = []
    for architecture, members in zip(architectures, groups, strict=True):
        members.sort(key=lambda run: images[run.variant])
        label = ARCHITECTURES[architecture].label if architectures.count(architecture) == 1 else material.label(members[-1])
        values = pd.DataFrame({run.variant: pd.Series(late(run.test_error)) for run in members}).to_numpy()
        lines.append(Line(label, tuple(images[run.variant] for run in members), values, any(map(material.is_baseline, members))))
    if not any(len(line.x) > 1 for line in lines):
        return []
    caption = "Test error against the number of different training images, at equal optimiser steps."
    return [Picture(caption, partial(draw_lines, lines, "Test error (%, log scale)", "training images (log scale)", "errors"))]


@figure("shifts")
def shifts(material: Material) -> list[Picture]:
    """Test accuracy on shifted test images."""
    lines = []
    for run in material.runs:
        if (shifted := shift_accuracy(run)) is not None:
            values = np.concatenate([run.test_accuracy[:, -1:], shifted], axis=1)
            lines.append(Line(material.label(run), (0, *SHIFTS), values, material.is_baseline(run)))
    caption = "Test accuracy on shifted test images, mean over up, down, left and right, with zeros moving in."
    return [Picture(caption, partial(draw_lines, lines, "Test accuracy (%)", "shift (pixels)", "accuracies"))] if lines else []


@figure("sizes")
def sizes(material: Material) -> list[Picture]:
    """Test accuracy on scaled test images."""
    lines = []
    for run in material.runs:
        if (scaled := size_accuracy(run)) is not None:
            by_size = dict(zip(SIZES, scaled.T, strict=True)) | {run.settings.model.shape.size: run.test_accuracy[:, -1]}
            x = tuple(sorted(by_size))
            values = np.stack([by_size[size] for size in x], axis=1)
            lines.append(Line(material.label(run), x, values, material.is_baseline(run)))
    caption = (
        f"Test accuracy on scaled test images, after training on images of {material.runs[0].settings.model.shape.size} pixels. Larger "
        "images have more patches: position vectors, fixed and learned, are interpolated bilinearly."
    )
    place = "side of the test images (pixels)"
    drawn = [Picture(caption, partial(draw_lines, lines, "Test accuracy (%)", place, "accuracies"))] if lines else []
    return drawn + _longer(material)


def _longer(material: Material) -> list[Picture]:
    lines = []
    for run in material.runs:
        if (longer := longer_accuracy(run)) is not None:
            values = np.concatenate([run.test_accuracy[:, -1:], longer], axis=1)
            lines.append(Line(material.label(run), (0, *EMPTY_ROWS), values, material.is_baseline(run)))
    caption = (
        f"Test accuracy on longer sequences: rows of empty patches are added below the image, {material.runs[0].grid} patches each. Fixed "
        "tables are continued by their formula; of learned vectors those of the last row are repeated."
    )
    drawn = partial(draw_lines, lines, "Test accuracy (%)", "rows of empty patches", "accuracies")
    return [Picture(caption, drawn, "longer")] if lines else []


@figure("first_steps")
def first_steps(material: Material) -> list[Picture]:
    """How far weights move in each of the first steps."""
    lines = [
        Line(material.label(run), tuple(range(1, FIRST_STEPS + 1)), changes, material.is_baseline(run))
        for run in material.runs
        if (changes := first_changes(run)) is not None and np.isfinite(changes).all() and (changes > 0).all()
    ]
    caption = (
        f"Root mean square change of a weight in each of the first {FIRST_STEPS} steps. Adam divides a gradient by the root of the mean "
        "of its squares, which of one gradient is its size: its first step moves every weight by the whole learning rate. RAdam takes "
        "plain gradient steps until that mean is of enough of them (Liu et al. 2020, section 4)."
    )
    return [Picture(caption, partial(draw_lines, lines, "Change of a weight (log scale)", "step", "changes"))] if lines else []


def draw_lines(lines: Sequence[Line], title: str, place: str, kind: str) -> Figure:
    """Means over the seeds against a number, with bands.

    Args:
        place: what the horizontal axis has.
        kind: what the values are: "errors" and "changes" have a logarithmic axis, and errors one of numbers of images, too.
    """
    drawn = Figure(figsize=(base.WIDTH, 3.9 + 0.1 * len(lines)), layout="constrained")
    axes = drawn.subplots()
    styles = base.line_styles([line.is_baseline for line in lines])
    for line, style in zip(lines, styles, strict=True):
        if kind == "errors":  # a band between few numbers of images may reach 0, and would fill half of the figure
            axes.plot(line.x, base.centre(line.values), **style)
            axes.vlines(line.x, *base.band(line.values), color=style["color"], linewidth=1.4, alpha=0.6)
        else:
            base.draw_line(axes, line.x, line.values, style)
    ticks = sorted({x for line in lines for x in line.x})
    axes.set_xticks(ticks)
    if kind == "errors":
        base.error_axis(axes, [line.values for line in lines])
        base.log_ticks(axes, ticks)
    elif kind == "changes":
        base.log_axis(axes, "y")
    elif kind == "distances":
        base.plain_numbers(axes, "y")
    else:
        base.plain_numbers(axes, "y", factor=100)
        axes.set_ylim(top=1.0)
    axes.set_title(title)
    axes.set_xlabel(place)
    base.tidy(axes)
    base.legend_below(drawn, [Line2D([], [], **style, label=line.label) for line, style in zip(lines, styles, strict=True)])
    return drawn
