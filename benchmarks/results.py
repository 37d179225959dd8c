"""Timings as rows of a CSV file, their medians, spreads and ratios with intervals, and the run that they are of."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.provenance import git_state

_RESAMPLES = 10_000
_LEVEL = 0.95


def this_run() -> dict[str, Any]:
    """The commit and date of a run that begins now."""
    commit, dirty = git_state()
    return {"commit": commit, "dirty": dirty, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}


@dataclass(frozen=True)
class Row:
    """One timing.

    Attributes:
        round: counted from 1.
        position: place in the round's random order, from 1.
        implementation: a key of `measure.IMPLEMENTATIONS`.
        epoch_seconds: an epoch of one seed, 469 steps; with several seeds the time of all, divided by their number.
        memory: peak bytes, of the process tree on the CPU, allocated on the GPU on CUDA.
        foreign: share of the machine that other processes used during the timed steps, in [0, 1].
        kept: whether that share was small enough for the timing to count.
    """

    round: int
    position: int
    implementation: str
    parameters: int
    seeds: int
    steps: int
    epoch_seconds: float
    warmup_seconds: float
    checkpoint_seconds: float
    memory: int
    foreign: float
    kept: bool


def write(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(Row))
    writer.writerows(dataclasses.astuple(row) for row in rows)
    write_text(path, text.getvalue())


def read(path: Path) -> list[Row]:
    """Raises UserError when the file is missing or not such a table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return TypeAdapter(list[Row]).validate_python(list(csv.DictReader(file)))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `python -m benchmarks` first.") from None
    except (TypeError, ValueError):
        raise UserError(f"{path} is damaged: run `python -m benchmarks` again, or restore it from git.") from None


def by_round(rows: Iterable[Row], implementation: str) -> dict[int, float]:
    """Epoch seconds of the timings that count, by round."""
    return {row.round: row.epoch_seconds for row in rows if row.implementation == implementation and row.kept}


@dataclass(frozen=True)
class Ratio:
    """How many times as long one implementation takes as another."""

    value: float
    low: float
    high: float


def ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Ratio | None:
    """The ratio of medians over the rounds that both have, with a percentile bootstrap interval of 95 %.

    Whole rounds are drawn, so what slows a round for both (clock frequency, temperature) does not widen the interval
    (Efron and Tibshirani 1993, chapter 13). With few rounds the interval is no wider than the rounds' own extremes.

    Returns:
        None where they share no round.
    """
    shared = sorted(numerator.keys() & denominator.keys())
    if not shared:
        return None
    pairs = np.array([[numerator[i], denominator[i]] for i in shared])
    value = float(np.median(pairs[:, 0]) / np.median(pairs[:, 1]))
    drawn = np.random.default_rng(0).integers(len(shared), size=(_RESAMPLES, len(shared)))
    medians = np.median(pairs[drawn], axis=1)  # (resample, 2)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Ratio(value, float(low), float(high))


@dataclass(frozen=True)
class Summary:
    """One implementation over its rounds: epoch seconds of one seed, warm-up and checkpoint in seconds, memory in bytes."""

    parameters: int
    steps: int
    median: float
    low: float
    high: float
    warmup: float
    memory: int
    checkpoint: float


def summarize(rows: Iterable[Row]) -> dict[str, Summary]:
    """By implementation, in the order of the rows; one whose timings were all discarded is left out."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.implementation, []).append(row)
    summaries = {}
    for name, group in grouped.items():
        kept = [row for row in group if row.kept]
        if not kept:
            continue
        seconds = [row.epoch_seconds for row in kept]
        summaries[name] = Summary(
            kept[0].parameters,
            kept[0].steps,
            statistics.median(seconds),
            min(seconds),
            max(seconds),
            statistics.median(row.warmup_seconds for row in kept),
            max(row.memory for row in kept),
            statistics.median(row.checkpoint_seconds for row in kept),
        )
    return summaries
