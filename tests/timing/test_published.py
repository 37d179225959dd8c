"""The loops of the thesis and of the implementation that it started from compute the same networks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from pipeline.models import VisionTransformer, build
from pipeline.params import ModelSettings, Params
from pipeline.timing import published


def model(base: ModelSettings, **changes: Any) -> Any:
    torch.manual_seed(3)
    return build(base.changed(changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"cls_insert": "loop", "memory": 5, "score_scale": False},
        {"attention": "full", "memory": 3, "embed": "conv", "norm": "post", "activation": "relu"},
        {"cls_insert": "none", "pool": "first", "residual": "none", "norm": "none", "patch": 14},
    ],
)
@pytest.mark.parametrize("change", [published.as_published, published.as_nested_loops])
def test_loops_compute_the_same_network(
    study: Params, changes: dict[str, Any], change: Callable[[VisionTransformer], VisionTransformer]
) -> None:
    """Logits, and the gradient of the class token and of the positions, which every operation between has to pass on."""
    images, labels = torch.rand(3, 1, 28, 28), torch.tensor([1, 0, 7])
    ours, theirs = model(study.base, **changes), change(model(study.base, **changes))
    results = []
    for network in (ours, theirs):
        logits = network(images)
        F.cross_entropy(logits, labels).backward()
        results.append((logits, network.position.grad, network.head.weight.grad))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("by_image", [False, True])
def test_loops_drop_attention_weights_in_training_alone(study: Params, by_image: bool) -> None:
    """With tokens of which each attends to itself alone, an output is the token's value, dropped or divided by 1 - p."""
    attention = published.LoopedAttention(model(study.base, attention_dropout=0.25).blocks[0].attention, by_image=by_image)
    tokens = torch.randn(400, 1, 32)
    attention.eval()
    whole = attention(tokens)
    attention.train()
    ratio = (attention(tokens) / whole).unflatten(-1, (8, 4))
    dropped = ratio[..., 0] == 0
    torch.testing.assert_close(ratio, (~dropped[..., None] / 0.75).expand_as(ratio))
    assert abs(dropped.float().mean().item() - 0.25) < 0.05
    assert len(dropped.flatten(1).unique(dim=0)) > 50  # heads and images draw masks of their own
