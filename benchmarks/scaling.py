"""How long the catalogue takes with more workers, simulated by the scheduler of `make train` from measured durations.

    python -m benchmarks.scaling [--seeds N]

writes docs/scaling.md and its picture. Durations are those of `make plan`: epochs on record of this kind of processor, else
operations. Each training is of one seed, as on the CPU.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.page import measured_at
from benchmarks.results import this_run
from pipeline.errors import UserError, run_command
from pipeline.files import write_sealed, write_text
from pipeline.params import Params, load
from pipeline.provenance import device_name
from pipeline.report.figures.base import COLOURS, INK, MARKERS, WIDTH, Picture, log_axis, png, tidy
from pipeline.report.text import counted
from pipeline.runner import pool
from pipeline.runner.train import Entry, cost, estimated, makespan, recorded, survey
from pipeline.study.files import ARRAYS
from pipeline.training.tasks import load as load_data

PAGE = Path("docs/scaling.md")
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
_WRITES = 20  # checkpoints, to time one


@dataclass(frozen=True)
class Training:
    """One seed of a variant: seconds from its first to its last epoch, its epochs, and the bytes of its checkpoint."""

    variant: str
    seconds: float
    epochs: int
    checkpoint: int


@dataclass(frozen=True)
class Row:
    """What a number of workers needs.

    Attributes:
        seconds: until all is trained.
        bound: the seconds that every schedule takes at least.
        epochs: that all workers together finish per second at the busiest moment.
        traffic: bytes per second of checkpoints at the busiest moment.
    """

    workers: int
    seconds: float
    bound: float
    epochs: float
    traffic: float


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="How long the catalogue takes with more workers.")
    parser.add_argument("--seeds", type=int, default=20, help="of each variant")
    seeds = parser.parse_args(argv).seeds
    if seeds < 1:
        raise UserError(f"--seeds is {seeds}, but has to be 1 or more.")
    trainings = measure(load(), seeds)
    rows = [simulate(trainings, count) for count in WORKERS]
    mean = round(statistics.fmean(training.checkpoint for training in trainings))
    drawn = picture(rows)
    write_text(PAGE, page(trainings, rows, this_run(), device_name("cpu"), write_seconds(mean), drawn.markdown("scaling", "")))
    Path("docs/scaling").mkdir(exist_ok=True)
    Path("docs/scaling/makespan.png").write_bytes(png(drawn.draw))


def measure(params: Params, seeds: int) -> list[Training]:
    """The trainings of all variants with so many seeds of each."""
    tasks = tuple(pool.Task([seed]) for seed in range(seeds))
    entries = [replace(entry, tasks=tasks, epochs_done={}) for entry in survey(params, "cpu")]
    if not (rates := recorded(entries, "cpu")):
        raise UserError("This kind of processor has trained nothing that says how long it takes: run `make repro` first.")
    rates = estimated(entries, rates)
    return [
        Training(entry.variant, cost(entry, task, rates[entry.variant]), entry.settings.train.epochs, size)
        for entry, size in zip(entries, _checkpoints(entries), strict=True)
        for task in tasks
    ]


def _checkpoints(entries: Sequence[Entry]) -> list[int]:
    """Bytes of a checkpoint's tensors, of each variant."""
    import torch

    from pipeline.training.engine import Trainer

    data = {task: load_data(task, ARRAYS) for task in {entry.settings.task for entry in entries}}
    states = (Trainer(entry.settings, data[entry.settings.task], [0], torch.device("cpu")).state() for entry in entries)
    return [sum(tensor.nbytes for tensor in state.values()) for state in states]


def simulate(trainings: Sequence[Training], count: int) -> Row:
    """What so many workers need, and their rates at the busiest moment."""
    seconds = [training.seconds for training in trainings]
    moments = []
    for training, start in zip(trainings, starts(seconds, count), strict=True):
        rate = training.epochs / training.seconds
        # At one moment, what ends comes before what begins.
        moments += [(start, 1, rate, rate * training.checkpoint), (start + training.seconds, 0, -rate, -rate * training.checkpoint)]
    _, _, epochs, traffic = zip(*sorted(moments), strict=True)
    return Row(count, makespan(seconds, count), max(max(seconds), sum(seconds) / count), max(accumulate(epochs)), max(accumulate(traffic)))


def starts(seconds: Sequence[float], workers: int) -> list[float]:
    """When each task begins, in seconds from the first, where a free worker takes the longest task that waits."""
    free = [0.0] * workers  # when each worker is free, as a heap
    begun = [0.0] * len(seconds)
    for task in sorted(range(len(seconds)), key=lambda task: -seconds[task]):
        begun[task] = free[0]
        heapq.heapreplace(free, free[0] + seconds[task])
    return begun


def write_seconds(size: int) -> float:
    """Seconds to write a checkpoint of so many bytes here, as a worker does; the median of some."""
    taken = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for number in range(_WRITES):
            start = time.perf_counter()
            write_sealed(Path(folder) / str(number), bytes(size))
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def page(trainings: Sequence[Training], rows: Sequence[Row], run: Mapping[str, Any], machine: str, write: float, picture: str) -> str:
    """The page, as Markdown."""
    seeds = len(trainings) // len({training.variant for training in trainings})
    longest = max(trainings, key=lambda training: training.seconds)
    total = sum(training.seconds for training in trainings)
    enough = math.ceil(total / longest.seconds)
    worst = max(rows, key=lambda row: row.seconds / row.bound)
    busiest = max(rows, key=lambda row: row.traffic)
    size = statistics.fmean(training.checkpoint for training in trainings)
    lines = [
        "# More workers",
        "",
        f"`python -m benchmarks.scaling` wrote this page. It simulates `make train` for the whole catalogue with {counted(seeds, 'seed')}:"
        f" {len(trainings):,} trainings, each on one core of {machine.split(' (')[0]}, {_hours(total)} of it in all."
        " The durations are those of `make plan`; the order comes from the scheduler that hands out the real trainings."
        f" Starts of processes and other work on the machine are left out. {measured_at(run)}",
        "",
        picture,
        "",
        "| workers | hours | bound | above it | epochs a second, at most | their checkpoints |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row.workers:,} | {_number(row.seconds / 3600)} | {_number(row.bound / 3600)} | {abs(row.seconds / row.bound - 1):.1%}"
            f" | {_number(row.epochs)} | {_number(row.traffic / 1e6)} MB/s |"
            for row in rows
        ),
        "",
        "The bound is what no schedule can beat: the longest training, or an equal share of all.",
        f"The schedule stays within {worst.seconds / worst.bound - 1:.1%} of it.",
        f"From {counted(enough, 'worker')} on the longest training rules: a seed of `{longest.variant}`, {_hours(longest.seconds)}.",
        "",
        f"**What then limits.** A worker writes a checkpoint after each epoch, {_number(size / 1e6)} MB in the mean."
        f" With {busiest.workers:,} workers that is {_number(busiest.epochs)} files and {_number(busiest.traffic / 1e6)} MB"
        " in the busiest second."
        f" To write one takes {_number(1000 * write)} ms here, so one process that writes them all, one after another, keeps up with"
        f" {_number(1 / write)} epochs a second.",
        "",
    ]
    return "\n".join(lines)


def picture(rows: Sequence[Row]) -> Picture:
    """Hours over workers, beside the bound."""
    caption = "Hours that all trainings take against the number of workers. The line is the bound that no schedule can beat."
    points = [(row.workers, row.bound / 3600, row.seconds / 3600) for row in rows]
    return Picture(caption, partial(draw, points), "makespan")


def draw(points: Sequence[tuple[int, float, float]]) -> Figure:
    """(workers, hours of the bound, hours) of each."""
    counts, bounds, hours = zip(*points, strict=True)
    drawn = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = drawn.subplots()
    axes.plot(counts, bounds, color=INK, label="bound")
    axes.plot(counts, hours, MARKERS[0], color=COLOURS[0], markersize=6, label="longest first")
    log_axis(axes, "x")
    log_axis(axes, "y")
    axes.set(xlabel="workers", ylabel="hours")
    axes.legend()
    tidy(axes)
    return drawn


def _hours(seconds: float) -> str:
    return f"{_number(seconds / 3600)} hours"


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    run_command(main)
