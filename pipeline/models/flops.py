"""Arithmetic of a forward pass, from the shapes."""

from __future__ import annotations

from itertools import pairwise

from pipeline.params import IMAGE_SIZE, NUM_CHANNELS, NUM_CLASSES, AnyModelSettings, BaselineSettings, ModelSettings


def count_flops(settings: AnyModelSettings) -> int:
    """Floating-point operations of the matrix products and convolutions of one image's forward pass; a multiply-add counts as two.

    Softmax, norms, activations and sums are left out, as is usual. What the definition asks for is counted, not how it is
    computed: of sliced attention its own small products, not the block-diagonal one; of memory slots no queries; of a padded
    convolution, as everywhere, the border too.
    """
    return 2 * (_transformer(settings) if isinstance(settings, ModelSettings) else _baseline(settings))


def _transformer(settings: ModelSettings) -> int:
    """Multiply-adds."""
    tokens, dim = settings.num_tokens, settings.dim
    head_dim = dim // settings.heads
    embedding = settings.grid**2 * NUM_CHANNELS * settings.patch**2 * dim
    projections = 3 * tokens * dim * head_dim if settings.attention == "sliced" else 4 * tokens * dim * dim
    attention = 2 * tokens * (tokens + settings.memory) * dim  # scores, and their product with the values
    mlp = 2 * tokens * dim * settings.mlp_dim
    pooling = settings.grid**2 * dim if settings.pool == "attention" else 0
    return embedding + settings.blocks * (projections + attention + mlp) + pooling + dim * NUM_CLASSES


def _baseline(settings: BaselineSettings) -> int:
    """Multiply-adds."""
    widths, side = settings.widths, IMAGE_SIZE
    match settings.architecture:
        case "cnn":
            first, second = widths
            blocks = (NUM_CHANNELS * first * side**2, (first + second) * first * (side // 2) ** 2, second**2 * (side // 4) ** 2)
            return 9 * sum(blocks) + second * NUM_CLASSES
        case "lenet":
            first, second, *dense = widths
            convolutions = 25 * (NUM_CHANNELS * first * side**2 + first * second * (side // 2 - 4) ** 2)
            return convolutions + _dense(second * 25, *dense, NUM_CLASSES)
        case "mlp":
            return _dense(NUM_CHANNELS * side**2, *widths, NUM_CLASSES)
        case "rnn" | "lstm":
            gates = 4 if settings.architecture == "lstm" else 1
            return side * gates * _dense(NUM_CHANNELS * side + widths[0], widths[0]) + _dense(widths[0], NUM_CLASSES)


def _dense(*widths: int) -> int:
    return sum(inputs * outputs for inputs, outputs in pairwise(widths))
