"""Variant `lab` is the lab's transformer: a module written from the lab's text, around torch's own attention, gives the same."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from pipeline.models import VisionTransformer
from pipeline.params import ModelSettings, Params


class LabBlock(nn.Module):
    """The MLP's residual starts behind the norm; sequences come first for torch's attention."""

    def __init__(self, dim: int, mlp_dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(dim, eps=1e-6)
        self.attend = nn.MultiheadAttention(dim, heads, dropout=dropout)
        self.before_mlp = nn.LayerNorm(dim, eps=1e-6)
        self.widen = nn.Linear(dim, mlp_dim)
        self.drop = nn.Dropout(dropout)
        self.narrow = nn.Linear(mlp_dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        sequence = self.before_attention(tokens).transpose(0, 1)
        attended = self.attend(sequence, sequence, sequence)[0].transpose(0, 1)
        normed = self.before_mlp(tokens + attended)
        return normed + self.narrow(self.drop(torch.relu(self.widen(normed))))


class LabTransformer(nn.Module):
    """Images are cut into a square number of cells before they come here: (batch, cell, pixel)."""

    def __init__(self, cells: int, dim: int = 128, mlp_dim: int = 128, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.enter = nn.Linear(784 // cells, dim)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.place = nn.Parameter(torch.randn(1, cells + 1, dim))
        self.block = LabBlock(dim, mlp_dim, heads, dropout)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.leave = nn.Linear(dim, 10)

    def forward(self, cells: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(cells), -1, -1), self.enter(cells)], dim=1) + self.place
        return self.leave(self.norm(self.block(tokens))[:, 0])


def cut(images: Tensor, cells: int) -> Tensor:
    """Row by row, each cell's pixels row by row: (batch, 1, 28, 28) to (batch, cell, pixel)."""
    side = 28 // math.isqrt(cells)
    pieces = [images[:, 0, i : i + side, j : j + side].flatten(1) for i in range(0, 28, side) for j in range(0, 28, side)]
    return torch.stack(pieces, 1)


def ours_to_theirs(model: VisionTransformer) -> dict[str, Tensor]:
    names = {
        "enter": "embedding.project",
        "block.before_attention": "blocks.0.norm1",
        "block.before_mlp": "blocks.0.norm2",
        "block.widen": "blocks.0.mlp.0",
        "block.narrow": f"blocks.0.mlp.{len(model.blocks[0].mlp) - 1}",  # type: ignore[arg-type]
        "block.attend.out_proj": "blocks.0.attention.out",
        "norm": "norm",
        "leave": "head",
    }
    state: dict[str, Tensor] = dict(model.named_parameters())
    mapped: dict[str, Tensor] = {
        f"{theirs}.{part}": state[f"{ours}.{part}"] for theirs, ours in names.items() for part in ("weight", "bias")
    }
    mapped |= {f"block.attend.in_proj_{part}": state[f"blocks.0.attention.qkv.{part}"] for part in ("weight", "bias")}
    mapped |= {"token": state["cls_token"][None], "place": state["position"][None]}
    return mapped


def lab(study: Params, variant: str) -> tuple[VisionTransformer, LabTransformer, Tensor, int]:
    """Both models with the same weights, in float64, and images."""
    settings = study.resolve(variant).model
    assert isinstance(settings, ModelSettings)
    torch.manual_seed(0)
    model = VisionTransformer(settings).double()
    # Norms start as the identity and the class token from zeros: weights as after training find a mistake in their use too.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    cells = settings.grid**2
    theirs = LabTransformer(cells, dropout=settings.mlp_dropout).double()
    theirs.load_state_dict(ours_to_theirs(model))
    return model, theirs, torch.rand(6, 1, 28, 28, dtype=torch.float64), cells


@pytest.mark.parametrize("variant", ["lab", "lab-16", "lab-49", "lab-no-dropout"])
def test_same_function(study: Params, variant: str) -> None:
    """Logits and the gradients of all weights, in a test: without dropout."""
    model, theirs, images, cells = lab(study, variant)
    logits, expected = model.eval()(images), theirs.eval()(cut(images, cells))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    leaves = ours_to_theirs(model)  # a view or the weight itself: its gradient is in the weight
    reference = dict(theirs.named_parameters())
    for output in (logits, expected):
        nn.functional.cross_entropy(output, torch.arange(6)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    for name, gradient in leaves.items():
        torch.testing.assert_close(gradient.detach(), reference[name].grad, rtol=0, atol=1e-12, msg=name)
