"""The page that says what one run, or the best of several, would have reported of each network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.params import Params
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, Picture
from pipeline.report.figures.rows import Row
from pipeline.study import Training
from pipeline.study.effects import look_level
from pipeline.study.selection import SEEDS, Selected, orders

PAGE = "one-run.md"
_RULES = ("the best epoch of a run", f"the best of {SEEDS} seeds", "the best epoch of the best seed")
_ENDS = (5, 95)  # percentiles between which nine tenths of the networks lie


def values(params: Params, runs: Mapping[str, Training], found: Sequence[Selected]) -> tuple[dict[str, Any], Picture]:
    """What the page's template takes, and its figure. `found`: at least one network."""
    ordered = sorted(orders(found, params.experiments, runs, look_level(params.looks)), key=lambda one: -one.one)
    summaries = _summaries(found)
    picture = _picture(found, summaries)
    return {
        "seeds": SEEDS,
        "picture": picture,
        "networks": sorted(found, key=lambda one: -one.gains[2]),
        "rules": list(zip(_RULES, summaries, strict=True)),
        "orders": ordered,
        "one": [order.one for order in ordered],
        "three": [order.three for order in ordered],
    }, picture


def _summaries(found: Sequence[Selected]) -> list[tuple[float, ...]]:
    """By rule the median of the networks' gains, and the ends between which nine tenths of them lie."""
    gains = np.array([one.gains for one in found])
    low, high = np.percentile(gains, _ENDS, axis=0)
    return list(zip(np.median(gains, axis=0).tolist(), low.tolist(), high.tolist(), strict=True))


def _picture(found: Sequence[Selected], summaries: Sequence[tuple[float, ...]]) -> Picture:
    gains = 100 * np.array([one.gains for one in found])
    made = [
        Row(rule, 100 * median, 100 * low, 100 * high, COLOURS[0], seeds=column, right=f"{100 * median:.1f} %")
        for rule, (median, low, high), column in zip(_RULES, summaries, gains.T, strict=True)
    ]
    caption = (
        f"What a rule of reporting takes off the test errors that a network makes on average (%). A ring is a network, of which the first "
        f"{SEEDS} seeds count; the diamond is the median of {len(found)} networks, the bar holds nine tenths of them."
    )
    draw = partial(rows.draw, made, "", "errors gone by the choice (%)", inches=1.0, fontsize=10, solid=(0.0,))
    return Picture(caption, draw, "one-run")
