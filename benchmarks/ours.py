"""This project's engine under the clock, through the same classes and processes as the train stage."""

from __future__ import annotations

import heapq
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import images
from benchmarks.loops import BATCH_SIZE, LEARNING_RATE, Timing
from pipeline.data.datasets import Dataset
from pipeline.errors import UserError
from pipeline.models import build, count_parameters
from pipeline.params import DataSettings, ModelSettings, TrainSettings, VariantSettings
from pipeline.provenance import code_hash
from pipeline.runner import pool
from pipeline.timing.load import LoadMeter
from pipeline.training.engine import Trainer, keep_freed_memory, set_reproducible

_FEW_TEST_IMAGES = 100  # an epoch ends with a test, which is not timed here


def variant(model: ModelSettings, num_seeds: int, epochs: int) -> VariantSettings:
    """The thesis's way of training, for seeds 0, 1, ..."""
    train = TrainSettings(
        seeds=tuple(range(num_seeds)), epochs=epochs, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, optimizer="adam", momentum=0.0,
        weight_decay=0.0, clip_norm=None, schedule="constant", warmup=0.0, train_images=None, epoch_images=None, augment="none",
        divergence="stop",
    )  # fmt: skip
    return VariantSettings(data=DataSettings(dataset="mnist"), train=train, model=model)


def cut(dataset: Dataset, steps: int | None) -> Dataset:
    """As many training images as `steps` full batches hold; all of them for None."""
    count = len(dataset.train_labels) if steps is None else steps * BATCH_SIZE
    return images.part(dataset, count, _FEW_TEST_IMAGES)


def time_stack(model: ModelSettings, dataset: Dataset, num_seeds: int, *, device: torch.device, threads: int, steps: int | None) -> Timing:
    """Times an epoch of a stack of seeds in this process, after one epoch of warm-up."""
    set_reproducible(device)
    keep_freed_memory()
    torch.set_num_threads(threads)
    start = time.perf_counter()
    kept = cut(dataset, steps)
    trainer = Trainer(variant(model, num_seeds, 2), kept, range(num_seeds), device)
    trainer.run_epoch()
    middle = time.perf_counter()
    with LoadMeter() as meter:
        seconds = trainer.run_epoch()[0].seconds
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return Timing(count_parameters(build(model)), num_seeds, num_steps(kept), seconds, middle - start, meter.foreign, memory)


def num_steps(dataset: Dataset) -> int:
    """Optimiser steps of an epoch over the training images."""
    return -(-len(dataset.train_labels) // BATCH_SIZE)


def time_processes(model: ModelSettings, dataset: Dataset, num_seeds: int, *, processes: int, steps: int | None) -> Timing:
    """Times the seeds of a variant spread over processes of one thread each, as `dvc repro` trains them on a CPU.

    Each seed trains two epochs, and the second counts. The time of all seeds is when the last process would end if it did nothing
    but these epochs, so processes that wait for the last seed count in full.
    """
    durations: dict[int, float] = {}
    checkpoints: list[float] = []
    first: list[float] = []

    def lost(assignment: pool.Assignment, error: UserError) -> None:
        raise error

    def handle(assignment: pool.Assignment, message: pool.Message) -> None:
        if not isinstance(message, pool.Epoch):
            return
        if message.epoch == 1:
            first.append(time.perf_counter())
        else:
            durations.update({row.seed: row.seconds for row in message.rows})
            checkpoints.append(message.checkpoint_seconds)

    settings = variant(model, num_seeds, 2)
    with tempfile.TemporaryDirectory() as name, LoadMeter() as meter:
        directory = Path(name)
        kept = cut(dataset, steps)
        images.write(kept, directory / "arrays")
        start = time.perf_counter()
        origin = {"code_hash": code_hash(), "device": "cpu"}
        job = pool.Job(settings, directory / "arrays", directory / "checkpoints", "cpu", origin)
        assignments = [pool.Assignment(job, pool.Task([seed])) for seed in settings.train.seeds]
        pool.run_all(assignments, handle=handle, lost=lost, cards=[""] * processes)
    seconds = makespan([durations[seed] for seed in settings.train.seeds], processes)
    mean_checkpoint = sum(checkpoints) / len(checkpoints)
    return Timing(
        count_parameters(build(model)),
        num_seeds,
        num_steps(kept),
        seconds,
        first[0] - start,
        meter.foreign,
        checkpoint_seconds=mean_checkpoint,
    )


def makespan(durations: Sequence[float], processes: int) -> float:
    """When the last of `processes` is done with jobs that are handed out in order, each to the first process that is free."""
    free = [0.0] * processes
    for duration in durations:
        heapq.heappush(free, heapq.heappop(free) + duration)
    return max(free)


def profile(model: ModelSettings, dataset: Dataset, *, device: torch.device, steps: int) -> list[tuple[str, int, float]]:
    """Our training step by operator, on one thread: (name, calls a step, share of all operators' own time), largest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    set_reproducible(device)
    keep_freed_memory()
    trainer = Trainer(variant(model, 1, 2), cut(dataset, steps), [0], device)
    trainer.run_epoch()
    cuda = device.type == "cuda"
    with profiler(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as result:
        trainer.run_epoch()
    rows = [
        (event.key, event.count, event.self_device_time_total if cuda else event.self_cpu_time_total) for event in result.key_averages()
    ]
    total = sum(time for _, _, time in rows)
    return [(name, round(calls / steps), time / total) for name, calls, time in sorted(rows, key=lambda row: -row[2])]
