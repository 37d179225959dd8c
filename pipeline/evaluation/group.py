"""A group of seeds whose weights are measured, and what was measured of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.measures.definitions import FloatArray
from pipeline.params import VariantSettings
from pipeline.system.paths import FINISHED


@dataclass(frozen=True)
class Task:
    """One group of seeds of a variant: a stack on CUDA, a single seed on the CPU.

    Attributes:
        training: `store/trainings/VARIANT.safetensors`.
        arrays: `data/arrays`.
        finished: where the weights of other seeds than the first lie.
    """

    variant: str
    settings: VariantSettings
    seeds: tuple[int, ...]
    probes: tuple[str, ...]
    device: str
    training: Path
    arrays: Path
    finished: Path = FINISHED


@dataclass(frozen=True)
class Result:
    """The measurements of a group's weights.

    Attributes:
        losses: (seed,) float64, mean cross-entropy in the training's own test.
        accuracies: (seed,) float64, accuracy in that test.
        num_tests: number of examples in that test.
        columns: (seed,) float64 each, by name: the other measures.
        arrays: (seed, ...) each, by name: what the predictions' file stores for every seed.
        shared: what it stores only once, from the first group.
        attention: the kernel that ran, as `pipeline.models.attention_kernel` names it.
    """

    losses: FloatArray
    accuracies: FloatArray
    num_tests: int
    columns: dict[str, FloatArray]
    arrays: dict[str, np.ndarray]
    shared: dict[str, np.ndarray]
    attention: str = ""
