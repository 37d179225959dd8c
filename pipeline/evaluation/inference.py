"""Measures the weights of groups of seeds, in processes of their own."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.evaluation.group import Result, Task
from pipeline.measures.definitions import FIRST_STEPS, FloatArray
from pipeline.measures.traces import loss_spikes, steps_to_loss
from pipeline.runner import seeds
from pipeline.runner.pool import prepare
from pipeline.system.errors import UserError, disk_sentence, first_line, place
from pipeline.system.processes import die_with_parent
from pipeline.training import tasks

if TYPE_CHECKING:
    import torch


def run(groups: Sequence[Task], processes: int) -> Generator[tuple[Task, Result | UserError]]:
    """Measures all groups in this number of processes. Yields each group's result, or the fault of its weights, as it is ready.

    Raises:
        UserError: a process died (status 1).
    """
    device = groups[0].device
    try:
        # Spawned, because torch's threads and CUDA do not survive a fork.
        pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start, initargs=(os.getpid(), device))
    except OSError as error:  # their locks lie in /dev/shm, which some containers do not let write
        print(f"One process evaluates: shared memory cannot be had ({error}).")
        prepare(device)
        yield from ((task, _attempt(task)) for task in groups)
        return
    try:
        futures = {pool.submit(_attempt, task): task for task in groups}
        yield from ((futures[future], future.result()) for future in as_completed(futures))
    except BrokenProcessPool:
        raise UserError(
            "A process of the evaluation ended early (out of memory?); run the same command again: what is evaluated is kept.", status=1
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(task: Task) -> Result | UserError:
    try:
        return measure(task)
    except UserError as error:
        return error
    except Exception as error:  # such as a full memory: it is no fault of the other groups
        return UserError(disk_sentence(error) or f"Testing seeds {task.seeds} failed in {place(error)}{first_line(error)}.", status=1)


def _start(parent: int, device: str) -> None:
    """Initialises a worker process."""
    die_with_parent(parent)
    prepare(device)


@cache
def _data(task: str, arrays: Path) -> Any:
    return tasks.load(task, arrays)


def measure(task: Task) -> Result:
    """Tests the stored weights of a group of seeds as the training did (same device, grouping and batches), and probes them.

    Raises:
        UserError: the weights are missing or damaged.
    """
    import torch

    from pipeline.evaluation import captions, classification
    from pipeline.models import attention_kernel
    from pipeline.training.stack import Stack

    device = torch.device(task.device)
    data = _data(task.settings.task, task.arrays)
    weights = seeds.load_weights(task.training, task.seeds, task.finished)

    def stack(*chosen: int) -> Stack:
        made, places = Stack(task.settings.model, chosen, device), [task.seeds.index(seed) for seed in chosen]
        made.load({name: value[places].to(device) for name, value in weights.items()})
        return made

    of_task = captions if task.settings.task == "captioning" else classification
    found = of_task.measure(task, data, stack, device)
    columns = dict(found.columns)
    if "trace" in task.probes:
        columns |= trace_columns(task)
    if "first_steps" in task.probes:
        columns |= first_changes(task, data, device)
    return replace(found, columns=columns, attention=attention_kernel(task.settings.model, device))


def first_changes(task: Task, data: Any, device: torch.device) -> dict[str, FloatArray]:
    """`change_N` of a group's seeds: the root mean square change of the weights in step N, for the first steps of their training."""
    import torch

    from pipeline.training.engine import Trainer

    trainer = Trainer(task.settings, data, task.seeds, device)

    def weights() -> torch.Tensor:
        """(seed, weight)."""
        return torch.cat([value.detach().reshape(len(task.seeds), -1) for value in trainer.stack.parameters], 1).double()

    passed = [weights()]
    trainer.run_steps(FIRST_STEPS, lambda: passed.append(weights()))
    changes = [(new - old).square().mean(1).sqrt().cpu().numpy() for old, new in pairwise(passed)]
    return {f"change_{step}": change for step, change in enumerate(changes, 1)}


def trace_columns(task: Task) -> dict[str, FloatArray]:
    """`loss_spikes` and `steps_to_loss` of a group's seeds, see `pipeline.measures.traces`."""
    parts, num_steps = {part.seed: part for part in seeds.load(task.training)}, task.settings.num_steps
    supervised = task.settings.supervised_epochs / task.settings.train.epochs
    last = supervised * num_steps if supervised < 1 else math.inf  # self-critical steps minimise no cross-entropy
    traces = [(parts[seed].tensors["trace.step"], parts[seed].tensors["trace.loss"]) for seed in task.seeds]
    return {
        "loss_spikes": np.array([float(loss_spikes(loss)) for _, loss in traces]),
        "steps_to_loss": np.array([float(steps_to_loss(step[step <= last], loss[step <= last], num_steps)) for step, loss in traces]),
    }
