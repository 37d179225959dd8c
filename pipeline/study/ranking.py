"""Which parts matter: every part by what its removal or exchange does to the test error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.measures import MEASURES
from pipeline.study.effects import contrast
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
    found = []
    for name, sides in pairs.items():
        if not all(side in trainings and trainings[side].settings.task == "classification" for side in sides):
            continue
        errors = [MEASURES["late test error"].per_seed(trainings[side]) for side in sides]
        effect = contrast(*(np.log(side) for side in errors if side is not None))
        if (ends := effect.interval(level)) is not None:
            found.append(Part(name, *sides, math.exp(effect.mean), Interval(math.exp(ends.low), math.exp(ends.high), level)))
    return sorted(found, key=lambda part: -part.ratio)
