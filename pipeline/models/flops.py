"""Arithmetic of a forward pass, from the shapes."""

from __future__ import annotations

from pipeline.params import NUM_CHANNELS, NUM_CLASSES, ModelSettings


def count_flops(settings: ModelSettings) -> int:
    """Floating-point operations of the matrix products of one image's forward pass; a multiply-add counts as two.

    Softmax, norms, activations and sums are left out, as is usual. Sliced attention counts its own small products, not the
    block-diagonal one that computes them.
    """
    tokens, dim = settings.num_tokens, settings.dim
    head_dim = dim // settings.heads
    embedding = settings.grid**2 * NUM_CHANNELS * settings.patch**2 * dim
    projections = 3 * tokens * dim * head_dim if settings.attention == "sliced" else 4 * tokens * dim * dim
    attention = 2 * tokens * tokens * dim  # scores, and their product with the values
    mlp = 2 * tokens * dim * settings.mlp_dim
    pooling = settings.grid**2 * dim if settings.pool == "attention" else 0
    return 2 * (embedding + settings.blocks * (projections + attention + mlp) + pooling + dim * NUM_CLASSES)
