"""Learning curves, and lines against arithmetic, training images, shifts and sizes of the test images, and the first steps."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from pipeline.measures import MEASURES, first_changes, late, longer_accuracy, median_error, shift_accuracy, size_accuracy
from pipeline.measures.definitions import BEAM_WIDTH, EMPTY_ROWS, FIRST_STEPS, SHIFTS, SIZES, FloatArray
from pipeline.params import ARCHITECTURES
from pipeline.report.figures import panels
from pipeline.report.figures.base import Material, Picture, figure
from pipeline.report.figures.panels import Line, Panel, of_epochs, same_but
from pipeline.study import Training

OTHERS = 6  # variants beside the baseline in one picture

_LINES = "A line is the mean over the seeds, its band the 95 % interval of that mean (of fewer than six seeds the lowest to the highest)."


@figure("curves")
def curves(material: Material) -> list[Picture]:
    """Losses and test error after each epoch; of many variants a picture for some at a time, each with the baseline."""
    scenes = any(run.settings.task == "captioning" for run in material.runs)
    error = "scene error on the validation scenes" if scenes else "test error"
    baseline, others = ([run for run in material.runs if material.is_baseline(run) == is_it] for is_it in (True, False))
    found = []
    for start in range(0, max(1, len(others)), OTHERS):
        losses: list[Line] = []
        errors: list[Line] = []
        for run in [*baseline, *others[start : start + OTHERS]]:
            label, is_baseline = material.label(run), material.is_baseline(run)
            losses += [of_epochs(label, run.test_loss, is_baseline), of_epochs("", run.train_loss, dashed=True)]
            errors.append(of_epochs(label, run.test_error, is_baseline))
        both = [
            Panel("Loss (nats, log scale); dashed: train", "epoch", losses, "losses", "epochs"),
            Panel("Error (%, log scale)", "epoch", errors, "errors", "epochs"),
        ]
        caption = f"Losses and {error} after each epoch. {_LINES}"
        found.append(Picture(caption, partial(panels.draw, both), str(start // OTHERS + 1) if start else ""))
    return found


def _one(caption: str, panel: Panel, name: str = "") -> list[Picture]:
    return [Picture(caption, partial(panels.draw, [panel]), name)] if any(len(line.x) > 1 for line in panel.lines) else []


@figure("arithmetic")
def arithmetic(material: Material) -> list[Picture]:
    """Test error against floating-point operations and against parameters."""
    points = [(run, run.flops / 1e6, run.parameters / 1e3, late(run.test_error)) for run in material.runs if run.flops and run.parameters]
    caption = "Test error against the floating-point operations of an image's forward pass and against the parameters, on logarithmic axes."
    sizes = [
        [Line(material.label(run), (size[place],), errors[:, None], material.is_baseline(run)) for run, *size, errors in points]
        for place in (0, 1)
    ]
    made = [
        Panel("Test error (%, log scale)", "millions of operations of a forward pass (log scale)", sizes[0], "errors", "counts"),
        Panel("", "thousands of parameters (log scale)", sizes[1], "errors", "counts"),
    ]
    return [Picture(caption, partial(panels.draw, made))] if len(points) > 1 else []


def _joined(members: Sequence[Training], values: Sequence[FloatArray]) -> FloatArray:
    """(seeds, members): columns of different lengths, with NaN where one has fewer seeds."""
    return pd.DataFrame({run.variant: pd.Series(own) for run, own in zip(members, values, strict=True)}).to_numpy()


@figure("data_size")
def data_size(material: Material) -> list[Picture]:
    """Median test error against the number of training images."""
    there = material.train_images or 0
    numbers = {run.variant: run.settings.train.train_images or there - run.settings.train.validation for run in material.runs}
    images = {variant: number for variant, number in numbers.items() if number > 0}
    groups = same_but([run for run in material.runs if run.variant in images], "train.train_images", "train.seeds")
    architectures = [members[0].settings.model.architecture for members in groups]
    lines = []
    for architecture, members in zip(architectures, groups, strict=True):
        members.sort(key=lambda run: images[run.variant])
        label = ARCHITECTURES[architecture].label if architectures.count(architecture) == 1 else material.label(members[-1])
        values = _joined(members, [median_error(run.test_error) for run in members])
        lines.append(Line(label, tuple(images[run.variant] for run in members), values, any(map(material.is_baseline, members))))
    caption = "Median test error against the number of different training images, at equal optimiser steps."
    return _one(caption, Panel("Median test error (%, log scale)", "training images (log scale)", lines, "errors", "counts"))


@figure("budget")
def budget(material: Material) -> list[Picture]:
    """Scene error against epochs, each a training of its own."""
    greedy, beam = (MEASURES[f"scene accuracy{by}"].per_seed for by in ("", " by beam search"))
    lines = []
    for members in same_but([run for run in material.runs if greedy(run) is not None], "train.epochs", "train.seeds"):
        members.sort(key=lambda run: run.settings.train.epochs)
        label, x = ", ".join(run.variant for run in members), tuple(run.settings.train.epochs for run in members)
        for said, measured in ((", greedy", greedy), (f", beam of {BEAM_WIDTH}", beam)):
            values = _joined(members, [1 - found for run in members if (found := measured(run)) is not None])
            lines.append(Line(f"{label}{said}", x, values, any(map(material.is_baseline, members)), measured is beam))
    caption = (
        "Share of the test scenes whose caption is not true and complete, against the number of epochs, each a training of its own. "
        "Both axes are logarithmic, and bars of one number of epochs stand side by side."
    )
    title, place = "Scene error on the test scenes (%, log scale)", "epochs (log scale)"
    return _one(caption, Panel(title, place, lines, "errors", "counts", apart=0.06))


@figure("shifts")
def shifts(material: Material) -> list[Picture]:
    """Test accuracy on shifted test images."""
    lines = [
        Line(material.label(run), (0, *SHIFTS), np.concatenate([run.test_accuracy[:, -1:], found], axis=1), material.is_baseline(run))
        for run in material.runs
        if (found := shift_accuracy(run)) is not None
    ]
    caption = "Test accuracy on shifted test images, mean over up, down, left and right, with zeros moving in."
    return _one(caption, Panel("Test accuracy (%)", "shift (pixels)", lines, "accuracies", "values"))


@figure("sizes")
def sizes(material: Material) -> list[Picture]:
    """Test accuracy on scaled test images."""
    lines, longer = [], []
    for run in material.runs:
        if (scaled := size_accuracy(run)) is not None:
            by_size = dict(zip(SIZES, scaled.T, strict=True)) | {run.settings.model.shape.size: run.test_accuracy[:, -1]}
            x = tuple(sorted(by_size))
            lines.append(Line(material.label(run), x, np.stack([by_size[size] for size in x], axis=1), material.is_baseline(run)))
        if (found := longer_accuracy(run)) is not None:
            values = np.concatenate([run.test_accuracy[:, -1:], found], axis=1)
            longer.append(Line(material.label(run), (0, *EMPTY_ROWS), values, material.is_baseline(run)))
    first = material.runs[0]
    of_sizes = (
        f"Test accuracy on scaled test images, after training on images of {first.settings.model.shape.size} pixels. Larger images have "
        "more patches: position vectors, fixed and learned, are interpolated bilinearly."
    )
    of_rows = (
        f"Test accuracy on longer sequences: rows of empty patches are added below the image, {first.grid} patches each. Fixed tables are "
        "continued by their formula; of learned vectors those of the last row are repeated."
    )
    return [
        *_one(of_sizes, Panel("Test accuracy (%)", "side of the test images (pixels)", lines, "accuracies", "values")),
        *_one(of_rows, Panel("Test accuracy (%)", "rows of empty patches", longer, "accuracies", "values"), "longer"),
    ]


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
    return _one(caption, Panel("Change of a weight (log scale)", "step", lines, "changes", "values"))
