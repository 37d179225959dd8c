"""A figure of all verdicts: the deciding effect of each claim in units of its margin."""

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.measures import MEASURES
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, INK, MUTED, Picture
from pipeline.report.figures.rows import Row
from pipeline.report.text import compared
from pipeline.study.claims import Finding, Judgement, Verdict, is_ratio, region

REACH = 4.0  # margins shown to either side
_MAX_LABEL = 80  # characters
# What is observed and decides nothing is muted, and its signs are open.
_COLOURS: dict[Verdict, str] = {
    "supported": COLOURS[0], "contradicted": COLOURS[1], "no effect of more than a quarter": COLOURS[4], "not decided": INK
}  # fmt: skip


def _in_margins(finding: Finding) -> list[float] | None:
    """The effect, the interval's ends and the region's ends; None where there is no interval.

    The margin is the distance from no effect to the bound; of a region with two ends, half of their distance, counted from the middle.
    A bound at no effect, or on a level of accuracy, has no margin: there the unit is half the interval's width. No effect stands at 0, a
    level at 1.
    """
    if finding.effect is None or finding.interval is None:
        return None
    values = [finding.effect, finding.interval.low, finding.interval.high, *region(finding.comparison)]
    if is_ratio(finding.comparison):
        values = [math.log(x) if x > 0 else -math.inf for x in values]
    _, low, high, *ends = values
    bound = ends[0] if math.isfinite(ends[0]) else ends[1]
    is_level = finding.comparison.rule == "at least" and MEASURES[finding.comparison.measure].of_value == "%"
    if all(map(math.isfinite, ends)):
        start, unit = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    elif finding.comparison.rule in ("less", "more", "at least") and bound and not is_level:
        start, unit = 0.0, abs(bound)
    else:
        unit = (high - low) / 2 or 1.0
        start = 0.0 if not bound else bound - unit if math.isfinite(ends[0]) else bound + unit
    return [(x - start) / unit for x in values]


def _label(judgement: Judgement) -> str:
    """The claim and its deciding comparison, as far as it fits on a line."""
    text = f"{judgement.id} {compared(judgement.deciding.comparison)}"
    return textwrap.shorten(text, _MAX_LABEL, placeholder=" \N{HORIZONTAL ELLIPSIS}", break_on_hyphens=False).replace(" ", "  ", 1)


def forest(judgements: Sequence[Judgement]) -> Picture | None:
    """A forest plot of the claims that have an effect; None where none has."""
    made = []
    for judgement in judgements:
        if found := _in_margins(judgement.deciding):
            effect, low, high, *ends = found
            colour = _COLOURS.get(judgement.verdict, MUTED)
            made.append(Row(_label(judgement), effect, low, high, colour, judgement.verdict, colour == MUTED, region=(ends[0], ends[1])))
    caption = (
        "The deciding effect of each claim that has an interval, in units of the claim's margin. Green: where the claim puts it. 0 is no "
        "effect, or the middle of a region with two ends; a level of accuracy stands at 1. Open signs are observations, which decide "
        "nothing."
    )
    axis: dict[str, Any] = {"inches": 0.06 + 0.135, "fontsize": 7.5, "ends": (-REACH, REACH), "solid": (0,), "dotted": (-1, 1)}
    return Picture(caption, partial(rows.draw, made, "", "effect, in margins of its claim", **axis), "verdicts") if made else None
