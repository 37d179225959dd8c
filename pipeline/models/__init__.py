"""The models; `build(settings)` is the one way in. Nothing here knows of seeds, DVC or MLflow."""

from __future__ import annotations

from torch import nn

from pipeline.models.flops import count_flops
from pipeline.models.vit import VisionTransformer
from pipeline.params import ModelSettings

__all__ = ["VisionTransformer", "build", "count_flops", "count_parameters"]


def build(settings: ModelSettings) -> nn.Module:
    """An untrained model with torch's global generator as its source of initial weights.

    Returns:
        A module that maps images (batch, 1, 28, 28) in [0, 1] to logits (batch, 10).
    """
    return VisionTransformer(settings)


def count_parameters(model: nn.Module) -> int:
    """Number of trained scalars."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
