"""What a variant's results are held against, and what is said of all its seeds."""

import math
from typing import Any

import numpy as np

from pipeline.evaluation.evaluate import difference
from pipeline.evaluation.group import Result
from pipeline.runner.seeds import Finished
from pipeline.system.provenance import versions
from pipeline.training.records import EpochRow


def test_a_test_has_the_bits_of_the_training_where_nothing_else_computes_and_else_its_rounding() -> None:
    here, others = "AMD EPYC (64 cores)", "NVIDIA H200"

    def part(loss: float = 0.25, **other: Any) -> Finished:
        origin = {"device_name": "AMD EPYC (2 cores)", "attention": "sdpa", "versions": versions(), "stack": [0]} | other
        return Finished(0, {}, (EpochRow(0, 1, loss, loss, 0.9, loss, 1.0),), origin)

    def told(old: Finished, loss: float, accuracy: float, place: str = here) -> str | None:
        found = Result(np.array([9, loss]), np.array([9, accuracy]), 10_000, {}, {}, {}, "sdpa")
        return difference(old, found, 1, place)

    assert told(part(), 0.25, 0.9) is None
    assert told(part(math.nan), math.nan, 0.9) is None
    assert str(told(part(), float(np.nextafter(0.25, 1)), 0.9)).startswith("loss 0.25")
    assert told(part(), 0.25, 0.9001) == "accuracy 90.0100% was 90.0000%"
    for old, place in ((part(), others), (part(stack=[0, 1]), here), (part(engine="fused"), here)):
        assert told(old, 0.2501, 0.9002, place) is None
        assert told(old, 0.2504, 0.9, place) is not None
        assert told(old, 0.25, 0.9003, place) is not None
    assert str(told(part(), 0.5, 0.9, others)).endswith(" (processor NVIDIA H200 here, AMD EPYC (2 cores) there)")
