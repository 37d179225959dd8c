"""A stack of models against its models one by one, and the seeds that they start from."""

from typing import Any

import pytest
import torch

from pipeline.params import ARCHITECTURES, BaselineSettings, ModelSettings, Params
from pipeline.training.stack import Stack, initial_model
from tests.models.test_vit import OPTIONS

CPU = torch.device("cpu")


# Small, so that every option is cheap; head_dim 4, so that the fused kernel runs where it may.
SMALL = {"patch": 14, "dim": 16, "heads": 4, "blocks": 2, "mlp_dim": 16}
OTHERS: list[dict[str, Any]] = [
    {"architecture": "lenet", "widths": (3, 7, 46, 34)},
    {"architecture": "mlp", "widths": (13, 11)},
    {"cls_init": "zeros", "dropout": 0.3, "attention": "uniform"},
]


def test_initial_weights_leave_a_gpus_generator_alone(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is compared with what it was, and so each model after the first one would be refused."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("moved"))
    before = torch.get_rng_state()
    initial_model(study.base, 5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", [*(options for options in OPTIONS if "norm_kind" not in options), *OTHERS], ids=str)
def test_a_seed_in_a_stack_is_as_alone(study: Params, options: dict[str, Any]) -> None:
    """Initial weights, results, gradients and dropout's masks, in training and then in a test."""
    chosen = BaselineSettings.model_validate(options) if "architecture" in options else study.base.changed(SMALL | options)
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
