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


def word(key: int, call: int, element: int) -> int:
    """The 32 random bits of an element, one integer after the other."""
    bits = (element + key) % 2**32
    for round_ in range(2):
        if round_:
            bits = (bits + call) % 2**32
        bits ^= bits >> 15
        bits = bits * 0x7FEB352D % 2**32
        bits ^= bits >> 16
        bits = bits * 0x2C1B3C6D % 2**32
        bits ^= bits >> 16
    return bits


def test_mask_is_a_function_of_key_call_and_element_however_large_the_tensor() -> None:
    layer = dropout(0.5)
    size = 2**21 + 5  # more than is drawn at a time, and not a multiple of it
    masks = [layer(torch.ones(size)) != 0 for _ in range(2)]
    assert int(layer.calls) == 2
    places = [*range(50), *range(2**20 - 50, 2**20 + 50), *range(size - 50, size)]
    for call, mask in enumerate(masks):
        assert [bool(mask[i]) for i in places] == [word(int(layer.key), call, i) >= 2**31 for i in places]
