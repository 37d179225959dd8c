"""The whole idea in one file: the thesis's vision transformer on MNIST, in plain PyTorch. Nothing is imported from the package.

    python reference.py FOLDER [EPOCHS] [SEED]

FOLDER holds the four archives of MNIST (train-images-idx3-ubyte.gz and so on). The package trains the same network: its first
fifty losses are these to 1e-5 (tests/test_reference.py). It adds speed, many seeds at once, a resume to the bit, and the variants
that differ from this one in a line. Read on in `pipeline/models/vit.py` (every option) and `pipeline/training/engine.py` (the loop).

Shapes: b images, t tokens (a class token and 7 x 7 patches of 4 x 4 pixels: 50), d = 32 channels of a token, h = 8 heads.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, PATCH, DIM, HEADS, BLOCKS, CLASSES = 28, 4, 32, 8, 3, 10
BATCH, RATE = 128, 0.005


def mnist(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """The images (n, 1, 28, 28) in [0, 1] and the labels (n,) of `train` or `t10k` (idx format, Y. LeCun and C. Cortes)."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = torch.frombuffer(bytearray(images), dtype=torch.uint8).view(-1, 1, SIDE, SIDE)
    return pixels.float() / 255, torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()


class SlicedAttention(nn.Module):
    """Attention in which head i sees slice i of a token (four channels), and nothing is projected afterwards: the thesis's code."""

    def __init__(self) -> None:
        super().__init__()
        size = DIM // HEADS
        bound = 1 / math.sqrt(size)  # as nn.Linear starts with `size` inputs
        self.weight = nn.Parameter(torch.empty(3, HEADS, size, size).uniform_(-bound, bound))  # of queries, keys, values: (out, in)
        self.bias = nn.Parameter(torch.empty(3, HEADS, size).uniform_(-bound, bound))

    def forward(self, tokens: Tensor) -> Tensor:
        """(b, t, d) to (b, t, d)."""
        slices = tokens.unflatten(2, (HEADS, -1))  # (b, t, h, 4)
        query, key, value = torch.einsum("bthi,chki->cbhtk", slices, self.weight) + self.bias[:, None, :, None]
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)  # (b, h, t, t): how much a token reads of each other
        return (weights @ value).transpose(1, 2).flatten(2)


class Block(nn.Module):
    """A norm before each of the two sublayers, and a residual connection around both (pre-norm, Xiong et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attention = SlicedAttention()
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))

    def forward(self, tokens: Tensor) -> Tensor:
        """(b, t, d) to (b, t, d)."""
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class VisionTransformer(nn.Module):
    """ViT (Dosovitskiy et al. 2021) at the thesis's size: 10,666 weights in patches, class token, positions, three blocks and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(PATCH**2, DIM)
        self.cls_token = nn.Parameter(torch.randn(1, DIM))
        self.position = nn.Parameter(torch.randn((SIDE // PATCH) ** 2 + 1, DIM))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images (b, 1, 28, 28) in [0, 1] to logits (b, 10)."""
        patches = F.unfold(images, PATCH, stride=PATCH).mT  # (b, 49, 16), row by row
        tokens = torch.cat([self.cls_token.expand(len(images), 1, -1), self.embedding(patches)], dim=1)
        return self.head(self.blocks(tokens + self.position)[:, 0])


def derive_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose. So every random thing follows from the run's seed, and none from what was drawn before it."""
    return int.from_bytes(hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest(), "big") >> 1


def initial_model(seed: int) -> VisionTransformer:
    """The untrained network of a seed."""
    torch.manual_seed(derive_seed(seed, "init"))
    return VisionTransformer()


def epoch_order(seed: int, epoch: int, num_images: int) -> Tensor:
    """The order (n,) in which a seed sees the images of an epoch, counted from 1."""
    return torch.randperm(num_images, generator=torch.Generator().manual_seed(derive_seed(seed, f"order/{epoch}")))


def train_epoch(model: VisionTransformer, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, order: Tensor) -> list[float]:
    """One pass over the images in the given order. Returns the loss of each batch, before its own update."""
    losses = []
    for index in order.split(BATCH):
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: VisionTransformer, images: Tensor, labels: Tensor) -> float:
    """The share of the images that are classified correctly."""
    right = [(model(x).argmax(1) == y).sum() for x, y in zip(images.split(1000), labels.split(1000), strict=True)]
    return int(sum(right)) / len(labels)


def main(folder: Path, epochs: int = 30, seed: int = 0) -> None:
    images, labels = mnist(folder, "train")
    test_images, test_labels = mnist(folder, "t10k")
    model = initial_model(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for epoch in range(1, epochs + 1):
        losses = train_epoch(model, optimizer, images, labels, epoch_order(seed, epoch, len(labels)))
        share = accuracy(model, test_images, test_labels)
        print(f"epoch {epoch:2}: loss {sum(losses) / len(losses):.4f}, test accuracy {share:.2%}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
