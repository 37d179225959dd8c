"""Whether attention is saturated, and whether the loss's gradient gets through its softmax.

Where one key has nearly all the weight, the slope of softmax is nearly 0 (Vaswani et al. 2017, section 3.2.1): for a row p of weights
and the gradient g at them, the gradient at the scores is p (g - p g).
"""

import copy
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.models import VisionTransformer
from pipeline.models.attention import FullAttention, SoftmaxAttention
from pipeline.models.encoder import EncoderBlock
from pipeline.params import ModelSettings
from pipeline.training.classification import pixels

NUM_IMAGES = 256  # the first test images
SATURATED = 0.9
_SCORES_AT_ONCE = 2**22  # scores held at a time, with their gradients and the tensors that these need


class ExplicitAttention(nn.Module):
    """Computes the same as an attention module in evaluation mode, step by step, and keeps scores and values for gradients.

    Attributes:
        scores: (batch, head, query token, key token) of the last call, memory slots last; scaled if the module scales them.
        values: (batch, head, key token, channel) of the last call.
    """

    scores: Tensor
    values: Tensor

    def __init__(self, attention: SoftmaxAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, token, dim) to (batch, token, dim)."""
        attention = self.attention
        parts = attention.project(tokens).chunk(3, dim=-1)
        query, key, self.values = (part.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for part in parts)
        if attention.memory is not None:
            keys, values = (slots.transpose(0, 1).expand(len(tokens), -1, -1, -1) for slots in attention.memory.unbind(1))
            key, self.values = torch.cat([key, keys], dim=2), torch.cat([self.values, values], dim=2)
        self.scores = query @ key.mT * attention.scale
        heads = (self.scores.softmax(-1) @ self.values).transpose(1, 2).flatten(2)
        return attention.out(heads) if isinstance(attention, FullAttention) else heads


def explicit(module: nn.Module) -> tuple[nn.Module, list[ExplicitAttention]]:
    """A copy of a vision transformer, in float64 and evaluation mode, with explicit attention; and its attention modules by block."""
    assert isinstance(module, VisionTransformer)
    model = copy.deepcopy(module).double().eval()
    attentions = []
    for block in model.blocks:
        assert isinstance(block, EncoderBlock)
        assert isinstance(block.attention, SoftmaxAttention)
        attentions.append(ExplicitAttention(block.attention))
        block.register_module("attention", attentions[-1])
    return model, attentions


def measure(module: nn.Module, settings: ModelSettings, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> dict[str, float]:
    """Measures the saturation of one model's attention.

    Args:
        module: a vision transformer of these settings; it is left as it was.
        images: uint8, as `Dataset` has them, with `labels` (image,).

    Returns:
        `saturated_attention`, the share of the rows of attention weights, over images, blocks, heads and queries, whose largest weight
        exceeds `SATURATED`; `score_gradient`, the L2 norm of the gradient of the mean cross-entropy at the scores, which are the input of
        softmax, over that at the values, each over all images and blocks. NaN where gradients are not finite, or none reaches the values.
    """
    model, attentions = explicit(module)
    device = next(model.parameters()).device
    inputs, classes = pixels(torch.from_numpy(images).to(device), 1).double(), torch.from_numpy(labels).long().to(device)
    of_one = settings.blocks * settings.heads * settings.num_tokens * (settings.num_tokens + settings.memory)
    rows = saturated = 0
    squares = torch.zeros(2, dtype=torch.float64, device=device)
    for some, of in zip(*(tensor.split(max(1, _SCORES_AT_ONCE // of_one)) for tensor in (inputs, classes)), strict=True):
        loss = F.cross_entropy(model(some), of, reduction="sum") / len(inputs)
        kept = [tensor for attention in attentions for tensor in (attention.scores, attention.values)]
        squares += torch.stack([(gradient**2).sum() for gradient in torch.autograd.grad(loss, kept)]).view(-1, 2).sum(0)
        largest = torch.stack([attention.scores.detach().softmax(-1).amax(-1) for attention in attentions])
        rows, saturated = rows + largest.numel(), saturated + int((largest > SATURATED).sum())
    scores, values = squares.sqrt().tolist()
    finite = math.isfinite(scores) and math.isfinite(values)
    return {
        "saturated_attention": saturated / rows if finite else math.nan,
        "score_gradient": scores / values if finite and values else math.nan,
    }
