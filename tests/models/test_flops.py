"""The count from shapes against torch's counter, which watches a forward pass, and against numbers worked out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pipeline.models import attention, build, count_flops
from pipeline.params import AnyModelSettings, BaselineSettings, Params


def plain(qkv: Tensor, *, scale: float) -> Tensor:
    query, key, value = qkv.transpose(1, 3).unbind(2)
    return ((query @ key.transpose(-1, -2) * scale).softmax(-1) @ value).transpose(1, 2)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives what torch's counter sees in one image's forward pass, on no fused kernel."""
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    monkeypatch.setattr(attention, "attention", plain)

    def of(settings: AnyModelSettings) -> int:
        with FlopCounterMode(display=False) as counter:
            build(settings).eval()(torch.rand(1, 1, 28, 28))
        return counter.get_total_flops()

    return of


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "full", "pool": "attention", "cls_insert": "none", "patch": 7},
        {"attention": "full", "pool": "concat", "mlp_dim": 64, "blocks": 2, "embed": "conv"},
        {"attention": "full", "residual": "none", "norm": "none", "memory": 4},
        {"heads": 16, "blocks": 1},
        {"patch": 7, "heads": 4, "mlp": "none"},
    ],
    ids=str,
)
def test_transformers_count_as_torch_does(study: Params, counted: Any, changes: dict[str, Any]) -> None:
    settings = study.base.changed(changes)
    seen = counted(settings)
    if settings.pool == "attention":  # torch passes over matrix-vector products: the query's, and the weighted sum
        seen += 2 * 2 * settings.grid**2 * 32
    # The memory's queries only give the kernel the shape it wants.
    seen -= 2 * settings.blocks * 2 * settings.memory * (settings.num_tokens + settings.memory) * 32
    if settings.attention == "sliced":  # without its kernel one block-diagonal product, most of whose weights are zeros
        seen -= 2 * settings.blocks * settings.num_tokens * 3 * 32 * (32 - 32 // settings.heads)
    assert count_flops(settings) == seen


def test_what_is_taken_away_is_not_counted(study: Params) -> None:
    """Three blocks of 50 tokens, 8 heads of 4 channels; two operations a multiply-add."""

    def of(**changes: Any) -> int:
        return count_flops(study.base.changed(changes))

    one_map, products, mlp = 2 * 3 * 50 * 8 * 4 * 4, 2 * 3 * 2 * 50 * 50 * 32, 2 * 3 * 50 * 2 * 32 * 32
    assert of() - of(attention="unprojected") == 3 * one_map
    assert of() - of(attention="uniform") == 2 * one_map + products
    assert of() - of(attention="none") == 3 * one_map + products
    assert of() - of(mlp="none") == mlp
    assert of(attention="none", mlp="none") == 2 * (49 * 16 * 32 + 32 * 10)
    assert of(memory=4) - of() == 2 * 3 * 2 * 50 * 4 * 32  # each query meets four more keys and values


@pytest.mark.parametrize(
    ("architecture", "widths", "multiply_adds"),
    [
        ("mlp", (300, 100), 784 * 300 + 300 * 100 + 100 * 10),
        ("lenet", (6, 16, 120, 84), 117_600 + 240_000 + 48_000 + 10_080 + 840),
        ("cnn", (2, 3), 9 * (1 * 2 * 784 + 2 * 2 * 196 + 2 * 3 * 196 + 3 * 3 * 49) + 30),
        ("rnn", (5,), 28 * (28 * 5 + 5 * 5) + 50),
        ("lstm", (5,), 28 * 4 * (28 * 5 + 5 * 5) + 50),
    ],
)
def test_other_networks_worked_by_hand(architecture: str, widths: tuple[int, ...], multiply_adds: int) -> None:
    settings = BaselineSettings.model_validate({"architecture": architecture, "widths": widths})
    assert count_flops(settings) == 2 * multiply_adds
