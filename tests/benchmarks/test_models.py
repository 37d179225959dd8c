"""The published way and the reference are the networks that they should be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.measure import FIRST, FULL, THESIS
from benchmarks.reference import reference_vit, thesis_vit
from pipeline.models import VisionTransformer, build, count_parameters
from pipeline.timing.published import LoopedAttention, LoopedEmbedding


def _images(count: int) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def test_parameter_counts_of_the_thesis() -> None:
    assert count_parameters(thesis_vit(FIRST)) == 10_602
    assert count_parameters(thesis_vit(THESIS)) == 10_602 + 32 + 32  # the class token and its position


def test_published_models_loop_over_heads_and_images_and_the_class_token() -> None:
    """What the loops compute is tested in tests/timing; here, that each model has those that it should have."""
    for model, by_image in ((thesis_vit(THESIS), False), (reference_vit(THESIS), True)):
        loops = [module for module in model.modules() if isinstance(module, LoopedAttention)]
        assert [loop.by_image for loop in loops] == [by_image] * 3
        (vit,) = (module for module in model.modules() if isinstance(module, VisionTransformer))
        assert vit.settings.cls_insert == "loop"
    assert isinstance(reference_vit(THESIS).embedding, LoopedEmbedding)


def test_reference_gives_probabilities_and_has_a_wide_mlp() -> None:
    model = reference_vit(THESIS)
    probabilities = model(_images(3))
    assert probabilities.shape == (3, 10)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    assert count_parameters(model) - count_parameters(thesis_vit(THESIS)) == 3 * 3 * (2 * 32 * 32 + 32)


def test_timm_equals_our_full_attention_with_the_same_weights() -> None:
    from benchmarks.peers import timm_vit

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
