"""The figure of the timing page."""

from __future__ import annotations

from functools import partial

import numpy as np

from pipeline.report.figures import panels
from pipeline.report.figures.base import Picture
from pipeline.report.figures.panels import Line, Panel
from pipeline.timing.results import Timings
from pipeline.timing.subjects import WAYS, Kind, Way

WAY_LABELS: dict[Way, str] = {"published": "as published", "fast": "fast path"}


def growth(timings: Timings) -> Picture:
    """Time and memory of a step and of attention alone against the number of tokens."""
    times: list[Line] = []
    kept: list[Line] = []
    kinds: dict[Kind, str] = {"growth": "step", "attention": "attention alone"}
    for way in WAYS:
        for kind, what in kinds.items():
            entries, label = timings.growth(kind, way), f"{what}, {WAY_LABELS[way]}"
            x, is_part = tuple(entry["tokens"] for entry in entries), kind == "attention"
            of_image = np.array([[1e3 * timings.median(entry["name"]), entry["saved_bytes"] / 1e6] for entry in entries])
            of_image /= [[entry["batch"]] for entry in entries]
            for lines, values in zip((times, kept), of_image.T, strict=True):
                lines.append(Line(label, x, values[None], dashed=is_part))
    caption = (
        "Time and memory of an image against the tokens. Left: time of a training step and of one block's attention, median over the "
        "rounds. Right: bytes kept for the backward pass. The dotted lines grow with the square of the tokens."
    )
    made = []
    for title, lines in (("Time (ms per image)", times), ("Kept for backward (MB per image)", kept)):
        highest = max(lines, key=lambda line: line.values[0, -1])
        tokens = np.array(highest.x, dtype=np.float64)
        square = (tokens, highest.values[0, -1] * (tokens / tokens[-1]) ** 2)
        made.append(Panel(title, "tokens (log scale)", lines, "changes", "counts", square))
    return Picture(caption, partial(panels.draw, made), "growth")
