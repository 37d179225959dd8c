"""Multi-head self-attention, on whole tokens or on slices of them, with or without memory slots; and what is left without its parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.kernels import attention, attention_path, fuses_slices, sliced_attention, small_head_attention, why_not_fused
from pipeline.models.dropout import Dropout
from pipeline.params import AnyModelSettings, CaptionerSettings, ModelSettings


class SoftmaxAttention(nn.Module, ABC):
    """The parts that all kinds with attention weights share: everything but the projections.

    Args:
        dim: width of a token.
        heads: number of heads, each of dim / heads channels.
        memory: number of learned key and value slots of each head, which every token may attend to as well: K = [W_k X, M_k],
            V = [W_v X, M_v], queries unchanged (Cornia et al. 2020, "Meshed-memory transformer", section 3.1). Both start from
            N(0, 1).
        score_scale: whether scores are divided by the root of a head's width.
        dropout: probability with which an attention weight is set to zero in training.
    """

    def __init__(self, dim: int, heads: int, *, memory: int = 0, score_scale: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5 if score_scale else 1.0
        self.memory = nn.Parameter(torch.randn(memory, 2, heads, dim // heads)) if memory else None  # (slot, key or value, ...)
        self.dropout = Dropout(dropout)

    @abstractmethod
    def project(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to queries, keys and values, (batch, token, 3 * dim)."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        qkv = self._heads(tokens)
        if self._drops:
            query, key, value = qkv.unbind(2)
            weight = self.dropout(self._weigh(query[:, : tokens.shape[1]], key))
            return (weight @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
        heads = attention(qkv, scale=self.scale).flatten(2)
        return heads if self.memory is None else heads[:, : tokens.shape[1]]

    def weights(self, tokens: Tensor) -> Tensor:
        """The attention weights without dropout: (batch, token, dim) to (batch, head, query token, key token), memory slots last."""
        query, key, _ = self._heads(tokens).unbind(2)
        return self._weigh(query[:, : tokens.shape[1]], key)

    @property
    def _drops(self) -> bool:
        """Whether attention weights are dropped, which no fused kernel can do."""
        return self.training and self.dropout.probability > 0

    def _heads(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values (batch, token + memory, 3, head, head_dim).

        The fused kernel takes all three in one shape, so the memory's keys and values get queries of zeros. The results of these
        queries are dropped, and with them their gradient. They change nothing, and a few rows cost far less than another kernel.
        """
        qkv = self.project(tokens)
        if self.memory is not None:
            rows = F.pad(self.memory.flatten(1), (tokens.shape[-1], 0))  # (memory, 3 * dim)
            qkv = torch.cat([qkv, rows.expand(tokens.shape[0], -1, -1)], dim=1)
        return qkv.unflatten(-1, (3, self.heads, -1))

    def _weigh(self, query: Tensor, key: Tensor) -> Tensor:
        """Queries and keys (batch, token, head, head_dim) to weights (batch, head, query token, key token)."""
        return ((query.transpose(1, 2) * self.scale) @ key.permute(0, 2, 3, 1)).softmax(-1)


class FullAttention(SoftmaxAttention):
    """Multi-head attention over the whole token (Vaswani et al. 2017, section 3.2.2), with output projection.

    Weights start as those of `torch.nn.MultiheadAttention`. Arguments: see `SoftmaxAttention`.
    """

    def __init__(self, dim: int, heads: int, *, memory: int = 0, score_scale: bool = True, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, memory=memory, score_scale=score_scale, dropout=dropout)
        self.qkv = nn.utils.skip_init(nn.Linear, dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def project(self, tokens: Tensor) -> Tensor:
        return self.qkv(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        return self.out(super().forward(tokens))


class SlicedAttention(SoftmaxAttention):
    """Attention in which head i sees only slice i of the token, without output projection (the thesis's published code).

    Each head has its own dim/heads x dim/heads maps to query, key and value. Arguments: see `SoftmaxAttention`.
    """

    eye: Tensor

    def __init__(self, dim: int, heads: int, *, memory: int = 0, score_scale: bool = True, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, memory=memory, score_scale=score_scale, dropout=dropout)
        head_dim = dim // heads
        bound = 1 / math.sqrt(head_dim)  # nn.Linear's initialisation, for a layer of head_dim inputs
        self.weight = nn.Parameter(torch.empty(3, heads, head_dim, head_dim).uniform_(-bound, bound))  # (qkv, head, out, in)
        self.bias = nn.Parameter(torch.empty(3, heads, head_dim).uniform_(-bound, bound))
        self.register_buffer("eye", torch.eye(heads)[:, None, :, None], persistent=False)  # (head, 1, head, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        if self.memory is None and not self._drops and fuses_slices(tokens, self.weight.shape[-1]):
            return sliced_attention(tokens, self.weight, self.bias, scale=self.scale)
        return super().forward(tokens)

    def project(self, tokens: Tensor) -> Tensor:
        # Used where no fused kernel runs. One product with a block-diagonal matrix is faster than one small product per head.
        dense = (self.weight[..., None, :] * self.eye).flatten(0, 2).flatten(1)  # (3 * dim, dim)
        return F.linear(tokens, dense, self.bias.flatten())


class UnprojectedAttention(SoftmaxAttention):
    """Sliced attention without its maps: query, key and value of head i are all slice i of the token. Arguments: see `SoftmaxAttention`."""

    def project(self, tokens: Tensor) -> Tensor:
        return tokens.repeat(1, 1, 3)


class UniformAttention(nn.Module):
    """Sliced attention with equal weights instead of a softmax of scores: every token reads the mean of the values of all tokens.

    Values are projected as in `SlicedAttention`: by head i from slice i, without output projection. There are no queries and keys.

    Args:
        dim: width of a token.
        heads: number of heads, each of dim / heads channels.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        head_dim = dim // heads
        bound = 1 / math.sqrt(head_dim)
        self.weight = nn.Parameter(torch.empty(heads, head_dim, head_dim).uniform_(-bound, bound))  # (head, out, in)
        self.bias = nn.Parameter(torch.empty(heads, head_dim).uniform_(-bound, bound))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        mean = tokens.mean(1).unflatten(-1, self.bias.shape)  # the mean token's value is the mean of the values
        values = torch.einsum("bhi,hoi->bho", mean, self.weight) + self.bias
        return values.flatten(1)[:, None].expand_as(tokens)


def attention_kernel(settings: AnyModelSettings, device: torch.device | str) -> str:
    """Names what computes the attention of a model in training; for captioning, that of the encoder.

    Returns:
        "fused-cpu"; "sdpa", PyTorch's own, where that is the choice (a GPU, large heads, long sequences, LAB_ATTENTION=sdpa);
        "sdpa: WHY" where the fused kernel would be chosen but cannot run on this machine; "explicit: attention
        dropout", because no fused kernel draws our masks; "none" for a model without attention weights.
    """
    if not isinstance(settings, ModelSettings | CaptionerSettings):
        return "none"
    if isinstance(settings, ModelSettings) and not settings.has_attention_weights:
        return "none"
    if isinstance(settings, ModelSettings) and settings.attention_dropout:
        return "explicit: attention dropout"
    kind = torch.device(device).type
    head_dim, tokens = settings.dim // settings.heads, settings.num_tokens + settings.memory
    path = attention_path(device=kind, head_dim=head_dim, tokens=tokens)
    if path != "sdpa" or kind != "cpu" or head_dim not in small_head_attention.FUSED_HEAD_DIMS:
        return path
    if tokens > small_head_attention.MAX_FUSED_TOKENS:
        return path
    reason = why_not_fused(head_dim)  # None where LAB_ATTENTION forbids a kernel that could run
    return f"sdpa: {reason}" if reason else "sdpa"
