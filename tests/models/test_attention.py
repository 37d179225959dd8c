"""Attention on the kernel that is named, which records and pages repeat."""

from typing import Any

import pytest
import torch

from pipeline.kernels import cpu, small_head_attention
from pipeline.models import attention_kernel, build
from pipeline.params import Params


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fused-cpu"),
        ({"attention": "full", "memory": 4}, "fused-cpu"),
        ({"attention": "unprojected"}, "fused-cpu"),
        ({"heads": 1}, "sdpa"),
        ({"patch": 1, "memory": 239}, "fused-cpu"),
        ({"patch": 1, "memory": 240}, "sdpa"),  # 1025 keys
        ({"attention": "uniform"}, "none"),
        ({"attention_dropout": 0.1}, "explicit: attention dropout"),
    ],
)
def test_the_kernel_that_runs_is_the_one_that_is_named(
    study: Params, changes: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, ran = study.base.changed({"blocks": 1} | changes), list[int]()
    assert attention_kernel(settings, "cpu") == expected
    for name, real in (("forward", cpu.forward), ("sliced_forward", cpu.sliced_forward)):
        monkeypatch.setattr(cpu, name, lambda *args, real=real: ran.append(1) or real(*args))
    for training in (True, False):
        ran.clear()
        build(settings).train(training)(torch.rand(2, 1, 28, 28))
        assert bool(ran) == (expected == "fused-cpu" or ("dropout" in expected and not training))


def test_why_no_fused_kernel_runs_is_told(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_kernel(study.resolve("lab").model, "cuda") == "explicit: attention dropout"
    assert attention_kernel(study.resolve("lstm").model, "cpu") == "none"
    with monkeypatch.context() as patch:
        patch.setenv("LAB_ATTENTION", "sdpa")
        assert attention_kernel(study.base, "cpu") == "sdpa"
    monkeypatch.setattr(small_head_attention, "_unavailable", {None: "numba is too old"})
    monkeypatch.setattr(small_head_attention, "_prepared", set())
    assert attention_kernel(study.base, "cpu") == "sdpa: numba is too old"
