"""The page on method: how a claim is judged, and how often a verdict is wrong."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from pipeline.measures import late
from pipeline.params import Params
from pipeline.report import text
from pipeline.study import Training
from pipeline.study.effects import TOGETHER, look_level, look_orders
from pipeline.study.statistics import LEVEL

_RATES = Path(__file__).parents[1] / "study/error_rates.csv"  # as `python -m docs.method.error_rates` last counted them
_LOOKS = (6, 10, 20)  # at which they were counted


def render(params: Params, runs: Mapping[str, Training]) -> bytes:
    """A pure function of its arguments, the template and the table of simulated error rates.

    Args:
        runs: of all variants that were trained.
    """
    rows: dict[str, dict[str, dict[str, str]]] = {}
    power = []
    with _RATES.open(encoding="utf-8", newline="") as file:
        counted = list(csv.DictReader(file))
    for row in counted:
        claim, _, spread = row["scenario"].partition(", ")
        if row["kind"] == "error":
            rows.setdefault(spread, {})[claim] = row
        else:
            power.append(row)
    path = look_orders(params.looks)[0]
    worst = max(float(row["false"]) for found in rows.values() for row in found.values())
    trials = int(power[0]["trials"])
    return text.page(
        "method.md.j2",
        preview=params.preview,
        images_shown=params.images_shown,
        looks=params.looks,
        level=100 * look_level(params.looks),
        overall=100 * (1 - LEVEL),
        together=100 * (TOGETHER if len(path) > 1 else 1 - LEVEL),
        steps=len(path),
        path=text.listed([f"{one} and {other}" for one, other in path]) if params.looks else "",
        timed_level=100 * LEVEL,
        simulated=_LOOKS,
        rows=rows,
        claims=list(dict.fromkeys(claim for found in rows.values() for claim in found)),
        worst=worst,
        chance=1.96 * math.sqrt(worst * (1 - worst) / trials),
        power=power,
        skewness=skewness(runs, params.looks[0]) if params.looks else None,
        trials=trials,
        share=lambda value: f"{100 * float(value):.1f}",
    )


@dataclass(frozen=True)
class Skewness:
    """The sample skewness of the logarithm of the late test error over seeds: its quartiles over `variants` variants, and the largest."""

    variants: int
    low: float
    median: float
    high: float
    most: str
    largest: float


def skewness(runs: Mapping[str, Training], fewest: int) -> Skewness | None:
    """Over the variants with at least `fewest` seeds; None without any. Variants whose seeds all end at the same error have none."""
    errors = {name: late(run.test_error) for name, run in runs.items() if len(run.seeds) >= fewest}
    found = {
        name: float(stats.skew(np.log(error), bias=False)) for name, error in errors.items() if error.min() > 0 and np.ptp(error) > 1e-9
    }
    if not found:
        return None
    low, median, high = np.quantile(list(found.values()), (0.25, 0.5, 0.75)).tolist()
    most = max(found, key=lambda name: found[name])
    return Skewness(len(found), low, median, high, most, found[most])
