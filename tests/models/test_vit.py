"""The vision transformer: every option against the network written out in torch's functions; captioning has its blocks as torch's own."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.models import attention_maps, build, count_parameters
from pipeline.models.attention import FullAttention, SlicedAttention
from pipeline.models.dropout import Dropout
from pipeline.params import ModelSettings, Params

# Each value of each option, and what acts on another; without attention nothing comes from tokens that the head does not read.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 1, "dropout": 0.2, "norm": "none", "position": "none"},
    {"memory": 4, "score_scale": False, "pool": "concat"},
    {"memory": 3, "attention_dropout": 0.3, "norm": "post", "pool": "mean", "cls_insert": "none"},
    {"attention": "full", "norm": "post", "final_norm": True, "embed": "conv", "position": "sincos2d", "dropout": 0.1},
    {"attention": "full", "memory": 4, "score_scale": False, "dropout": 0.1, "pool": "first", "cls_insert": "none"},
    # The lab's block.
    {"attention": "full", "residual": "normalized", "activation": "relu", "mlp_dropout": 0.1, "attention_dropout": 0.1, "norm_eps": 1e-3},
    {"attention": "unprojected", "memory": 3, "pool": "max"},
    {"attention": "unprojected", "heads": 1, "score_scale": False, "residual": "none", "norm": "post", "position": "sinusoidal"},
    {"attention": "uniform", "cls_insert": "loop", "final_norm": True},
    {"attention": "none", "pool": "concat", "cls_insert": "none", "residual": "none"},
    {"attention": "none", "pool": "mean", "cls_insert": "none", "norm": "post", "blocks": 1},
    {"mlp": "none", "pool": "attention", "cls_insert": "none", "patch": 14},
    {"norm_kind": "batch", "norm_eps": 1e-3, "final_norm": True, "dropout": 0.1},
    {"norm_kind": "batch", "norm": "post", "pool": "attention"},
]


def settings(study: Params, **changes: Any) -> ModelSettings:
    return study.base.changed({"patch": 7} | changes)


class WrittenOut:
    """A vision transformer's function from its settings and weights.

    The patch embedding is a convolution whose stride is its side, and an MLP two convolutions of one token (Vaswani et al. 2017,
    section 3.3), as the sources say.

    Args:
        masks: by the name of a dropout, what it multiplied with.
    """

    def __init__(self, model: Any, masks: dict[str, Tensor]) -> None:
        self.settings, self.masks, self.training = model.settings, masks, model.training
        self.weights = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        self.maps: list[Tensor] = []  # (batch, head, query token, key token) of each block

    def __call__(self, images: Tensor) -> Tensor:
        s, w = self.settings, self.weights
        kernel = w["embedding.project.weight"].view(s.dim, 1, s.patch, s.patch)
        x = F.conv2d(images, kernel, w["embedding.project.bias"], stride=s.patch).flatten(2).mT
        if s.cls_insert != "none":
            x = torch.cat([w["cls_token"].expand(len(x), 1, s.dim), x], 1)
        x = self.dropped("dropout", x + w.get("position", 0))
        for block in range(s.blocks):
            for place, (name, f) in enumerate((("attention", self.attention), ("mlp", self.mlp)), 1):
                if getattr(s, name) == "none":
                    continue
                inputs = x
                if s.norm == "pre":
                    inputs = self.normed(f"blocks.{block}.norm{place}", x)
                change = self.dropped(f"blocks.{block}.dropout{place}", f(f"blocks.{block}.{name}.", inputs))
                start = inputs if s.residual == "normalized" and name == "mlp" else x
                x = change if s.residual == "none" else start + change
                if s.norm == "post":
                    x = self.normed(f"blocks.{block}.norm{place}", x)
        if s.final_norm:
            x = self.normed("norm", x)
        return self.pooled(x) @ w["head.weight"].T + w["head.bias"]

    def pooled(self, x: Tensor) -> Tensor:
        if self.settings.pool == "cls":
            return x[:, 0]
        patches = x[:, -(self.settings.grid**2) :]
        match self.settings.pool:
            case "attention":
                query = self.weights["pool_query"].expand(len(x), 1, -1)
                return F.scaled_dot_product_attention(query, patches, patches)[:, 0]
            case "concat":
                return patches.flatten(1)
            case pool:
                return {"first": patches[:, 0], "mean": patches.mean(1), "max": patches.max(1).values}[pool]

    def dropped(self, name: str, x: Tensor) -> Tensor:
        return x * self.masks.get(name, 1)

    def normed(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        if self.settings.norm_kind == "batch":  # over all tokens of a batch; in a test the running ones
            mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
            if not self.training:
                mean, variance = self.weights[f"{name}.running_mean"], self.weights[f"{name}.running_var"]
        return (x - mean) / (variance + self.settings.norm_eps).sqrt() * weight + bias

    def mlp(self, name: str, x: Tensor) -> Tensor:
        last = 3 if self.settings.mlp_dropout else 2
        hidden = F.conv1d(x.mT, self.weights[f"{name}0.weight"][..., None], self.weights[f"{name}0.bias"]).mT
        hidden = self.dropped(f"{name}2", F.gelu(hidden) if self.settings.activation == "gelu" else hidden.relu())
        return F.conv1d(hidden.mT, self.weights[f"{name}{last}.weight"][..., None], self.weights[f"{name}{last}.bias"]).mT

    def attention(self, name: str, x: Tensor) -> Tensor:
        """Head after head."""
        s, width = self.settings, self.settings.dim // self.settings.heads
        w = {key.removeprefix(name): value for key, value in self.weights.items() if key.startswith(name)}
        heads, maps = [], []
        for head in range(s.heads):
            own = x[..., head * width : (head + 1) * width]
            if s.attention == "uniform":
                heads.append((own @ w["weight"][head].T + w["bias"][head]).mean(1, keepdim=True).expand_as(own))
                continue
            parts = [own] * 3
            if s.attention == "sliced":
                parts = [own @ w["weight"][i, head].T + w["bias"][i, head] for i in range(3)]
            elif s.attention == "full":
                parts = [(x @ w["qkv.weight"].T + w["qkv.bias"])[..., i * s.dim + head * width :][..., :width] for i in range(3)]
            for i in (1, 2) if s.memory else ():
                parts[i] = torch.cat([parts[i], w["memory"][:, i - 1, head].expand(len(x), -1, -1)], 1)
            query, key, value = parts
            maps.append((query @ key.mT * (width**-0.5 if s.score_scale else 1)).softmax(-1))
            heads.append(maps[-1] * self.masks.get(f"{name}dropout", torch.ones(1, s.heads, 1, 1))[:, head] @ value)
        if maps:
            self.maps.append(torch.stack(maps, 1))
        result = torch.cat(heads, -1)
        return result @ w["out.weight"].T + w["out.bias"] if s.attention == "full" else result


def logits_and_gradients(function: Any, model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Of the images and of every weight."""
    images = images.clone().requires_grad_()
    leaves = {"images": images, **dict(model.named_parameters())}
    logits = function(images)
    return {"logits": logits.detach(), **dict(zip(leaves, torch.autograd.grad(logits.square().sum(), list(leaves.values())), strict=True))}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_is_as_written_out(study: Params, options: dict[str, Any]) -> None:
    """In training with dropout's own masks, in a test, and with the kernels of float32; and every weight is trained."""
    torch.manual_seed(0)
    model: Any = build(settings(study, **options)).double()
    with torch.no_grad():  # norms start as the identity, and their use would not show
        for value in (*model.parameters(), *(buffer for name, buffer in model.named_buffers() if "running" in name)):
            value += 0.1 * torch.rand_like(value)
    images, masks = torch.rand(3, 1, 28, 28, dtype=torch.float64), dict[str, Tensor]()

    def watch(name: str, x: Tensor, out: Tensor) -> None:
        masks[name] = torch.where(x == 0, 1, out / x).detach()

    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda _, args, out, name=name: watch(name, args[0], out))
    dropping = {name for name, module in model.named_modules() if isinstance(module, Dropout) and module.probability}
    for training in (True, False):
        actual = logits_and_gradients(model.train(training), model, images)
        assert {name for name, mask in masks.items() if (mask == 0).any()} == (dropping if training else set())
        written = WrittenOut(model, masks)
        expected = logits_and_gradients(written, model, images)
        masks.clear()
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-10 * (1 + float(value.abs().max())), msg=name)
            assert value.any(), name
    single = copy.deepcopy(model).float()
    for name, value in logits_and_gradients(single, single, images.float()).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=0, atol=1e-4 * (1 + float(expected[name].abs().max())), msg=name)
    if written.maps:
        state = {name: value.clone() for name, value in model.state_dict().items()}
        maps = attention_maps(model.train(), images)
        torch.testing.assert_close(maps, torch.stack(written.maps), rtol=0, atol=1e-12)
        assert model.training
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_published_configuration_has_the_published_size(study: Params) -> None:
    assert count_parameters(build(study.base)) == 10_666
    assert count_parameters(build(settings(study, patch=4, pool="first", cls_insert="none"))) == 10_602


def test_initial_weights(study: Params) -> None:
    """A class token as asked for, full attention as torch's module has it, memory slots from the standard normal, each head's own."""
    for cls_init, deviation in (("normal", 1.0), ("zeros", 0.0)):
        assert abs(build(settings(study, dim=1024, cls_init=cls_init)).cls_token.std() - deviation) < 0.1
    torch.manual_seed(3)
    ours = FullAttention(32, 8)
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(32, 8)
    assert torch.equal(ours.qkv.weight, theirs.in_proj_weight)
    assert torch.equal(ours.out.weight, theirs.out_proj.weight)
    assert not ours.qkv.bias.any() | ours.out.bias.any()
    memory = SlicedAttention(32, 8, memory=1000).memory
    assert memory is not None
    assert memory.shape == (1000, 2, 8, 4)
    assert abs(memory.mean()) < 5 / memory.numel() ** 0.5
    assert abs(memory.std() - 1) < 5 / (2 * memory.numel()) ** 0.5


def test_wrong_images_are_refused_with_their_shape(study: Params) -> None:
    with pytest.raises(ValueError, match=r"not \(2, 3, 28, 28\)"):
        build(study.base)(torch.rand(2, 3, 28, 28))
