"""The fused attention kernels against the definition in float64, and as PyTorch operators."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from numba import njit
from numba.core import codegen
from torch import Tensor

from pipeline.kernels import attention, attention_path, cpu, fuses_slices, sliced_attention, small_head_attention, why_not_fused
from pipeline.models.dropout import Dropout
from tests.helpers import ROOT

# A grid that covers every way a head is cut into runs of four, two and one, odd and even token counts, counts around the chunk of four,
# groups of eight and sixteen lanes filled in part, exactly, and across images. Each width of a head is compiled for itself, so that other
# widths than the base's are long.
SHAPES = [
    (1, 1, 1, 4), (5, 50, 8, 4), (17, 50, 1, 4), (17, 5, 7, 4), (1, 197, 8, 4), (1, 256, 2, 4), (1, 785, 1, 4),
    *(pytest.param(shape, marks=pytest.mark.long)
      for shape in ((1, 2, 1, 2), (3, 49, 2, 2), (3, 7, 7, 7), (2, 64, 2, 7), (3, 50, 8, 8), (1, 1024, 1, 8))),
]  # fmt: skip


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def packed_inputs(batch: int, tokens: int, heads: int, dim: int) -> list[Tensor]:
    """Queries, keys and values as one projection gives them, and an upstream gradient."""
    return [draw(batch, tokens, 3, heads, dim), draw(batch, tokens, heads, dim, seed=1)]


def definition(qkv: Tensor, *, scale: float) -> Tensor:
    """The formula written out."""
    q, k, v = qkv.unbind(2)
    return torch.einsum("bhij,bjhd->bihd", torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) * scale, dim=-1), v)


def sliced_inputs(batch: int, tokens: int, heads: int, dim: int) -> list[Tensor]:
    """Tokens, weight, bias and an upstream gradient."""
    x, grad = (draw(batch, tokens, heads * dim, seed=seed) for seed in (0, 3))
    return [x, draw(3, heads, dim, dim, seed=1) * dim**-0.5, draw(3, heads, dim, seed=2), grad]


def projected(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The projections written out head by head, as `attention` takes them."""
    slices = tokens.chunk(weight.shape[1], dim=-1)
    maps = (torch.stack([x @ w.mT + b for x, w, b in zip(slices, *one, strict=True)], dim=2) for one in zip(weight, bias, strict=True))
    return torch.stack(list(maps), dim=2)


# Each operator, its definition, and what it takes: its operands and an upstream gradient.
BOTH: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., list[Tensor]]]] = {
    "packed": (attention, definition, packed_inputs),
    "sliced": (sliced_attention, lambda *given, scale: definition(projected(*given), scale=scale).flatten(2), sliced_inputs),
}
both = pytest.mark.parametrize("kind", BOTH)


def run(function: Callable[..., Tensor], given: list[Tensor], scale: float = 0.5) -> list[Tensor]:
    """Output and the gradients of the operands."""
    leaves = [tensor.detach().requires_grad_() for tensor in given[:-1]]
    out = function(*leaves, scale=scale)
    return [out.detach(), *torch.autograd.grad(out, leaves, given[-1])]


def assert_exact(kind: str, given: list[Tensor], scale: float = 0.5, rounding: float = 0.0) -> None:
    """Against float64; `rounding` is that of a score in float32."""
    function, formula, _ = BOTH[kind]
    actual, expected = run(function, given, scale), run(formula, [tensor.double() for tensor in given], scale)
    largest = max(float(tensor.abs().max()) for tensor in expected[1:])
    bounds = [2e-6 if kind == "packed" else 1e-5 * float(expected[0].abs().max()), *[1e-5 * largest] * (len(given) - 1)]
    for a, e, bound in zip(actual, expected, bounds, strict=True):
        assert a.is_contiguous()
        assert float((a - e).abs().max()) <= bound + 8 * rounding * max(1.0, float(e.abs().max()))


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_definition_in_float64(shape: tuple[int, int, int, int], kind: str) -> None:
    assert attention_path(device="cpu", head_dim=shape[-1], tokens=shape[1]) == "fused-cpu"
    assert_exact(kind, BOTH[kind][2](*shape), scale=shape[-1] ** -0.5)


@both
@pytest.mark.parametrize("factor", [10.0, 1000.0])
def test_large_scores(factor: float, kind: str) -> None:
    """Scores up to 1e4 and beyond: rows with one weight of 1, and rows that need their maximum taken out."""
    given = BOTH[kind][2](3, 50, 8, 4)
    for tensor in given[:-1] if kind == "packed" else given[1:-1]:
        (tensor[:, :, 0] if kind == "packed" else tensor[0]).mul_(factor)  # the queries
    q, k, _ = (given[0] if kind == "packed" else projected(*given[:-1])).unbind(2)
    rounding = float(torch.einsum("bihd,bjhd->bhij", q, k).abs().max()) * 0.5 * 2**-22
    assert rounding > 40 * 2**-22
    assert_exact(kind, given, rounding=rounding)


@pytest.mark.parametrize(("keys", "values", "upstream"), [(1.0, 1e35, 1e-35), (5.0, 1.0, 1e-30)], ids=["huge values", "tiny gradients"])
def test_extreme_sizes(keys: float, values: float, upstream: float) -> None:
    qkv, grad = packed_inputs(2, 9, 2, 4)
    given = [qkv * torch.tensor([1.0, keys, values])[:, None, None], upstream * grad]
    for a, e in zip(run(attention, given), run(definition, [tensor.double() for tensor in given]), strict=True):
        for part, wanted in zip(a.unbind(2), e.unbind(2), strict=True) if a.dim() == 5 else [(a, e)]:
            torch.testing.assert_close(part.double(), wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(("where", "value"), [(0, math.nan), (1, math.inf), (2, -math.inf)], ids=["query", "key", "value"])
def test_not_finite_inputs_spoil_the_rows_they_spoil_in_the_definition(value: float, where: int) -> None:
    qkv, grad = packed_inputs(3, 9, 7, 4)  # 21 pairs: the spoilt one shares its lanes' group with healthy ones
    qkv[1, 4, where, 2, 3] = value
    (out, gradient), (expected, wanted) = run(attention, [qkv, grad]), run(definition, [qkv, grad])
    assert not bool(expected.isfinite().all())
    torch.testing.assert_close(out, expected, rtol=0, atol=5e-6, equal_nan=True)
    for part, e in zip(gradient.unbind(2), wanted.unbind(2), strict=True):
        # Inside the spoilt pair 0 * inf may or may not be met, depending on the order of the products.
        assert bool(part[1, :, 2].isnan().any()) == bool(e[1, :, 2].isnan().any())
        part[1, :, 2] = e[1, :, 2] = 0
        torch.testing.assert_close(part, e, rtol=0, atol=1e-5)


@both
def test_the_layout_of_the_inputs_changes_no_bit(kind: str) -> None:
    function, _, make = BOTH[kind]
    given = make(3, 11, 3, 4)
    scattered = [x.movedim(0, -1).repeat_interleave(2, -1)[..., ::2].movedim(-1, 0) for x in given]  # no two of a row are neighbours
    unaligned = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in given]
    assert not any(x.is_contiguous() for x in scattered)
    for other in (scattered, unaligned):
        assert all(map(torch.equal, run(function, given), run(function, other)))


@pytest.mark.parametrize("dim", [4, pytest.param(7, marks=pytest.mark.long)])
def test_nothing_is_written_beside_the_output(dim: int) -> None:
    """The kernel works on whole vectors; a ragged group must not touch its neighbours' memory."""
    operands = *packed_inputs(3, 5, 1, dim), *sliced_inputs(3, 5, 1, dim)
    originals = [tensor.clone() for tensor in operands]
    qkv, grad, tokens, weight, bias, token_grad = operands
    fences = []

    def fenced(shape: tuple[int, ...] | int, value: float = 12345.0) -> Tensor:
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        fences.append((fence := torch.full((count + 64,), 12345.0), count))
        return fence[32 : 32 + count].fill_(value).view(shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", fenced)
        patch.setattr(torch, "zeros", lambda shape: fenced(shape, 0.0))
        cpu.backward(grad, qkv, *cpu.forward(qkv, 0.5), 0.5)
        cpu.sliced_backward(token_grad, tokens, weight, bias, *cpu.sliced_forward(tokens, weight, bias, 0.5), 0.5)
    assert len(fences) >= 12
    for fence, count in fences:
        assert bool((torch.cat([fence[:32], fence[32 + count :]]) == 12345.0).all())
    assert all(map(torch.equal, operands, originals))


def pair(tensors: list[Tensor], images: slice, head: int, heads: int = 7) -> list[Tensor]:
    """Of operands or results those of some images and one head; a weight and a bias have no images."""
    result = []
    for x in tensors:
        if x.shape[0] == 3:
            result.append(x[:, head : head + 1])
        else:
            result.append(x[images].unflatten(-1, (heads, -1))[..., head, :] if x.dim() == 3 else x[images, ..., head : head + 1, :])
    return result


@both
def test_bitwise_repeatable_and_independent_of_the_neighbours(kind: str) -> None:
    """A pair's bits do not depend on what else is in the batch, not even when its neighbours need the slower path."""
    function, _, make = BOTH[kind]
    given = make(5, 50, 7, 4)
    everything = run(function, given)
    assert all(map(torch.equal, run(function, given), everything))
    for images, head in ((slice(0, 1), 0), (slice(2, 3), 1), (slice(4, 5), 6), (slice(None), 3)):
        alone, expected = run(function, pair(given, images, head)), pair(everything, images, head)
        compared = len(alone) if images == slice(None) else 2  # a weight's gradient is a sum over images
        assert all(map(torch.equal, alone[:compared], expected[:compared]))
    spoilt = given[0].clone()
    spoilt[1] *= 1000
    spoilt[3, 2, ..., 1] = math.nan
    for a, e in zip(run(function, [spoilt, *given[1:]])[:2], everything[:2], strict=True):
        assert torch.equal(a[[0, 2, 4]], e[[0, 2, 4]])


@pytest.mark.long
def test_the_number_of_lanes_changes_no_bit() -> None:
    """As compiled where AVX-512 is and here is not, or the other way round; LLVM splits vectors that are too wide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codegen, "get_host_cpu_features", lambda: "" if cpu.WIDE else "+avx512f")
        other = module_from_spec(spec := spec_from_file_location("other_cpu", cpu.__file__))
        patch.setitem(sys.modules, "other_cpu", other)
        spec.loader.exec_module(other)
    other.njit = lambda signature, cache, nogil: njit(signature, nogil=nogil)  # numba's cache takes both for one
    assert {other.LANES, cpu.LANES} == {8, 16}

    def computed(module: ModuleType, *shape: int, factor: float) -> list[Tensor]:
        (qkv, grad), (x, *weights, upstream) = packed_inputs(*shape), sliced_inputs(*shape)
        qkv, x = factor * qkv, factor * x
        packed, sliced = module.forward(qkv, 0.5), module.sliced_forward(x, *weights, 0.5)
        backward = module.backward(grad, qkv, *packed, 0.5), *module.sliced_backward(upstream, x, *weights, *sliced, 0.5)
        return [*packed, *sliced, *backward]

    for shape in ((17, 50, 1, 4), (2, 197, 8, 4), (3, 7, 7, 7), (1, 2, 3, 8)):
        for factor in (1.0, 30.0):  # with and without the pass that finds the maximum
            assert all(map(torch.equal, computed(other, *shape, factor=factor), computed(cpu, *shape, factor=factor))), (shape, factor)


@pytest.mark.parametrize("in_dims", [(2,), (None, 0, 0), (0, 1, None)], ids=str)
def test_vmap_equals_a_loop(in_dims: tuple[int | None, ...]) -> None:
    function, _, make = BOTH["packed" if len(in_dims) == 1 else "sliced"]
    *operands, grad = make(2, 6, 3, 4)
    leaves = [x if dim is None else torch.stack([x, 2 * x, x - 1], dim=dim) for x, dim in zip(operands, in_dims, strict=True)]
    leaves = [x.clone().requires_grad_() for x in leaves]
    grads = draw(3, *grad.shape, seed=9)
    out = torch.func.vmap(lambda *x: function(*x, scale=0.5), in_dims=in_dims)(*leaves)
    members = [[x if dim is None else x.select(dim, i) for x, dim in zip(leaves, in_dims, strict=True)] for i in range(3)]
    expected = torch.stack([function(*member, scale=0.5) for member in members])
    assert torch.equal(out, expected)
    for a, e in zip(torch.autograd.grad(out, leaves, grads), torch.autograd.grad(expected, leaves, grads), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-6)


def test_what_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(tokens: int = 49, head_dim: int = 4, dtype: torch.dtype = torch.float32) -> bool:
        path = attention_path(device="cpu", head_dim=head_dim, tokens=tokens, dtype=dtype)
        both = fuses_slices(torch.zeros(1, tokens, 2 * head_dim, dtype=dtype), head_dim)
        assert path == ("fused-cpu" if both else "sdpa")
        return both

    assert fused()
    assert not any([fused(head_dim=64), fused(tokens=1025), fused(dtype=torch.float64)])
    assert not fuses_slices(torch.zeros(2, 9, 12, device="meta"), 4)
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    assert not fused()


@both
def test_derivatives_many_at_once_equal_a_loop_and_second_ones_are_refused(kind: str) -> None:
    """vmap over the backward pass alone, as a Jacobian takes it."""
    function, _, make = BOTH[kind]
    leaves = [x.requires_grad_() for x in make(2, 6, 3, 4)[:-1]]
    out = function(*leaves, scale=0.5)
    grads = draw(5, *out.shape, seed=3)
    actual = torch.autograd.grad(out, leaves, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        assert all(map(torch.equal, (a[i] for a in actual), torch.autograd.grad(out, leaves, grad, retain_graph=True)))
    (dx,) = torch.autograd.grad(function(*leaves, scale=0.5).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no derivative; set LAB_ATTENTION=sdpa"):
        torch.autograd.grad(dx.sum(), leaves[0])


def test_a_head_dimension_that_does_not_compile_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dim: int, *, sliced: bool) -> None:
        raise RuntimeError(f"no code for {dim}")

    monkeypatch.setattr(small_head_attention, "_prepared", set())
    monkeypatch.setattr(small_head_attention, "_unavailable", {})
    with monkeypatch.context() as patch:
        patch.setattr(cpu.config, "DISABLE_JIT", 1)
        assert attention_path(device="cpu", head_dim=6, tokens=9) == "sdpa"
        assert "NUMBA_DISABLE_JIT is set" in (why_not_fused(6) or "")
    monkeypatch.setattr(small_head_attention.cpu, "prepare", refuse)
    assert attention_path(device="cpu", head_dim=5, tokens=9) == "sdpa"
    assert "no code for 5" in (why_not_fused(5) or "")
    assert not fuses_slices(torch.zeros(2, 9, 10), 5)


PROGRAM = """
import torch
from pipeline.kernels import attention, attention_path, why_not_fused
from pipeline.models.dropout import Dropout
attention(torch.rand(2, 5, 3, 3, 3, requires_grad=True), scale=0.5).sum().backward()
torch.manual_seed(0)
dropped = Dropout(0.5)(torch.arange(50.0)).sum().item()
print(attention_path(device="cpu", head_dim=3, tokens=5), dropped, why_not_fused(3))
"""


def computed_by(**environment: str) -> list[str]:
    """What the program prints in a process with these variables."""
    command, env = [sys.executable, "-c", PROGRAM], os.environ | environment
    return subprocess.run(command, env=env, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split(maxsplit=2)


@pytest.mark.long
def test_no_place_for_a_cache_is_no_obstacle(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pipeline" / "kernels" / "__pycache__").write_text("a file where numba wants a directory")
    nowhere = str(tmp_path / "pipeline" / "kernels" / "cpu.py" / "cache")  # below a file: cannot be made by anyone
    places = dict.fromkeys(("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME"), nowhere)
    assert computed_by(PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1", **places)[0] == "fused-cpu"


@pytest.mark.slow
def test_without_a_compiler_the_plain_path_runs_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('Numba needs another NumPy')")
    path, dropped, reason = computed_by(PYTHONPATH=str(tmp_path))
    assert path == "sdpa"
    torch.manual_seed(0)
    assert float(dropped) == float(Dropout(0.5)(torch.arange(50.0)).sum())
    assert "Numba needs another NumPy" in reason
