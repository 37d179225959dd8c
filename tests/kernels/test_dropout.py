"""Dropout in one pass: the bits of PyTorch's operations, its derivatives, and where it is not used."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pipeline.kernels import dropout, fuses_dropout
from pipeline.models.dropout import mix

KEY, CALL = torch.tensor(2**31 - 5), 2**32 - 3  # sums with both overflow a word


def operations(x: Tensor, key: int, call: int, probability: float) -> Tensor:
    """PyTorch's, one pass each."""
    index = torch.arange(x.numel())
    keep = mix(mix(index + key) + call) >= int(probability * 2**32)
    return x * keep.view(x.shape) / (1 - probability)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bits(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(torch.int32)


@pytest.mark.parametrize("probability", [0.1, 0.999])
@pytest.mark.parametrize("shape", [(2, 5, 333), (3, 0, 2), ()], ids=str)
def test_has_the_bits_of_the_operations(shape: tuple[int, ...], probability: float) -> None:
    x, grad = draw(*shape).requires_grad_(), draw(*shape, seed=1)
    results = []
    for function in (dropout, operations):
        y = function(x, int(KEY), CALL, probability)
        results.append((y, *torch.autograd.grad(y, x, grad)))
    for a, e in zip(*results, strict=True):
        assert a.shape == e.shape
        assert torch.equal(bits(a), bits(e))


def test_keeps_signs_of_zeros_and_what_is_not_finite() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, -1.0] * 50)
    y, expected = dropout(x, int(KEY), 0, 0.5), operations(x, int(KEY), 0, 0.5)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(bits(y)[~y.isnan()], bits(expected)[~y.isnan()])
    dropped = (x == -1) & (y == 0)
    assert dropped.any()
    assert y[dropped].signbit().all()


def test_where_it_is_used() -> None:
    x = draw(4, 5)
    assert fuses_dropout(x, KEY)
    assert not fuses_dropout(x.double(), KEY)
    assert not fuses_dropout(x.to("meta"), KEY)
    seen = []
    torch.func.vmap(lambda row: seen.append(fuses_dropout(row, KEY)) or row)(x)
    torch.func.vmap(lambda key: seen.append(fuses_dropout(x, key)) or key)(KEY.expand(3))
    assert seen == [False, False]
