"""Dropout by counter: the right share, and a mask that is a function of key, call and element."""

from __future__ import annotations

import torch

from pipeline.models.dropout import Dropout


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


def test_masks_are_bits_of_key_call_and_element_of_the_right_share_and_independent() -> None:
    torch.manual_seed(0)
    layer, other = Dropout(0.3), Dropout(0.3)
    x = torch.ones(2**21 + 5)  # more than is drawn at a time, and not a multiple of it
    results = [layer(x), layer(x), other(x)]
    assert int(layer.calls) == 2
    assert len(results[0].unique()) == 2
    assert results[0].max() == torch.tensor(1 / 0.7)
    masks = [(result != 0).double() for result in results]
    size = len(x)
    for call, mask in enumerate(masks[:2]):
        for i in (*range(50), *range(2**20 - 50, 2**20 + 50), *range(size - 50, size)):
            assert bool(mask[i]) == (word(int(layer.key), call, i) >= 0.3 * 2**32)
    assert abs(masks[0].mean() - 0.7) < 5 * (0.3 * 0.7 / size) ** 0.5  # five standard errors of a binomial share
    for a, b in ((masks[0], masks[1]), (masks[0], masks[2]), (masks[0][1:], masks[0][:-1]), (masks[0][32:], masks[0][:-32])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / size**0.5
