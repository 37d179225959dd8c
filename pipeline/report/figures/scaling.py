"""Figures against something else than epochs: number of training images, shifts and sizes of the test images, the first steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator
from scipy.optimize import isotonic_regression

from pipeline.measures import first_changes, late, shift_accuracy, size_accuracy
from pipeline.measures.definitions import FIRST_STEPS, SHIFTS, SIZES, FloatArray
from pipeline.params import ARCHITECTURES
from pipeline.report.figures.drawing import Drawing, Material, figure
from pipeline.report.figures.lines import bands, centre, draw_bars, draw_line, error_axis, log_ticks, move_aside, same_but
from pipeline.report.figures.style import WIDTH, Theme, line_styles, plain_numbers, png, style, tidy
from pipeline.report.text import listed, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 3.9  # inches


@dataclass(frozen=True)
class Series:
    """One line. `values`: (seeds, len(x)), accuracies or errors as fractions, or changes of a weight; NaN where a place has fewer seeds."""

    label: str
    x: tuple[float, ...]
    values: FloatArray
    is_baseline: bool = False

    @property
    def ends(self) -> list[str]:
        """The first and the last mean, in %."""
        return [percent(float(np.nanmean(self.values[:, i]))) for i in (0, -1)]


# --- the number of training images ---


@figure("data_size")
def data_size(material: Material) -> list[Drawing]:
    images = {run.variant: number for run in material.runs if (number := run.settings.train.train_images or material.train_images)}
    groups = same_but([run for run in material.runs if run.variant in images], "train.train_images", "train.seeds")
    architectures = [members[0].settings.model.architecture for members in groups]
    lines = []
    for architecture, members in zip(architectures, groups, strict=True):
        members.sort(key=lambda run: images[run.variant])
        own = architectures.count(architecture) == 1
        label = ARCHITECTURES[architecture].label if own else material.label(members[-1])
        values = pd.DataFrame({run.variant: pd.Series(late(run.test_error)) for run in members}).to_numpy()
        is_baseline = any(material.is_baseline(run) for run in members)
        lines.append(Series(label, tuple(images[run.variant] for run in members), values, is_baseline))
    if not any(len(line.x) > 1 for line in lines):
        return []
    spoken = [
        f"{line.label} from {line.ends[0]} % with {line.x[0]:,.0f} images to {line.ends[1]} % with {line.x[-1]:,.0f} images"
        for line in lines
    ]
    alt = f"Test error against the number of training images. {'; '.join(spoken)}."
    caption = (
        "Test error, mean over each seed's last five epochs (the last fifth of fewer than 25), against the number of different training "
        f"images, at equal optimiser steps. "
        f"{_bars(material, [line.values for line in lines])} A seed's subset is the same for all networks. Both axes are logarithmic."
    )
    return [Drawing(alt, caption, lambda theme: draw_data_size(lines, theme))]


def draw_data_size(lines: Sequence[Series], theme: Theme) -> bytes:
    """PNG: test error against the number of training images, on logarithmic axes."""

    def axis(axes: Axes) -> None:
        error_axis(axes, [line.values for line in lines])
        axes.set_xlabel("training images (log scale)")
        log_ticks(axes, _apart(sorted({x for line in lines for x in line.x})))

    return _draw(lines, theme, "Test error (%, log scale)", axis)


def _apart(numbers: Sequence[float]) -> list[float]:
    """Of ascending numbers those that exceed the one kept before by more than half, so that they do not touch on the axis."""
    kept: list[float] = []
    for number in numbers:
        if not kept or number > 1.5 * kept[-1]:
            kept.append(number)
    return kept


# --- shifted test images ---


@figure("shifts")
def shifts(material: Material) -> list[Drawing]:
    lines = []
    for run in material.runs:
        if (shifted := shift_accuracy(run)) is not None:
            values = np.concatenate([run.test_accuracy[:, -1:], shifted], axis=1)
            lines.append(Series(material.label(run), (0, *SHIFTS), values, material.is_baseline(run)))
    if not lines:
        return []
    spoken = [f"{line.label} from {line.ends[0]} to {line.ends[1]} %" for line in lines]
    augmented = [material.label(run) for run in material.runs if run.settings.train.augment != "none"]
    alt = f"Test accuracy against shifts of 0 to {SHIFTS[-1]} pixels: {'; '.join(spoken)}."
    caption = (
        "Test accuracy of the trained networks when the test images are shifted, mean over up, down, left and right, with zeros moving "
        f"in. {_bars(material)} None of them has seen a shifted image in training"
        f"{f', but for {listed(augmented)}' if augmented else ''}."
    )
    return [Drawing(alt, caption, lambda theme: draw_shifts(lines, theme))]


def draw_shifts(lines: Sequence[Series], theme: Theme) -> bytes:
    """PNG: test accuracy against the pixels by which the test images are shifted."""

    def axis(axes: Axes) -> None:
        axes.set_xlabel("shift (pixels)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _accuracy_axis(axes)

    return _draw(lines, theme, "Test accuracy (%)", axis)


def _accuracy_axis(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    plain_numbers(axes, "y", factor=100)
    axes.set_ylim(top=1.0)


# --- scaled test images ---


@figure("sizes")
def sizes(material: Material) -> list[Drawing]:
    lines = []
    for run in material.runs:
        if (scaled := size_accuracy(run)) is not None:
            by_size = dict(zip(SIZES, scaled.T, strict=True)) | {run.settings.model.shape.size: run.test_accuracy[:, -1]}
            x = tuple(sorted(by_size))
            values = np.stack([by_size[size] for size in x], axis=1)
            lines.append(Series(material.label(run), x, values, material.is_baseline(run)))
    if not lines:
        return []
    spoken = [f"{line.label} from {line.ends[0]} to {line.ends[1]} %" for line in lines]
    alt = f"Test accuracy against the side of the test images, {lines[0].x[0]} to {lines[0].x[-1]} pixels: {'; '.join(spoken)}."
    caption = (
        f"Test accuracy of the trained networks when the test images are scaled. {_bars(material)} All were trained on images "
        f"of {material.runs[0].settings.model.shape.size} pixels. Larger images have more patches: sinusoids are continued, learned "
        "position vectors interpolated bilinearly."
    )
    return [Drawing(alt, caption, lambda theme: draw_sizes(lines, theme))]


def draw_sizes(lines: Sequence[Series], theme: Theme) -> bytes:
    """PNG: test accuracy against the side of the test images."""

    def axis(axes: Axes) -> None:
        axes.set_xlabel("side of the test images (pixels)")
        axes.xaxis.set_major_locator(FixedLocator(lines[0].x))
        _accuracy_axis(axes)

    return _draw(lines, theme, "Test accuracy (%)", axis)


# --- the first steps ---


@figure("first_steps")
def first_steps(material: Material) -> list[Drawing]:
    lines = [
        Series(material.label(run), tuple(range(1, FIRST_STEPS + 1)), changes, material.is_baseline(run))
        for run in material.runs
        if (changes := first_changes(run)) is not None and np.isfinite(changes).all() and (changes > 0).all()
    ]
    if not lines:
        return []
    spoken = [f"{line.label} {line.values[:, 0].mean():.1g}, then {line.values[:, -1].mean():.1g}" for line in lines]
    alt = f"Change of a weight in the first and in the {FIRST_STEPS}th step: {'; '.join(spoken)}."
    radam = (
        " RAdam takes plain gradient steps until that mean is of enough of them (Liu et al. 2020, section 4)."
        if any(run.settings.train.optimizer == "radam" for run in material.runs)
        else ""
    )
    caption = (
        f"Root mean square change of a weight in each of the first {FIRST_STEPS} steps: the square root of the variance of the effective "
        f"step, whose mean is near zero. {_bars(material)} Adam divides a gradient by the root of the mean of its squares, "
        "which of one gradient is its size: its first step moves every weight by the whole learning rate, however small the "
        f"gradient.{radam}"
    )
    return [Drawing(alt, caption, lambda theme: draw_first_steps(lines, theme))]


def draw_first_steps(lines: Sequence[Series], theme: Theme) -> bytes:
    """PNG: root mean square change of a weight against the step, the changes on a logarithmic axis."""

    def axis(axes: Axes) -> None:
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(FixedLocator(lines[0].x))
        axes.set_yscale("log")
        plain_numbers(axes, "x", ".0f")

    return _draw(lines, theme, "Change of a weight (root mean square, log scale)", axis)


# --- lines with their names at their ends ---


def _bars(material: Material, errors: Iterable[FloatArray] = ()) -> str:
    """What a caption says of the means and bars that `_draw` draws. `errors`: see `bands`."""
    return f"{bands(material.runs, 'bars', errors=errors)} Points of one place stand side by side."


_ASIDE = 2.5  # points between neighbouring lines


def _draw(lines: Sequence[Series], theme: Theme, title: str, axis: Callable[[Axes], None]) -> bytes:
    """PNG: the lines with their names at their ends. `axis` makes the axes once all lines are drawn."""
    with style(theme):
        drawn = Figure(figsize=(WIDTH, _HEIGHT), layout="constrained")
        axes = drawn.subplots()
        styles = line_styles([line.is_baseline for line in lines], theme)
        for i, (line, own) in enumerate(zip(lines, styles, strict=True)):
            draw_line(axes, line.x, line.values, {**own, "markersize": 5.5}, banded=False)
            move_aside([axes.lines[-1], *draw_bars(axes, line.x, line.values, own)], _ASIDE * (i - (len(lines) - 1) / 2))
        axes.set_title(title)
        axis(axes)
        tidy(axes)
        # Names that would touch are moved apart.
        ends = [(line.x[-1], float(centre(line.values)[-1])) for line in lines]
        places = np.array([(axes.transScale + axes.transLimits).transform(end)[1] for end in ends])
        for line, own, end, place in zip(lines, styles, ends, spread(places, 13 / 72 / (_HEIGHT - 0.9)), strict=True):
            axes.annotate(
                line.label, end, (1.05, place), xycoords="data", textcoords="axes fraction", va="center", fontsize=9.5,
                fontweight="bold" if line.is_baseline else "normal", color=own["color"], annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-", "color": own["color"], "linewidth": 0.7, "alpha": 0.7, "shrinkA": 1, "shrinkB": 5,
                    "relpos": (0, 0.5),
                },
            )  # fmt: skip
        return png(drawn)


def spread(places: FloatArray, gap: float) -> FloatArray:
    """The nearest places, by least squares, that keep the order and are at least `gap` apart."""
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    moved = np.empty(len(places))
    moved[order] = isotonic_regression(places[order] - steps).x + steps
    return moved
