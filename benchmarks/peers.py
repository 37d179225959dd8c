"""Other implementations at the thesis's dimensions: its published way, and three libraries.

The libraries' networks have what the thesis's lacks: attention over the whole token with an output projection, and more layer norms.
timm's and transformers' are the architecture of this project's `attention: full, final_norm: true`; vit-pytorch's has norms around the
patch embedding and no bias in queries, keys and values.
"""

from __future__ import annotations

from torch import nn

from pipeline.models import VisionTransformer
from pipeline.params import ModelSettings
from pipeline.timing.published import as_published


def thesis_vit(settings: ModelSettings) -> nn.Module:
    """The published model: images (batch, 1, 28, 28) to logits (batch, 10). A class token is put in front image by image."""
    return as_published(VisionTransformer(settings.model_copy(update={"cls_insert": "loop"}) if settings.has_cls else settings))


def timm_vit(settings: ModelSettings) -> nn.Module:
    """timm's VisionTransformer."""
    import timm.models.vision_transformer as peer

    model: nn.Module = peer.VisionTransformer(
        img_size=settings.shape.size, patch_size=settings.patch, in_chans=settings.shape.channels, num_classes=settings.shape.classes,
        embed_dim=settings.dim, depth=settings.blocks, num_heads=settings.heads, mlp_ratio=settings.mlp_dim / settings.dim,
    )  # fmt: skip
    return model


def vit_pytorch_vit(settings: ModelSettings) -> nn.Module:
    """vit-pytorch's ViT."""
    import vit_pytorch as peer

    model: nn.Module = peer.ViT(
        image_size=settings.shape.size, patch_size=settings.patch, channels=settings.shape.channels, num_classes=settings.shape.classes,
        dim=settings.dim, depth=settings.blocks, heads=settings.heads, dim_head=settings.dim // settings.heads, mlp_dim=settings.mlp_dim,
        dropout=0.0, emb_dropout=0.0,
    )  # fmt: skip
    return model


def huggingface_vit(settings: ModelSettings) -> nn.Module:
    """transformers' ViTForImageClassification, with its default attention."""
    import transformers as peer

    config = peer.ViTConfig(
        image_size=settings.shape.size, patch_size=settings.patch, num_channels=settings.shape.channels, hidden_size=settings.dim,
        num_hidden_layers=settings.blocks, num_attention_heads=settings.heads, intermediate_size=settings.mlp_dim,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=settings.shape.classes,
    )  # fmt: skip
    model: nn.Module = peer.ViTForImageClassification(config)
    model.register_forward_hook(lambda module, given, output: output.logits)
    return model
