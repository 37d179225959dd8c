"""What selection adds: the best epoch or seed by the test images in place of the mean, and one run in place of many.

Reported by others for other networks: Bouthillier et al. 2021, "Accounting for variance in machine learning benchmarks".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.params import ExperimentSettings
from pipeline.study.effects import contrast
from pipeline.study.training import Training

SEEDS = 6  # the first of each network, so that the best of them means the same everywhere


@dataclass(frozen=True)
class Selected:
    """Test errors of one network, fractions of the test images.

    Attributes:
        typical: mean of its first seeds, each over its last epochs.
        epoch: the best epoch of a seed, mean over the seeds.
        seed: the best seed, over its last epochs.
        both: the best epoch of the best seed.
    """

    variant: str
    typical: float
    epoch: float
    seed: float
    both: float

    @property
    def gains(self) -> tuple[float, float, float]:
        """The share of the typical errors that is gone where the best epoch, the best seed, or both are reported."""
        return tuple(1 - found / self.typical for found in (self.epoch, self.seed, self.both))  # type: ignore[return-value]


@dataclass(frozen=True)
class Order:
    """How often few runs put two networks that differ in the wrong order, by the test error after the last epoch.

    Attributes:
        ratio: of the geometric means of the late test errors, over all seeds.
        one, three: share of the draws of one and of three seeds a side without replacement; of equal means half.
    """

    variant: str
    reference: str
    ratio: float
    one: float
    three: float


def select(trainings: Mapping[str, Training]) -> list[Selected]:
    """Of each classifier with so many seeds that ended and made any errors."""
    found = []
    for name, run in trainings.items():
        late = MEASURES["late test error"].per_seed(run) if run.settings.task == "classification" else None
        if late is None or len(late) < SEEDS or not np.isfinite(late[:SEEDS]).all() or not late[:SEEDS].mean() > 0:
            continue
        epochs, late = np.nanmin(run.test_error[:SEEDS], axis=1), late[:SEEDS]
        found.append(Selected(name, float(late.mean()), float(epochs.mean()), float(late.min()), float(epochs.min())))
    return found


def orders(experiments: Mapping[str, ExperimentSettings], trainings: Mapping[str, Training], level: float) -> list[Order]:
    """Of each variant and the baseline of the first experiment that has both, each pair once, if all seeds tell the two apart.

    Args:
        level: of Welch's interval of the ratio of their errors, which has to leave out 1.
    """
    chosen = {one.variant for one in select(trainings)}
    pairs: dict[str, str] = {}
    for experiment in experiments.values():
        for variant in experiment.variants:
            if {experiment.baseline, variant} <= chosen and variant not in (experiment.baseline, pairs.get(experiment.baseline)):
                pairs.setdefault(variant, experiment.baseline)
    found = []
    for variant, reference in pairs.items():
        sides = [trainings[name] for name in (variant, reference)]
        errors = [MEASURES["late test error"].per_seed(side) for side in sides]
        effect = contrast(*(np.log(side) for side in errors if side is not None))
        ends = effect.interval(level)
        if ends is not None and not ends.low <= 0 <= ends.high:
            more, fewer = (side.test_error[:, -1] for side in (sides if effect.mean > 0 else reversed(sides)))
            found.append(Order(variant, reference, math.exp(effect.mean), *(misordered(more, fewer, n) for n in (1, 3))))
    return found


def misordered(more: FloatArray, fewer: FloatArray, n: int) -> float:
    """The share of all draws of n values a side in which the mean of `more` is the smaller one; of equal means half counts."""
    first, second = (
        np.sort([np.mean(side[list(drawn)]).round(12) for drawn in itertools.combinations(range(len(side)), n)]) for side in (more, fewer)
    )
    above = len(second) - np.searchsorted(second, first, side="right")
    equal = len(second) - above - np.searchsorted(second, first, side="left")
    return float((above + equal / 2).mean() / len(second))
