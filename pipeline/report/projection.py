"""What the error would be after a longer training than was run: a projection, and called one wherever it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.analysis.statistics import Interval, Projection, Summary, paired_difference, project_power_law, summarize
from pipeline.params import ExperimentSettings
from pipeline.report.results import VariantResult


@dataclass(frozen=True)
class Length:
    """One of the trainings that the projection starts from, or the one that it can be checked against."""

    label: str
    images: int
    accuracy: Summary


@dataclass(frozen=True)
class Projected:
    """A power law of error against training images shown, followed to `to` images.

    Attributes:
        lengths: what it was fitted to, shortest first.
        values: test accuracy (seed, length) of these.
        reached: the training of `to` images, where it was run.
    """

    to: int
    lengths: tuple[Length, ...]
    values: np.ndarray
    law: Projection
    reached: Length | None

    @property
    def x(self) -> tuple[float, ...]:
        return tuple(float(length.images) for length in self.lengths)

    @property
    def accuracy(self) -> float:
        return 1 - self.law.value

    @property
    def interval(self) -> Interval | None:
        """Of the accuracy; its low end is never below 0."""
        error = self.law.interval
        return None if error is None else Interval(max(0.0, 1 - error.high), 1 - error.low, error.level)

    @property
    def steps(self) -> list[Summary]:
        """The law's exponent between neighbouring lengths, over the seeds."""
        return [summarize(values) for values in self._steps.T]

    @property
    def flattening(self) -> Summary | None:
        """How much larger the exponent is between the first two lengths than between the last two; None with two lengths."""
        return None if len(self.lengths) < 3 else paired_difference(self._steps[:, 0], self._steps[:, -1])

    @property
    def _steps(self) -> np.ndarray:
        """(seed, length - 1)."""
        return -np.diff(np.log(1 - self.values), axis=1) / np.diff(np.log(self.x))

    @property
    def times(self) -> float:
        """How many times the longest training it starts from the projection reaches."""
        return self.to / self.lengths[-1].images


def project(experiment: ExperimentSettings, runs: Mapping[str, VariantResult], train_images: int | None) -> Projected | None:
    """None where the experiment asks for none, where fewer than two shorter trainings were run, or where one has no error at all.

    Args:
        runs: of all variants that were trained.
        train_images: size of the whole training set; None where it is not known.
    """
    if experiment.projection is None:
        return None
    shown: dict[int, VariantResult] = {}
    for variant in experiment.variants:
        if variant != experiment.baseline and (run := runs.get(variant)) is not None:
            train = run.settings.train
            if (images := train.epoch_images or train_images) is not None:
                shown[train.epochs * images] = run
    shorter = sorted(images for images in shown if images < experiment.projection)
    if len(shorter) < 2:
        return None
    values = np.stack([shown[images].test_accuracy[:, -1] for images in shorter], axis=1)
    if (values == 1).any():
        return None
    reached = shown.get(experiment.projection)
    try:
        law = project_power_law(shorter, 1 - values, experiment.projection)
    except OverflowError:  # seeds that disagree so much that an end of the interval is no number
        return None
    return Projected(
        experiment.projection,
        tuple(_length(experiment, images, shown[images]) for images in shorter),
        values,
        law,
        None if reached is None else _length(experiment, experiment.projection, reached),
    )


def _length(experiment: ExperimentSettings, images: int, run: VariantResult) -> Length:
    return Length(experiment.label(run.name), images, summarize(run.test_accuracy[:, -1]))
