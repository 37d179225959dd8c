"""The vision transformer against torch's own modules, and its published size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.models import build, count_parameters
from pipeline.models.encoder import EncoderBlock
from pipeline.models.vit import PatchEmbedding
from pipeline.params import ModelSettings, Params


def settings(study: Params, **changes: Any) -> ModelSettings:
    return ModelSettings.model_validate(study.base.model_dump() | changes)


def test_published_configuration_has_the_published_size(study: Params) -> None:
    assert count_parameters(build(study.base)) == 10_666
    assert count_parameters(build(settings(study, pool="first", cls_insert="none"))) == 10_602
    for cls_init, deviation in (("normal", 1.0), ("zeros", 0.0)):
        assert abs(build(settings(study, dim=1024, cls_init=cls_init)).cls_token.std() - deviation) < 0.1


# Without attention nothing comes from tokens that the head does not read.
OPTIONS: list[dict[str, Any]] = [
    *({"position": position, "pool": pool} for position in ("sinusoidal", "sincos2d", "none") for pool in ("cls", "mean", "concat")),
    *({"pool": pool, "cls_insert": insert} for pool in ("first", "max", "attention") for insert in ("expand", "loop", "none")),
    *({"attention": attention, "pool": pool} for attention in ("full", "unprojected", "uniform") for pool in ("cls", "concat")),
    *({"attention": "none", "pool": pool, "cls_insert": "none"} for pool in ("mean", "concat")),
    {"patch": 1, "blocks": 1},
    {"patch": 28, "final_norm": True, "norm": "post"},
    {"mlp": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_maps_images_to_logits_and_trains_every_weight(study: Params, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = build(settings(study, **{"patch": 14} | options))
    logits = model(torch.rand(3, 1, 28, 28))
    assert logits.shape == (3, 10)
    logits.square().sum().backward()
    untouched = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not untouched


def test_wrong_images_are_refused_with_their_shape(study: Params) -> None:
    with pytest.raises(ValueError, match=r"not \(2, 3, 28, 28\)"):
        build(study.base)(torch.rand(2, 3, 28, 28))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_encoder_equals_torch(study: Params, norm: str, activation: str) -> None:
    torch.manual_seed(0)
    blocks = [EncoderBlock(settings(study, mlp_dim=64, attention="full", norm=norm, activation=activation)) for _ in range(3)]
    layer = nn.TransformerEncoderLayer(32, 8, 64, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre")
    theirs = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    for ours, other in zip(blocks, theirs.layers, strict=True):
        own = ours.attention
        state = {
            "in_proj_weight": own.qkv.weight,
            "in_proj_bias": own.qkv.bias,
            "out_proj.weight": own.out.weight,
            "out_proj.bias": own.out.bias,
        }
        other.self_attn.load_state_dict(state)
        pairs = [(ours.norm1, other.norm1), (ours.norm2, other.norm2), (ours.mlp[0], other.linear1), (ours.mlp[2], other.linear2)]
        for mine, yours in pairs:
            yours.load_state_dict(mine.state_dict())
    tokens = torch.randn(4, 50, 32)
    encoder = nn.Sequential(*blocks)
    torch.testing.assert_close(encoder(tokens), theirs(tokens), rtol=0, atol=2e-6)
    reference = theirs.double()(tokens.double())
    torch.testing.assert_close(encoder.double()(tokens.double()), reference, rtol=0, atol=1e-12)


def test_mlp_is_two_convolutions_of_one_token(study: Params) -> None:
    """The feed-forward part, written as two convolutions of kernel 1 (Vaswani et al. 2017, section 3.3)."""
    torch.manual_seed(0)
    mlp = EncoderBlock(settings(study, mlp_dim=64, activation="relu")).mlp.double()
    first, second = nn.Conv1d(32, 64, 1).double(), nn.Conv1d(64, 32, 1).double()
    for convolution, linear in ((first, mlp[0]), (second, mlp[2])):
        convolution.load_state_dict({"weight": linear.weight[..., None], "bias": linear.bias})
    tokens = torch.randn(3, 50, 32, dtype=torch.float64)
    convolved = second(first(tokens.mT).relu()).mT
    torch.testing.assert_close(mlp(tokens), convolved, rtol=0, atol=1e-12)
    a, b = (
        torch.autograd.grad(out.square().sum(), list(layers))
        for out, layers in ((mlp(tokens), mlp.parameters()), (convolved, [*first.parameters(), *second.parameters()]))
    )
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other.view(mine.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("residual", ["input", "none"])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("lacking", [None, "attention", "mlp"])
def test_block_follows_its_formula(study: Params, lacking: str | None, norm: str, residual: str) -> None:
    torch.manual_seed(0)
    without = {} if lacking is None else {lacking: "none"}
    block = EncoderBlock(settings(study, norm=norm, residual=residual, norm_eps=0.01, **without)).double()
    x = torch.randn(3, 50, 32, dtype=torch.float64)

    def normed(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 0.01).sqrt()  # a new norm's weights are ones and zeros

    expected = x
    for f in (block.attention, block.mlp):
        if f is not None:
            inner = f(normed(expected) if norm == "pre" else expected) + (expected if residual == "input" else 0)
            expected = normed(inner) if norm == "post" else inner
    torch.testing.assert_close(block(x), expected, rtol=1e-10, atol=1e-12)
    names = {name.split(".")[0] for name, _ in block.named_parameters()}
    left = {"attention": "norm1", "mlp": "norm2"}
    left.pop(lacking or "", None)
    assert names == {*left, *(left.values() if norm != "none" else ())}


@pytest.mark.parametrize("attention", ["none", "uniform", "unprojected", "sliced"])
@pytest.mark.parametrize("mlp", ["full", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_only_by_attention_does_a_token_read_another(study: Params, attention: str, mlp: str, norm: str) -> None:
    torch.manual_seed(0)
    model = build(settings(study, patch=7, attention=attention, mlp=mlp, norm=norm)).eval()
    images = torch.rand(2, 1, 28, 28)
    other = images.clone()
    other[:, :, 7:14, 21:28] = 1 - other[:, :, 7:14, 21:28]  # the patch in row 1, column 3: token 1 + 7, after the class token
    with torch.no_grad():
        change = (model.encode(images) - model.encode(other)).abs().amax((0, 2))  # type: ignore[operator]
    moved = change > 1e-6
    assert moved[8]
    assert moved.all() if attention != "none" else moved.sum() == 1
    assert attention != "none" or change[~moved].max() == 0


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_batch_norm_is_over_the_tokens_of_a_batch(study: Params, norm: str) -> None:
    """In training by the batch's own mean and variance, in a test by running ones, of which a batch counts for a tenth."""
    torch.manual_seed(0)
    block = EncoderBlock(settings(study, norm=norm, norm_kind="batch", norm_eps=0.01)).double()
    batches = torch.randn(2, 3, 50, 32, dtype=torch.float64) * torch.rand(32, dtype=torch.float64) + 5
    running = [(torch.zeros(32, dtype=torch.float64), torch.ones(32, dtype=torch.float64))] * 2

    def expected(x: Tensor, *, training: bool) -> Tensor:
        for place, f in enumerate((block.attention, block.mlp)):

            def normed(x: Tensor, place: int = place) -> Tensor:
                mean, variance = running[place]
                if training:
                    rows = x.reshape(150, 32)
                    running[place] = (0.9 * mean + 0.1 * rows.mean(0), 0.9 * variance + 0.1 * rows.var(0))
                    mean, variance = rows.mean(0), rows.var(0, correction=0)
                return (x - mean) / (variance + 0.01).sqrt()

            x = x + f(normed(x)) if norm == "pre" else normed(x + f(x))
        return x

    for batch in batches:
        torch.testing.assert_close(block(batch), expected(batch, training=True), rtol=1e-10, atol=1e-12)
    block.eval()
    torch.testing.assert_close(block(batches[0]), expected(batches[0], training=False), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("patch", [4, 14])
def test_conv_and_linear_embedding_are_the_same_function(patch: int) -> None:
    torch.manual_seed(0)
    conv, linear = PatchEmbedding(patch, 32, conv=True), PatchEmbedding(patch, 32, conv=False)
    linear.project.weight.data = conv.project.weight.data.flatten(1)
    linear.project.bias.data = conv.project.bias.data  # type: ignore[union-attr]
    images = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(conv(images), linear(images), rtol=0, atol=1e-6)


def test_patches_are_cut_in_row_major_order() -> None:
    embedding = PatchEmbedding(7, 49, conv=False)
    embedding.project.weight.data = torch.eye(49)
    embedding.project.bias.data.zero_()  # type: ignore[union-attr]
    image = torch.arange(784.0).view(1, 1, 28, 28)
    tokens = embedding(image)
    torch.testing.assert_close(tokens[0, 5].view(7, 7), image[0, 0, 7:14, 7:14])  # patch 5 of 4 x 4: row 1, column 1


def test_cls_by_loop_is_the_same_function(study: Params) -> None:
    torch.manual_seed(0)
    expand = build(study.base)
    loop = build(settings(study, cls_insert="loop"))
    loop.load_state_dict(expand.state_dict())
    images = torch.rand(5, 1, 28, 28)
    assert torch.equal(expand(images), loop(images))


def test_without_positions_permuted_patches_give_permuted_tokens(study: Params) -> None:
    torch.manual_seed(0)
    model = build(settings(study, position="none", pool="mean", cls_insert="none")).double()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    order = torch.randperm(49)
    torch.testing.assert_close(model.encode(permute(images, order)), model.encode(images)[:, order])  # type: ignore[operator]
    torch.testing.assert_close(model(permute(images, order)), model(images))
    with_positions = build(settings(study, pool="mean", cls_insert="none")).double()
    assert not torch.allclose(with_positions(permute(images, order)), with_positions(images))


def permute(images: Tensor, order: Tensor) -> Tensor:
    """Reorders the 4 x 4 patches of (batch, 1, 28, 28)."""
    patches = nn.functional.unfold(images, 4, stride=4)[:, :, order]
    return nn.functional.fold(patches, (28, 28), 4, stride=4)


def test_pooling_reads_what_it_says(study: Params) -> None:
    tokens = torch.randn(2, 49, 32)
    for pool, expected in {"first": tokens[:, 0], "mean": tokens.mean(1), "max": tokens.max(1).values}.items():
        model = build(settings(study, pool=pool, cls_insert="none"))
        torch.testing.assert_close(model._pool(tokens), expected)  # type: ignore[operator]
    model = build(settings(study, pool="concat", cls_insert="none"))
    weight = model.head.weight.view(10, 49, 32)  # of each class, patch and channel
    logits = torch.einsum("bpd,cpd->bc", tokens, weight) + model.head.bias
    torch.testing.assert_close(model.head(model._pool(tokens)), logits, rtol=0, atol=1e-5)  # type: ignore[operator]
    with_cls = torch.cat([torch.full((2, 1, 32), 100.0), tokens], 1)
    model = build(settings(study, pool="max"))
    torch.testing.assert_close(model._pool(with_cls), tokens.max(1).values)  # type: ignore[operator]


def test_attention_pooling_weighs_by_the_query(study: Params) -> None:
    model = build(settings(study, pool="attention", cls_insert="none"))
    tokens = torch.randn(2, 49, 32)
    model.pool_query.data.zero_()
    torch.testing.assert_close(model._pool(tokens), tokens.mean(1), rtol=1e-5, atol=1e-6)  # type: ignore[operator]
    model.pool_query.data.copy_(1e6 * tokens[0, 7])
    best = (tokens[0] @ tokens[0, 7]).argmax()
    torch.testing.assert_close(model._pool(tokens)[0], tokens[0, best])  # type: ignore[operator]
