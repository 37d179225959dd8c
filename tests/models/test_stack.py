"""Every option that stacks gives a seed in a stack what it gives the seed alone: results, gradients, dropout's masks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.models import build
from pipeline.params import ARCHITECTURES, AnyModelSettings, BaselineSettings, ModelSettings, Params

# Small, so that every option is cheap; head_dim 4, so that the fused kernel runs where it may.
SMALL = {"patch": 14, "dim": 16, "heads": 4, "blocks": 2, "mlp_dim": 16}

VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "full": {"attention": "full"},
    "unprojected": {"attention": "unprojected", "memory": 3},
    "uniform": {"attention": "uniform", "dropout": 0.3},
    "no attention": {"attention": "none", "pool": "mean"},
    "no MLP": {"mlp": "none"},
    "memory": {"memory": 3},
    "full, memory": {"attention": "full", "memory": 3},
    "no residual": {"residual": "none"},
    "normalized residual": {"residual": "normalized"},
    "no norm": {"norm": "none"},
    "post-norm": {"norm": "post", "activation": "relu"},
    "no scale": {"score_scale": False},
    "one head, no scale": {"heads": 1, "score_scale": False},
    "attention dropout": {"attention_dropout": 0.3},
    "attention dropout, memory": {"attention_dropout": 0.3, "memory": 3},
    "mlp dropout": {"mlp_dropout": 0.3},
    "dropout": {"dropout": 0.3},
    "zero class token, final norm": {"cls_init": "zeros", "final_norm": True, "norm_eps": 1e-6},
    "conv embedding": {"embed": "conv"},
    "attention pooling": {"pool": "attention", "cls_insert": "none", "position": "sincos2d"},
    "all patches": {"pool": "concat"},
    "maximum": {"pool": "max", "cls_insert": "none"},
    "mean, class token by loop, no position": {"pool": "mean", "cls_insert": "loop", "position": "none"},
    "first patch, sinusoidal": {"pool": "first", "cls_insert": "none", "position": "sinusoidal"},
    "lenet": {"architecture": "lenet", "widths": (3, 7, 46, 34)},
    "mlp": {"architecture": "mlp", "widths": (13, 11)},
}


def settings(study: Params, changes: dict[str, Any]) -> AnyModelSettings:
    if "architecture" in changes:
        return BaselineSettings.model_validate(changes)
    return ModelSettings.model_validate(study.base.model_dump() | SMALL | changes)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("training", [True, False])
def test_a_seed_in_a_stack_is_as_alone(study: Params, name: str, training: bool) -> None:
    chosen = settings(study, VARIANTS[name])
    assert ARCHITECTURES[chosen.architecture].stackable
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(build(chosen).train(training))
    images = torch.rand(2, 2, 5, 1, 28, 28)  # (step, seed, batch, ...)
    parameters, buffers = torch.func.stack_module_state(copy.deepcopy(models))
    parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    skeleton = copy.deepcopy(models[0]).to("meta")

    def call(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], images: Tensor) -> Tensor:
        return torch.func.functional_call(skeleton, (dict(parameters), dict(buffers)), (images,))

    for step in images:  # a second step: dropout's counters have moved on
        stacked = torch.func.vmap(call)(parameters, buffers, step)
        gradients = dict(zip(parameters, torch.autograd.grad(stacked.square().sum(), list(parameters.values())), strict=True))
        for i, model in enumerate(models):
            logits = model(step[i])
            torch.testing.assert_close(stacked[i], logits, rtol=1e-4, atol=1e-5)
            own = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
            for (key, _), gradient in zip(model.named_parameters(), own, strict=True):
                scale = float(gradient.abs().max())
                torch.testing.assert_close(gradients[key][i], gradient, rtol=0, atol=2e-5 * (1 + scale), msg=key)


def test_dropout_options_do_something_in_training(study: Params) -> None:
    """What the test above compares would agree, too, if no mask were ever drawn."""
    for option in ("attention_dropout", "mlp_dropout", "dropout"):
        torch.manual_seed(0)
        model = build(settings(study, {option: 0.3}))
        images = torch.rand(2, 1, 28, 28)
        first, second = model(images), model(images)
        assert not torch.allclose(first, second), option
        model.eval()
        assert torch.equal(model(images), model(images)), option
