"""This project's engine under the clock, through the same classes and processes as the train stage."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.loops import BATCH_SIZE, EPOCH_STEPS, LEARNING_RATE, Timing
from pipeline.data.datasets import Dataset, load
from pipeline.models import build, count_parameters
from pipeline.params import DataSettings, ModelSettings, TrainSettings, VariantSettings
from pipeline.runner import pool
from pipeline.runner.train import makespan
from pipeline.system.provenance import code_hash
from pipeline.timing.load import LoadMeter
from pipeline.training.engine import Trainer, keep_freed_memory, set_reproducible

Make = Callable[[VariantSettings, Dataset, Sequence[int], torch.device], Trainer]


def variant(model: ModelSettings, num_seeds: int, epochs: int, steps: int | None) -> VariantSettings:
    """The thesis's way of training, for seeds 0, 1, ..., in epochs of so many steps, or whole ones."""
    train = TrainSettings(
        seeds=tuple(range(num_seeds)), epochs=epochs, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, optimizer="adam", momentum=0.0,
        weight_decay=0.0, clip_norm=None, schedule="constant", warmup=0.0, train_images=None, augment="none", divergence="stop",
        epoch_images=steps and steps * BATCH_SIZE,
    )  # fmt: skip
    return VariantSettings(data=DataSettings(dataset="mnist"), train=train, model=model)


def epochs_of(make: Make, settings: VariantSettings, dataset: Dataset, device: torch.device) -> Callable[[], float]:
    """Trains an epoch, and gives the function that trains the next one and returns the seconds of one seed's whole epoch."""
    set_reproducible(device)
    images = settings.train.epoch_images or len(dataset.train_labels)
    trainer = make(settings, dataset, settings.train.seeds, device)
    trainer.run_epoch()

    def seconds() -> float:
        set_reproducible(device)
        return trainer.run_epoch()[0].seconds / len(settings.train.seeds) * EPOCH_STEPS / -(-images // BATCH_SIZE)

    return seconds


def time_alone(model: ModelSettings, arrays: Path, steps: int, threads: int) -> Timing:
    """Times an epoch of one seed in this process on the CPU, after one epoch of warm-up."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    epoch = epochs_of(Trainer, variant(model, 1, 2, steps), load(arrays), torch.device("cpu"))
    with LoadMeter() as meter:
        seconds = epoch()
    return Timing(count_parameters(build(model)), 1, steps, seconds, meter.foreign)


def time_processes(model: ModelSettings, arrays: Path, num_seeds: int, *, processes: int, steps: int) -> Timing:
    """Times the seeds of a variant spread over processes of one thread each, as `make train` trains them on a CPU.

    Each seed trains two epochs, and the second counts. The time of all seeds is when the last process would end if it did nothing
    but these epochs, so processes that wait for the last seed count in full.
    """
    durations: list[float] = []
    checkpoints: list[float] = []

    def handle(assignment: pool.Assignment, message: pool.Message) -> None:
        if message.error is not None:
            raise message.error
        if message.kind == "epoch" and message.epoch == 2:
            durations.extend(row.seconds for row in message.rows)
            checkpoints.append(message.checkpoint_seconds)

    with tempfile.TemporaryDirectory() as folder, LoadMeter() as meter:
        origin = {"code_hash": code_hash(), "device": "cpu"}
        job = pool.Job(variant(model, num_seeds, 2, steps), arrays, Path(folder), "cpu", origin)
        assignments = [pool.Assignment(job, pool.Task([seed])) for seed in range(num_seeds)]
        pool.run_all(assignments, handle, cards=[""] * processes)
    seconds = makespan(durations, processes) / (steps * num_seeds) * EPOCH_STEPS
    return Timing(count_parameters(build(model)), num_seeds, steps, seconds, meter.foreign, fmean(checkpoints))
