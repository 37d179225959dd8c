"""The timing page: the measurements of the timing stage, and the claims about time."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pipeline.params import Params
from pipeline.report.figures import Picture, panels
from pipeline.report.figures.base import named
from pipeline.report.figures.panels import Line, Panel
from pipeline.study.effects import MIN_ROUNDS
from pipeline.timing.results import Timings, main_device
from pipeline.timing.subjects import WAYS, Kind, Way

PAGE = "timing.md"
WAY_LABELS: dict[Way, str] = {"published": "as published", "fast": "fast path"}


def values(params: Params, timed: Mapping[str, Timings], flops: int | None) -> dict[str, Any]:
    """What the page's template takes. `timed`: by the kind of device, at least one. `flops`: of an image's forward pass in the base."""
    timings = main_device(timed)
    assert timings is not None
    raw, decoded = timings.raw, timings.growth("decoding", "fast")  # by rising number of words
    return {
        "raw": raw,
        "timings": timings,
        "calls": {way: sum(raw["profiles"][f"step/{way}/{timings.subjects()[0]}"]["operators"].values()) for way in WAYS},
        "multiply_adds": 3 * raw["settings"]["batch_size"] * flops / 2 if flops else None,
        "rounds": sum(entry["kept"] for entry in raw["rounds"]),
        "min_rounds": MIN_ROUNDS,
        "growth": growth(timings),
        "profiled": [subject for subject in timings.subjects("fast") if f"step/fast/{subject}" in raw["profiles"]],
        "written": {name: [one for one in decoded if one["subject"] == name] for name in dict.fromkeys(one["subject"] for one in decoded)},
        "ways": WAYS,
        "way_labels": WAY_LABELS,
        "label": lambda subject: named(subject, params.timing.label(subject)),
    }


def growth(timings: Timings) -> Picture:
    """Time and memory of a step and of attention alone against the number of tokens."""
    kinds: dict[Kind, str] = {"growth": "step", "attention": "attention alone"}
    shown: dict[str, Callable[[dict[str, Any]], float]] = {
        "Time (ms per image)": lambda entry: 1e3 * timings.median(entry["name"]),
        "Kept for backward (MB per image)": lambda entry: entry["saved_bytes"] / 1e6,
    }
    made = []
    for title, value in shown.items():
        lines = []
        for way, kind in itertools.product(WAYS, kinds):
            entries = timings.growth(kind, way)
            values = np.array([[value(entry) / entry["batch"] for entry in entries]])
            x = tuple(entry["tokens"] for entry in entries)
            lines.append(Line(f"{kinds[kind]}, {WAY_LABELS[way]}", x, values, dashed=kind == "attention"))
        made.append(Panel(title, "tokens (log scale)", lines, "changes", "counts"))
    caption = (
        "Time and memory of an image against the tokens. Left: time of a training step and of one block's attention, median over the "
        "rounds. Right: bytes kept for the backward pass."
    )
    return Picture(caption, partial(panels.draw, made), "growth")
