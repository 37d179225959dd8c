"""Attention without a mask: a fused kernel where it wins, PyTorch's own `scaled_dot_product_attention` elsewhere.

The fused kernel is the PyTorch operator `lab::small_head_attention`, so autograd, `torch.compile`, `torch.func.vmap` and the
FLOP counter treat it like one of PyTorch's own.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

try:
    from pipeline.kernels import cpu
except Exception as error:  # numba is absent, does not fit this Python or NumPy, or cannot load LLVM
    _unavailable: dict[int | None, str] = {None: f"numba cannot be used: {type(error).__name__}: {error}"}
else:
    _unavailable = {}

# Where the fused kernel wins on the CPU: 7 times as fast as PyTorch's with 4 channels, 4 times with 8; with 16 PyTorch's is as fast.
FUSED_HEAD_DIMS = range(2, 9)
CUDA_HEAD_DIMS = range(2, 33)
CUDA_DTYPES = (torch.float32, torch.bfloat16)
MOST_FUSED_TOKENS = 256
_prepared: set[int] = set()


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """softmax(scale * q k^T) v per image and head (Vaswani et al. 2017, equation 1), without mask or dropout.

    Which kernel runs is `attention_path`'s answer. The fused one never writes the tokens x tokens matrix of weights. It has no
    second derivative and no `torch.func.grad`; ordinary autograd, with or without `vmap` inside, is what it is for.

    Args:
        q, k, v: (batch, tokens, heads, head_dim), of one shape, dtype and device, with any strides.
        scale: factor of the scores; head_dim ** -0.5 as a rule.

    Returns:
        (batch, tokens, heads, head_dim), contiguous.

    Raises:
        ValueError: the tensors do not have four dimensions, or differ in shape, dtype or device.
    """
    if q.dim() != 4:
        raise ValueError(f"Attention takes tensors of shape (batch, tokens, heads, head_dim), not {tuple(q.shape)}.")
    if q.shape != k.shape or q.shape != v.shape:
        raise ValueError(f"Query, key and value must have one shape, not {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}.")
    if q.device != k.device or q.device != v.device:
        raise ValueError(f"Query, key and value must be on one device, not on {q.device}, {k.device} and {v.device}.")
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ValueError(f"Query, key and value must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}.")
    if 1 <= q.shape[1] <= MOST_FUSED_TOKENS and _fused(q.device.type, q.dtype, int(q.shape[3])):
        return torch.ops.lab.small_head_attention(q, k, v, scale)[0]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (batch, head, token, channel)
    if q.device.type == "cpu" and any(torch._C._functorch.is_batchedtensor(x) for x in (q, k, v)):
        # PyTorch's CPU kernel has no batching rule: it would run seed by seed, with a warning.
        return ((q @ k.mT * scale).softmax(-1) @ v).transpose(1, 2).contiguous()
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).contiguous()


def attention_path(*, device: torch.device | str, head_dim: int, tokens: int, dtype: torch.dtype = torch.float32) -> str:
    """Which kernel `attention` runs for such tensors: "fused-cpu", "fused-cuda" or "sdpa".

    LAB_ATTENTION=sdpa in the environment forces the last.
    """
    kind = torch.device(device).type
    return f"fused-{kind}" if 1 <= tokens <= MOST_FUSED_TOKENS and _fused(kind, dtype, head_dim) else "sdpa"


def why_not_fused(head_dim: int, device: torch.device | str = "cpu") -> str | None:
    """Why the fused kernel cannot run on this machine for heads of this size, in words; None if it can."""
    if torch.device(device).type == "cuda":
        return _why_not_cuda()
    _can_run(head_dim)
    return _unavailable.get(None) or _unavailable.get(head_dim)


def _fused(device_type: str, dtype: torch.dtype, head_dim: int) -> bool:
    if os.environ.get("LAB_ATTENTION") == "sdpa":
        return False
    if device_type == "cuda":
        return dtype in CUDA_DTYPES and head_dim in CUDA_HEAD_DIMS and _why_not_cuda() is None
    return device_type == "cpu" and dtype == torch.float32 and head_dim in FUSED_HEAD_DIMS and _can_run(head_dim)


@functools.cache
def _why_not_cuda() -> str | None:
    try:
        from pipeline.kernels import cuda  # noqa: F401 (not before it is needed: importing triton takes time)
    except Exception as error:  # triton is absent or broken
        return f"triton cannot be used: {type(error).__name__}: {error}"
    if not torch.cuda.is_available():
        return "torch sees no GPU."
    if torch.cuda.get_device_capability() < (7, 0):
        return "Triton needs a GPU of compute capability 7.0 or higher."
    return None


def _can_run(head_dim: int) -> bool:
    if head_dim in _prepared:
        return True
    if None in _unavailable or head_dim in _unavailable:
        return False
    try:
        cpu.prepare(head_dim)
    except Exception as error:  # this machine's code generator refuses; plain attention still works
        _unavailable[head_dim] = f"the kernel cannot be compiled here: {type(error).__name__}: {error}"
        return False
    _prepared.add(head_dim)
    return True


# Defined and implemented one by one: `torch.library.custom_op` imports the compiler's front end on the first call, which takes
# longer than a short training.
_NAME, _BACKWARD = "lab::small_head_attention", "lab::small_head_attention_backward"
_TAGS = (torch.Tag.pt2_compliant_tag,)
torch.library.define(_NAME, "(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)", tags=_TAGS)
torch.library.define(
    _BACKWARD,
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor statistics, float scale) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)


@torch.library.impl(_NAME, "cpu")
def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return cpu.forward(q, k, v, scale)


@torch.library.impl(_BACKWARD, "cpu")
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, statistics: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return cpu.backward(grad, q, k, v, out, statistics, scale)


@torch.library.impl(_NAME, "cuda")
def _forward_cuda(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    from pipeline.kernels import cuda

    return cuda.forward(q, k, v, scale)


@torch.library.impl(_BACKWARD, "cuda")
def _backward_cuda(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, statistics: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    from pipeline.kernels import cuda

    return cuda.backward(grad, q, k, v, out, statistics, scale)


@torch.library.register_fake(_NAME)
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if q.device.type == "cuda":
        from pipeline.kernels import cuda

        return q.new_empty(q.shape), cuda.empty_statistics(q)
    batch, tokens, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(cpu.statistics_shape(batch, tokens, heads))


@torch.library.register_fake(_BACKWARD)
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, statistics: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, scale = inputs
    out, statistics = output
    ctx.save_for_backward(q, k, v, out, statistics)
    ctx.scale = scale
    ctx.set_materialize_grads(False)  # the statistics never have a gradient


def _differentiate(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor, None]:
    return *torch.ops.lab.small_head_attention_backward(grad, *ctx.saved_tensors, ctx.scale), None


torch.library.register_autograd(_NAME, _differentiate, setup_context=_save)


def _refuse(ctx: Any, *grads: Tensor | None) -> None:
    raise RuntimeError("lab::small_head_attention_backward has no derivative; set LAB_ATTENTION=sdpa to differentiate attention twice.")


# Without this PyTorch would warn once and return wrong second derivatives.
torch.library.register_autograd(_BACKWARD, _refuse)


def _fold(size: int, dim: int | None, tensor: Tensor) -> Tensor:
    """(batch, ...) with a vmapped dimension, or without one, to (size * batch, ...)."""
    stacked = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return stacked.flatten(0, 1)


@torch.library.register_vmap(_NAME)
def _(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    folded = [_fold(info.batch_size, dim, tensor) for dim, tensor in zip(in_dims[:-1], args[:-1], strict=True)]
    results = torch.ops.lab.small_head_attention(*folded, args[-1])
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in results), (0, 0)


@torch.library.register_vmap(_BACKWARD)
def _(info: Any, in_dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    folded = [_fold(info.batch_size, dim, tensor) for dim, tensor in zip(in_dims[:-1], args[:-1], strict=True)]
    results = torch.ops.lab.small_head_attention_backward(*folded, args[-1])
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in results), (0, 0, 0)


def _products(shape: torch.Size, count: int) -> int:
    batch, tokens, heads, dim = shape
    return count * 2 * batch * heads * tokens * tokens * dim


@register_flop_formula(torch.ops.lab.small_head_attention)
def _forward_flops(q: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return _products(q, 2)  # q k^T and p v


@register_flop_formula(torch.ops.lab.small_head_attention_backward)
def _backward_flops(grad: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return _products(grad, 5)  # q k^T again, do v^T, p^T do, ds k, ds^T q; as PyTorch counts its own
