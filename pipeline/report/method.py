"""The page on method: how a claim is judged, and how often a verdict is wrong."""

from __future__ import annotations

import math

from pipeline.params import Params
from pipeline.report import text
from pipeline.study import error_rates
from pipeline.study.effects import TOGETHER, look_level
from pipeline.study.statistics import LEVEL


def render(params: Params) -> bytes:
    """A pure function of params.yaml, the template and the table of simulated error rates."""
    rows: dict[str, dict[str, dict[str, str]]] = {}
    power = []
    for row in error_rates.read():
        claim, _, spread = row["scenario"].partition(", ")
        if row["kind"] == "error":
            rows.setdefault(spread, {})[claim] = row
        else:
            power.append(row)
    worst = max(float(row["false"]) for found in rows.values() for row in found.values())
    trials = int(power[0]["trials"])
    return text.page(
        "method.md.j2",
        preview=params.preview,
        images_shown=params.images_shown,
        looks=params.looks,
        level=100 * look_level(params.looks),
        overall=100 * (1 - LEVEL),
        together=100 * TOGETHER,
        timed_level=100 * LEVEL,
        simulated=error_rates.LOOKS,
        rows=rows,
        claims=list(dict.fromkeys(claim for found in rows.values() for claim in found)),
        worst=worst,
        chance=1.96 * math.sqrt(worst * (1 - worst) / trials),
        power=power,
        trials=trials,
        share=lambda value: f"{100 * float(value):.1f}",
    )
