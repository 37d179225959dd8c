"""A stack of models against its models one by one, and the seeds that they start from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.params import ARCHITECTURES, AnyModelSettings, BaselineSettings, ModelSettings, Params
from pipeline.training.stack import Stack, initial_model

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


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
def test_a_seed_in_a_stack_is_as_alone(study: Params, name: str) -> None:
    """Initial weights, results, gradients and dropout's masks, in training and then in a test."""
    chosen = settings(study, VARIANTS[name])
    assert ARCHITECTURES[chosen.architecture].stackable
    stack, models = Stack(chosen, [5, 9], CPU), [initial_model(chosen, seed) for seed in (5, 9)]
    for i, model in enumerate(models):
        assert all(torch.equal(stack.state()[key][i], value) for key, value in model.state_dict().items())
    for training in (True, True, False):  # a second step: dropout's counters have moved on
        images = torch.rand(2, 5, 1, 28, 28)
        stack.train(training)
        stacked = stack(images)
        gradients = torch.autograd.grad(stacked.square().sum(), stack.parameters)
        for i, model in enumerate(models):
            logits = model.train(training)(images[i])
            torch.testing.assert_close(stacked[i], logits, rtol=1e-4, atol=1e-5)
            own = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
            for found, gradient in zip(gradients, own, strict=True):
                torch.testing.assert_close(found[i], gradient, rtol=0, atol=2e-5 * (1 + float(gradient.abs().max())))
            dropped = isinstance(chosen, ModelSettings) and max(chosen.dropout, chosen.attention_dropout, chosen.mlp_dropout) > 0
            assert torch.equal(model.eval()(images[i]), logits) != (dropped and training)


@pytest.mark.parametrize("seeds", [[2], [2, 3]])
def test_what_is_loaded_is_what_the_state_gives(study: Params, seeds: list[int]) -> None:
    ours, other = (Stack(study.base, some, CPU) for some in (seeds, [seed + 10 for seed in seeds]))
    kept = {name: value.clone() for name, value in other.state().items()}
    ours.load(kept)
    for name, value in ours.state().items():
        assert value.shape[0] == len(seeds)
        assert torch.equal(value, kept[name]), name
    position = ours.position()
    assert position is not None
    assert torch.equal(position, kept["position"].view_as(position))


def test_a_new_model_leaves_the_global_generator_as_it_was(study: Params) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    initial_model(study.base, 0)
    assert torch.equal(torch.rand(3), expected)
