"""The count from shapes against torch's counter, which watches a forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pipeline.models import attention, build, count_flops
from pipeline.params import AnyModelSettings, BaselineSettings, ModelSettings, Params


def plain(qkv: Tensor, *, scale: float) -> Tensor:
    query, key, value = qkv.transpose(1, 3).unbind(2)
    return ((query @ key.transpose(-1, -2) * scale).softmax(-1) @ value).transpose(1, 2)


def counted(settings: AnyModelSettings) -> int:
    """What torch's counter sees in one image's forward pass."""
    with FlopCounterMode(display=False) as counter:
        build(settings).eval()(torch.rand(1, 1, 28, 28))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"patch": 7},
        {"pool": "attention", "cls_insert": "none"},
        {"pool": "concat", "cls_insert": "none"},
        {"mlp_dim": 64, "blocks": 2, "embed": "conv"},
        {"residual": "none", "norm": "none", "score_scale": False},
    ],
)
def test_full_attention_counts_as_torch_does(study: Params, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    settings = ModelSettings.model_validate(study.base.model_dump() | {"attention": "full"} | changes)
    monkeypatch.setattr(attention, "attention", plain)
    uncounted = 2 * 49 * 32 if settings.pool == "attention" else 0  # torch passes over matrix-vector products, such as the query's
    assert count_flops(settings) == counted(settings) + uncounted


@pytest.mark.parametrize("kind", ["full", "sliced"])
def test_memory_adds_keys_but_no_queries(study: Params, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    without = ModelSettings.model_validate(study.base.model_dump() | {"attention": kind})
    settings = without.model_copy(update={"memory": 4})
    # Three blocks; each of 50 queries meets 4 more keys of 32 channels in all, once for its scores and once for their values.
    assert count_flops(settings) - count_flops(without) == 2 * 3 * 2 * 50 * 4 * 32
    if kind == "full":
        monkeypatch.setattr(attention, "attention", plain)
        padding = 2 * 3 * 2 * 4 * 54 * 32  # the queries that only give the kernel the shape it wants
        assert count_flops(settings) == counted(settings) - padding


@pytest.mark.parametrize("name", ["lab", "cnn", "lenet", "mlp"])
def test_other_networks_count_as_torch_does(study: Params, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(attention, "attention", plain)
    settings = study.resolve(name).model
    assert count_flops(settings) == counted(settings)


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


def test_what_is_taken_away_is_not_counted(study: Params) -> None:
    """Three blocks of 50 tokens, 8 heads of 4 channels; two operations a multiply-add."""

    def of(**changes: str) -> int:
        return count_flops(ModelSettings.model_validate(study.base.model_dump() | changes))

    one_map, products, mlp = 2 * 3 * 50 * 8 * 4 * 4, 2 * 3 * 2 * 50 * 50 * 32, 2 * 3 * 50 * 2 * 32 * 32
    assert of() - of(attention="unprojected") == 3 * one_map
    assert of() - of(attention="uniform") == 2 * one_map + products
    assert of() - of(attention="none") == 3 * one_map + products
    assert of() - of(mlp="none") == mlp
    assert of(attention="none", mlp="none") == 2 * (49 * 16 * 32 + 32 * 10)


@pytest.mark.parametrize("changes", [{}, {"mlp": "none"}, {"heads": 16, "blocks": 1}, {"patch": 7, "heads": 4}], ids=str)
def test_sliced_attention_counts_its_own_small_maps(study: Params, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """Without the fused kernel they are one block-diagonal product, which torch counts whole."""
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    monkeypatch.setattr(attention, "attention", plain)
    settings = ModelSettings.model_validate(study.base.model_dump() | changes)
    zeros = 3 * 32 * (32 - 32 // settings.heads)  # of the product's weights
    assert count_flops(settings) == counted(settings) - 2 * settings.blocks * settings.num_tokens * zeros
