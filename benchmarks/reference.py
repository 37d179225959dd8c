"""The thesis's model the way its author published it, and the implementation that it started from, written anew.

Both are computed by the timing stage's loops. The reference is another network, too: its MLP is four times as wide as a token, and a
softmax precedes the cross-entropy.
"""

from __future__ import annotations

from torch import nn

from pipeline.models import VisionTransformer
from pipeline.params import ModelSettings
from pipeline.timing.published import as_published, as_reference

MLP_RATIO = 4


def thesis_vit(settings: ModelSettings) -> nn.Module:
    """The published model: images (batch, 1, 28, 28) to logits (batch, 10). A class token is put in front image by image."""
    return as_published(VisionTransformer(_looped(settings)))


def reference_vit(settings: ModelSettings) -> nn.Module:
    """The reference: images to probabilities (batch, 10), which it gives to the cross-entropy as if they were logits."""
    wide = settings.model_copy(update={"mlp_dim": MLP_RATIO * settings.dim})
    return as_reference(VisionTransformer(_looped(wide)))


def _looped(settings: ModelSettings) -> ModelSettings:
    return settings.model_copy(update={"cls_insert": "loop"}) if settings.has_cls else settings
