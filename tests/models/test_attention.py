"""Attention on the kernel that is named, which records and pages repeat."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.kernels import small_head_attention
from pipeline.models import attention_kernel, build
from pipeline.params import Params


class Operators(TorchDispatchMode):
    """The names of the operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


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
def test_the_kernel_that_runs_is_the_one_that_is_named(study: Params, changes: dict[str, Any], expected: str) -> None:
    settings = study.base.changed({"blocks": 1} | changes)
    assert attention_kernel(settings, "cpu") == expected
    for training in (True, False):
        with torch.no_grad(), Operators() as ran:
            build(settings).train(training)(torch.rand(2, 1, 28, 28))
        fused = expected == "fused-cpu" or ("dropout" in expected and not training)
        assert bool({"lab::small_head_attention", "lab::sliced_attention"} & ran.names) == fused


def test_why_no_fused_kernel_runs_is_told(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_kernel(study.resolve("lab").model, "cuda") == "explicit: attention dropout"
    assert attention_kernel(study.resolve("lstm").model, "cpu") == "none"
    with monkeypatch.context() as patch:
        patch.setenv("LAB_ATTENTION", "sdpa")
        assert attention_kernel(study.base, "cpu") == "sdpa"
    monkeypatch.setattr(small_head_attention, "_unavailable", {None: "numba is too old"})
    monkeypatch.setattr(small_head_attention, "_prepared", set())
    assert attention_kernel(study.base, "cpu") == "sdpa: numba is too old"
