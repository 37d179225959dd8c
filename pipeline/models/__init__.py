"""The models; `build(settings)` is the one way in. Nothing here knows of seeds, DVC or MLflow."""

from __future__ import annotations

from torch import nn

from pipeline.models.attention import attention_kernel
from pipeline.models.baselines import build_baseline
from pipeline.models.flops import count_flops
from pipeline.models.vit import VisionTransformer, attention_maps
from pipeline.params import AnyModelSettings, ModelSettings

__all__ = ["VisionTransformer", "attention_kernel", "attention_maps", "build", "count_flops", "count_parameters"]


def build(settings: AnyModelSettings) -> nn.Module:
    """An untrained model with torch's global generator as its source of initial weights.

    Returns:
        A module that maps images (batch, 1, 28, 28) in [0, 1] to logits (batch, 10).
    """
    return VisionTransformer(settings) if isinstance(settings, ModelSettings) else build_baseline(settings)


def count_parameters(model: nn.Module) -> int:
    """Number of trained scalars."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
