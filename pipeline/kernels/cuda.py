"""Softmax attention for small heads on NVIDIA GPUs, written in Triton; importing this module needs triton, running it a GPU.

As on the CPU, a lane is one (image, head) pair. A warp takes 32 pairs and a thread a few queries of its own pair, so the loop over
the keys needs no padding, no mask and no exchange between lanes. A warp reads a key once, as one vector of `dim` numbers per lane
(the heads of an image are adjacent), and keeps it in registers for all of a thread's queries. Matrix units are not used, because
with four channels they would multiply zeros, and they do not compute in full float32. The backward pass recomputes the weights
from the row statistics (Dao et al., "FlashAttention", 2022, algorithms 1 and 4; the lane layout is ours), in two passes: one over
the keys for the gradient of the queries, one over the queries for the gradients of keys and values. There are no atomic additions,
so results are bitwise repeatable. Scores are multiplied by log2(e), so a weight is 2**x.

Arithmetic is float32 for float32 and bfloat16 inputs. Products that are summed are fused explicitly, so that the compiler's
defaults do not affect results. The logic is checked with Triton's interpreter on the CPU (tests/kernels/test_cuda.py).
"""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment"
# ruff: noqa: RUF005 (Triton adds tuples, but does not unpack them)

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 32  # pairs of a program, which is one warp
CHUNK = 4  # keys between two looks at the running maximum
NUMBERS = 32  # numbers of one kind (queries, their sums, ...) that a thread keeps in registers
MAX_ROWS = 8  # queries or keys per thread
# Tolerated difference from the formula in float64: absolute for the output, relative to the largest gradient for gradients. bfloat16
# keeps eight bits, so half a unit in the last place is 2**-9 of a number, and a result has been rounded twice.
TOLERANCES = {torch.float32: (2e-6, 1e-5), torch.bfloat16: (2**-6, 2**-6)}


@triton.jit
def _first(pointer, offset, step, token, CHANNEL: tl.constexpr, DIM: tl.constexpr):
    """Loads a thread's own rows, tokens (row, 1) of the lane's pair, as DIM tensors (row, lane)."""
    rows = ()
    for d in tl.static_range(DIM):
        rows = rows + (tl.load(pointer + offset[None, :] + token * step + d * CHANNEL).to(tl.float32),)
    return rows


@triton.jit
def _next(pointer, offset, start, CHANNEL: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Loads one token of the lane's pair as DIM tensors (1, lane), WIDTH numbers per lane at a time."""
    column = tl.arange(0, WIDTH)[None, :]
    parts = ()
    for d in tl.static_range(0, DIM, WIDTH):
        row = tl.load(pointer + offset[:, None] + start + (d + column) * CHANNEL).to(tl.float32)  # (lane, WIDTH)
        bits = row.to(tl.int32, bitcast=True)  # a column is taken out by adding integer zeros, which is free and exact
        for c in tl.static_range(WIDTH):
            parts = parts + (tl.sum(tl.where(column == c, bits, 0), 1).to(tl.float32, bitcast=True)[None, :],)
    return parts


@triton.jit
def _dot(x, y, start, DIM: tl.constexpr):
    total = start
    for d in tl.static_range(DIM):
        total = tl.fma(x[d], y[d], total)
    return total


@triton.jit
def _add(sums, factor, row, DIM: tl.constexpr):
    """sums + factor * row."""
    result = ()
    for d in tl.static_range(DIM):
        result = result + (tl.fma(factor, row[d], sums[d]),)
    return result


@triton.jit
def _times(row, factor, DIM: tl.constexpr):
    result = ()
    for d in tl.static_range(DIM):
        result = result + (row[d] * factor,)
    return result


@triton.jit
def _zeros(DIM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    rows = ()
    for _ in tl.static_range(DIM):
        rows = rows + (tl.zeros([ROWS, LANES], tl.float32),)
    return rows


@triton.jit
def _store(pointer, pair, token, mask, rows, heads, tokens, DIM: tl.constexpr):
    """Writes rows (row, lane) to a contiguous tensor (batch, token, head, DIM)."""
    image = (pair // heads).to(tl.int64)
    at = pointer + (image * tokens * heads + pair % heads)[None, :] * DIM + token * heads * DIM
    for d in tl.static_range(DIM):
        tl.store(at + d, rows[d].to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _place(pairs, tokens, ROWS: tl.constexpr, LANES: tl.constexpr):
    """This program's pairs (lane,), tokens (row, 1), and which of them exist (row, lane).

    Lanes and rows past the end repeat the last one, so that loads need no mask; they are not stored.
    """
    blocks = tl.cdiv(tokens, ROWS)
    pair = (tl.program_id(0) // blocks) * LANES + tl.arange(0, LANES)
    token = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)[:, None]
    mask = (token < tokens) & (pair < pairs)[None, :]
    return tl.minimum(pair, pairs - 1), tl.minimum(token, tokens - 1), mask


@triton.jit
def _offset(pair, heads, image_step, HEAD: tl.constexpr):
    return (pair // heads).to(tl.int64) * image_step + (pair % heads) * HEAD


@triton.jit
def _absorb(
    sums, total, shift, query, k, k_offset, k_step, v, v_offset, v_step, start,
    K_CHANNEL: tl.constexpr, V_CHANNEL: tl.constexpr, COUNT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Adds COUNT keys and values to the running softmax: sums of weight * value, sums of weights, and the largest score."""
    scores = ()
    values = ()
    largest = shift
    for c in tl.static_range(COUNT):
        key = _next(k, k_offset, (start + c) * k_step, K_CHANNEL, DIM, WIDTH)
        values = values + (_next(v, v_offset, (start + c) * v_step, V_CHANNEL, DIM, WIDTH),)
        score = _dot(query, key, tl.zeros_like(shift), DIM)
        largest = tl.maximum(largest, score)
        scores = scores + (score,)
    # If all scores so far are -inf, any finite number in place of the maximum gives weights of 0 instead of NaN.
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    shrink = tl.exp2(shift - safe)
    sums = _times(sums, shrink, DIM)
    total = total * shrink
    for c in tl.static_range(COUNT):
        weight = tl.exp2(scores[c] - safe)
        total += weight
        sums = _add(sums, weight, values[c], DIM)
    return sums, total, largest


@triton.jit(do_not_specialize=["pairs", "heads", "tokens"])
def _forward(
    q, k, v, out, shifts, inverses, pairs, heads, tokens, factor,
    q_image, q_step, k_image, k_step, v_image, v_step,
    Q_HEAD: tl.constexpr, Q_CHANNEL: tl.constexpr, K_HEAD: tl.constexpr, K_CHANNEL: tl.constexpr,
    V_HEAD: tl.constexpr, V_CHANNEL: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    pair, token, mask = _place(pairs, tokens, ROWS, LANES)
    query = _times(_first(q, _offset(pair, heads, q_image, Q_HEAD), q_step, token, Q_CHANNEL, DIM), factor, DIM)
    k_offset = _offset(pair, heads, k_image, K_HEAD)
    v_offset = _offset(pair, heads, v_image, V_HEAD)
    sums = _zeros(DIM, ROWS, LANES)
    total = tl.zeros([ROWS, LANES], tl.float32)
    shift = tl.full([ROWS, LANES], float("-inf"), tl.float32)
    whole = tokens - tokens % CHUNK
    for start in range(0, whole, CHUNK):
        sums, total, shift = _absorb(
            sums, total, shift, query, k, k_offset, k_step, v, v_offset, v_step, start, K_CHANNEL, V_CHANNEL, CHUNK, DIM, WIDTH
        )
    for start in range(whole, tokens):
        sums, total, shift = _absorb(
            sums, total, shift, query, k, k_offset, k_step, v, v_offset, v_step, start, K_CHANNEL, V_CHANNEL, 1, DIM, WIDTH
        )
    inverse = 1.0 / total
    _store(out, pair, token, mask, _times(sums, inverse, DIM), heads, tokens, DIM)
    at = token * pairs + pair[None, :]
    tl.store(shifts + at, shift, mask=mask)
    tl.store(inverses + at, inverse, mask=mask)


@triton.jit(do_not_specialize=["pairs", "heads", "tokens"])
def _backward_queries(
    grad, q, k, v, out, shifts, inverses, deltas, dq, pairs, heads, tokens, scale, factor,
    grad_image, grad_step, q_image, q_step, k_image, k_step, v_image, v_step,
    GRAD_HEAD: tl.constexpr, GRAD_CHANNEL: tl.constexpr, Q_HEAD: tl.constexpr, Q_CHANNEL: tl.constexpr,
    K_HEAD: tl.constexpr, K_CHANNEL: tl.constexpr, V_HEAD: tl.constexpr, V_CHANNEL: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of the queries; stores -(grad . out) of every query for the other pass."""
    pair, token, mask = _place(pairs, tokens, ROWS, LANES)
    upstream = _first(grad, _offset(pair, heads, grad_image, GRAD_HEAD), grad_step, token, GRAD_CHANNEL, DIM)
    result = _first(out, _offset(pair, heads, tokens * heads * DIM, DIM), heads * DIM, token, 1, DIM)
    query = _times(_first(q, _offset(pair, heads, q_image, Q_HEAD), q_step, token, Q_CHANNEL, DIM), factor, DIM)
    at = token * pairs + pair[None, :]
    shift = tl.load(shifts + at)
    zero = tl.zeros([ROWS, LANES], tl.float32)
    delta = -_dot(upstream, result, zero, DIM)
    tl.store(deltas + at, delta, mask=mask)
    k_offset = _offset(pair, heads, k_image, K_HEAD)
    v_offset = _offset(pair, heads, v_image, V_HEAD)
    sums = _zeros(DIM, ROWS, LANES)
    for j in range(tokens):
        key = _next(k, k_offset, j * k_step, K_CHANNEL, DIM, WIDTH)
        value = _next(v, v_offset, j * v_step, V_CHANNEL, DIM, WIDTH)
        weight = tl.exp2(_dot(query, key, zero, DIM) - shift)  # not yet divided by the row's sum, which happens at the end
        sums = _add(sums, weight * _dot(upstream, value, delta, DIM), key, DIM)
    _store(dq, pair, token, mask, _times(sums, tl.load(inverses + at) * scale, DIM), heads, tokens, DIM)


@triton.jit(do_not_specialize=["pairs", "heads", "tokens"])
def _backward_keys(
    grad, q, k, v, shifts, inverses, deltas, dk, dv, pairs, heads, tokens, scale, factor,
    grad_image, grad_step, q_image, q_step, k_image, k_step, v_image, v_step,
    GRAD_HEAD: tl.constexpr, GRAD_CHANNEL: tl.constexpr, Q_HEAD: tl.constexpr, Q_CHANNEL: tl.constexpr,
    K_HEAD: tl.constexpr, K_CHANNEL: tl.constexpr, V_HEAD: tl.constexpr, V_CHANNEL: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of keys and values."""
    pair, token, mask = _place(pairs, tokens, ROWS, LANES)
    key = _first(k, _offset(pair, heads, k_image, K_HEAD), k_step, token, K_CHANNEL, DIM)
    value = _first(v, _offset(pair, heads, v_image, V_HEAD), v_step, token, V_CHANNEL, DIM)
    grad_offset = _offset(pair, heads, grad_image, GRAD_HEAD)
    q_offset = _offset(pair, heads, q_image, Q_HEAD)
    zero = tl.zeros([ROWS, LANES], tl.float32)
    key_sums = _zeros(DIM, ROWS, LANES)
    value_sums = _zeros(DIM, ROWS, LANES)
    for i in range(tokens):
        query = _next(q, q_offset, i * q_step, Q_CHANNEL, DIM, WIDTH)
        upstream = _next(grad, grad_offset, i * grad_step, GRAD_CHANNEL, DIM, WIDTH)
        at = i * pairs + pair[None, :]
        # The query is scaled first, as in the forward pass, because only the same rounding gives the same weights.
        score = _dot(_times(query, factor, DIM), key, zero, DIM)
        weight = tl.exp2(score - tl.load(shifts + at)) * tl.load(inverses + at)
        value_sums = _add(value_sums, weight, upstream, DIM)
        key_sums = _add(key_sums, weight * _dot(upstream, value, tl.load(deltas + at), DIM), query, DIM)
    _store(dk, pair, token, mask, _times(key_sums, scale, DIM), heads, tokens, DIM)
    _store(dv, pair, token, mask, value_sums, heads, tokens, DIM)


def empty_statistics(q: Tensor) -> Tensor:
    """An uninitialised tensor for the row statistics of q (batch, tokens, heads, dim): shift and inverse sum of every query's row.

    It is (batch, heads, 2, tokens) float32, with neighbouring pairs adjacent in memory.
    """
    batch, tokens, heads, _ = q.shape
    return q.new_empty((2, tokens, batch, heads), dtype=torch.float32).permute(2, 3, 0, 1)


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v of float32 or bfloat16 tensors (batch, tokens, heads, dim), and the row statistics for `backward`."""
    out, statistics = q.new_empty(q.shape), empty_statistics(q)
    if out.numel():
        shifts, inverses = statistics.permute(2, 3, 0, 1)
        grid, sizes, constants = _launch(q)
        with torch.cuda.device_of(q):
            _forward[grid](
                q, k, v, out, shifts, inverses, *sizes, scale * math.log2(math.e), *_steps(q, k, v), **_channels(Q=q, K=k, V=v),
                CHUNK=CHUNK, **constants,
            )  # fmt: skip
    return out, statistics


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, statistics: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v (contiguous) from the output's; `out` and `statistics` are what `forward` returned for q, k, v."""
    dq, dk, dv = (q.new_empty(q.shape) for _ in range(3))
    if dq.numel():
        shifts, inverses = statistics.permute(2, 3, 0, 1).contiguous()  # (token, batch, head), as `forward` left them
        deltas = torch.empty_like(shifts)
        grid, sizes, constants = _launch(q)
        factors = scale, scale * math.log2(math.e)
        steps, channels = _steps(grad, q, k, v), _channels(GRAD=grad, Q=q, K=k, V=v) | constants
        with torch.cuda.device_of(q):
            _backward_queries[grid](
                grad, q, k, v, out.contiguous(), shifts, inverses, deltas, dq, *sizes, *factors, *steps, **channels
            )  # fmt: skip
            _backward_keys[grid](grad, q, k, v, shifts, inverses, deltas, dk, dv, *sizes, *factors, *steps, **channels)
    return dq, dk, dv


def self_check(head_dim: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Runs both passes once, laid out as in training, and compares with the formula in float64 (Vaswani et al. 2017, equation 1).

    Args:
        head_dim: channels of a head.
        dtype: float32 or bfloat16.
        device: a GPU; the CPU in Triton's interpreter.

    Returns:
        How the kernel differs, as a clause; None if it does not.

    Raises:
        Exception: whatever the compiler or a launch raises.
    """
    batch, tokens, heads, scale = 5, 9, max(1, LANES // head_dim), head_dim**-0.5
    # The sizes give more pairs than lanes, more tokens than rows, and keys after the last whole chunk. The numbers are not random,
    # because the first caller may be inside vmap, where drawing random numbers is an error.
    numbers = torch.arange(4 * batch * tokens * heads * head_dim, dtype=torch.float64).mul(12.9898).sin().mul(2).to(dtype)
    *parts, upstream = numbers.view(batch, tokens, 4, heads, head_dim).unbind(2)
    q, k, v = torch.stack(parts, 2).to(device).unbind(2)
    grad = upstream.contiguous().to(device)
    out, statistics = forward(q, k, v, scale)
    found = [out, *backward(grad, q, k, v, out, statistics, scale)]
    found, inputs = [one.cpu().double() for one in found], [one.double() for one in (*parts, upstream)]
    expected = _formula(inputs, scale)
    largest = max(float(one.abs().max()) for one in expected[1:])
    for name, one, exact, bound in zip(
        ("output", "gradient of the queries", "gradient of the keys", "gradient of the values"),
        found,
        expected,
        (TOLERANCES[dtype][0], *[TOLERANCES[dtype][1] * largest] * 3),
        strict=True,
    ):
        apart = float((one - exact).abs().max())
        if not apart <= bound:  # also true for NaN
            return f"the kernel computes something else: its {name} is up to {apart:.2g} from the formula's, more than {bound:.2g}"
    return None


def _formula(inputs: list[Tensor], scale: float) -> list[Tensor]:
    """Output and gradients of q, k and v, given these and the output's gradient, (batch, tokens, heads, dim) each.

    The gradients are written out, because the caller may be inside autograd.
    """
    q, k, v, grad = inputs
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) * scale, -1)
    out = torch.einsum("bhij,bjhd->bihd", weights, v)
    products = torch.einsum("bihd,bjhd->bhij", grad, v)
    scores = weights * (products - (weights * products).sum(-1, keepdim=True)) * scale
    return [
        out,
        torch.einsum("bhij,bjhd->bihd", scores, k),
        torch.einsum("bhij,bihd->bjhd", scores, q),
        torch.einsum("bhij,bihd->bjhd", weights, grad),
    ]


def _launch(q: Tensor) -> tuple[tuple[int], tuple[int, int, int], dict[str, int | bool]]:
    """Grid, sizes (pairs, heads, tokens) and compile-time constants of a kernel."""
    batch, tokens, heads, dim = q.shape
    width = math.gcd(dim, 4)  # four-byte numbers per load
    rows = min(MAX_ROWS, max(1, NUMBERS // triton.next_power_of_2(dim)))
    pairs = batch * heads
    grid = (triton.cdiv(pairs, LANES) * triton.cdiv(tokens, rows),)
    constants = {"DIM": dim, "WIDTH": width, "ROWS": rows, "LANES": LANES, "num_warps": 1, "enable_fp_fusion": False}
    return grid, (pairs, heads, tokens), constants


def _steps(*tensors: Tensor) -> list[int]:
    """The image and token strides of each tensor."""
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _channels(**tensors: Tensor) -> dict[str, int]:
    """The head and channel strides, as compile-time constants, because they decide the width of a load."""
    result = {}
    for name, tensor in tensors.items():
        result[f"{name}_HEAD"], result[f"{name}_CHANNEL"] = tensor.stride()[2:]
    return result
