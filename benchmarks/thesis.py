"""The thesis's model the way its author published it, written anew from the description.

Patches by unfold; per head one slice of the token with linear layers of its own, visited in a Python loop and concatenated, no
output projection; pre-norm; no norm after the last block. With a class token, it is put in front of the tokens image by image;
without one, the head reads the first patch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.params import ModelSettings


class HeadwiseAttention(nn.Module):
    """Head i attends over slice i of the tokens, for a whole batch; one head after the other."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.query = nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads))
        self.key = nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads))
        self.value = nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        heads = []
        for i, (query, key, value) in enumerate(zip(self.query, self.key, self.value, strict=True)):
            part = tokens[:, :, i * self.head_dim : (i + 1) * self.head_dim]  # (batch, token, head_dim)
            scores = query(part) @ key(part).transpose(1, 2) / self.head_dim**0.5  # (batch, token, token)
            heads.append(scores.softmax(-1) @ value(part))
        return torch.cat(heads, dim=2)


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = HeadwiseAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class ThesisViT(nn.Module):
    """The published model.

    Args:
        settings: dimensions; `cls_insert` other than none adds the class token, image by image.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.patch = settings.patch
        dim = settings.dim
        self.embedding = nn.Linear(settings.shape.channels * settings.patch**2, dim)
        self.cls_token = nn.Parameter(torch.randn(1, dim)) if settings.has_cls else None
        self.position = nn.Parameter(torch.randn((settings.shape.size // settings.patch) ** 2 + settings.has_cls, dim))
        self.blocks = nn.Sequential(*(_Block(dim, settings.heads, settings.mlp_dim) for _ in range(settings.blocks)))
        self.head = nn.Linear(dim, settings.shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 28, 28) to logits (batch, 10)."""
        p = self.patch
        patches = images.unfold(2, p, p).unfold(3, p, p)  # (batch, channel, row, column, y, x)
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # (batch, patch, channel * y * x)
        tokens = self.embedding(patches)
        if self.cls_token is not None:
            tokens = torch.stack([torch.vstack([self.cls_token, image]) for image in tokens])
        return self.head(self.blocks(tokens + self.position)[:, 0])
