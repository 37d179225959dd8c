"""The encoder block and its dropout."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.models.attention import FullAttention, SlicedAttention


class Dropout(nn.Module):
    """Dropout whose mask is a function of (key, call, element), not of a generator's hidden state.

    So a seed's masks are the same alone and in a stack, on any device, and after a resume: the call counter is a buffer and
    travels with the weights. Counter-based random numbers: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

    Args:
        probability: share of the elements that are set to zero; the others are divided by 1 - probability.
    """

    key: Tensor
    calls: Tensor

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        if probability:
            self.register_buffer("key", torch.randint(2**31, ()))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training or not self.probability:
            return x
        index = torch.arange(x.numel(), device=x.device).view(x.shape)
        bits = _mix(_mix(index + self.key) + self.calls)
        self.calls += 1
        keep = bits >= int(self.probability * 2**32)
        return x * keep / (1 - self.probability)


def _mix(bits: Tensor) -> Tensor:
    """A bijection of 32-bit words whose output bits each depend on all input bits (multiply and xor-shift, Steele et al. 2014)."""
    bits = bits & 0xFFFFFFFF
    for multiplier, shift in ((0x7FEB352D, 15), (0x2C1B3C6D, 16)):  # both below 2^31: the int64 product cannot overflow
        bits = ((bits ^ (bits >> shift)) * multiplier) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


class EncoderBlock(nn.Module):
    """Attention and MLP, each with a residual connection and a layer norm.

    pre:  x + f(norm(x)), the published code (Xiong et al. 2020);  post: norm(x + f(x)), the thesis's formula (Vaswani et al. 2017).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_dim: int,
        *,
        attention: Literal["full", "sliced"],
        norm: Literal["pre", "post"],
        activation: Literal["gelu", "relu"],
        dropout: float,
    ) -> None:
        super().__init__()
        self.pre_norm = norm == "pre"
        self.norm1 = nn.LayerNorm(dim)
        self.attention = FullAttention(dim, heads) if attention == "full" else SlicedAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim),
            nn.GELU() if activation == "gelu" else nn.ReLU(),
            nn.Linear(mlp_dim, dim),
        )
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        if self.pre_norm:
            tokens = tokens + self.dropout1(self.attention(self.norm1(tokens)))
            return tokens + self.dropout2(self.mlp(self.norm2(tokens)))
        tokens = self.norm1(tokens + self.dropout1(self.attention(tokens)))
        return self.norm2(tokens + self.dropout2(self.mlp(tokens)))
