"""The timing page: the measurements of the timing stage, and the claims about time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.params import Params
from pipeline.report.figures import Picture, panels
from pipeline.report.figures.base import named
from pipeline.report.figures.panels import Line, Panel
from pipeline.study.claims import Judgement
from pipeline.study.effects import MIN_ROUNDS
from pipeline.timing.results import MIN_TOKENS, Timings, main_device
from pipeline.timing.subjects import WAYS, Kind, Way

PAGE = "timing.md"
WAY_LABELS: dict[Way, str] = {"published": "as published", "fast": "fast path"}


def values(params: Params, timed: Mapping[str, Timings], judgements: Sequence[Judgement]) -> tuple[dict[str, Any], Picture]:
    """What the page's template takes, and its picture.

    Args:
        timed: by the kind of device, at least one.
        judgements: of the claims about times.
    """

    from pipeline.models import count_flops

    timings = main_device(timed)
    assert timings is not None
    raw, picture = timings.raw, growth(timings)
    return {
        "raw": raw,
        "timings": timings,
        "calls": {way: sum(raw["profiles"][f"step/{way}/{timings.subjects()[0]}"]["operators"].values()) for way in WAYS},
        "multiply_adds": 3 * raw["settings"]["batch_size"] * count_flops(params.base) / 2,
        "rounds": sum(entry["kept"] for entry in raw["rounds"]),
        "discarded": [entry["foreign"] for entry in raw["rounds"] if not entry["kept"]],
        "min_rounds": MIN_ROUNDS,
        "min_tokens": MIN_TOKENS,
        "growth": picture,
        "ways": WAYS,
        "way_labels": WAY_LABELS,
        "pairs": [  # claim, slower, faster of the claims' ratios whose two sides were timed
            (judgement.id, part.variant, part.reference)
            for judgement in judgements
            for part in judgement.claim.comparisons
            if part.rule == "ratio" and {part.variant, part.reference} <= set(timings.subjects())
        ],
        "label": lambda subject: named(subject, params.timing.label(subject)),
    }, picture


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
