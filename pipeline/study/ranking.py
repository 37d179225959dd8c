"""Which parts matter: every part by what its removal or exchange does to the test error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.measures import MEASURES
from pipeline.study.effects import effect, mapped
from pipeline.study.statistics import Interval
from pipeline.study.training import Training

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
    """The parts whose two variants have two seeds each or more, the one with the most errors first.

    Args:
        pairs: by name, the variants without and with the part.
        level: of the intervals.
    """
    found, measure = [], MEASURES["late test error"]
    for name, sides in pairs.items():
        if all(side in trainings and trainings[side].settings.task == "classification" for side in sides):
            estimate = effect(measure, *(errors for side in sides if (errors := measure.per_seed(trainings[side])) is not None))
            if (ends := estimate.interval(level)) is not None:
                found.append(Part(name, *sides, math.exp(estimate.mean), mapped(ends, math.exp)))
    return sorted(found, key=lambda part: -part.ratio)
