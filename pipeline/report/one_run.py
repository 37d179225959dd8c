"""The page that says what one run, or the best of several, would have reported of each network."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.params import Params
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, Picture
from pipeline.report.figures.rows import Row
from pipeline.study import Training
from pipeline.study.claims import QUARTER
from pipeline.study.effects import look_level
from pipeline.study.ranking import SEEDS, Selected, orders

PAGE = "one-run.md"
_RULES = ("the best epoch of a run", f"the best of {SEEDS} seeds", "the best epoch of the best seed")
_ENDS = (5, 95)  # percentiles between which nine tenths of the networks lie


def values(params: Params, runs: Mapping[str, Training], found: Sequence[Selected]) -> dict[str, Any]:
    """What the page's template takes. `found`: at least one network."""
    ordered = orders(found, params.experiments, runs, look_level(params.looks))
    apart = [order for order in ordered if order.apart]
    gains = np.array([one.gains for one in found])
    medians, (low, high) = np.median(gains, axis=0).tolist(), np.percentile(gains, _ENDS, axis=0).tolist()
    made = [
        Row(rule, 100 * median, 100 * low[i], 100 * high[i], COLOURS[0], seeds=(100 * gains)[:, i], right=f"{100 * median:.1f} %")
        for i, (rule, median) in enumerate(zip(_RULES, medians, strict=True))
    ]
    caption = (
        f"What a rule of reporting takes off the test errors that a network makes on average (%). A ring is a network, of which the first "
        f"{SEEDS} seeds count; the diamond is the median of {len(found)} networks, the bar holds nine tenths of them."
    )
    draw = partial(rows.draw, made, "", "errors gone by the choice (%)", inches=1.0, fontsize=10, solid=(0.0,))
    return {
        "seeds": SEEDS,
        "picture": Picture(caption, draw, "one-run"),
        "networks": sorted(found, key=lambda one: -one.gains[2]),
        "rules": list(zip(_RULES, medians, strict=True)),
        "apart": apart,
        "near": [order for order in apart if 1 / QUARTER < order.ratio < QUARTER],
        "left": len(ordered) - len(apart),
    }
