"""Which parts matter: ratios, their order, and what is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.study.ranking import ranking


def _training(*errors: float, task: str = "classification") -> Any:
    return SimpleNamespace(test_error=np.array(errors)[:, None], settings=SimpleNamespace(task=task))


def test_parts_are_sorted_by_ratio_with_welchs_interval() -> None:
    base, worse, near = _training(0.02, 0.022, 0.021), _training(0.04, 0.05, 0.043, 0.041), _training(0.0205, 0.0211, 0.0216)
    trainings = {"base": base, "worse": worse, "near": near, "alone": _training(0.1), "words": _training(0.1, 0.2, task="captioning")}
    pairs = {f"no {name}": (name, "base") for name in ("near", "worse", "alone", "words", "absent")}
    pairs["base, not worse"] = ("base", "worse")
    parts = ranking(pairs, trainings, 0.9)
    assert [(part.name, part.kind) for part in parts] == [("no worse", "more"), ("no near", "small"), ("base, not worse", "fewer")]
    logs = [np.log(one.test_error[:, 0]) for one in (worse, base)]
    expected = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.9)
    assert parts[0].ratio == pytest.approx(np.exp(logs[0].mean() - logs[1].mean()))
    assert (parts[0].interval.low, parts[0].interval.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    (wide,) = ranking({"no worse": ("worse", "base")}, trainings, 0.9999)
    assert wide.kind == "open"
