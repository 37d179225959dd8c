"""Networks by their test errors: which parts matter, and what a test error says that was selected, or is of few runs.

Selection is to take the best epoch or seed by the test images in place of the mean. Reported by others for other networks: Bouthillier et
al. 2021, "Accounting for variance in machine learning benchmarks".
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.measures import MEASURES, late
from pipeline.measures.definitions import FloatArray
from pipeline.params import ExperimentSettings
from pipeline.study.effects import effect, mapped
from pipeline.study.statistics import Interval
from pipeline.study.training import Training

SEEDS = 6  # the first of each network, so that the best of them means the same everywhere
SMALL = 1.25  # factor of the errors, either way, within which an effect is small: what claims call similar


@dataclass(frozen=True)
class Part:
    """What it does to the errors to take a part away, or to exchange it.

    Attributes:
        name: what is done, in words.
        variant, reference: without the part, and with it.
        ratio: of the geometric means of their late test errors, over all seeds, with Welch's interval.
    """

    name: str
    variant: str
    reference: str
    ratio: float
    interval: Interval

    @property
    def kind(self) -> str:
        """Where the whole interval lies: "more" or "fewer" errors by more than `SMALL`, "small" within it, else "open"."""
        if self.interval.low > SMALL:
            return "more"
        if self.interval.high < 1 / SMALL:
            return "fewer"
        return "small" if self.interval.low > 1 / SMALL and self.interval.high < SMALL else "open"


def ranking(pairs: Mapping[str, tuple[str, str]], trainings: Mapping[str, Training], level: float) -> list[Part]:
    """The parts whose two variants have two seeds each or more that are not all alike, the one with the most errors first.

    Args:
        pairs: by name, the variants without and with the part.
        level: of the intervals.
    """
    found, measure = [], MEASURES["late test error"]
    for name, sides in pairs.items():
        if all(side in trainings and trainings[side].settings.task == "classification" for side in sides):
            estimate = effect(measure, *(errors for side in sides if (errors := measure.per_seed(trainings[side])) is not None))
            if (ends := estimate.interval(level)) is not None and ends.low < ends.high:
                found.append(Part(name, *sides, math.exp(estimate.mean), mapped(ends, math.exp)))
    return sorted(found, key=lambda part: -part.ratio)


class Selected(NamedTuple):
    """What selection adds to the results of one network.

    Attributes:
        typical: mean test error of its first seeds, each over its last epochs; a fraction of the test images.
        gains: the share of it that is gone where the best epoch of a seed (mean over the seeds), the best seed, or the best epoch of the
            best seed is reported.
    """

    variant: str
    typical: float
    gains: tuple[float, ...]


def select(trainings: Mapping[str, Training]) -> list[Selected]:
    """Of each classifier with so many seeds."""
    found = []
    for name, run in trainings.items():
        if run.settings.task == "classification" and len(run.test_error) >= SEEDS:
            errors = run.test_error[:SEEDS]
            kept, best = late(errors), errors.min(axis=1)
            typical, reported = float(kept.mean()), map(float, (best.mean(), kept.min(), best.min()))
            found.append(Selected(name, typical, tuple(1 - error / typical for error in reported)))
    return found


class Order(NamedTuple):
    """How often one and three runs a side put two networks in the wrong order, as shares of all draws; of equal means half.

    Attributes:
        ratio: of their errors over all seeds.
        apart: whether its interval leaves out 1.
    """

    one: float
    three: float
    ratio: float
    apart: bool


def orders(
    chosen: Sequence[Selected], experiments: Mapping[str, ExperimentSettings], trainings: Mapping[str, Training], level: float
) -> list[Order]:
    """By the test error after the last epoch, of each of these variants and the baseline of the first experiment that has both, once.

    Args:
        level: of Welch's interval of the ratio of their errors.
    """
    names, pairs = {one.variant for one in chosen}, dict[str, tuple[str, str]]()
    for experiment in experiments.values():
        for variant in experiment.variants:
            baseline = experiment.baseline
            if variant != baseline and {baseline, variant} <= names and pairs.get(baseline) != (baseline, variant):
                pairs.setdefault(variant, (variant, baseline))
    found = []
    for part in ranking(pairs, trainings, level):
        last = [trainings[name].test_error[:, -1] for name in (part.variant, part.reference)]
        more, fewer = last if part.ratio > 1 else reversed(last)
        apart = not part.interval.low <= 1 <= part.interval.high
        found.append(Order(misordered(more, fewer, 1), misordered(more, fewer, 3), part.ratio, apart))
    return found


def misordered(more: FloatArray, fewer: FloatArray, n: int) -> float:
    """The share of all draws of n values a side in which the mean of `more` is the smaller one; of equal means half counts."""
    first, second = (np.sort(np.array([*itertools.combinations(side, n)]).mean(1).round(12)) for side in (more, fewer))
    above = len(second) - np.searchsorted(second, first, side="right")
    equal = len(second) - above - np.searchsorted(second, first, side="left")
    return float((above + equal / 2).mean() / len(second))
