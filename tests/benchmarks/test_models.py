"""The published way and the libraries' networks are those that they should be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.measure import FIRST, FULL, THESIS
from benchmarks.peers import huggingface_vit, thesis_vit, timm_vit, vit_pytorch_vit
from pipeline.models import VisionTransformer, build, count_parameters
from pipeline.timing.published import LoopedAttention


def _images(count: int) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def test_the_published_model_loops_over_heads_and_class_tokens_and_has_the_thesis_parameters() -> None:
    """What the loops compute is tested in tests/timing."""
    assert count_parameters(thesis_vit(FIRST)) == 10_602
    model = thesis_vit(THESIS)
    assert count_parameters(model) == 10_602 + 32 + 32  # the class token and its position
    assert [module.by_image for module in model.modules() if isinstance(module, LoopedAttention)] == [False] * 3
    assert isinstance(model, VisionTransformer)
    assert model.settings.cls_insert == "loop"


def test_timm_equals_our_full_attention_with_the_same_weights() -> None:
    torch.manual_seed(0)
    peer, ours = timm_vit(FULL), build(FULL)
    assert count_parameters(peer) == count_parameters(ours)
    with torch.no_grad():
        ours.cls_token.copy_(peer.cls_token[0])
        ours.position.copy_(peer.pos_embed[0])
        ours.embedding.project.weight.copy_(peer.patch_embed.proj.weight.flatten(1))
        ours.embedding.project.bias.copy_(peer.patch_embed.proj.bias)
        ours.norm.load_state_dict(peer.norm.state_dict())
        ours.norm.eps = peer.norm.eps
        ours.head.load_state_dict(peer.head.state_dict())
        for block, source in zip(ours.blocks, peer.blocks, strict=True):
            for norm, other in ((block.norm1, source.norm1), (block.norm2, source.norm2)):
                norm.load_state_dict(other.state_dict())
                norm.eps = other.eps
            block.attention.qkv.load_state_dict(source.attn.qkv.state_dict())
            block.attention.out.load_state_dict(source.attn.proj.state_dict())
            block.mlp[0].load_state_dict(source.mlp.fc1.state_dict())
            block.mlp[2].load_state_dict(source.mlp.fc2.state_dict())
    torch.testing.assert_close(peer(_images(5)), ours(_images(5)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("package", "make", "more"),
    # vit-pytorch has norms around the patch embedding, and no bias in queries, keys and values.
    [("vit_pytorch", vit_pytorch_vit, 2 * 16 + 2 * 32 - 3 * 96), ("transformers", huggingface_vit, 0)],
)
def test_other_libraries_have_the_parameters_of_our_full_attention(package: str, make: Any, more: int) -> None:
    pytest.importorskip(package)
    assert make(FULL)(_images(2)).shape == (2, 10)
    assert count_parameters(make(FULL)) == count_parameters(build(FULL)) + more
