"""The thesis's model computed as its author published it, and the reference that it started from (claim T7).

Both take a model of `pipeline.models` and change how it is computed. The weights keep their values, so equal images give equal logits
(a test compares them). The reference (Pulfer 2022) is also another network: its MLP is four times as wide as a token, as the settings
say, and a softmax precedes the loss. The code was written anew from the description.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pipeline.models import VisionTransformer
from pipeline.models.attention import FullAttention, SlicedAttention
from pipeline.models.encoder import EncoderBlock
from pipeline.models.vit import PatchEmbedding


def as_published(model: VisionTransformer) -> VisionTransformer:
    """Changes `model` in place: one head after the other in a Python loop, scores and weights as tensors of their own.

    Returns:
        the model.
    """
    for block in _blocks(model):
        block.attention = LoopedAttention(block.attention, by_image=False)  # type: ignore[assignment, arg-type]
    return model


def as_nested_loops(model: VisionTransformer) -> VisionTransformer:
    """Changes `model` in place: patches cut one by one, attention image by image and head by head.

    Returns:
        the model.
    """
    model.embedding = LoopedEmbedding(model.embedding)  # type: ignore[assignment]
    for block in _blocks(model):
        block.attention = LoopedAttention(block.attention, by_image=True)  # type: ignore[assignment, arg-type]
    return model


def as_reference(model: VisionTransformer) -> VisionTransformer:
    """Changes `model` in place: nested loops, and a softmax after the head, whose probabilities the loss then treats as logits.

    Returns:
        the model.
    """
    model.head = nn.Sequential(model.head, nn.Softmax(dim=-1))  # type: ignore[assignment]
    return as_nested_loops(model)


class LoopedEmbedding(nn.Module):
    """Cuts out each patch of each image in three nested loops, then applies one linear layer."""

    def __init__(self, embedding: PatchEmbedding) -> None:
        super().__init__()
        self.patch = embedding.patch
        bias = embedding.project.bias
        assert bias is not None
        self.project = _linear(embedding.project.weight.flatten(1), bias)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channel, height, width) to (batch, patch, dim), patches in row-major order."""
        p, side = self.patch, images.shape[-1] // self.patch
        patches = torch.zeros(len(images), side**2, images.shape[1] * p**2, device=images.device)
        for i, image in enumerate(images):
            for row in range(side):
                for column in range(side):
                    patches[i, row * side + column] = image[:, row * p : (row + 1) * p, column * p : (column + 1) * p].flatten()
        return self.project(patches)


class LoopedAttention(nn.Module):
    """Attention in which each head has its own linear layers; heads are computed one after the other and concatenated.

    Memory slots, scaling and dropout are those of the given attention. Dropout masks differ, because each head draws its own.

    Args:
        attention: the module whose weights are copied; its heads see slices of the token or the whole token.
        by_image: whether the images of a batch are also computed one after the other.
    """

    def __init__(self, attention: SlicedAttention | FullAttention, *, by_image: bool) -> None:
        super().__init__()
        self.by_image = by_image
        self.heads = attention.heads
        self.scale = attention.scale
        self.memory = None if attention.memory is None else nn.Parameter(attention.memory.detach().clone())
        self.dropout = attention.dropout
        self.sliced = isinstance(attention, SlicedAttention)
        if isinstance(attention, SlicedAttention):
            weight, bias = attention.weight, attention.bias
            self.out: nn.Module = nn.Identity()
        else:
            weight, bias = (tensor.unflatten(0, (3, attention.heads, -1)) for tensor in (attention.qkv.weight, attention.qkv.bias))
            self.out = attention.out
        self.query, self.key, self.value = (nn.ModuleList(map(_linear, *pair)) for pair in zip(weight, bias, strict=True))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        heads = torch.stack([self._attend(image) for image in tokens]) if self.by_image else self._attend(tokens)
        return self.out(heads)

    def _attend(self, tokens: Tensor) -> Tensor:
        """(..., token, dim) to the concatenated results of the heads, (..., token, dim)."""
        parts = tokens.chunk(self.heads, dim=-1) if self.sliced else [tokens] * self.heads
        layers = zip(parts, self.query, self.key, self.value, strict=True)
        heads = []
        for i, (part, query, key, value) in enumerate(layers):
            keys, values = key(part), value(part)
            if self.memory is not None:
                slots = self.memory[:, :, i].expand(*part.shape[:-2], -1, -1, -1)  # (..., slot, key or value, head_dim)
                keys, values = torch.cat([keys, slots[..., 0, :]], dim=-2), torch.cat([values, slots[..., 1, :]], dim=-2)
            heads.append(weigh(query(part), keys, values, scale=self.scale, dropout=self.dropout))
        return torch.cat(heads, dim=-1)


def weigh(query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: nn.Module | None = None) -> Tensor:
    """softmax(scale q k^T) v of one head (Vaswani et al. 2017, equation 1); every step gives a separate tensor.

    Args:
        query, key, value: (..., token, head_dim); there may be more keys and values than queries.
        dropout: applied to the weights.
    """
    scores = query @ key.transpose(-2, -1) * scale  # (..., query token, key token)
    weights = scores.softmax(-1)
    return (weights if dropout is None else dropout(weights)) @ value


def looped_weigh(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """Calls `weigh` for one head after the other, for tensors (batch, token, head, head_dim); the result has the same shape."""
    heads = zip(query.unbind(2), key.unbind(2), value.unbind(2), strict=True)
    return torch.stack([weigh(*head, scale=scale) for head in heads], dim=2)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


def _blocks(model: VisionTransformer) -> Iterator[EncoderBlock]:
    for block in model.blocks:
        assert isinstance(block, EncoderBlock)
        yield block
