"""Attention against its definition written out in float64, against torch's own module, and on the kernel it should run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.kernels import small_head_attention
from pipeline.models import attention_kernel, attention_maps, build
from pipeline.models.attention import FullAttention, SlicedAttention, UniformAttention, UnprojectedAttention
from pipeline.params import ModelSettings, Params

Kind = type[FullAttention] | type[SlicedAttention]
KINDS = pytest.mark.parametrize("kind", [FullAttention, SlicedAttention])


def settings(study: Params, **changes: Any) -> ModelSettings:
    return ModelSettings.model_validate(study.base.model_dump() | changes)


def heads_of(attention: FullAttention | SlicedAttention, tokens: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each head's query (batch, token, head_dim), key and value (batch, token + memory, head_dim), one head after the other."""
    width = tokens.shape[-1] // attention.heads
    result = []
    for head in range(attention.heads):
        own = slice(head * width, (head + 1) * width)
        parts = []
        for i in range(3):
            if isinstance(attention, SlicedAttention):
                part = tokens[..., own] @ attention.weight[i, head].T + attention.bias[i, head]
            else:
                rows = slice(i * tokens.shape[-1] + own.start, i * tokens.shape[-1] + own.stop)
                part = tokens @ attention.qkv.weight[rows].T + attention.qkv.bias[rows]
            if i and attention.memory is not None:
                part = torch.cat([part, attention.memory[:, i - 1, head].expand(len(tokens), -1, -1)], dim=1)
            parts.append(part)
        result.append((parts[0], parts[1], parts[2]))
    return result


def weights_of(attention: FullAttention | SlicedAttention, tokens: Tensor, *, scaled: bool = True) -> Tensor:
    """(batch, head, query token, key token)."""
    weights = []
    for query, key, _ in heads_of(attention, tokens):
        score = query @ key.transpose(1, 2)
        exponential = (score / math.sqrt(query.shape[-1]) if scaled else score).exp()
        weights.append(exponential / exponential.sum(-1, keepdim=True))
    return torch.stack(weights, 1)


def definition(attention: FullAttention | SlicedAttention, tokens: Tensor, *, scaled: bool = True) -> Tensor:
    weights = weights_of(attention, tokens, scaled=scaled)
    heads = [weights[:, i] @ value for i, (_, _, value) in enumerate(heads_of(attention, tokens))]
    result = torch.cat(heads, -1)
    return result @ attention.out.weight.T + attention.out.bias if isinstance(attention, FullAttention) else result


def with_gradients(function: Any, attention: nn.Module, tokens: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The result, and the gradients of the tokens and of every weight."""
    tokens = tokens.clone().requires_grad_()
    out = function(tokens)
    leaves = {"tokens": tokens, **dict(attention.named_parameters())}
    gradients = torch.autograd.grad(out, list(leaves.values()), grad)
    return {"result": out.detach(), **dict(zip(leaves, gradients, strict=True))}


@KINDS
@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("heads", [1, 8])  # of 32 channels, PyTorch's kernel; of 4, the fused one
def test_equals_the_definition_in_float64(kind: Kind, memory: int, scaled: bool, heads: int) -> None:
    torch.manual_seed(0)
    attention = kind(32, heads, memory=memory, score_scale=scaled)
    tokens, grad = torch.randn(5, 50, 32), torch.randn(5, 50, 32)
    actual = with_gradients(attention, attention, tokens, grad)
    attention.double()
    expected = with_gradients(lambda x: definition(attention, x, scaled=scaled), attention, tokens.double(), grad.double())
    exact = with_gradients(attention, attention, tokens.double(), grad.double())
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(exact[name], value, rtol=0, atol=1e-12 * (1 + scale), msg=name)
        torch.testing.assert_close(actual[name].double(), value, rtol=0, atol=1e-5 * (1 + scale), msg=name)
    assert ("memory" in expected) == (memory > 0)


@KINDS
def test_memory_slots_start_from_the_standard_normal_and_are_each_head_s_own(kind: Kind) -> None:
    torch.manual_seed(0)
    memory = kind(32, 8, memory=1000).memory
    assert memory is not None
    assert memory.shape == (1000, 2, 8, 4)
    assert abs(memory.mean()) < 5 / memory.numel() ** 0.5
    assert abs(memory.std() - 1) < 5 / (2 * memory.numel()) ** 0.5


def test_full_attention_starts_as_torch_s_does() -> None:
    torch.manual_seed(3)
    ours = FullAttention(32, 8)
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(32, 8)
    assert torch.equal(ours.qkv.weight, theirs.in_proj_weight)
    assert torch.equal(ours.out.weight, theirs.out_proj.weight)
    assert not ours.qkv.bias.any() | ours.out.bias.any()


@KINDS
@pytest.mark.parametrize("memory", [0, 4])
def test_dropout_falls_on_the_weights_in_training_alone(kind: Kind, memory: int) -> None:
    torch.manual_seed(0)
    attention = kind(32, 8, memory=memory, dropout=0.3).double()
    tokens, grad = torch.randn(5, 50, 32, dtype=torch.float64), torch.randn(5, 50, 32, dtype=torch.float64)
    dropped: list[Tensor] = []
    attention.dropout.register_forward_hook(lambda _, args, out: dropped.append(out.detach()))
    actual = with_gradients(attention, attention, tokens, grad)
    (kept,) = dropped
    mask = (kept != 0).double() / 0.7
    assert kept.shape == (5, 8, 50, 50 + memory)
    assert abs((kept == 0).double().mean() - 0.3) < 5 * (0.3 * 0.7 / kept.numel()) ** 0.5

    def masked(tokens: Tensor) -> Tensor:
        weights = weights_of(attention, tokens) * mask
        result = torch.cat([weights[:, i] @ value for i, (_, _, value) in enumerate(heads_of(attention, tokens))], -1)
        return attention.out(result) if isinstance(attention, FullAttention) else result

    for name, value in with_gradients(masked, attention, tokens, grad).items():
        torch.testing.assert_close(actual[name], value, rtol=1e-10, atol=1e-11, msg=name)
    attention.eval()
    torch.testing.assert_close(attention(tokens), definition(attention, tokens), rtol=0, atol=1e-12)
    assert len(dropped) == 1


def split(tokens: Tensor, heads: int) -> Tensor:
    """(batch, token, dim) to (batch, head, token, channel)."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("scale", [True, False])
def test_without_projections_tokens_attend_as_torch_s_attention_has_them(heads: int, scale: bool) -> None:
    torch.manual_seed(0)
    attention = UnprojectedAttention(32, heads, score_scale=scale)
    tokens, grad = torch.randn(5, 50, 32), torch.randn(5, 50, 32)

    def by_torch(tokens: Tensor) -> Tensor:
        own = split(tokens, heads)
        mixed = nn.functional.scaled_dot_product_attention(own, own, own, scale=None if scale else 1.0)
        return mixed.transpose(1, 2).flatten(2)

    expected = with_gradients(by_torch, attention, tokens.double(), grad.double())
    for name, value in with_gradients(attention, attention, tokens, grad).items():
        bound = 1e-5 * float(1 + expected[name].abs().max())
        torch.testing.assert_close(value.double(), expected[name], rtol=0, atol=bound, msg=name)
    for name, value in with_gradients(attention, attention, tokens.double(), grad.double()).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12 * float(1 + expected[name].abs().max()), msg=name)
    assert list(expected) == ["result", "tokens"]  # it has no weights


@pytest.mark.parametrize("heads", [1, 8])
def test_uniform_attention_is_sliced_attention_whose_scores_are_all_equal(heads: int) -> None:
    torch.manual_seed(0)
    uniform, sliced = UniformAttention(32, heads).double(), SlicedAttention(32, heads).double()
    tokens, grad = torch.randn(5, 50, 32, dtype=torch.float64), torch.randn(5, 50, 32, dtype=torch.float64)
    with torch.no_grad():
        sliced.weight[:2], sliced.bias[:2] = 0, 0  # queries and keys
        sliced.weight[2], sliced.bias[2] = uniform.weight, uniform.bias
    actual, expected = (with_gradients(one, one, tokens, grad) for one in (uniform, sliced))
    for name, value in actual.items():
        wanted = expected[name] if name in ("result", "tokens") else expected[name][2]
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-11, msg=name)
    in_words = torch.stack([
        (tokens[..., i * (32 // heads) : (i + 1) * (32 // heads)] @ uniform.weight[i].T + uniform.bias[i]).mean(1) for i in range(heads)
    ], 1)  # fmt: skip
    torch.testing.assert_close(actual["result"], in_words.flatten(1)[:, None].expand(-1, 50, -1), rtol=0, atol=1e-12)


class Operators(TorchDispatchMode):
    """The names of the operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("changes", "training", "expected"),
    [
        ({}, True, "fused-cpu"),
        ({"memory": 16}, True, "fused-cpu"),
        ({"attention": "full", "memory": 4}, True, "fused-cpu"),
        ({"score_scale": False}, True, "fused-cpu"),
        ({"heads": 1}, True, "sdpa"),
        ({"patch": 1, "memory": 239}, True, "fused-cpu"),
        ({"patch": 1, "memory": 240}, True, "sdpa"),  # 1025 keys
        ({"attention": "unprojected"}, True, "fused-cpu"),
        ({"attention": "unprojected", "heads": 1}, True, "sdpa"),
        ({"attention": "uniform"}, True, "none"),
        ({"attention": "none"}, True, "none"),
        ({"attention_dropout": 0.1}, True, "explicit: attention dropout"),
        ({"attention_dropout": 0.1}, False, "fused-cpu"),
    ],
)
def test_the_kernel_that_runs_is_the_one_that_is_named(study: Params, changes: dict[str, Any], training: bool, expected: str) -> None:
    chosen = settings(study, blocks=1, **changes)
    with torch.no_grad(), Operators() as ran:
        build(chosen).train(training)(torch.rand(2, 1, 28, 28))
    assert bool({"lab::small_head_attention", "lab::sliced_attention"} & ran.names) == (expected == "fused-cpu")
    if training:
        assert attention_kernel(chosen, "cpu") == expected


def test_why_no_fused_kernel_runs_is_told(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_kernel(study.resolve("lab").model, "cuda") == "explicit: attention dropout"
    assert attention_kernel(study.resolve("lstm").model, "cpu") == "none"
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    assert attention_kernel(study.base, "cpu") == "sdpa"
    monkeypatch.delenv("LAB_ATTENTION")
    monkeypatch.setattr(small_head_attention, "_unavailable", {None: "numba is too old"})
    monkeypatch.setattr(small_head_attention, "_prepared", set())
    assert attention_kernel(study.base, "cpu") == "sdpa: numba is too old"
    assert attention_kernel(settings(study, heads=1), "cpu") == "sdpa"


@pytest.mark.parametrize("attention", ["full", "sliced"])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("memory", [0, 4])
def test_maps_are_the_softmax_of_the_model_s_own_projections(study: Params, attention: str, norm: str, memory: int) -> None:
    torch.manual_seed(0)
    model = build(settings(study, patch=7, attention=attention, norm=norm, memory=memory, dropout=0.2, attention_dropout=0.2)).double()
    images = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    maps = attention_maps(model, images)
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    inputs: list[Tensor] = []
    for block in model.blocks:  # type: ignore[union-attr]
        block.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model.eval()(images)
    expected = []
    for block, tokens in zip(model.blocks, inputs, strict=True):
        if norm == "pre":
            tokens = nn.functional.layer_norm(tokens, (32,), eps=1e-5)  # a new norm's weights are ones and zeros
        expected.append(weights_of(block.attention, tokens))
    torch.testing.assert_close(maps, torch.stack(expected), rtol=0, atol=1e-12)
    assert maps.shape == (3, 3, 8, 17, 17 + memory)
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 3, 8, 17, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(attention_maps(model.float(), images.float()).double(), maps, rtol=0, atol=1e-5)
    assert not model.training
