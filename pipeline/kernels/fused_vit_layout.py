"""What fused_vit.cu covers, how it is laid out over threads and shared memory, and the order of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from pipeline.params import ModelSettings

SHARED_LIMIT = 227 * 1024  # bytes of a block on an H100 or H200

# What is not known here is not computed. Of an option that is not here, only the default is covered.
COVERED: dict[str, tuple[Any, ...]] = {
    "architecture": ("vit",),
    "patch": (2, 4, 7, 14),
    "dim": (16, 32),
    "blocks": tuple(range(1, 13)),
    "attention": ("full", "sliced"),
    "position": ("none", "sinusoidal", "sincos2d", "learned"),
    "pool": ("cls", "first", "mean", "max", "attention", "concat"),
    "cls_insert": ("expand", "loop", "none"),
    "cls_init": ("normal", "zeros"),
    "norm": ("none", "pre", "post"),
    "norm_kind": ("layer",),
    "final_norm": (True, False),
    "residual": ("none", "input", "normalized"),
    "score_scale": (True, False),
    "activation": ("gelu", "relu"),
    "embed": ("linear", "conv"),
    **dict.fromkeys(("dropout", "attention_dropout", "mlp_dropout"), (0.0,)),
}
_ANY = {"heads", "mlp_dim", "memory", "position_std", "norm_eps"}  # `why_not` looks at these itself


def why_not(settings: ModelSettings) -> str | None:
    """What of a model the kernel does not cover, as a clause; None where it covers all."""
    for name, value in settings.model_dump().items():
        if name not in _ANY and value not in COVERED.get(name, (type(settings).model_fields[name].default,)):
            return f"{name} {value}"
    if settings.mlp_dim != settings.dim:
        return f"mlp_dim {settings.mlp_dim} beside dim {settings.dim}"
    if settings.dim // settings.heads not in (2, 4, 8, 16, 32):
        return f"heads of {settings.dim // settings.heads} channels"
    if settings.shape.channels != 1 or settings.shape.classes > 16:
        return f"images of {settings.shape.channels} channels and {settings.shape.classes} classes"
    if macros(settings)["SHARED_BYTES"] > SHARED_LIMIT:
        return f"{settings.num_tokens} tokens and {settings.memory} memory slots"
    return None


def macros(settings: ModelSettings) -> dict[str, Any]:
    """The macros of fused_vit.cu: the model, how it is laid out over threads and shared memory, and the order of its weights."""
    offsets = Layout(settings).offsets
    dim, tokens, lanes, head_dim = settings.dim, settings.num_tokens, settings.dim // 4, settings.dim // settings.heads
    per_thread = next((n for n, most in ((1, 256), (2, 1024)) if -(-tokens // n) * lanes <= most), 4)
    slots = -(-tokens // per_thread)
    images = max(n for n in (1, 2, 4) if n == 1 or n * slots * lanes <= 288)
    threads = -(-images * slots * lanes // 32) * 32
    row_area, key_area = per_thread * threads // lanes * (dim + 4), images * (tokens + settings.memory) * dim
    query_area = images * tokens * (dim + lanes * (2 if head_dim == 2 else 1))
    area = max(4 * row_area, 36 * threads, row_area + 20 * threads, 2 * key_area + max(row_area, 2 * query_area))
    rest = offsets["BLOCKS_AT"] + offsets["BLOCK_SIZE"] + images * (settings.shape.size**2 + 2 * settings.memory * dim)
    shared = 4 * (rest + area + 9 * threads + 128 * images)  # an upper bound; fused_vit.cu asserts that it is one
    full, scale = settings.attention == "full", head_dim**-0.5 if settings.score_scale else 1.0
    data = {
        "SIDE": settings.shape.size,
        "CLASSES": settings.shape.classes,
        "PATCH": settings.patch,
        "CLS": int(settings.has_cls),
    }
    size = {"D": dim, "HEADS": settings.heads, "BLOCKS": settings.blocks, "MEMORY": settings.memory, "HEAD_INPUTS": settings.head_inputs}
    kind: dict[str, Any] = {name.upper(): f"{name.upper()}_{getattr(settings, name)}" for name in ("position", "pool", "norm", "residual")}
    kind |= {"FULL": int(full), "FINAL_NORM": int(settings.final_norm), "GELU": int(settings.activation == "gelu")}
    numbers = {"NORM_EPS": settings.norm_eps, "SCORE_SCALE": scale, "QUERY_SCALE": dim**-0.5}
    resident = max(1, min(SHARED_LIMIT // (shared + 1024), 65536 // (threads * 96)))  # blocks at a time, of some 96 registers a thread
    plan = {"PER_THREAD": per_thread, "IMAGES": images, "THREADS": threads, "AREA": area, "SHARED_BYTES": shared, "RESIDENT": resident}
    return data | size | kind | numbers | plan | offsets


class Layout:
    """The order of one seed's weights in the kernel, and back.

    Attributes:
        size: floats of one seed; a multiple of four. Some are padding: zeros whose gradient is zero.
        trained: (size,) bool, which of them a training may change.
        offsets: where the parts lie, as macros of fused_vit.cu.
    """

    def __init__(self, settings: ModelSettings) -> None:
        dim, classes, head_dim, tokens = settings.dim, settings.shape.classes, settings.dim // settings.heads, settings.num_tokens
        concat, norms = settings.pool == "concat", settings.norm != "none"
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.offsets: dict[str, int] = {}
        parts: list[Tensor] = []  # indices among all weights in the order of `_shapes`; -1 is a zero, what is less is of the fixed table

        def begin(name: str) -> None:
            self.offsets[name] = sum(part.numel() for part in parts)

        def put(name: str, *shape: int) -> None:
            parts.append(take(name, *shape).flatten())

        def take(name: str, *shape: int) -> Tensor:
            start = sum(prod(shape) for shape in self._shapes.values())
            self._shapes[name] = shape
            return torch.arange(start, start + prod(shape)).view(shape)

        def linear(name: str, outputs: int = dim) -> None:
            """Matrices of (dim, dim), each followed by its bias."""
            weights = take(f"{name}.weight", outputs, dim).view(-1, dim, dim).transpose(1, 2)
            matrices(weights, take(f"{name}.bias", outputs).view(-1, dim))

        def matrices(weights: Tensor, biases: Tensor) -> None:
            parts.extend(part for weight, bias in zip(weights, biases, strict=True) for part in (_swizzled(weight).flatten(), bias))

        begin("EMBED")
        patch = (dim, 1, settings.patch, settings.patch) if settings.embed == "conv" else (dim, settings.patch**2)
        parts.append(take("embedding.project.weight", *patch).flatten(1).T.flatten())
        put("embedding.project.bias", dim)
        begin("HEAD_AT")
        if not concat:
            put("head.weight", classes, settings.head_inputs)
        begin("FINAL_AT")
        for name in ("norm.weight", "norm.bias") if settings.final_norm else ():
            put(name, dim)
        begin("QUERY_AT")
        if settings.pool == "attention":
            put("pool_query", dim)
        begin("BLOCKS_AT")
        for block in range(settings.blocks):
            prefix = f"blocks.{block}."
            for name in ("norm1.weight", "norm1.bias") if norms else ():
                put(prefix + name, dim)
            if settings.attention == "full":
                linear(f"{prefix}attention.qkv", 3 * dim)
                linear(f"{prefix}attention.out")
            else:
                weights = take(f"{prefix}attention.weight", 3, settings.heads, head_dim, head_dim)  # (qkv, head, out, in)
                weights = weights.permute(0, 3, 1, 2).reshape(3, head_dim, dim)  # (qkv, in, dim)
                if head_dim == 2:  # two heads as one of four channels, with zeros where they would mix
                    mixes = torch.arange(4)[:, None] // 2 != torch.arange(dim) % 4 // 2
                    weights = weights.repeat(1, 2, 1).masked_fill(mixes, -1)
                matrices(weights, take(f"{prefix}attention.bias", 3, settings.heads, head_dim).view(3, dim))
            if settings.memory:
                memory = take(f"{prefix}attention.memory", settings.memory, 2, settings.heads, head_dim)
                parts.append(memory.transpose(0, 1).flatten())
            for name in ("norm2.weight", "norm2.bias") if norms else ():
                put(prefix + name, dim)
            linear(f"{prefix}mlp.0")
            linear(f"{prefix}mlp.2")
        begin("END")
        self.offsets["BLOCK_SIZE"] = (self.offsets.pop("END") - self.offsets["BLOCKS_AT"]) // settings.blocks
        if concat:
            begin("HEAD_AT")
            put("head.weight", classes, settings.head_inputs)
        begin("CLS_AT")
        if settings.has_cls:
            put("cls_token", 1, dim)
        begin("POSITION_AT")
        if settings.position == "learned":
            put("position", tokens, dim)
        begin("HEAD_BIAS_AT")
        put("head.bias", classes)
        begin("TRAINED")
        parts.append(torch.full((-classes % 4,), -1))
        self._table = settings.position in ("sinusoidal", "sincos2d")
        if self._table:
            begin("POSITION_AT")
            parts.append(-2 - torch.arange(tokens * dim))
        begin("SIZE")
        index = torch.cat(parts)
        self.size, self.trained = len(index), index >= 0
        count = int(self.trained.sum())
        self._index = torch.where(self.trained, index, count - 1 - index)
        self._inverse = torch.empty(count, dtype=torch.int64)
        self._inverse[index[self.trained]] = self.trained.nonzero()[:, 0]

    def pack(self, state: Mapping[str, Tensor], position: Tensor | None = None) -> Tensor:
        """The tensors of `Stack.state()`, (seed, ...) each, and `Stack.position()`, which fixed tables need, to (seed, size) float32."""
        tensors = [state[name].flatten(1) for name in self._shapes]
        tensors.append(tensors[0].new_zeros(len(tensors[0]), 1))
        if self._table:
            assert position is not None
            tensors.append(position.to(tensors[0].device).flatten(1).expand(len(tensors[0]), -1))
        return torch.cat(tensors, dim=1)[:, self._index.to(tensors[0].device)].contiguous()

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """(seed, size) to the tensors of `Stack.state()`, with the same bits."""
        tensors = flat[:, self._inverse.to(flat.device)].split([prod(shape) for shape in self._shapes.values()], dim=1)
        return {name: tensor.reshape(-1, *shape) for (name, shape), tensor in zip(self._shapes.items(), tensors, strict=True)}


def _swizzled(matrix: Tensor) -> Tensor:
    """(input, output): the groups of four outputs of row i in the order group XOR (i / 4)."""
    rows, columns = matrix.shape
    group = torch.arange(columns // 4) ^ (torch.arange(rows) // 4)[:, None]  # (input, group)
    return matrix.reshape(rows, -1, 4).gather(1, group[..., None].expand(-1, -1, 4))
