"""The count from shapes against torch's counter, which watches a forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pipeline.models import attention, build, count_flops
from pipeline.params import ModelSettings, Params


def plain(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return ((query @ key.transpose(-1, -2) * scale).softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize(
    "changes", [{}, {"patch": 7}, {"pool": "attention", "cls_insert": "none"}, {"mlp_dim": 64, "blocks": 2, "embed": "conv"}]
)
def test_full_attention_counts_as_torch_does(study: Params, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    settings = ModelSettings.model_validate(study.base.model_dump() | {"attention": "full"} | changes)
    monkeypatch.setattr(attention, "attention", plain)
    with FlopCounterMode(display=False) as counter:
        build(settings)(torch.rand(1, 1, 28, 28))
    uncounted = 2 * 49 * 32 if settings.pool == "attention" else 0  # torch passes over matrix-vector products, such as the query's
    assert count_flops(settings) == counter.get_total_flops() + uncounted


def test_sliced_attention_saves_its_projections(study: Params) -> None:
    full = ModelSettings.model_validate(study.base.model_dump() | {"attention": "full"})
    # Three blocks of 50 tokens: 4 maps of 32 x 32 against 3 x 8 maps of 4 x 4, two operations a multiply-add.
    assert count_flops(full) - count_flops(study.base) == 2 * 3 * 50 * (4 * 32 * 32 - 3 * 8 * 4 * 4)
