"""The vision transformers of timm, vit-pytorch and Hugging Face transformers at the thesis's dimensions.

All three have what the thesis's model lacks: attention over the whole token with an output projection, and more layer norms.
timm's and transformers' are the architecture of this project's `attention: full, final_norm: true`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pipeline.params import ModelSettings


def timm_vit(settings: ModelSettings) -> nn.Module:
    """timm's VisionTransformer."""
    import timm.models.vision_transformer as peer

    model: nn.Module = peer.VisionTransformer(
        img_size=settings.shape.size,
        patch_size=settings.patch,
        in_chans=settings.shape.channels,
        num_classes=settings.shape.classes,
        embed_dim=settings.dim,
        depth=settings.blocks,
        num_heads=settings.heads,
        mlp_ratio=settings.mlp_dim / settings.dim,
    )
    return model


def vit_pytorch_vit(settings: ModelSettings) -> nn.Module:
    """vit-pytorch's ViT."""
    import vit_pytorch as peer

    model: nn.Module = peer.ViT(
        image_size=settings.shape.size,
        patch_size=settings.patch,
        channels=settings.shape.channels,
        num_classes=settings.shape.classes,
        dim=settings.dim,
        depth=settings.blocks,
        heads=settings.heads,
        dim_head=settings.dim // settings.heads,
        mlp_dim=settings.mlp_dim,
        dropout=0.0,
        emb_dropout=0.0,
    )
    return model


class _Logits(nn.Module):
    """Hugging Face's model behind the interface of the others."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def huggingface_vit(settings: ModelSettings) -> nn.Module:
    """transformers' ViTForImageClassification, with its default attention."""
    import transformers as peer

    config = peer.ViTConfig(
        image_size=settings.shape.size,
        patch_size=settings.patch,
        num_channels=settings.shape.channels,
        hidden_size=settings.dim,
        num_hidden_layers=settings.blocks,
        num_attention_heads=settings.heads,
        intermediate_size=settings.mlp_dim,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=settings.shape.classes,
    )
    return _Logits(peer.ViTForImageClassification(config))
