"""The published way and the reference compute what they should, so their times are those of the right function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.measure import FIRST, FULL, THESIS
from benchmarks.reference import LoopedAttention, ReferenceViT, cut_patches
from benchmarks.thesis import HeadwiseAttention, ThesisViT
from pipeline.models import build, count_parameters
from pipeline.params import ModelSettings


def _images(count: int) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _take_over(ours: nn.Module, published: ThesisViT) -> None:
    """Gives our model the published one's weights."""
    ours.position.copy_(published.position)
    if published.cls_token is not None:
        ours.cls_token.copy_(published.cls_token)
    ours.embedding.project.load_state_dict(published.embedding.state_dict())
    ours.head.load_state_dict(published.head.state_dict())
    for block, source in zip(ours.blocks, published.blocks, strict=True):
        for name in ("norm1", "norm2", "mlp"):
            getattr(block, name).load_state_dict(getattr(source, name).state_dict())
        for i, maps in enumerate((source.attention.query, source.attention.key, source.attention.value)):
            for head, linear in enumerate(maps):
                block.attention.weight[i, head] = linear.weight
                block.attention.bias[i, head] = linear.bias


@pytest.mark.parametrize("settings", [FIRST, THESIS], ids=["first", "cls"])
def test_published_way_equals_our_model_with_the_same_weights(settings: ModelSettings) -> None:
    torch.manual_seed(0)
    published, ours = ThesisViT(settings), build(settings)
    assert count_parameters(published) == count_parameters(ours)
    _take_over(ours, published)
    torch.testing.assert_close(published(_images(5)), ours(_images(5)), rtol=1e-4, atol=1e-5)


def test_parameter_counts_of_the_thesis() -> None:
    assert count_parameters(ThesisViT(FIRST)) == 10_602
    assert count_parameters(ThesisViT(THESIS)) == 10_602 + 32 + 32  # the class token and its position


def test_reference_gives_probabilities() -> None:
    torch.manual_seed(0)
    probabilities = ReferenceViT(THESIS)(_images(3))
    assert probabilities.shape == (3, 10)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))


def test_reference_cuts_the_patches_that_unfold_cuts() -> None:
    images = _images(3)
    expected = torch.nn.functional.unfold(images, kernel_size=4, stride=4).transpose(1, 2)
    assert torch.equal(cut_patches(images, 4), expected)


def test_looped_attention_equals_pytorchs_attention() -> None:
    torch.manual_seed(0)
    looped, headwise = LoopedAttention(32, 8), HeadwiseAttention(32, 8)
    headwise.load_state_dict(looped.state_dict())
    tokens = torch.randn(4, 50, 32)
    parts = tokens.unflatten(2, (8, 4)).transpose(1, 2)  # (batch, head, token, head_dim)

    def project(maps: nn.ModuleList) -> Tensor:
        return torch.stack([parts[:, i] @ linear.weight.T + linear.bias for i, linear in enumerate(maps)], dim=1)

    query, key, value = project(looped.query), project(looped.key), project(looped.value)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(looped(tokens), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(headwise(tokens), expected, rtol=1e-4, atol=1e-5)


def test_timm_has_the_parameters_of_our_full_attention() -> None:
    from benchmarks.peers import timm_vit

    model = timm_vit(FULL)
    assert model(_images(2)).shape == (2, 10)
    assert count_parameters(model) == count_parameters(build(FULL))


def test_timm_equals_our_full_attention_with_the_same_weights() -> None:
    from benchmarks.peers import timm_vit

    torch.manual_seed(0)
    peer, ours = timm_vit(FULL), build(FULL)
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


def test_vit_pytorch_has_other_norms_and_no_biases() -> None:
    pytest.importorskip("vit_pytorch")
    from benchmarks.peers import vit_pytorch_vit

    model = vit_pytorch_vit(FULL)
    assert model(_images(2)).shape == (2, 10)
    norms = 2 * 16 + 2 * 32  # around the patch embedding
    assert count_parameters(model) == count_parameters(build(FULL)) + norms - 3 * 96  # no bias in qkv


def test_transformers_has_the_parameters_of_our_full_attention() -> None:
    pytest.importorskip("transformers")
    from benchmarks.peers import huggingface_vit

    model = huggingface_vit(FULL)
    assert model(_images(2)).shape == (2, 10)
    assert count_parameters(model) == count_parameters(build(FULL))
