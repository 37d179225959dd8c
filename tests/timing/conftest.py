"""What the tests of this folder share."""

from typing import Any

import pytest

from pipeline.params import Params, parse

SUBJECTS: dict[str, dict[str, Any]] = {
    "base": {},
    "cls-loop": {"cls_insert": "loop"},
    "first": {"pool": "first", "cls_insert": "none"},
    "reference": {"cls_insert": "loop", "loops": "nested"},
}


@pytest.fixture(scope="session")
def small(raw_params: dict[str, Any]) -> Params:
    """A block of the study's model, with small batches and the shortest of timings."""
    return parse(
        raw_params
        | {
            "data": {"dataset": "digits"},
            "variants": {"base": {}},  # others see more images than digits has
            "experiments": {},
            "claims": {},
            "train": raw_params["train"] | {"batch_size": 4},
            "base": raw_params["base"] | {"patch": 14, "blocks": 1},
            "timing": {"rounds": 2, "steps": 2, "seconds": 0.01, "tokens": [4, 16], "subjects": SUBJECTS},
        }
    )
