"""Counter-based dropout on the CPU in one pass over the tensor, compiled by numba.

PyTorch's operations draw a mask in about thirty passes over int64 tensors of the input's size. Here an element's random word stays in
a register, in 32 bits. The results have the same bits.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

try:
    import numpy as np
    from numba import njit, types
    from numba.core import config
except Exception:  # numba is absent, does not fit this Python or NumPy, or cannot load LLVM
    njit = None  # type: ignore[assignment]


def fuses_dropout(x: Tensor, key: Tensor) -> bool:
    """Whether `dropout` can be used: for float32 on the CPU, outside `vmap`, where numba can compile."""
    fits = x.device.type == "cpu" and x.dtype == torch.float32
    batched = any(map(torch._C._functorch.is_batchedtensor, (x, key)))
    return fits and not batched and _compiled() is not None


def dropout(x: Tensor, key: int, call: int, probability: float) -> Tensor:
    """`pipeline.models.dropout.Dropout` in training, given the numbers that its mask is a function of.

    Only for tensors for which `fuses_dropout` is true. The backward pass draws the mask again. It has derivatives of every order.

    Args:
        x: any shape, float32 on the CPU.
        key, call: integers from 0 to 2**32 - 1.
        probability: with which an element is set to zero, below 1.

    Returns:
        As `x`, contiguous.
    """
    result: Tensor = _Dropout.apply(x, key, call, probability)
    return result


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, key: int, call: int, probability: float) -> Tensor:
        x = x.contiguous()
        result = torch.empty_like(x)
        drop = _compiled()
        assert drop is not None
        drop(x.detach().flatten().numpy(), result.view(-1).numpy(), key, call, int(probability * 2**32), 1 - probability)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int, float], output: Tensor) -> None:
        ctx.mask = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return dropout(grad, *ctx.mask), None, None, None


@functools.cache
def _compiled() -> Any:
    """The compiled loop, or None. The machine code is cached on disk where a directory is writable."""
    if njit is None or config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba sets it at run time
        return None
    row = types.Array(types.float32, 1, "C")
    signature = types.void(row, row, types.uint32, types.uint32, types.uint32, types.float32)
    for cache in (True, False):  # without it where no directory is writable, the disk is full, or an entry is damaged
        try:
            return njit(signature, cache=cache, nogil=True)(_drop)
        except Exception:  # numba has no common class for these
            continue
    return None


def _mix(word: Any) -> Any:
    """As `pipeline.models.dropout.mix`, of one word. numba multiplies words in 64 bits, so the product is cut to a word again."""
    word = np.uint32(word ^ (word >> np.uint32(15)))
    word = np.uint32(word * np.uint32(0x7FEB352D))
    word = np.uint32(word ^ (word >> np.uint32(16)))
    word = np.uint32(word * np.uint32(0x2C1B3C6D))
    return np.uint32(word ^ (word >> np.uint32(16)))


def _drop(x: Any, result: Any, key: Any, call: Any, bound: Any, share: Any) -> None:
    """Sets `result` to `x` times the mask, divided by the share that is kept."""
    for i in range(x.shape[0]):
        word = _mix(np.uint32(_mix(np.uint32(np.uint32(i) + key)) + call))
        # A product, not a choice, which keeps the sign of a dropped number and a NaN, as PyTorch's operations do.
        result[i] = x[i] * np.float32(word >= bound) / share


if njit is not None:
    _mix = njit(_mix)
