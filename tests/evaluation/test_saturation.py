"""Saturation and gradients of attention, by autograd on the model itself."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pipeline.evaluation import saturation
from pipeline.models import attention_maps, build
from pipeline.models.attention import FullAttention
from pipeline.params import ModelSettings

CHANGES: list[dict[str, Any]] = [
    {},
    {"memory": 3, "score_scale": False},
    {"attention": "unprojected", "mlp": "none"},
    {"attention": "full", "heads": 2, "pool": "mean", "cls_insert": "none", "attention_dropout": 0.5, "dropout": 0.5},
]


def settings_of(raw_params: dict[str, Any], **change: Any) -> ModelSettings:
    return ModelSettings.model_validate(raw_params["base"] | {"patch": 7, "blocks": 2} | change)


def made(settings: ModelSettings) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(settings)


def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (7, 28, 28), dtype=np.uint8), rng.integers(0, 10, 7, dtype=np.uint8)


def by_torch(own: Any, name: str, change: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """An attention with a change added to its scores or values, by torch's own with a mask."""
    query, key, value = own._heads(tokens).transpose(1, 3).unbind(2)  # (batch, head, token, channel)
    mask, value = (change, value) if name == "scores" else (None, value + change)
    heads = F.scaled_dot_product_attention(query[:, :, : tokens.shape[1]], key, value, attn_mask=mask, scale=own.scale)
    heads = heads.transpose(1, 2).flatten(2)
    return own.out(heads) if isinstance(own, FullAttention) else heads


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_are_those_at_what_is_added(change: dict[str, Any], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of two; against zeros that are added to the scores or the values of one block, through torch's own attention."""
    settings, (images, labels) = settings_of(raw_params, **change), examples()
    module = made(settings)
    whole = saturation.measure(module, settings, images, labels)
    of_one = settings.blocks * settings.heads * settings.num_tokens * (settings.num_tokens + settings.memory)
    monkeypatch.setattr(saturation, "_SCORES_AT_ONCE", 2 * of_one)
    assert saturation.measure(module, settings, images, labels) == pytest.approx(whole, rel=1e-10)

    before = {name: value.clone() for name, value in module.state_dict().items()}
    model, attentions = saturation.explicit(module)
    inputs, classes = torch.from_numpy(images).double()[:, None] / 255, torch.from_numpy(labels).long()
    with torch.no_grad():
        torch.testing.assert_close(model(inputs).float(), module.eval()(inputs.float()), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    squares = {"scores": 0.0, "values": 0.0}
    for attention in attentions:
        for name in squares:
            model(inputs)
            added = torch.zeros_like(getattr(attention, name), requires_grad=True)
            with monkeypatch.context() as patch:
                patch.setattr(attention, "forward", functools.partial(by_torch, attention.attention, name, added))
                (gradient,) = torch.autograd.grad(F.cross_entropy(model(inputs), classes), added)
            squares[name] += float((gradient**2).sum())
    assert whole["score_gradient"] == pytest.approx(math.sqrt(squares["scores"] / squares["values"]), rel=1e-6)
    largest = attention_maps(module, inputs.float()).amax(-1)
    assert whole["saturated_attention"] == pytest.approx(float((largest > saturation.SATURATED).double().mean()))


def test_a_diverged_model_has_neither(raw_params: dict[str, Any]) -> None:
    settings, (images, labels) = settings_of(raw_params), examples()
    module = made(settings)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(math.nan)
    assert np.isnan([*saturation.measure(module, settings, images, labels).values()]).all()
