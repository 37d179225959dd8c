"""A stack of models against its models one by one, and the seeds that they start from."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pipeline.params import Params
from pipeline.training.stack import Stack, derive_seed, initial_model

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "change"), [("base", {}), ("base", {"cls_insert": "loop"}), ("lab-gelu", {}), ("mlp", {})])
def test_a_stack_computes_what_its_models_do_with_their_gradients(study: Params, name: str, change: dict[str, str]) -> None:
    settings = study.resolve(name).model.model_copy(update=change)
    stack = Stack(settings, [5, 0, 9], CPU)
    stack.train(False)
    images, labels = torch.rand(3, 4, 1, 28, 28), torch.tensor([3, 1, 4, 1])
    logits = stack(images)
    F.cross_entropy(logits.flatten(0, 1), labels.repeat(3), reduction="sum").backward()
    state = stack.state()
    for i, seed in enumerate([5, 0, 9]):
        model = initial_model(settings, seed).eval()
        for key, value in model.state_dict().items():
            assert torch.equal(state[key][i], value), key
        expected = model(images[i])
        F.cross_entropy(expected, labels, reduction="sum").backward()
        torch.testing.assert_close(logits[i], expected, rtol=1e-4, atol=1e-5)
        for stacked, alone in zip(stack.parameters, model.parameters(), strict=True):
            assert stacked.grad is not None
            torch.testing.assert_close(stacked.grad[i], alone.grad, rtol=1e-3, atol=1e-5)


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


def test_derived_seeds_do_not_collide() -> None:
    seeds = {derive_seed(seed, purpose) for seed in range(1000) for purpose in ("init", "order/1", "order/10", "order/11")}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**63 for seed in seeds)
