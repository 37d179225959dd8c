"""Dropout by counter: masks of the right share that key, call and element give; in one pass the bits of torch's operations."""

import math

import pytest
import torch

from pipeline.models import dropout as module
from pipeline.models.dropout import Dropout

KEY, CALL = torch.tensor(2**31 - 5), 2**32 - 3  # sums with both overflow a word


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
    assert results[0].unique().tolist() == [0, torch.tensor(1 / 0.7)]
    masks = [(result != 0).double() for result in results]
    size = len(x)
    for call, mask in enumerate(masks[:2]):
        for i in (*range(50), *range(2**20 - 50, 2**20 + 50), *range(size - 50, size)):
            assert bool(mask[i]) == (word(int(layer.key), call, i) >= 0.3 * 2**32)
    assert abs(masks[0].mean() - 0.7) < 5 * (0.3 * 0.7 / size) ** 0.5  # five standard errors of a binomial share
    for a, b in ((masks[0], masks[1]), (masks[0], masks[2]), (masks[0][1:], masks[0][:-1]), (masks[0][32:], masks[0][:-32])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / size**0.5


@pytest.mark.parametrize("probability", [0.1, 0.999])
@pytest.mark.parametrize("shape", [(2, 5, 333), (3, 0, 2), ()], ids=str)
def test_in_one_pass_it_has_the_bits_of_the_operations(shape: tuple[int, ...], probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signs of zeros and what is not finite, too; and the gradient's."""
    torch.manual_seed(0)
    x, grad = torch.randn(shape), torch.randn(shape)
    x.view(-1)[:300] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, -1.0] * 60)[: x.numel()]
    x.requires_grad_()
    results = []
    for fused in (True, False):
        monkeypatch.setattr(module, "fuses_dropout", lambda *_, fused=fused: fused)
        layer = Dropout(probability)
        layer.key.copy_(KEY)
        layer.calls.fill_(CALL)
        y = layer(x)
        results.append((y.detach(), *torch.autograd.grad(y, x, grad)))
    for a, e in zip(*results, strict=True):
        assert a.shape == e.shape
        assert torch.equal(a.isnan(), e.isnan())
        assert torch.equal(a[~a.isnan()].view(torch.int32), e[~e.isnan()].view(torch.int32))
