"""Multi-head self-attention, on whole tokens or on slices of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.kernels import attention


class FullAttention(nn.Module):
    """Multi-head attention over the whole token (Vaswani et al. 2017, section 3.2.2), with output projection.

    Args:
        dim: width of a token.
        heads: number of heads, each of dim / heads channels.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        return self.out(_attend(self.qkv(tokens), self.heads))


class SlicedAttention(nn.Module):
    """Attention in which head i sees slice i of the token alone, without output projection (the thesis's published code).

    Args:
        dim: width of a token.
        heads: number of heads; head i has its own dim/heads x dim/heads maps to query, key and value.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        head_dim = dim // heads
        bound = 1 / math.sqrt(head_dim)  # nn.Linear's own initialisation, for a layer of head_dim inputs
        self.weight = nn.Parameter(torch.empty(3, heads, head_dim, head_dim).uniform_(-bound, bound))  # (qkv, head, out, in)
        self.bias = nn.Parameter(torch.empty(3, heads, head_dim).uniform_(-bound, bound))
        self.register_buffer("eye", torch.eye(heads)[:, None, :, None], persistent=False)  # (head, 1, head, 1)

    eye: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        # One product with the block-diagonal matrix beats heads small ones: a 4 x 4 product is all overhead.
        dense = (self.weight[..., None, :] * self.eye).flatten(0, 2).flatten(1)  # (3 * dim, dim)
        return _attend(F.linear(tokens, dense, self.bias.flatten()), self.heads)


def _attend(qkv: Tensor, heads: int) -> Tensor:
    """(batch, token, 3 * dim) to (batch, token, dim)."""
    query, key, value = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)  # each (batch, token, head, head_dim)
    return attention(query, key, value, scale=query.shape[-1] ** -0.5).flatten(-2)
