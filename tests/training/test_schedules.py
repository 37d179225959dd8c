"""Schedules against their published formulas, torch's own, and what every one of them has to be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from pipeline.params import Params, TrainSettings
from pipeline.training import schedules

RATE = 0.005


def train(study: Params, schedule: str, warmup: float = 0.0) -> TrainSettings:
    fields = study.train.model_dump() | {"schedule": schedule, "warmup": warmup, "learning_rate": RATE}
    return TrainSettings.model_validate(fields)


def rates(study: Params, schedule: str, warmup: float, total: int) -> list[float]:
    table = schedules.learning_rates(train(study, schedule, warmup), total)
    assert table.shape == (total,)
    assert table.dtype == torch.float64
    return table.tolist()


def torchs(total: int, make: Callable[[torch.optim.Optimizer], Any]) -> list[float]:
    """The rates that a scheduler of torch gives in `total` steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    scheduler = make(optimizer)
    seen = []
    for _ in range(total):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(("total", "warmup"), [(1, 0.0), (2, 0.0), (469, 0.0), (469, 0.1), (3, 0.5), (10, 0.99), (10, 0.01)])
def test_linear_and_cosine_are_torchs_after_a_rise(study: Params, total: int, warmup: float) -> None:
    """A warm-up of w steps ends in the peak; the schedule without it begins there."""
    w = max(1, round(warmup * total))
    rest = total - w + 1
    rise = torchs(w, lambda o: lr_scheduler.LambdaLR(o, lambda t: (t + 1) / w))[:-1]
    linear = rise + torchs(rest, lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=rest))
    assert rates(study, "warmup_linear" if warmup else "linear", warmup, total) == pytest.approx(linear, rel=1e-9)
    cosine = rise + torchs(rest, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=rest))
    assert rates(study, "cosine", warmup, total) == pytest.approx(cosine, rel=1e-9, abs=1e-15)
    assert warmup or set(rates(study, "constant", 0.0, total)) == {RATE}


@pytest.mark.parametrize(("total", "warmup", "dim"), [(100, 0.1, 512), (2, 0.4, 32)])
def test_noam_is_the_papers_up_to_scale(study: Params, total: int, warmup: float, dim: int) -> None:
    w = max(1, round(warmup * total))
    paper = [dim**-0.5 * min(step**-0.5, step * w**-1.5) for step in range(1, total + 1)]
    factor = RATE / max(paper)
    assert rates(study, "noam", warmup, total) == pytest.approx([rate * factor for rate in paper], rel=1e-12)


def test_self_critical_epochs_come_after_the_schedule(study: Params) -> None:
    """Of five epochs of 20 steps the last two have their own rate, and the schedule ends before them as if they were not there."""
    own = {"epochs": 5, "self_critical_epochs": 2, "self_critical_rate": 3e-4}
    table = schedules.learning_rates(train(study, "cosine", 0.1).model_copy(update=own), 100).tolist()
    assert table[:60] == rates(study, "cosine", 0.1, 60)
    assert table[60:] == [3e-4] * 40
