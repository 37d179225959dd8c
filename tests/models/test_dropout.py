"""Dropout by counter: the right share, independent masks, and nothing hidden."""

from __future__ import annotations

import torch

from pipeline.models.dropout import Dropout


def dropout(probability: float, seed: int = 0) -> Dropout:
    torch.manual_seed(seed)
    return Dropout(probability)


def test_share_and_scale() -> None:
    layer = dropout(0.1)
    x = torch.ones(400, 1000)
    y = layer(x)
    kept = y[y != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.9))
    share = 1 - len(kept) / x.numel()
    assert abs(share - 0.1) < 5 * (0.1 * 0.9 / x.numel()) ** 0.5  # five standard errors of a binomial share


def test_masks_of_calls_neighbours_and_keys_are_independent() -> None:
    layer, other = dropout(0.5), dropout(0.5, seed=1)
    x = torch.ones(1_000_000)
    first, second = (layer(x) != 0).double(), (layer(x) != 0).double()
    third = (other(x) != 0).double()
    bound = 5 / len(x) ** 0.5
    for a, b in ((first, second), (first, third), (first[1:], first[:-1]), (first[32:], first[:-32])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < bound


def test_off_in_evaluation_and_repeatable_from_its_state() -> None:
    layer = dropout(0.3)
    x = torch.randn(50, 50)
    assert torch.equal(layer.eval()(x), x)
    layer.train()
    layer(x)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    following = layer(x)
    again = dropout(0.3, seed=9)
    again.load_state_dict(state)
    assert torch.equal(again(x), following)


def test_zero_probability_has_no_state() -> None:
    layer = dropout(0.0)
    x = torch.randn(3)
    assert layer(x) is x
    assert not layer.state_dict()
