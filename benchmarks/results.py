"""Timings as a table, their medians, spreads and ratios with intervals, and the run that they are of."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.system.errors import UserError
from pipeline.system.provenance import git_state

# A row is a timing: its round and its place in the round's random order, both from 1; an epoch of one seed, 469 steps; the share of the
# machine that other processes used; whether that was little enough for the timing to count.
COLUMNS = (
    "round", "position", "implementation", "parameters", "seeds", "steps", "epoch_seconds", "checkpoint_seconds", "foreign", "kept",
)  # fmt: skip


def this_run() -> dict[str, Any]:
    """The commit and date of a run that begins now."""
    commit, dirty = git_state()
    return {"commit": commit, "dirty": dirty, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}


def read(path: Path) -> pd.DataFrame:
    """Raises UserError when the file is missing or not such a table."""
    try:
        table = pd.read_csv(path, dtype={"kept": bool, "epoch_seconds": float})
        return table[list(COLUMNS)]
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `python -m benchmarks` first.") from None
    except (KeyError, ValueError):
        raise UserError(f"{path} is damaged: run `python -m benchmarks` again, or restore it from git.") from None


def by_round(table: pd.DataFrame, implementation: str) -> dict[int, float]:
    """Epoch seconds of the timings that count, by round."""
    own = table[(table.implementation == implementation) & table.kept]
    return dict(zip(own["round"], own.epoch_seconds, strict=True))


def ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> tuple[float, float, float] | None:
    """The ratio of medians over the rounds that both have, and its percentile bootstrap interval of 95 %; None without such a round.

    Whole rounds are drawn, so what slows a round for both (clock frequency, temperature) does not widen the interval
    (Efron and Tibshirani 1993, chapter 13). With few rounds the interval is no wider than the rounds' own extremes.
    """
    shared = sorted(numerator.keys() & denominator.keys())
    if not shared:
        return None
    pairs = np.array([[numerator[i], denominator[i]] for i in shared])
    value = float(np.median(pairs[:, 0]) / np.median(pairs[:, 1]))
    drawn = np.random.default_rng(0).integers(len(shared), size=(10_000, len(shared)))
    medians = np.median(pairs[drawn], axis=1)  # (resample, 2)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], [0.025, 0.975])
    return value, float(low), float(high)


class Summary(NamedTuple):
    """One implementation over the rounds that count: epoch and checkpoint of one seed, in seconds."""

    parameters: int
    steps: int
    median: float
    low: float
    high: float
    checkpoint: float


def summarize(table: pd.DataFrame) -> dict[str, Summary]:
    """Of each implementation that has a timing that counts."""
    found = {}
    for name, own in table[table.kept].groupby("implementation"):
        seconds = own.epoch_seconds
        first = int(own.parameters.iloc[0]), int(own.steps.iloc[0])
        found[str(name)] = Summary(*first, float(seconds.median()), seconds.min(), seconds.max(), float(own.checkpoint_seconds.median()))
    return found


def read_facts(path: Path) -> dict[str, Any]:
    """The circumstances of a run. Raises UserError when the file is damaged."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return facts
    except ValueError:
        raise UserError(f"{path} is damaged: delete it or restore it from git, then run the command again.") from None
