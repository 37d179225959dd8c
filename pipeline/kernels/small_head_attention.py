"""Attention without a mask: a fused kernel where it is faster, PyTorch's `scaled_dot_product_attention` elsewhere.

The fused kernels are the PyTorch operators `lab::small_head_attention` and `lab::sliced_attention`; the latter includes the
projections of heads that see slices of the token. As operators they work with autograd and `torch.func.vmap`.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    from pipeline.kernels import cpu
except Exception as error:  # numba is absent, does not fit this Python or NumPy, or cannot load LLVM
    _unavailable: dict[int | None, str] = {None: f"numba cannot be used: {type(error).__name__}: {error}"}
else:
    _unavailable = {}

# On the CPU the fused kernel is 7 times as fast as PyTorch's with 4 channels and 4 times with 8; with 16 both are equally fast.
FUSED_HEAD_DIMS = range(2, 9)
MAX_FUSED_TOKENS = 1024
_prepared: set[tuple[int, bool]] = set()


def attention(qkv: Tensor, *, scale: float) -> Tensor:
    """softmax(scale * q k^T) v per image and head (Vaswani et al. 2017, equation 1), without mask or dropout.

    `attention_path` says which kernel runs. The fused one never writes the tokens x tokens matrix of weights. It supports ordinary
    autograd, with or without `vmap` inside, but no second derivative and no `torch.func.grad`.

    Args:
        qkv: queries, keys and values (batch, tokens, 3, heads, head_dim), with any strides. They are one tensor so that their
            gradient is one, too; autograd would have to concatenate three.
        scale: factor of the scores, usually head_dim ** -0.5.

    Returns:
        (batch, tokens, heads, head_dim), contiguous.

    Raises:
        ValueError: the tensor does not have five dimensions, or its third is not 3.
    """
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ValueError(f"Attention takes a tensor of shape (batch, tokens, 3, heads, head_dim), not {tuple(qkv.shape)}.")
    if 1 <= qkv.shape[1] <= MAX_FUSED_TOKENS and _fused(qkv.device.type, qkv.dtype, int(qkv.shape[4])):
        return torch.ops.lab.small_head_attention(qkv, scale)[0]
    q, k, v = qkv.transpose(1, 3).unbind(2)  # (batch, head, token, channel)
    if qkv.device.type == "cpu" and torch._C._functorch.is_batchedtensor(qkv):
        # PyTorch's CPU kernel has no batching rule, so it would run seed by seed, with a warning.
        return ((q @ k.mT * scale).softmax(-1) @ v).transpose(1, 2).contiguous()
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).contiguous()


def fuses_slices(tokens: Tensor, head_dim: int) -> bool:
    """Whether to use `sliced_attention` for these tokens (batch, tokens, dim): only on the CPU, where the fused kernel is faster."""
    fits = tokens.device.type == "cpu" and 1 <= tokens.shape[1] <= MAX_FUSED_TOKENS
    return fits and _fused("cpu", tokens.dtype, head_dim, sliced=True)


def sliced_attention(tokens: Tensor, weight: Tensor, bias: Tensor, *, scale: float) -> Tensor:
    """Attention in which head i sees only slice i of the token, with its projections, as one fused kernel.

    Queries, keys and values are never written; the backward pass computes them again. Derivatives are as for `attention`. Only for
    tokens for which `fuses_slices` is true.

    Args:
        tokens: (batch, tokens, heads * head_dim), with any strides.
        weight: each head's maps to query, key and value (3, heads, head_dim, head_dim), the last two dimensions out and in.
        bias: (3, heads, head_dim).
        scale: factor of the scores, usually head_dim ** -0.5.

    Returns:
        (batch, tokens, heads * head_dim), contiguous.

    Raises:
        ValueError: shapes, dtypes or devices do not match.
    """
    heads, head_dim = weight.shape[1:3] if weight.dim() == 4 else (0, 0)
    fits = tokens.dim() == 3 and tokens.shape[2] == heads * head_dim and weight.shape == (3, heads, head_dim, head_dim)
    fits = fits and bias.shape == (3, heads, head_dim)
    if not fits or any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in (tokens, weight, bias)):
        raise ValueError(
            "Sliced attention takes float32 tensors on the CPU, tokens (batch, tokens, heads * head_dim), weights (3, heads, head_dim, "
            f"head_dim) and biases (3, heads, head_dim), not {tuple(tokens.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}."
        )
    return torch.ops.lab.sliced_attention(tokens, weight, bias, scale)[0]


def attention_path(*, device: torch.device | str, head_dim: int, tokens: int, dtype: torch.dtype = torch.float32) -> str:
    """Which kernel `attention` runs for such tensors: "fused-cpu" or "sdpa".

    The environment variable LAB_ATTENTION=sdpa forces "sdpa".
    """
    kind = torch.device(device).type
    return "fused-cpu" if 1 <= tokens <= MAX_FUSED_TOKENS and _fused(kind, dtype, head_dim) else "sdpa"


def why_not_fused(head_dim: int) -> str | None:
    """Why the fused kernel cannot run on this machine's processor for heads of this size, in words; None if it can."""
    _can_run(head_dim)
    return _unavailable.get(None) or _unavailable.get(head_dim)


def _fused(device_type: str, dtype: torch.dtype, head_dim: int, *, sliced: bool = False) -> bool:
    if os.environ.get("LAB_ATTENTION") == "sdpa":
        return False
    return device_type == "cpu" and dtype == torch.float32 and head_dim in FUSED_HEAD_DIMS and _can_run(head_dim, sliced=sliced)


def _can_run(head_dim: int, *, sliced: bool = False) -> bool:
    if (head_dim, sliced) in _prepared:
        return True
    if None in _unavailable or head_dim in _unavailable:
        return False
    try:
        cpu.prepare(head_dim, sliced=sliced)
    except Exception as error:  # numba cannot compile on this machine; PyTorch's attention still works
        _unavailable[head_dim] = f"the kernel cannot be compiled here: {type(error).__name__}: {error}"
        return False
    _prepared.add((head_dim, sliced))
    return True


# Not `torch.library.custom_op`, which imports the compiler's front end on the first call, and that takes longer than a short training.
_NAME, _BACKWARD = "lab::small_head_attention", "lab::small_head_attention_backward"
_SLICED, _SLICED_BACKWARD = "lab::sliced_attention", "lab::sliced_attention_backward"
for _operator, _signature in {
    _NAME: "(Tensor qkv, float scale) -> (Tensor, Tensor)",
    _BACKWARD: "(Tensor grad, Tensor qkv, Tensor out, Tensor statistics, float scale) -> Tensor",
    _SLICED: "(Tensor tokens, Tensor weight, Tensor bias, float scale) -> (Tensor, Tensor)",
    _SLICED_BACKWARD: "(Tensor grad, Tensor tokens, Tensor weight, Tensor bias, Tensor out, Tensor statistics, float scale) "
    "-> (Tensor, Tensor, Tensor)",
}.items():
    torch.library.define(_operator, _signature)


@torch.library.impl(_NAME, "cpu")
def _forward(qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return cpu.forward(qkv, scale)


@torch.library.impl(_BACKWARD, "cpu")
def _backward(grad: Tensor, qkv: Tensor, out: Tensor, statistics: Tensor, scale: float) -> Tensor:
    return cpu.backward(grad, qkv, out, statistics, scale)


@torch.library.impl(_SLICED, "cpu")
def _sliced_forward(tokens: Tensor, weight: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return cpu.sliced_forward(tokens, weight, bias, scale)


@torch.library.impl(_SLICED_BACKWARD, "cpu")
def _sliced_backward(
    grad: Tensor, tokens: Tensor, weight: Tensor, bias: Tensor, out: Tensor, statistics: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return cpu.sliced_backward(grad, tokens, weight, bias, out, statistics, scale)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, scale = inputs
    ctx.save_for_backward(*operands, *output)
    ctx.scale = scale
    ctx.set_materialize_grads(False)  # the statistics never have a gradient


def _differentiate(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, None]:
    return torch.ops.lab.small_head_attention_backward(grad, *ctx.saved_tensors, ctx.scale), None


def _differentiate_sliced(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor, None]:
    return *torch.ops.lab.sliced_attention_backward(grad, *ctx.saved_tensors, ctx.scale), None


torch.library.register_autograd(_NAME, _differentiate, setup_context=_save)
torch.library.register_autograd(_SLICED, _differentiate_sliced, setup_context=_save)


def _refuse(ctx: Any, *grads: Tensor | None) -> None:
    raise RuntimeError("The fused attention's backward pass has no derivative; set LAB_ATTENTION=sdpa to differentiate attention twice.")


# Without this PyTorch would warn once and return wrong second derivatives.
torch.library.register_autograd(_BACKWARD, _refuse)
torch.library.register_autograd(_SLICED_BACKWARD, _refuse)


def _fold(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """A tensor (batch, ...), with or without a vmapped dimension, to (size * batch, ...)."""
    stacked = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return stacked.flatten(0, 1)


@torch.library.register_vmap(_NAME)
def _(info: Any, in_dims: Any, qkv: Tensor, scale: float) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    results = torch.ops.lab.small_head_attention(_fold(info.batch_size, in_dims[0], qkv), scale)
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in results), (0, 0)


@torch.library.register_vmap(_BACKWARD)
def _(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
    folded = [_fold(info.batch_size, dim, tensor) for dim, tensor in zip(in_dims[:-1], args[:-1], strict=True)]
    return torch.ops.lab.small_head_attention_backward(*folded, args[-1]).unflatten(0, (info.batch_size, -1)), 0


def _one_by_one(operator: Any, info: Any, in_dims: Any, args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Calls the operator for each member of a vmapped dimension, because members with their own weights do not fit one batch."""
    results = [
        operator(*(arg if dim is None else arg.select(dim, i) for dim, arg in zip(in_dims, args, strict=True)))
        for i in range(info.batch_size)
    ]
    stacked = tuple(torch.stack(column) for column in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


@torch.library.register_vmap(_SLICED)
def _(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return _one_by_one(torch.ops.lab.sliced_attention, info, in_dims, args)


@torch.library.register_vmap(_SLICED_BACKWARD)
def _(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return _one_by_one(torch.ops.lab.sliced_attention_backward, info, in_dims, args)
