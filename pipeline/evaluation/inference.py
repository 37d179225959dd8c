"""What the weights of a group of seeds do on the test images, measured in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.data.datasets import Dataset, load
from pipeline.errors import UserError
from pipeline.measures.definitions import SHIFTS
from pipeline.params import ModelSettings, VariantSettings
from pipeline.runner import results, workers

if TYPE_CHECKING:  # a run that finds nothing to do does not pay for torch
    from torch import Tensor, nn

    from pipeline.evaluation.attention import Probe

_DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right, as (rows, columns)


@dataclass(frozen=True)
class Task:
    """One group of seeds of a variant: a stack on CUDA, a single seed on the CPU.

    Attributes:
        run: `runs/VARIANT`, where its weights are.
        arrays: `data/arrays`.
    """

    variant: str
    settings: VariantSettings
    seeds: tuple[int, ...]
    probes: tuple[str, ...]
    device: str
    run: Path
    arrays: Path


@dataclass(frozen=True)
class Result:
    """What a group's weights do on the test images.

    Attributes:
        losses: mean cross-entropy (seed,) float64.
        predictions: classes (seed, image) uint8.
        positions: the vectors added to the tokens (seed, token, dim) float32; (seed, 0, 0) where there are none.
        shifted: accuracy (seed, distance), mean over the directions; None where it is not asked for.
        attention: of each seed; None where it is not asked for.
    """

    losses: npt.NDArray[np.float64]
    predictions: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.float32]
    shifted: npt.NDArray[np.float64] | None
    attention: list[Probe] | None


def run(tasks: Sequence[Task], processes: int) -> Generator[tuple[Task, Result | UserError]]:
    """Measures all tasks in so many processes; results come as they are ready, or what is wrong with a task's weights.

    Raises:
        UserError: status 1 when a process died.
    """
    # Not forked: torch's threads and CUDA do not survive it.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start, initargs=(os.getpid(), tasks[0].device))
    try:
        futures = {pool.submit(measure, task): task for task in tasks}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except UserError as error:
                yield futures[future], error
    except BrokenProcessPool:
        raise UserError(
            "A process of the evaluation ended early (out of memory?); run the same command again: what is evaluated is kept.", status=1
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(parent: int, device: str) -> None:
    """A worker's beginning."""
    workers.die_with_parent(parent)
    import torch

    from pipeline.training.engine import set_reproducible

    set_reproducible(torch.device(device))


@cache
def _dataset(arrays: Path) -> Dataset:
    return load(arrays)


def measure(task: Task) -> Result:
    """Tests the stored weights of a group of seeds as the training did: the same device, grouping and batches; and probes them.

    Raises:
        UserError: the weights are missing, damaged or of other seeds.
    """
    import torch

    from pipeline.training.classification import evaluate
    from pipeline.training.stack import Stack

    dataset, model, device = _dataset(task.arrays), task.settings.model, torch.device(task.device)
    images = torch.from_numpy(dataset.test_images).to(device)
    labels = torch.from_numpy(dataset.test_labels).long().to(device)
    weights = results.load_weights(task.run, task.settings)
    places = [task.settings.train.seeds.index(seed) for seed in task.seeds]
    stack = Stack(model, task.seeds, device)
    stack.load({name: value[places].to(device) for name, value in weights.items()})

    def test(images: Tensor) -> tuple[Tensor, Tensor]:
        return evaluate(stack, images, labels, num_seeds=len(task.seeds))

    losses, predictions = test(images)
    shifted = None
    if "shifts" in task.probes:
        shifted = np.zeros((len(task.seeds), len(SHIFTS)))
        for column, distance in enumerate(SHIFTS):
            for down, right in _DIRECTIONS:
                _, predicted = test(shift(images, down * distance, right * distance))
                shifted[:, column] += (predicted == labels).double().mean(1).cpu().numpy() / len(_DIRECTIONS)
    attention = None
    if "attention" in task.probes:
        assert isinstance(model, ModelSettings)
        attention = []
        for seed, place in zip(task.seeds, places, strict=True):
            single = Stack(model, [seed], device)  # the maps are read from a plain module
            single.load({name: value[[place]].to(device) for name, value in weights.items()})
            attention.append(_probe(single.module, model, dataset))
    position = stack.position()
    return Result(
        losses=losses.cpu().numpy(),
        predictions=predictions.cpu().numpy().astype(np.uint8),
        positions=np.zeros((len(task.seeds), 0, 0), np.float32) if position is None else position.cpu().numpy(),
        shifted=shifted,
        attention=attention,
    )


def _probe(module: nn.Module, model: ModelSettings, dataset: Dataset) -> Probe:
    from pipeline.evaluation.attention import NUM_IMAGES, first_of_each_class, probe

    digits = dataset.test_images[first_of_each_class(dataset.test_labels)]
    return probe(module, model, dataset.test_images[:NUM_IMAGES], digits)


def shift(images: Tensor, down: int, right: int) -> Tensor:
    """Images (..., height, width) moved by whole pixels, negative ones up and left; zeros move in."""
    from torch.nn.functional import pad

    return pad(images, (right, -right, down, -down))
