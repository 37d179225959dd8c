"""The experiment's own measure seed by seed, and all parts of the network by what they are worth."""

import math
import textwrap
from collections.abc import Sequence
from functools import partial

import numpy as np

from pipeline.measures import MEASURES
from pipeline.report.figures import rows
from pipeline.report.figures.base import COLOURS, INK, MUTED, Material, Picture, figure
from pipeline.report.figures.rows import Row
from pipeline.report.text import digits
from pipeline.study.ranking import SMALL, Part
from pipeline.study.results import summarized

_KINDS = {
    "more": (COLOURS[1], "more errors by over a quarter"), "fewer": (COLOURS[0], "fewer by over a fifth"),
    "small": (MUTED, "within a quarter"), "open": (INK, "across a bound"),
}  # fmt: skip


@figure("measure")
def measure(material: Material) -> list[Picture]:
    """The experiment's measure, seed by seed."""
    # By default that on which verdicts and tables rest, and not the last epoch's, of which the curves have more.
    name = "late accuracy" if material.experiment.measure == "accuracy" else material.experiment.measure
    chosen = MEASURES[name]
    found = [(run, chosen.factor * values) for run in material.runs if (values := chosen.per_seed(run)) is not None]
    finite = [values[np.isfinite(values)] for _, values in found]
    medians = [float(np.median(values)) for values in finite if values.size]
    logarithmic = bool(medians) and min(values.min() for values in finite if values.size) > 0 and max(medians) > 20 * min(medians)
    made, dotted = [], []
    for (run, values), kept in zip(found, finite, strict=True):
        lost = f"\n{len(values) - kept.size} of {len(values)} not finite" if kept.size < len(values) else ""
        mean, interval = (summary.mean, summary.interval) if (summary := summarized(run, name)) else (math.nan, None)
        mean, low, high = (chosen.factor * one for one in (mean, *((interval.low, interval.high) if interval else (math.nan, math.nan))))
        if logarithmic:  # the axis would end at 0
            low = max(low, kept.min(initial=math.inf) / 2)
        dotted += [mean] * (material.is_baseline(run) and kept.size > 0)
        colour = INK if material.is_baseline(run) else COLOURS[0]
        made.append(Row(textwrap.fill(material.label(run), 30) + lost, mean, low, high, colour, seeds=kept))
    title = f"{chosen.title} ({chosen.of_value})" if chosen.of_value else chosen.title
    title = textwrap.fill(title + (", log scale" if logarithmic else ""), 70)
    draw = partial(rows.draw, made, title, "", inches=0.42, fontsize=10, logarithmic=logarithmic, dotted=dotted)
    return [Picture(f"{chosen.title} of each seed.", draw)] if made else []


def ranking(parts: Sequence[Part]) -> Picture | None:
    """A dot for each part, sorted; None where there is no part."""
    caption = (
        "Each part of the network and of its training by what its removal or exchange does to the test error: ratio of the errors after "
        f"it to those before, and its interval. Dotted lines: a quarter more errors, {SMALL:g}, and a fifth fewer, {1 / SMALL:g}."
    )
    made = [Row(one.name, one.ratio, one.interval.low, one.interval.high, *_KINDS[one.kind], right=digits(one.ratio)) for one in parts]
    place, dotted = "test errors changed over unchanged, log scale", (1 / SMALL, SMALL)
    draw = partial(rows.draw, made, "", place, inches=0.215, fontsize=8.5, logarithmic=True, solid=(1.0,), dotted=dotted)
    return Picture(caption, draw, "ranking") if made else None
