"""Softmax attention for small heads on the CPU: LLVM vector code emitted through numba, one function per head dimension.

Each vector lane is one (image, head) pair, `LANES` at a time. Their keys and values are transposed once into a local buffer
[token][dim][lane]. After that every load is one whole vector and no instruction mixes lanes, so the bits of a pair's result
depend neither on the pairs beside it nor on `LANES`. The token x token matrix is never written. Softmax statistics are kept for
the backward pass, which recomputes the weights from them (Dao et al., "FlashAttention", 2022, algorithms 1 and 4; the lane
layout is ours).

Scores are multiplied by log2(e), so a weight is 2**x. Where |q||k| bounds every score of a row (Cauchy-Schwarz), 2**x
cannot leave float32's range, and the pass that finds the row's maximum is skipped.

Scores, powers and sums are three loops, which pass vectors through a small buffer. In one loop the instructions of a weight are a
chain of about sixty cycles, and a processor holds too few chains at a time to hide that.
"""

from __future__ import annotations

import functools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic
from torch import Tensor

# AVX-512 has 32 registers of sixteen floats. The registers of other processors hold about sixteen vectors of eight.
WIDE = "+avx512f" in codegen.get_host_cpu_features()
LANES = 16 if WIDE else 8
VECTOR_BYTES = 4 * LANES
CHUNK = 4  # tokens whose row statistics are moved at a time
QUERIES = 2  # queries that share the loads of a key
POWERS = 4  # powers that are computed side by side, because each of their instructions waits for the one before
SUMS = 20 if WIDE else 10  # vectors that a loop can sum in registers
BLOCK_BYTES = 24 * 1024  # size of the block of queries that each key is combined with, backward; 3/4 of a usual first-level cache

# Scores (times log2 e) below this bound need no maximum, because sums of 1024 weights stay far inside float32's range, and so do
# their products with values below VALUE_BOUND.
SCORE_BOUND = 40.0
VALUE_BOUND = 2.0**60
ROUND = 1.5 * 2.0**23  # adding it rounds to an integer, which is then in the low bits
FLUSH = -126.0  # weights below 2**-126 become exactly zero
# 2**r on [-1/2, 1/2]: the polynomial of degree 5 and constant term 1 with the smallest relative error, 0.9e-7.
EXP2 = (1.0, 0.6931469776, 0.2402224208, 0.0555073374, 0.0096715127, 0.0013264727)

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
ZERO = ir.Constant(I64, 0)
VEC = ir.VectorType(F32, LANES)
IVEC = ir.VectorType(I32, LANES)
Value = Any  # an llvmlite SSA value
Row = list[Value]  # one vector per component of a head


class _Emitter:
    """A thin layer over llvmlite's builder: arithmetic on all lanes, loops with carried values, transposing loads and stores."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    def splat(self, value: float) -> Value:
        return ir.Constant(VEC, [float(value)] * LANES)

    def isplat(self, value: int) -> Value:
        return ir.Constant(IVEC, [value] * LANES)

    def broadcast(self, scalar: Value) -> Value:
        first = self.b.insert_element(ir.Constant(VEC, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, ir.Constant(VEC, ir.Undefined), ir.Constant(IVEC, [0] * LANES))

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z. It is fmuladd, not fma, because on a machine without the instruction fma would call a function."""
        function = cgutils.get_or_insert_function(self.b.module, ir.FunctionType(VEC, [VEC, VEC, VEC]), f"llvm.fmuladd.v{LANES}f32")
        return self.b.call(function, [x, y, z])

    def fabs(self, x: Value) -> Value:
        function = cgutils.get_or_insert_function(self.b.module, ir.FunctionType(VEC, [VEC]), f"llvm.fabs.v{LANES}f32")
        return self.b.call(function, [x])

    def dot(self, x: Row, y: Row, start: Value | None = None) -> Value:
        return self.dots([x], y, [start])[0]

    def dots(self, xs: Sequence[Row], y: Row, starts: Sequence[Value | None]) -> Row:
        """The dot product of y with each x, added to its start, side by side."""
        totals = [self.b.fmul(x[0], y[0]) if start is None else self.fma(x[0], y[0], start) for x, start in zip(xs, starts, strict=True)]
        for d in range(1, len(y)):
            totals = [self.fma(x[d], y[d], total) for x, total in zip(xs, totals, strict=True)]
        return totals

    def larger(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def all_true(self, mask: Value) -> Value:
        word = ir.IntType(LANES)
        return self.b.icmp_unsigned("==", self.b.bitcast(mask, word), ir.Constant(word, -1))

    def load(self, address: Value, offset: int = 0, kind: ir.Type = VEC, align: int = VECTOR_BYTES) -> Value:
        pointer = self.b.inttoptr(self.b.add(address, ir.Constant(I64, offset)), kind.as_pointer())
        return self.b.load(pointer, align=align, typ=kind)

    def store(self, value: Value, address: Value, offset: int = 0, align: int = VECTOR_BYTES) -> None:
        pointer = self.b.inttoptr(self.b.add(address, ir.Constant(I64, offset)), value.type.as_pointer())
        self.b.store(value, pointer, align=align)

    def load_row(self, address: Value, dim: int) -> Row:
        return [self.load(address, d * VECTOR_BYTES) for d in range(dim)]

    def store_row(self, row: Row, address: Value) -> None:
        for d, value in enumerate(row):
            self.store(value, address, d * VECTOR_BYTES)

    def int_min(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def times(self, x: Value, factor: int) -> Value:
        return self.b.mul(x, ir.Constant(I64, factor))

    def loop(
        self, stop: Value, step: int, carried: Sequence[Value], body: Callable[[Value, Row], Sequence[Value]], start: Value = ZERO
    ) -> Row:
        """for i in range(start, stop, step): carried = body(i, carried). Returns the last carried values."""
        before = self.b.block
        head = self.b.append_basic_block("loop")
        inside = self.b.append_basic_block("body")
        after = self.b.append_basic_block("after")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        phis = [self.b.phi(value.type) for value in carried]
        index.add_incoming(start, before)
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        self.b.cbranch(self.b.icmp_signed("<", index, stop), inside, after)
        self.b.position_at_end(inside)
        results = body(index, phis)
        index.add_incoming(self.b.add(index, ir.Constant(I64, step)), self.b.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        return phis

    def either(self, condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]) -> Row:
        """Emits both branches; at run time then() runs if `condition` holds, else otherwise()."""
        blocks = [self.b.append_basic_block(name) for name in ("then", "otherwise", "joined")]
        self.b.cbranch(condition, blocks[0], blocks[1])
        ends = []
        for block, arm in zip(blocks, (then, otherwise), strict=False):
            self.b.position_at_end(block)
            values = arm()
            ends.append((values, self.b.block))
            self.b.branch(blocks[2])
        self.b.position_at_end(blocks[2])
        phis = [self.b.phi(value.type) for value in ends[0][0]]
        for values, block in ends:
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(value, block)
        return phis

    def exp2(self, xs: Row, *, bounded: bool) -> Row:
        """2**x of each x up to about 40, side by side, to a relative error of 1e-7.

        If `bounded`, x has to be finite and above -126, which saves three instructions. Both forms give the same bits where both are
        allowed. The unbounded form multiplies, because adding bit patterns would lose a NaN.
        """
        if not bounded:
            xs = [self.b.select(self.b.fcmp_ordered("<", x, self.splat(FLUSH)), self.splat(-127.0), x) for x in xs]
        shifted = [self.b.fadd(x, self.splat(ROUND)) for x in xs]
        rounded = [self.b.fsub(x, self.splat(ROUND)) for x in shifted]
        rest = [self.b.fsub(x, whole) for x, whole in zip(xs, rounded, strict=True)]
        totals = [self.splat(EXP2[-1])] * len(xs)
        for coefficient in EXP2[-2::-1]:
            totals = [self.fma(total, r, self.splat(coefficient)) for total, r in zip(totals, rest, strict=True)]
        exponents = [self.b.shl(self.b.bitcast(x, IVEC), self.isplat(23)) for x in shifted]
        if bounded:
            return [self.b.bitcast(self.b.add(self.b.bitcast(x, IVEC), n), VEC) for x, n in zip(totals, exponents, strict=True)]
        powers = [self.b.bitcast(self.b.add(n, self.isplat(127 << 23)), VEC) for n in exponents]
        return [self.b.fmul(x, power) for x, power in zip(totals, powers, strict=True)]

    def _shuffle(self, x: Value, y: Value, order: Sequence[int]) -> Value:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), list(order)))

    def _concatenate(self, parts: Row) -> Value:
        while len(parts) > 1:
            width = parts[0].type.count
            parts = [self._shuffle(x, y, range(2 * width)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _transpose(self, rows: Row) -> Row:
        """Transposes each 4 x 4 block of four vectors."""
        low = [4 * c + i for c in range(LANES // 4) for i in (0, LANES, 1, LANES + 1)]
        high = [i + 2 for i in low]
        even = [4 * c + i for c in range(LANES // 4) for i in (0, 1, LANES, LANES + 1)]
        odd = [i + 2 for i in even]
        a, b = self._shuffle(rows[0], rows[1], low), self._shuffle(rows[2], rows[3], low)
        c, d = self._shuffle(rows[0], rows[1], high), self._shuffle(rows[2], rows[3], high)
        return [self._shuffle(a, b, even), self._shuffle(a, b, odd), self._shuffle(c, d, even), self._shuffle(c, d, odd)]

    def gather(self, lanes: Row, offset: Value, dim: int) -> Row:
        """Loads `dim` contiguous floats from every lane's address + offset, as `dim` vectors."""
        at = [self.b.add(lane, offset) for lane in lanes]
        row: Row = []
        while (d := len(row)) < dim:
            if dim - d >= 4:
                quad = ir.VectorType(F32, 4)
                parts = [self.load(address, 4 * d, quad, 4) for address in at]
                row += self._transpose([self._concatenate(parts[a::4]) for a in range(4)])
            elif dim - d >= 2:
                pair = ir.VectorType(F32, 2)
                parts = [self.load(address, 4 * d, pair, 4) for address in at]
                halves = self._concatenate(parts[: LANES // 2]), self._concatenate(parts[LANES // 2 :])
                row += [self._shuffle(*halves, range(i, 2 * LANES, 2)) for i in (0, 1)]
            else:
                vector = ir.Constant(VEC, ir.Undefined)
                for i, address in enumerate(at):
                    vector = self.b.insert_element(vector, self.load(address, 4 * d, F32, 4), ir.Constant(I32, i))
                row.append(vector)
        return row

    def scatter(self, row: Row, lanes: Row, offset: Value) -> None:
        """The inverse of `gather`."""
        at = [self.b.add(lane, offset) for lane in lanes]
        d = 0
        while d < len(row):
            if len(row) - d >= 4:
                for a, vector in enumerate(self._transpose(row[d : d + 4])):
                    for c in range(LANES // 4):
                        part = self._shuffle(vector, vector, range(4 * c, 4 * c + 4))
                        self.store(part, at[4 * c + a], 4 * d, 4)
                d += 4
            else:
                for i, address in enumerate(at):
                    self.store(self.b.extract_element(row[d], ir.Constant(I32, i)), address, 4 * d, 4)
                d += 1

    def lane_addresses(self, group: Value, pairs: Value, heads: Value, tensors: Sequence[tuple[Value, Value, Value]]) -> list[Row]:
        """For each tensor, given as (address, batch stride, head stride in bytes), the address of each lane's pair.

        Lanes past the last pair repeat it: they read the same data and write the same bits to the same addresses.
        """
        result: list[Row] = [[] for _ in tensors]
        last = self.b.sub(pairs, ir.Constant(I64, 1))
        for lane in range(LANES):
            pair = self.int_min(self.b.add(self.times(group, LANES), ir.Constant(I64, lane)), last)
            image, head = self.b.sdiv(pair, heads), self.b.srem(pair, heads)
            for row, (address, batch_stride, head_stride) in zip(result, tensors, strict=True):
                row.append(self.b.add(address, self.b.add(self.b.mul(image, batch_stride), self.b.mul(head, head_stride))))
        return result

    def transpose(
        self, source: _Source, tokens: Value, dim: int, k_buffer: Value, v_buffer: Value, keep: Callable[[Value, Row], None]
    ) -> tuple[Value, Value]:
        """Fills the buffers of keys and values, and calls `keep` with each token's index and query.

        Returns per lane max |k|**2, or NaN or infinity if a key or value rules out the bounded path; and max |q|**2, or NaN.
        """

        def body(t: Value, carried: Row) -> Row:
            q_most, k_most, v_most, q_bad, k_bad = carried
            q, k, v = source.rows(t)
            keep(t, q)
            row = self.times(t, dim * VECTOR_BYTES)
            self.store_row(k, self.b.add(k_buffer, row))
            self.store_row(v, self.b.add(v_buffer, row))
            for component in v:
                v_most = self.larger(self.fabs(component), v_most)
            q_square, k_square = self.dot(q, q), self.dot(k, k)
            most = [self.larger(q_square, q_most), self.larger(k_square, k_most), v_most]
            return [*most, *(self.fma(square, self.splat(0.0), bad) for square, bad in ((q_square, q_bad), (k_square, k_bad)))]

        q_most, k_most, v_most, q_bad, k_bad = self.loop(tokens, 1, [self.splat(0.0)] * 5, body)
        too_large = self.b.fcmp_ordered(">", v_most, self.splat(VALUE_BOUND))
        return self.b.select(too_large, self.splat(math.inf), self.b.fadd(k_most, k_bad)), self.b.fadd(q_most, q_bad)

    def is_bounded(self, q_square: Value, k_bound: Value) -> Value:
        return self.b.fcmp_ordered("<=", self.b.fmul(q_square, k_bound), self.splat(SCORE_BOUND**2))

    def move_statistics(self, lanes: Row, tokens: Value, buffer: Value, *, to_buffer: bool) -> None:
        """Copies statistics between each pair's contiguous row and the buffer [token][lane], `CHUNK` tokens at a time."""

        def body(t: Value, _: Row) -> Row:
            at = self.b.add(buffer, self.times(t, VECTOR_BYTES))
            if to_buffer:
                self.store_row(self.gather(lanes, self.times(t, 4), CHUNK), at)
            else:
                self.scatter(self.load_row(at, CHUNK), lanes, self.times(t, 4))
            return []

        self.loop(tokens, CHUNK, [], body)


class _Source(ABC):
    """Where queries, keys and values come from, and where their gradients go.

    Args:
        args: the arguments after the sizes in those of `_emit_forward` or `_emit_backward`.
        factor: multiplies the queries.
        take: reserves a number of vectors of scratch memory, and returns their address.
    """

    def __init__(
        self, e: _Emitter, dim: int, heads: Value, tokens: Value, args: Sequence[Value], factor: Value, take: Callable[[Value], Value]
    ) -> None:
        self.e, self.dim, self.heads, self.tokens, self.factor = e, dim, heads, tokens, factor
        self.args = list(args)

    @property
    @abstractmethod
    def tensors(self) -> list[tuple[Value, Value, Value]]:
        """The tensors as `lane_addresses` takes them."""

    @abstractmethod
    def open(self, lanes: list[Row]) -> None:
        """Begins a group of pairs; `lanes` belong to `tensors`."""

    @abstractmethod
    def rows(self, t: Value) -> tuple[Row, Row, Row]:
        """Query times factor, key and value of a token."""

    @abstractmethod
    def close(self, group: Value, pairs: Value, gradients: Callable[[Value], tuple[Row, Row, Row]]) -> None:
        """Writes the results that follow from the gradients of each token's query, key and value."""


class _Packed(_Source):
    """All three are given in one tensor (batch, token, 3, head, dim).

    The arguments: its address and its byte strides but the last; backward also the address of its gradient.
    """

    @property
    def tensors(self) -> list[tuple[Value, Value, Value]]:
        address, image, _, _, head, *gradient = self.args
        out_step = self.e.times(self.heads, 12 * self.dim)
        out_head = ir.Constant(I64, 4 * self.dim)
        return [(address, image, head), *((to, self.e.b.mul(self.tokens, out_step), out_head) for to in gradient)]

    def open(self, lanes: list[Row]) -> None:
        self.lanes = lanes

    def rows(self, t: Value) -> tuple[Row, Row, Row]:
        b, (step, part) = self.e.b, self.args[2:4]
        q, k, v = (self.e.gather(self.lanes[0], b.add(b.mul(t, step), self.e.times(part, i)), self.dim) for i in range(3))
        return [b.fmul(x, self.factor) for x in q], k, v

    def close(self, group: Value, pairs: Value, gradients: Callable[[Value], tuple[Row, Row, Row]]) -> None:
        part = self.e.times(self.heads, 4 * self.dim)

        def write(t: Value, _: Row) -> Row:
            for i, row in enumerate(gradients(t)):
                self.e.scatter(row, self.lanes[1], self.e.b.mul(self.e.b.add(self.e.times(t, 3), ir.Constant(I64, i)), part))
            return []

        self.e.loop(self.tokens, 1, [], write)


class _Sliced(_Source):
    """A head's own small maps compute them from its slice of the token.

    The arguments: address and byte strides (batch, token) of the tokens (batch, token, head * dim), addresses of the weight
    (3, head, dim, dim) and the bias (3, head, dim); backward also the addresses of the gradients of the three. The lanes' weights
    are laid out as vectors once per group. The gradients of weight and bias are summed in registers over a pair's tokens, then
    over the pairs one by one, in order, so that the sum does not depend on the grouping.
    """

    def __init__(
        self, e: _Emitter, dim: int, heads: Value, tokens: Value, args: Sequence[Value], factor: Value, take: Callable[[Value], Value]
    ) -> None:
        super().__init__(e, dim, heads, tokens, args, factor, take)
        self.maps = take(ir.Constant(I64, 3 * dim * (dim + 1)))  # as `bias_at` and `weight_at` say
        self.differentiate = len(self.args) > 5
        if self.differentiate:
            self.sums = take(ir.Constant(I64, dim * (dim + 1)))
            self.slices = take(e.times(tokens, dim))

    def weight_at(self, part: int, out: int) -> Value:
        """The address of a row of a map: [dim][lane]."""
        return self.e.b.add(self.maps, ir.Constant(I64, (part * (self.dim + 1) + out) * self.dim * VECTOR_BYTES))

    def bias_at(self, part: int) -> Value:
        return self.weight_at(part, self.dim)

    @property
    def tensors(self) -> list[tuple[Value, Value, Value]]:
        x, image, _, weight, bias, *gradients = self.args
        head, zero = ir.Constant(I64, 4 * self.dim), ir.Constant(I64, 0)
        result = [(x, image, head), (weight, zero, ir.Constant(I64, 4 * self.dim**2)), (bias, zero, head)]
        if self.differentiate:
            result.append((gradients[0], self.e.b.mul(self.tokens, self.e.times(self.heads, 4 * self.dim)), head))
        return result

    def open(self, lanes: list[Row]) -> None:
        self.lanes = lanes
        e, dim = self.e, self.dim
        for part in range(3):
            for out in range(dim):
                offset = e.b.add(e.times(self.heads, 4 * part * dim**2), ir.Constant(I64, 4 * out * dim))
                e.store_row(e.gather(lanes[1], offset, dim), self.weight_at(part, out))
            e.store_row(e.gather(lanes[2], e.times(self.heads, 4 * part * dim), dim), self.bias_at(part))

    def rows(self, t: Value) -> tuple[Row, Row, Row]:
        e, dim = self.e, self.dim
        x = e.gather(self.lanes[0], e.b.mul(t, self.args[2]), dim)
        if self.differentiate:
            e.store_row(x, e.b.add(self.slices, e.times(t, dim * VECTOR_BYTES)))

        def project(part: int) -> Row:
            bias = e.load_row(self.bias_at(part), dim)
            return [e.dot(x, e.load_row(self.weight_at(part, out), dim), bias[out]) for out in range(dim)]

        return [e.b.fmul(value, self.factor) for value in project(0)], project(1), project(2)

    def close(self, group: Value, pairs: Value, gradients: Callable[[Value], tuple[Row, Row, Row]]) -> None:
        e, dim = self.e, self.dim
        _, weight_to, bias_to = self.args[5:]
        first = e.times(group, LANES)
        lanes = e.int_min(e.b.sub(pairs, first), ir.Constant(I64, LANES))  # lanes past the last pair repeat it and are not summed

        def write(t: Value, _: Row) -> Row:
            total: list[Value | None] = [None] * dim
            for part, row in enumerate(gradients(t)):
                for out, value in enumerate(row):
                    weight = e.load_row(self.weight_at(part, out), dim)
                    total = [e.b.fmul(value, w) if x is None else e.fma(value, w, x) for w, x in zip(weight, total, strict=True)]
            e.scatter(total, self.lanes[3], e.b.mul(t, e.times(self.heads, 4 * dim)))
            return []

        e.loop(self.tokens, 1, [], write)
        for part in range(3):
            for start in range(0, dim, step := max(1, SUMS // (dim + 1))):
                outs = range(start, min(start + step, dim))

                def accumulate(t: Value, carried: Row, part: int = part, outs: range = outs) -> Row:
                    x = e.load_row(e.b.add(self.slices, e.times(t, dim * VECTOR_BYTES)), dim)
                    row = gradients(t)[part]
                    weight = [e.fma(row[out], x[i], carried[n * dim + i]) for n, out in enumerate(outs) for i in range(dim)]
                    biases = carried[len(outs) * dim :]
                    return weight + [e.b.fadd(row[out], total) for out, total in zip(outs, biases, strict=True)]

                totals = e.loop(self.tokens, 1, [e.splat(0.0)] * (len(outs) * (dim + 1)), accumulate)
                weights, biases = totals[: len(outs) * dim], totals[len(outs) * dim :]
                for place, row in ((start * dim, weights), (dim**2 + start, biases)):
                    e.store_row(row, e.b.add(self.sums, ir.Constant(I64, place * VECTOR_BYTES)))

            def add_pair(lane: Value, _: Row, part: int = part) -> Row:
                place = e.b.add(e.times(self.heads, part), e.b.srem(e.b.add(first, lane), self.heads))
                targets = (e.b.add(weight_to, e.times(place, 4 * dim**2)), dim**2), (e.b.add(bias_to, e.times(place, 4 * dim)), dim)
                column = e.b.add(self.sums, e.times(lane, 4))
                for to, count in targets:
                    for i in range(count):
                        e.store(e.b.fadd(e.load(to, 4 * i, F32, 4), e.load(column, i * VECTOR_BYTES, F32, 4)), to, 4 * i, 4)
                    column = e.b.add(column, ir.Constant(I64, count * VECTOR_BYTES))
                return []

            e.loop(lanes, 1, [], add_pair)


def _scratch_from(e: _Emitter, address: Value) -> Callable[[Value], Value]:
    """A function that reserves a number of vectors, one after another, in the memory at `address`."""

    def take(vectors: Value) -> Value:
        nonlocal address
        result, address = address, e.b.add(address, e.times(vectors, VECTOR_BYTES))
        return result

    return take


def _emit_forward(e: _Emitter, dim: int, kind: type[_Source], args: Sequence[Value]) -> None:
    """args: addresses of result, statistics and scratch memory, three sizes, the source's, and the scale; see `forward`."""
    out_at, stats_at, scratch, pairs, heads, tokens = args[:6]
    row_bytes = dim * VECTOR_BYTES
    out_head = ir.Constant(I64, 4 * dim)
    out_step = e.times(heads, 4 * dim)
    out_image = e.b.mul(tokens, out_step)
    padded = e.b.and_(e.b.add(tokens, ir.Constant(I64, CHUNK - 1)), ir.Constant(I64, -CHUNK))
    stats_head = e.times(padded, 8)
    stats_image = e.b.mul(heads, stats_head)
    take = _scratch_from(e, scratch)
    k_buffer, v_buffer, q_buffer = (take(e.times(tokens, dim)) for _ in range(3))
    m_buffer, inverse_buffer = take(padded), take(padded)
    weight_buffer = take(e.b.add(e.times(tokens, QUERIES), ir.Constant(I64, POWERS)))  # the last powers may lie past the last weight
    factor = e.broadcast(e.b.fmul(e.b.fptrunc(args[-1], F32), ir.Constant(F32, math.log2(math.e))))
    source = kind(e, dim, heads, tokens, args[6:-1], factor, take)
    last = e.b.sub(tokens, ir.Constant(I64, 1))
    zero = e.splat(0.0)

    # The rows that pad a chunk are copied out too, so they have to be initialised.
    def clear(t: Value, _: Row) -> Row:
        e.store(zero, e.b.add(m_buffer, e.times(t, VECTOR_BYTES)))
        return []

    e.loop(e.times(padded, 2), 1, [], clear)

    def group_body(group: Value, _: Row) -> Row:
        tensors = [(out_at, out_image, out_head), (stats_at, stats_image, stats_head), *source.tensors]
        out_lanes, stats_lanes, *source_lanes = e.lane_addresses(group, pairs, heads, tensors)
        source.open(source_lanes)

        def keep_query(t: Value, q: Row) -> None:
            e.store_row(q, e.b.add(q_buffer, e.times(t, row_bytes)))

        k_bound, _ = e.transpose(source, tokens, dim, k_buffer, v_buffer, keep_query)

        def query_body(i: Value, _: Row) -> Row:
            index = [e.int_min(e.b.add(i, ir.Constant(I64, u)), last) for u in range(QUERIES)]
            q = [e.load_row(e.b.add(q_buffer, e.times(t, row_bytes)), dim) for t in index]
            bounded = [e.is_bounded(e.dot(row, row), k_bound) for row in q]
            start = [zero] * (QUERIES * (dim + 1))

            def sum_up(shift: Row | None) -> Row:
                def score(j: Value, _: Row) -> Row:
                    k = e.load_row(e.b.add(k_buffer, e.times(j, row_bytes)), dim)
                    scores = e.dots(q, k, [None] * QUERIES)
                    if shift is not None:
                        scores = [e.b.fsub(x, most) for x, most in zip(scores, shift, strict=True)]
                    e.store_row(scores, e.b.add(weight_buffer, e.times(j, QUERIES * VECTOR_BYTES)))
                    return []

                def weigh(i: Value, _: Row) -> Row:
                    at = e.b.add(weight_buffer, e.times(i, VECTOR_BYTES))
                    e.store_row(e.exp2(e.load_row(at, POWERS), bounded=shift is None), at)
                    return []

                def accumulate(j: Value, carried: Row) -> Row:
                    weights = e.load_row(e.b.add(weight_buffer, e.times(j, QUERIES * VECTOR_BYTES)), QUERIES)
                    v = e.load_row(e.b.add(v_buffer, e.times(j, row_bytes)), dim)
                    result = [e.b.fadd(carried[u], weights[u]) for u in range(QUERIES)]
                    for u in range(QUERIES):
                        sums = carried[QUERIES + u * dim : QUERIES + (u + 1) * dim]
                        result += [e.fma(weights[u], value, total) for value, total in zip(v, sums, strict=True)]
                    return result

                e.loop(tokens, 1, [], score)
                e.loop(e.times(tokens, QUERIES), POWERS, [], weigh)
                return e.loop(tokens, 1, start, accumulate)

            def without_maximum() -> Row:
                return [zero] * QUERIES + sum_up(None)

            def with_maximum() -> Row:
                def most(j: Value, carried: Row) -> Row:
                    k = e.load_row(e.b.add(k_buffer, e.times(j, row_bytes)), dim)
                    return [e.larger(e.dot(q[u], k), carried[u]) for u in range(QUERIES)]

                maxima = e.loop(tokens, 1, [e.splat(-math.inf)] * QUERIES, most)
                # A bounded row keeps a shift of 0 here, so that its bits do not depend on the lanes beside it.
                shift = [e.b.select(bounded[u], zero, maxima[u]) for u in range(QUERIES)]
                return shift + sum_up(shift)

            result = e.either(e.all_true(functools.reduce(e.b.and_, bounded)), without_maximum, with_maximum)
            for u in range(QUERIES):
                shift, total = result[u], result[QUERIES + u]
                sums = result[2 * QUERIES + u * dim : 2 * QUERIES + (u + 1) * dim]
                inverse = e.b.fdiv(e.splat(1.0), total)
                e.scatter([e.b.fmul(x, inverse) for x in sums], out_lanes, e.b.mul(index[u], out_step))
                # weight = 2**(score - shift) * inverse. A bounded row's sum 2**a * f is stored as shift a and inverse 1 / f, so that
                # the backward pass has no huge or tiny factors.
                bits = e.b.bitcast(total, IVEC)
                exponent = e.b.sitofp(e.b.sub(e.b.lshr(bits, e.isplat(23)), e.isplat(127)), VEC)
                power = e.b.bitcast(e.b.and_(bits, e.isplat(0x7F800000)), VEC)
                at = e.times(index[u], VECTOR_BYTES)
                e.store(e.b.select(bounded[u], exponent, shift), e.b.add(m_buffer, at))
                e.store(e.b.select(bounded[u], e.b.fmul(inverse, power), inverse), e.b.add(inverse_buffer, at))
            return []

        e.loop(tokens, QUERIES, [], query_body)
        e.move_statistics(stats_lanes, tokens, m_buffer, to_buffer=False)
        inverse_lanes = [e.b.add(lane, e.times(padded, 4)) for lane in stats_lanes]
        e.move_statistics(inverse_lanes, tokens, inverse_buffer, to_buffer=False)
        return []

    groups = e.b.sdiv(e.b.add(pairs, ir.Constant(I64, LANES - 1)), ir.Constant(I64, LANES))
    e.loop(groups, 1, [], group_body)


def _emit_backward(e: _Emitter, dim: int, kind: type[_Source], args: Sequence[Value]) -> None:
    """args: address and byte strides (batch, token, head) of the result's gradient, addresses of result, statistics and scratch
    memory, three sizes, the source's, and the scale; see `backward`."""
    grad_at, grad_image, grad_step, grad_head, out_at, stats_at, scratch, pairs, heads, tokens = args[:10]
    scale = e.b.fptrunc(args[-1], F32)
    key_bytes = dim * VECTOR_BYTES
    query_bytes = (3 * dim + 2) * VECTOR_BYTES  # of a query: itself, its upstream gradient, its gradient, shift, -delta
    out_head = ir.Constant(I64, 4 * dim)
    out_step = e.times(heads, 4 * dim)
    out_image = e.b.mul(tokens, out_step)
    padded = e.b.and_(e.b.add(tokens, ir.Constant(I64, CHUNK - 1)), ir.Constant(I64, -CHUNK))
    stats_head = e.times(padded, 8)
    stats_image = e.b.mul(heads, stats_head)
    take = _scratch_from(e, scratch)
    k_buffer, v_buffer, dk_buffer, dv_buffer = (take(e.times(tokens, dim)) for _ in range(4))
    query_buffer = take(e.times(tokens, 3 * dim + 2))
    weight_buffer = take(e.b.add(e.times(tokens, 2), ir.Constant(I64, 2 * POWERS)))  # the last powers may lie past the last weight
    m_buffer, inverse_buffer = take(padded), take(padded)
    factor = e.broadcast(e.b.fmul(scale, ir.Constant(F32, math.log2(math.e))))
    source = kind(e, dim, heads, tokens, args[10:-1], factor, take)
    scale_vector = e.broadcast(scale)
    zero = e.splat(0.0)
    # The queries are taken in blocks that fit the first-level cache; all keys are combined with one block, then with the next.
    blocks = e.b.add(e.b.sdiv(e.times(tokens, query_bytes), ir.Constant(I64, BLOCK_BYTES)), ir.Constant(I64, 1))
    block = e.b.sdiv(e.b.sub(e.b.add(tokens, blocks), ir.Constant(I64, 1)), blocks)

    def group_body(group: Value, _: Row) -> Row:
        tensors = [
            (grad_at, grad_image, grad_head),
            (out_at, out_image, out_head),
            (stats_at, stats_image, stats_head),
            *source.tensors,
        ]
        grad_lanes, out_lanes, stats_lanes, *source_lanes = e.lane_addresses(group, pairs, heads, tensors)
        source.open(source_lanes)
        e.move_statistics(stats_lanes, tokens, m_buffer, to_buffer=True)
        inverse_lanes = [e.b.add(lane, e.times(padded, 4)) for lane in stats_lanes]
        e.move_statistics(inverse_lanes, tokens, inverse_buffer, to_buffer=True)

        def prepare_query(t: Value, q: Row) -> None:
            at = e.times(t, VECTOR_BYTES)
            upstream = e.gather(grad_lanes, e.b.mul(t, grad_step), dim)
            out = e.gather(out_lanes, e.b.mul(t, out_step), dim)
            inverse = e.load(e.b.add(inverse_buffer, at))
            # 1 / sum multiplies the upstream gradient once, instead of every weight.
            grad = [e.b.fmul(x, inverse) for x in upstream]
            minus_delta = e.b.fsub(zero, e.dot(grad, out))
            row = [*q, *grad, *[zero] * dim, e.load(e.b.add(m_buffer, at)), minus_delta]
            e.store_row(row, e.b.add(query_buffer, e.times(t, query_bytes)))
            e.store_row([zero] * (2 * dim), e.b.add(dk_buffer, e.times(t, 2 * key_bytes)))

        k_bound, q_most = e.transpose(source, tokens, dim, k_buffer, v_buffer, prepare_query)
        bounded = e.is_bounded(q_most, k_bound)

        def pass_blocks(quick: bool) -> Row:
            def pass_keys(number: Value, _: Row) -> Row:
                first = e.b.mul(number, block)
                stop = e.int_min(e.b.add(first, block), tokens)

                def pass_key(j: Value, _: Row) -> Row:
                    at = e.times(j, key_bytes)
                    k = e.load_row(e.b.add(k_buffer, at), dim)
                    v = e.load_row(e.b.add(v_buffer, at), dim)

                    def score(i: Value, _: Row) -> Row:
                        """A query's score, less its shift, and what its weight times is the score's gradient."""
                        query = e.b.add(query_buffer, e.times(i, query_bytes))
                        shifted = e.b.fsub(e.dot(e.load_row(query, dim), k), e.load(query, 3 * key_bytes))
                        slope = e.dot(e.load_row(query, 2 * dim)[dim:], v, e.load(query, 3 * key_bytes + VECTOR_BYTES))
                        e.store_row([shifted, slope], e.b.add(weight_buffer, e.times(i, 2 * VECTOR_BYTES)))
                        return []

                    def weigh(i: Value, _: Row) -> Row:
                        at = e.b.add(weight_buffer, e.times(i, 2 * VECTOR_BYTES))
                        row = e.load_row(at, 2 * POWERS)
                        for u, weight in enumerate(e.exp2(row[::2], bounded=quick)):
                            e.store_row([weight, e.b.fmul(weight, row[2 * u + 1])], e.b.add(at, ir.Constant(I64, 2 * u * VECTOR_BYTES)))
                        return []

                    def pass_query(i: Value, carried: Row) -> Row:
                        at = e.b.add(query_buffer, e.times(i, query_bytes))
                        weight, ds = e.load_row(e.b.add(weight_buffer, e.times(i, 2 * VECTOR_BYTES)), 2)
                        q, grad = e.load_row(at, dim), e.load_row(at, 2 * dim)[dim:]
                        dq_at = e.b.add(at, ir.Constant(I64, 2 * key_bytes))
                        dq = e.load_row(dq_at, dim)
                        e.store_row([e.fma(ds, x, total) for x, total in zip(k, dq, strict=True)], dq_at)
                        dk = [e.fma(ds, x, total) for x, total in zip(q, carried[:dim], strict=True)]
                        dv = [e.fma(weight, x, total) for x, total in zip(grad, carried[dim:], strict=True)]
                        return dk + dv

                    e.loop(stop, 1, [], score, first)
                    e.loop(stop, POWERS, [], weigh, first)
                    dk_at, dv_at = e.b.add(dk_buffer, at), e.b.add(dv_buffer, at)
                    total = e.loop(stop, 1, e.load_row(dk_at, dim) + e.load_row(dv_at, dim), pass_query, first)
                    e.store_row(total[:dim], dk_at)
                    e.store_row(total[dim:], dv_at)
                    return []

                return e.loop(tokens, 1, [], pass_key)

            return e.loop(blocks, 1, [], pass_keys)

        e.either(e.all_true(bounded), lambda: pass_blocks(True), lambda: pass_blocks(False))

        def gradients(t: Value) -> tuple[Row, Row, Row]:
            at = e.times(t, key_bytes)
            dq = e.load_row(e.b.add(query_buffer, e.times(t, query_bytes)), 3 * dim)[2 * dim :]
            # The stored queries are multiplied by scale * log2 e.
            dk = e.load_row(e.b.add(dk_buffer, at), dim)
            dv = e.load_row(e.b.add(dv_buffer, at), dim)
            return [e.b.fmul(x, scale_vector) for x in dq], [e.b.fmul(x, e.splat(math.log(2.0))) for x in dk], dv

        source.close(group, pairs, gradients)
        return []

    groups = e.b.sdiv(e.b.add(pairs, ir.Constant(I64, LANES - 1)), ir.Constant(I64, LANES))
    e.loop(groups, 1, [], group_body)


def _lower(emit: Callable[[_Emitter, int, type[_Source], Sequence[Value]], None], kind: type[_Source]) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Sequence[Value]) -> Value:
        emit(_Emitter(builder), signature.args[0].count, kind, [*cgutils.unpack_tuple(builder, values[1]), values[2]])
        return context.get_dummy_value()

    return codegen


@intrinsic
def _forward_code(context: Any, dim: Any, integers: Any, scale: Any) -> Any:
    return types.void(dim, integers, scale), _lower(_emit_forward, _Packed)


@intrinsic
def _backward_code(context: Any, dim: Any, integers: Any, scale: Any) -> Any:
    return types.void(dim, integers, scale), _lower(_emit_backward, _Packed)


@intrinsic
def _sliced_forward_code(context: Any, dim: Any, integers: Any, scale: Any) -> Any:
    return types.void(dim, integers, scale), _lower(_emit_forward, _Sliced)


@intrinsic
def _sliced_backward_code(context: Any, dim: Any, integers: Any, scale: Any) -> Any:
    return types.void(dim, integers, scale), _lower(_emit_backward, _Sliced)


# The compiler supplies the context, which mypy misses.
def _forward(dim: Any, integers: Any, scale: Any) -> None:
    _forward_code(dim, integers, scale)  # type: ignore[call-arg]


def _backward(dim: Any, integers: Any, scale: Any) -> None:
    _backward_code(dim, integers, scale)  # type: ignore[call-arg]


def _sliced_forward(dim: Any, integers: Any, scale: Any) -> None:
    _sliced_forward_code(dim, integers, scale)  # type: ignore[call-arg]


def _sliced_backward(dim: Any, integers: Any, scale: Any) -> None:
    _sliced_backward_code(dim, integers, scale)  # type: ignore[call-arg]


class _Compiled:
    """A function compiled once per head dimension; the machine code is cached on disk where a directory is writable."""

    def __init__(self, function: Callable[..., None], integers: int) -> None:
        self._function = function
        self._integers = integers
        self._lock = threading.Lock()
        self._ready: dict[int, Any] = {}

    def __call__(self, dim: int) -> Any:
        if (ready := self._ready.get(dim)) is None:
            with self._lock:
                if (ready := self._ready.get(dim)) is None:
                    ready = self._ready[dim] = self._compile(dim)
        return ready

    def _compile(self, dim: int) -> Any:
        signature = types.void(types.UniTuple(types.int64, dim), types.UniTuple(types.int64, self._integers), types.float64)
        try:
            return njit(signature, cache=True, nogil=True)(self._function)
        except Exception:  # no directory is writable, the disk is full, or an entry is damaged; numba has no common class for these
            return njit(signature, nogil=True)(self._function)


_forward_for, _backward_for = _Compiled(_forward, 11), _Compiled(_backward, 16)
_sliced_forward_for, _sliced_backward_for = _Compiled(_sliced_forward, 11), _Compiled(_sliced_backward, 18)


def prepare(dim: int, *, sliced: bool = False) -> None:
    """Compiles both passes for heads of `dim` channels, which takes seconds, or loads them from the cache, which takes tens of ms."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba sets it at run time
        raise RuntimeError("NUMBA_DISABLE_JIT is set.")
    for compiled in (_sliced_forward_for, _sliced_backward_for) if sliced else (_forward_for, _backward_for):
        compiled(dim)


def statistics_shape(batch: int, tokens: int, heads: int) -> tuple[int, int, int, int]:
    """The shape of the row statistics, shift and inverse sum of every query's row: (batch, heads, 2, tokens rounded up to the chunk)."""
    return batch, heads, 2, -(-tokens // CHUNK) * CHUNK


def forward(qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v of a float32 CPU tensor (batch, tokens, 3, heads, dim), and the row statistics for `backward`."""
    batch, tokens, _, heads, dim = qkv.shape
    out, statistics = torch.empty((batch, tokens, heads, dim)), torch.empty(statistics_shape(batch, tokens, heads))
    if out.numel():
        qkv = _with_whole_rows(qkv)
        scratch = _scratch(3 * tokens * dim + 2 * statistics.shape[-1] + QUERIES * tokens + POWERS)
        integers = out.data_ptr(), statistics.data_ptr(), _aligned(scratch), batch * heads, heads, tokens
        _forward_for(dim)((0,) * dim, (*integers, qkv.data_ptr(), *_strides(qkv)), scale)
    return out, statistics


def backward(grad: Tensor, qkv: Tensor, out: Tensor, statistics: Tensor, scale: float) -> Tensor:
    """Gradient of qkv (contiguous) from the output's; `out` and `statistics` are what `forward` returned for it."""
    batch, tokens, _, heads, dim = qkv.shape
    gradient = torch.empty((batch, tokens, 3, heads, dim))
    if gradient.numel():
        grad, qkv, out, statistics = _with_whole_rows(grad), _with_whole_rows(qkv), out.contiguous(), statistics.contiguous()
        scratch = _scratch(tokens * (7 * dim + 4) + 2 * POWERS + 2 * statistics.shape[-1])
        upstream = grad.data_ptr(), *_strides(grad), out.data_ptr(), statistics.data_ptr(), _aligned(scratch)
        integers = *upstream, batch * heads, heads, tokens, qkv.data_ptr(), *_strides(qkv), gradient.data_ptr()
        _backward_for(dim)((0,) * dim, integers, scale)
    return gradient


def sliced_forward(x: Tensor, weight: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of heads that each see a slice of the token, and the row statistics for `sliced_backward`.

    All tensors are float32 on the CPU.

    Args:
        x: tokens (batch, tokens, heads * dim).
        weight: (3, heads, dim, dim), each head's maps to query, key and value, (out, in).
        bias: (3, heads, dim).
        scale: factor of the scores.

    Returns:
        (batch, tokens, heads * dim), and statistics of `statistics_shape`.
    """
    (batch, tokens, _), (_, heads, dim, _) = x.shape, weight.shape
    out, statistics = torch.empty(tuple(x.shape)), torch.empty(statistics_shape(batch, tokens, heads))
    if out.numel():
        x, weight, bias = _with_whole_rows(x), weight.contiguous(), bias.contiguous()
        scratch = _scratch((3 * dim + QUERIES) * tokens + 2 * statistics.shape[-1] + POWERS + 3 * dim * (dim + 1))
        integers = out.data_ptr(), statistics.data_ptr(), _aligned(scratch), batch * heads, heads, tokens
        operands = x.data_ptr(), *_strides(x), weight.data_ptr(), bias.data_ptr()
        _sliced_forward_for(dim)((0,) * dim, (*integers, *operands), scale)
    return out, statistics


def sliced_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, statistics: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias (contiguous) from the output's; `out` and `statistics` are what `sliced_forward` returned."""
    (batch, tokens, _), (_, heads, dim, _) = x.shape, weight.shape
    dx, dweight, dbias = torch.empty(tuple(x.shape)), torch.zeros(tuple(weight.shape)), torch.zeros(tuple(bias.shape))
    if dx.numel():
        grad, x, out, statistics = _with_whole_rows(grad), _with_whole_rows(x), out.contiguous(), statistics.contiguous()
        weight, bias = weight.contiguous(), bias.contiguous()
        scratch = _scratch(tokens * (8 * dim + 4) + 2 * POWERS + 2 * statistics.shape[-1] + 4 * dim * (dim + 1))
        upstream = grad.data_ptr(), *_strides(grad), 4 * dim, out.data_ptr(), statistics.data_ptr(), _aligned(scratch)
        operands = x.data_ptr(), *_strides(x), weight.data_ptr(), bias.data_ptr()
        results = dx.data_ptr(), dweight.data_ptr(), dbias.data_ptr()
        _sliced_backward_for(dim)((0,) * dim, (*upstream, batch * heads, heads, tokens, *operands, *results), scale)
    return dx, dweight, dbias


def _scratch(vectors: int) -> Tensor:
    return torch.empty(LANES * (1 + vectors))


def _aligned(scratch: Tensor) -> int:
    """The first address in `scratch` that is a multiple of a vector's size."""
    return -(-scratch.data_ptr() // VECTOR_BYTES) * VECTOR_BYTES


def _with_whole_rows(tensor: Tensor) -> Tensor:
    """A tensor whose last stride is 1, because the kernel takes any other strides but reads a head's channels contiguously."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """All strides but the last, in bytes."""
    return tuple(4 * stride for stride in tensor.stride()[:-1])
