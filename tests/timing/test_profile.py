"""Operators go to the part that called them, and kept bytes are counted once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

import pipeline.models.attention
from pipeline.data.datasets import Dataset, load
from pipeline.kernels import attention_path
from pipeline.params import Params
from pipeline.timing import profile, published
from pipeline.timing.subjects import entries

CPU = torch.device("cpu")


def test_saved_bytes_counts_what_backward_needs_once() -> None:
    """exp keeps its result, a product both factors; the weight is no activation, and one storage counts once."""
    weight, x = torch.ones(8, requires_grad=True), torch.rand(8, requires_grad=True)

    def compute() -> torch.Tensor:
        y = (x * weight).exp()  # keeps x, the weight and y
        return y * y.view(2, 4).view(8)  # keeps y again, twice

    assert profile.saved_bytes(compute, [weight]) == 2 * 8 * 4
    assert profile.saved_bytes(compute) == 3 * 8 * 4


def test_operators_go_to_the_part_that_called_them(small: Params, arrays: Path) -> None:
    dataset, groups = load(arrays), set(profile.GROUPS)
    before = pipeline.models.attention.attention, published.weigh
    for entry in entries(small, 4):
        if entry.kind != "step" or entry.nested:
            continue
        found = profile.profile(entry, small, dataset, CPU, 2)
        assert set(found["groups"]) == set(found["operators"]) == groups
        assert sum(found["groups"].values()) == pytest.approx(found["seconds"])
        operators = found["operators"]
        assert all(operators[group] > 0 for group in groups - {"class token"})
        assert (operators["class token"] > 0) == (entry.subject != "first")
        # As published each head has products of its own: eight times as many calls for the same network.
        blocks, heads = entry.model.blocks, entry.model.heads
        if entry.way == "published":
            assert operators["attention"] >= blocks * heads * 6
        elif attention_path(device="cpu", head_dim=4, tokens=50) == "fused-cpu":
            assert operators["attention"] <= blocks * 6
    assert (pipeline.models.attention.attention, published.weigh) == before  # without their labels


def make_event(
    name: str, parent: Any = None, *, start: int = 0, number: int = -1, kernels: Sequence[tuple[str, float]] = (), gpu: bool = False
) -> Any:
    """What `by_part` reads of a profiler's event; `number` is what forward and backward share."""
    return SimpleNamespace(
        name=name, cpu_parent=parent, sequence_nr=number, time_range=SimpleNamespace(start=start), self_cpu_time_total=1.0,
        device_type=DeviceType.CUDA if gpu else DeviceType.CPU,
        kernels=[SimpleNamespace(name=kernel, duration=duration) for kernel, duration in kernels],
    )  # fmt: skip


def test_on_a_gpu_each_kernel_counts_once() -> None:
    """A label has its span on the GPU among its kernels, and kernels and spans are events of their own, too."""
    label = make_event("part: attention", kernels=[("part: attention", 30.0)])
    outer = make_event("aten::linear", label, start=1, number=5)
    inner = make_event("aten::addmm", outer, start=2, kernels=[("gemm", 20.0), ("Memset (Device)", 2.0)])
    node = make_event("autograd::engine::evaluate_function: AddmmBackward0", start=3, number=5)
    backward = make_event("aten::mm", node, start=4, kernels=[("gemm", 7.0)])
    of_gpu = [make_event(name, start=5, number=5, gpu=True) for name in ("gemm", "Memset (Device)", "part: attention", "gemm")]
    times, operators = profile.by_part([label, outer, inner, node, backward, *of_gpu], cuda=True)
    assert dict(times) == {"attention": 29.0}
    assert dict(operators) == {"attention": 2}
    times, _ = profile.by_part([label, outer, inner, node, backward, *of_gpu], cuda=False)
    assert times.total() == 5.0


@pytest.mark.cuda
def test_the_parts_of_a_profile_on_a_gpu_are_all_of_its_kernels(study: Params, blobs: Callable[[int, int], Dataset]) -> None:
    for entry in entries(study, 16):
        if entry.kind == "step" and entry.subject == "base" and not entry.nested:
            events = profile.record(entry, study, blobs(2000, 500), torch.device("cuda"), 2)
            kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
            spent = sum(event.time_range.elapsed_us() for event in kernels)
            assert profile.by_part(events, cuda=True)[0].total() == pytest.approx(spent, rel=0.05)
