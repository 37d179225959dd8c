"""The timing page: the measurements of the timing stage, and the claims about time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.params import Params
from pipeline.report.figures import Picture
from pipeline.report.figures.base import named
from pipeline.report.figures.timing import WAY_LABELS, growth
from pipeline.study.claims import Judgement
from pipeline.study.effects import MIN_ROUNDS
from pipeline.timing.results import MIN_TOKENS, Timings, main_device
from pipeline.timing.subjects import WAYS

PAGE = "timing.md"


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
