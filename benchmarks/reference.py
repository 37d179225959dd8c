"""The implementation the thesis started from (claim T7), written anew from its description, slow where the description is slow.

Patches are cut by nested Python loops, attention runs image by image and head by head, the class token is put in front of each
image's tokens alone, the MLP is four times as wide as a token, and a softmax precedes the cross-entropy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.params import ModelSettings

MLP_RATIO = 4


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """(batch, channel, height, width) to (batch, patch, channel * patch * patch), row-major, one patch at a time."""
    side = images.shape[-1] // patch
    patches = torch.zeros(len(images), side**2, images.shape[1] * patch**2, device=images.device)
    for i, image in enumerate(images):
        for row in range(side):
            for column in range(side):
                square = image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
                patches[i, row * side + column] = square.flatten()
    return patches


class LoopedAttention(nn.Module):
    """Head i attends over slice i of the tokens, for one image after the other."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.query = nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads))
        self.key = nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads))
        self.value = nn.ModuleList(nn.Linear(self.head_dim, self.head_dim) for _ in range(heads))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        images = []
        for image in tokens:  # (token, dim)
            heads = []
            for i, (query, key, value) in enumerate(zip(self.query, self.key, self.value, strict=True)):
                part = image[:, i * self.head_dim : (i + 1) * self.head_dim]  # (token, head_dim)
                weights = (query(part) @ key(part).T / self.head_dim**0.5).softmax(-1)  # (token, token)
                heads.append(weights @ value(part))
            images.append(torch.cat(heads, dim=1))
        return torch.stack(images)


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = LoopedAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, MLP_RATIO * dim), nn.GELU(), nn.Linear(MLP_RATIO * dim, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class ReferenceViT(nn.Module):
    """The reference at the thesis's dimensions; `settings.mlp_dim` and the choices under study do not apply to it."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.patch = settings.patch
        dim = settings.dim
        num_patches = (settings.shape.size // settings.patch) ** 2
        self.embedding = nn.Linear(settings.shape.channels * settings.patch**2, dim)
        self.cls_token = nn.Parameter(torch.randn(1, dim))
        self.position = nn.Parameter(torch.randn(num_patches + 1, dim))
        self.blocks = nn.Sequential(*(_Block(dim, settings.heads) for _ in range(settings.blocks)))
        self.head = nn.Sequential(nn.Linear(dim, settings.shape.classes), nn.Softmax(dim=-1))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 28, 28) to probabilities (batch, 10), which the reference gives to the cross-entropy as if they were logits."""
        tokens = self.embedding(cut_patches(images, self.patch))
        tokens = torch.stack([torch.vstack([self.cls_token, image]) for image in tokens]) + self.position
        return self.head(self.blocks(tokens)[:, 0])
