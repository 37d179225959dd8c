"""The fused attention kernels against the definition in float64, and as PyTorch operators."""

from __future__ import annotations

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

# A grid that covers every head dimension, every way a head is cut into runs of four, two and one, odd and even token counts,
# counts around the chunk of four, groups of eight and sixteen lanes filled in part, exactly, and across images.
SHAPES = [
    (1, 1, 1, 4),
    (1, 2, 1, 2),
    (3, 7, 7, 3),
    (2, 49, 8, 4),
    (5, 50, 8, 4),
    (17, 50, 1, 4),
    (17, 5, 7, 4),
    (2, 64, 8, 4),
    (1, 197, 8, 4),
    (1, 256, 2, 4),
    (3, 49, 2, 2),
    (2, 50, 7, 3),
    (3, 49, 2, 5),
    (1, 64, 2, 7),
    (3, 50, 8, 8),
    (1, 197, 2, 8),
    (2, 50, 2, 6),
    (1, 256, 1, 8),
    (1, 785, 1, 4),
    (1, 1024, 1, 8),
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(batch: int, tokens: int, heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of one fused projection, as a model gives them, and an upstream gradient."""
    q, k, v = draw(batch, tokens, 3, heads, dim).unbind(2)
    return q, k, v, draw(batch, tokens, heads, dim, seed=1)


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    return attention(torch.stack((q, k, v), dim=2), scale=scale)


def definition(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The formula written out."""
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) * scale, dim=-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def run(function: Callable[..., Tensor], one: Tensor, two: Tensor, three: Tensor, grad: Tensor, scale: float) -> list[Tensor]:
    """Output and the gradients of the operands: q, k and v, or tokens, weight and bias."""
    leaves = [tensor.detach().requires_grad_() for tensor in (one, two, three)]
    out = function(*leaves, scale=scale)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: float) -> list[Tensor]:
    return run(definition, q.double(), k.double(), v.double(), grad.double(), scale)


def sliced_inputs(batch: int, tokens: int, heads: int, dim: int) -> list[Tensor]:
    """Tokens, weight, bias and an upstream gradient."""
    x, grad = (draw(batch, tokens, heads * dim, seed=seed) for seed in (0, 3))
    return [x, draw(3, heads, dim, dim, seed=1) * dim**-0.5, draw(3, heads, dim, seed=2), grad]


# The two operators, and what each takes: its operands and an upstream gradient.
BOTH = {"packed": (attend, inputs), "sliced": (sliced_attention, sliced_inputs)}
both = pytest.mark.parametrize("kind", BOTH)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # the same values in another order in memory
    "heads first": lambda x: x.transpose(1, -2).contiguous().transpose(1, -2),
    "channels outermost": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "batch last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every second channel": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "offset by one float": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


def assert_gradients_close(actual: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for name, a, e in zip("qkv", actual, expected, strict=True):
        largest = max(float(tensor.abs().max()) for tensor in expected)
        assert float((a - e).abs().max()) <= tolerance * largest, name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_definition_in_float64(shape: tuple[int, int, int, int]) -> None:
    q, k, v, grad = inputs(*shape)
    scale = shape[-1] ** -0.5
    assert attention_path(device="cpu", head_dim=shape[-1], tokens=shape[1]) == "fused-cpu"
    out, *gradients = run(attend, q, k, v, grad, scale)
    expected, *expected_gradients = exact(q, k, v, grad, scale)
    assert out.is_contiguous()
    assert float((out - expected).abs().max()) <= 2e-6
    assert_gradients_close(gradients, expected_gradients)


def run_packed(qkv: Tensor, grad: Tensor) -> list[Tensor]:
    leaf = qkv.detach().requires_grad_()
    out = attention(leaf, scale=0.5)
    return [out.detach(), *torch.autograd.grad(out, leaf, grad)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_the_inputs_changes_no_bit(name: str) -> None:
    change, packed, sliced = LAYOUTS[name], (draw(3, 11, 3, 3, 4), draw(3, 11, 3, 4, seed=1)), sliced_inputs(3, 11, 5, 4)
    results = [
        run_packed(*given) + run(sliced_attention, *more, 0.5)
        for given, more in ((packed, sliced), (map(change, packed), map(change, sliced)))
    ]
    for a, e in zip(*results, strict=True):
        assert torch.equal(a, e)


def test_nothing_is_written_beside_the_output() -> None:
    """The kernel works on whole vectors; a ragged group must not touch its neighbours' memory."""
    operands = draw(3, 5, 3, 1, 3), draw(3, 5, 1, 3, seed=1), *sliced_inputs(3, 5, 1, 3)
    originals = [tensor.clone() for tensor in operands]
    qkv, grad, tokens, weight, bias, token_grad = operands
    fences = []
    real_empty = torch.empty

    def fenced(shape: tuple[int, ...] | int, value: float = 12345.0) -> Tensor:
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        fence = torch.full((count + 64,), 12345.0)
        fences.append((fence, count))
        return fence[32 : 32 + count].fill_(value).view(shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", fenced)
        patch.setattr(torch, "zeros", lambda shape: fenced(shape, 0.0))
        cpu.backward(grad, qkv, *cpu.forward(qkv, 0.5), 0.5)
        cpu.sliced_backward(token_grad, tokens, weight, bias, *cpu.sliced_forward(tokens, weight, bias, 0.5), 0.5)
    assert torch.empty is real_empty
    assert len(fences) >= 12
    for fence, count in fences:
        assert bool((fence[:32] == 12345.0).all())
        assert bool((fence[32 + count :] == 12345.0).all())
    for tensor, original in zip(operands, originals, strict=True):
        assert torch.equal(tensor, original)


@pytest.mark.parametrize("factor", [10.0, 100.0, 1000.0])
def test_large_scores(factor: float) -> None:
    """Scores up to 1e4 and beyond: rows with one weight of 1, and rows that need their maximum taken out."""
    q, k, v, grad = inputs(3, 50, 8, 4)
    q = q * factor
    out, *gradients = run(attend, q, k, v, grad, 0.5)
    expected, *expected_gradients = exact(q, k, v, grad, 0.5)
    rounding = float(torch.einsum("bihd,bjhd->bhij", q, k).abs().max()) * 0.5 * 2**-22  # of a score in float32
    assert float((out - expected).abs().max()) <= 2e-6 + 8 * rounding
    for a, e in zip(gradients, expected_gradients, strict=True):
        assert float((a - e).abs().max()) <= (1e-5 + 8 * rounding) * float(e.abs().max())


@pytest.mark.parametrize(("keys", "values", "upstream"), [(1.0, 1e35, 1e-35), (5.0, 1.0, 1e-30)], ids=["huge values", "tiny gradients"])
def test_extreme_sizes(keys: float, values: float, upstream: float) -> None:
    q, k, v, grad = inputs(2, 9, 2, 4)
    given = q, keys * k, values * v, upstream * grad
    for a, e in zip(run(attend, *given, 0.5), exact(*given, 0.5), strict=True):
        torch.testing.assert_close(a.double(), e, rtol=0, atol=1e-5 * float(e.abs().max()))


@pytest.mark.parametrize(("where", "value"), [("q", math.nan), ("k", math.inf), ("v", -math.inf)])
def test_not_finite_inputs_spoil_the_rows_they_spoil_in_the_definition(value: float, where: str) -> None:
    q, k, v, grad = inputs(3, 9, 7, 4)  # 21 pairs: the spoilt one shares its lanes' group with healthy ones
    tensors = {"q": q, "k": k, "v": v}
    tensors[where][1, 4, 2, 3] = value
    out, *gradients = run(attend, q, k, v, grad, 0.5)
    expected, *expected_gradients = run(definition, q, k, v, grad, 0.5)
    assert not bool(expected.isfinite().all())
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())
    finite = expected.isfinite()
    torch.testing.assert_close(out[finite], expected[finite], rtol=0, atol=5e-6)
    for name, a, e in zip("qkv", gradients, expected_gradients, strict=True):
        # Inside the spoilt pair 0 * inf may or may not be met, depending on the order of the products.
        healthy = torch.ones(a.shape, dtype=torch.bool)
        healthy[1, :, 2] = False
        torch.testing.assert_close(a[healthy], e[healthy], rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        assert bool(a[1, :, 2].isnan().any()) == bool(e[1, :, 2].isnan().any())


@pytest.mark.parametrize("tokens", [7, 50])
def test_bitwise_repeatable_and_independent_of_the_neighbours(tokens: int) -> None:
    """A pair's bits do not depend on what else is in the batch, not even when its neighbours need the slower path."""
    q, k, v, grad = inputs(5, tokens, 7, 4)
    everything = run(attend, q, k, v, grad, 0.5)
    for a, e in zip(run(attend, q, k, v, grad, 0.5), everything, strict=True):
        assert torch.equal(a, e)
    for b, h in ((0, 0), (2, 1), (4, 6)):
        alone = [tensor[b : b + 1, :, h : h + 1] for tensor in (q, k, v, grad)]
        for a, e in zip(run(attend, *alone, 0.5), everything, strict=True):
            assert torch.equal(a, e[b : b + 1, :, h : h + 1])
    q, k = q.clone(), k.clone()
    q[1] *= 1000
    k[3, 2] = math.nan
    for a, e in zip(run(attend, q, k, v, grad, 0.5), everything, strict=True):
        for b in (0, 2, 4):
            assert torch.equal(a[b], e[b])


def other_lanes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernel as it is compiled where AVX-512 is and here is not, or the other way round; LLVM splits vectors that are too wide."""
    with monkeypatch.context() as patched:
        patched.setattr(codegen, "get_host_cpu_features", lambda: "" if cpu.WIDE else "+avx512f")
        module = module_from_spec(spec := spec_from_file_location("other_cpu", cpu.__file__))
        patched.setitem(sys.modules, "other_cpu", module)
        spec.loader.exec_module(module)
    module.njit = lambda signature, cache, nogil: njit(signature, nogil=nogil)  # numba's cache takes both for one
    assert {module.LANES, cpu.LANES} == {8, 16}
    return module


@pytest.mark.slow
def test_the_number_of_lanes_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    other = other_lanes(monkeypatch)

    def packed(module: ModuleType, qkv: Tensor, grad: Tensor) -> list[Tensor]:
        out, statistics = module.forward(qkv, 0.5)
        return [out, statistics, module.backward(grad, qkv, out, statistics, 0.5)]

    def sliced(module: ModuleType, x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> list[Tensor]:
        out, statistics = module.sliced_forward(x, weight, bias, 0.5)
        return [out, statistics, *module.sliced_backward(grad, x, weight, bias, out, statistics, 0.5)]

    for batch, tokens, heads, dim in ((17, 50, 1, 4), (2, 197, 8, 4), (3, 7, 7, 3), (1, 2, 3, 8)):
        for factor in (1.0, 30.0):  # with and without the pass that finds the maximum
            qkv, grad = factor * draw(batch, tokens, 3, heads, dim), draw(batch, tokens, heads, dim, seed=1)
            for got, expected in zip(packed(other, qkv, grad), packed(cpu, qkv, grad), strict=True):
                assert torch.equal(got, expected), (batch, tokens, heads, dim, factor)
            x, weight, bias = factor * draw(batch, tokens, heads * dim), draw(3, heads, dim, dim, seed=2), draw(3, heads, dim, seed=3)
            for got, expected in zip(
                sliced(other, x, weight, bias, grad.flatten(2)), sliced(cpu, x, weight, bias, grad.flatten(2)), strict=True
            ):
                assert torch.equal(got, expected), (batch, tokens, heads, dim, factor)


@pytest.mark.parametrize("stacked", [("q", "k", "v"), ("q",), ("k", "v")])
def test_vmap_equals_a_loop(stacked: tuple[str, ...]) -> None:
    seeds, batch = 3, 2
    tensors = {
        name: draw(*((seeds,) if name in stacked else ()), batch, 6, 3, 4, seed=i).requires_grad_()
        for i, name in enumerate(("q", "k", "v"))
    }
    grad = draw(seeds, batch, 6, 3, 4, seed=9)
    in_dims = tuple(0 if name in stacked else None for name in tensors)
    out = torch.func.vmap(lambda q, k, v: attend(q, k, v, scale=0.5), in_dims=in_dims)(*tensors.values())
    gradients = torch.autograd.grad(out, list(tensors.values()), grad)
    expected = torch.stack([attend(*(t[s] if n in stacked else t for n, t in tensors.items()), scale=0.5) for s in range(seeds)])
    assert torch.equal(out, expected)
    for a, e in zip(gradients, torch.autograd.grad(expected, list(tensors.values()), grad), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-6)


def sliced_definition(tokens: Tensor, weight: Tensor, bias: Tensor, *, scale: float) -> Tensor:
    """The projections written out head by head, then the formula."""
    slices = tokens.chunk(weight.shape[1], dim=-1)
    q, k, v = (torch.stack([x @ w.mT + b for x, w, b in zip(slices, *maps, strict=True)], dim=2) for maps in zip(weight, bias, strict=True))
    return definition(q, k, v, scale).flatten(2)


def assert_close_to_exact(operands: list[Tensor], scale: float = 0.5, tolerance: float = 1e-5) -> None:
    actual = run(sliced_attention, *operands, scale)
    expected = run(sliced_definition, *(tensor.double() for tensor in operands), scale)
    assert all(tensor.is_contiguous() for tensor in actual)
    largest = max(float(tensor.abs().max()) for tensor in expected[1:])
    for name, a, e in zip(("out", "tokens", "weight", "bias"), actual, expected, strict=True):
        size = float(e.abs().max()) if name == "out" else largest
        assert float((a - e).abs().max()) <= tolerance * size, name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sliced_equals_the_definition_in_float64(shape: tuple[int, int, int, int]) -> None:
    operands = sliced_inputs(*shape)
    assert fuses_slices(operands[0], shape[-1])
    assert_close_to_exact(operands, scale=shape[-1] ** -0.5)


@pytest.mark.parametrize("factor", [10.0, 300.0])
def test_sliced_with_large_scores(factor: float) -> None:
    """The path that looks for the row's maximum; a score's own rounding, in units of its size, is all that may be lost."""
    tokens, weight, bias, grad = sliced_inputs(3, 50, 8, 4)
    weight, bias = (torch.cat([factor * x[:1], x[1:]]) for x in (weight, bias))
    slices = tokens.unflatten(-1, (8, 4))
    q, k = (torch.einsum("bthi,hoi->bhto", slices, weight[i]) + bias[i][:, None] for i in range(2))
    rounding = float((q @ k.mT).abs().max()) * 0.5 * 2**-22
    assert rounding > 40 * 2**-22
    assert_close_to_exact([tokens, weight, bias, grad], tolerance=1e-5 + 8 * rounding)


@pytest.mark.parametrize("tokens", [7, 50])
def test_sliced_is_bitwise_repeatable_and_independent_of_the_neighbours(tokens: int) -> None:
    """Sums over images apart, a pair's bits are its own; a head's sums do not depend on the other heads."""
    x, weight, bias, grad = sliced_inputs(5, tokens, 7, 4)
    everything = run(sliced_attention, x, weight, bias, grad, 0.5)
    for a, e in zip(run(sliced_attention, x, weight, bias, grad, 0.5), everything, strict=True):
        assert torch.equal(a, e)
    for head in (0, 3, 6):
        own = slice(4 * head, 4 * head + 4)
        alone = x[..., own], weight[:, head : head + 1], bias[:, head : head + 1], grad[..., own]
        out, dx, dweight, dbias = run(sliced_attention, *alone, 0.5)
        assert torch.equal(out, everything[0][..., own])
        assert torch.equal(dx, everything[1][..., own])
        assert torch.equal(dweight[:, 0], everything[2][:, head])
        assert torch.equal(dbias[:, 0], everything[3][:, head])
    spoilt = x.clone()
    spoilt[1] *= 1000
    spoilt[3, 2, 9] = math.nan
    for a, e in zip(run(sliced_attention, spoilt, weight, bias, grad, 0.5)[:2], everything[:2], strict=True):
        for image in (0, 2, 4):
            assert torch.equal(a[image], e[image])


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (None, 0, 0), (1, None, None), (0, 1, None)])
def test_sliced_vmap_equals_a_loop(in_dims: tuple[int | None, ...]) -> None:
    *operands, _ = sliced_inputs(2, 6, 3, 4)
    stacked = [x.clone() if dim is None else torch.stack([x, 2 * x, x - 1], dim=dim) for x, dim in zip(operands, in_dims, strict=True)]
    leaves = [x.requires_grad_() for x in stacked]
    grad = draw(3, 2, 6, 12, seed=9)
    out = torch.func.vmap(lambda *x: sliced_attention(*x, scale=0.5), in_dims=in_dims)(*leaves)
    members = [[x if dim is None else x.select(dim, i) for x, dim in zip(leaves, in_dims, strict=True)] for i in range(3)]
    expected = torch.stack([sliced_attention(*member, scale=0.5) for member in members])
    assert torch.equal(out, expected)
    for a, e in zip(torch.autograd.grad(out, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-6)


@both
def test_many_upstream_gradients_at_once_equal_a_loop(kind: str) -> None:
    """vmap over the backward pass alone, as a Jacobian takes it."""
    function, make = BOTH[kind]
    leaves = [x.detach().requires_grad_() for x in make(2, 6, 3, 4)[:3]]
    out = function(*leaves, scale=0.5)
    grads = draw(5, *out.shape, seed=3)
    actual = torch.autograd.grad(out, leaves, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        for a, e in zip(actual, torch.autograd.grad(out, leaves, grad, retain_graph=True), strict=True):
            assert torch.equal(a[i], e)


@both
def test_second_derivatives_are_refused(kind: str) -> None:
    function, make = BOTH[kind]
    leaves = [x.detach().requires_grad_() for x in make(2, 6, 3, 4)[:3]]
    for outer in (torch.square, torch.clone):  # with and without a path through the upstream gradient
        (dx,) = torch.autograd.grad(outer(function(*leaves, scale=0.5)).sum(), leaves[0], create_graph=True)
        with pytest.raises(RuntimeError, match="no derivative; set LAB_ATTENTION=sdpa"):
            torch.autograd.grad(dx.sum(), leaves[0])


@both
@pytest.mark.parametrize(("batch", "heads"), [(0, 2), (2, 0)])
def test_empty_tensors(kind: str, batch: int, heads: int) -> None:
    function, make = BOTH[kind]
    given = make(batch, 5, heads, 4)
    out, *gradients = run(function, *given, 0.5)
    assert out.shape == given[3].shape
    assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize(
    "change", [lambda x, w, b: (x[..., 1:], w, b), lambda x, w, b: (x, w, b[:, :2]), lambda x, w, b: (x.double(), w, b)]
)
def test_unfit_inputs_are_refused_with_a_sentence(change: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z].*\.$"):
        sliced_attention(*change(*sliced_inputs(2, 3, 3, 4)[:3]), scale=0.5)
    with pytest.raises(ValueError, match=r"^Attention takes [^.]*\.$"):
        attention(torch.zeros(2, 3, 3, 4), scale=0.5)


def test_what_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(tokens: int = 49, head_dim: int = 4, dtype: torch.dtype = torch.float32) -> bool:
        path = attention_path(device="cpu", head_dim=head_dim, tokens=tokens, dtype=dtype)
        both = fuses_slices(torch.zeros(1, tokens, 2 * head_dim, dtype=dtype), head_dim)
        assert path == ("fused-cpu" if both else "sdpa")
        return both

    assert fused()
    assert not fused(head_dim=64)
    assert not fused(tokens=1025)
    assert not fused(dtype=torch.float64)
    assert not fuses_slices(torch.zeros(2, 9, 12, device="meta"), 4)
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    assert not fused()


PROGRAM = """
import torch
from pipeline.kernels import attention, attention_path, why_not_fused
from pipeline.models.dropout import Dropout
x = torch.arange(2 * 5 * 3 * 3 * 3.0).sin().view(2, 5, 3, 3, 3).requires_grad_()
out = attention(x, scale=0.5)
out.square().sum().backward()
torch.manual_seed(0)
dropped = Dropout(0.5)(torch.arange(50.0)).sum().item()
print(attention_path(device="cpu", head_dim=3, tokens=5), out.sum().item(), x.grad.abs().sum().item(), dropped, why_not_fused(3))
"""


def start(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.split(maxsplit=4)


@pytest.mark.long
def test_two_processes_fill_a_fresh_cache_at_once_and_a_damaged_one_is_survived(tmp_path: Path) -> None:
    results = [finish(process) for process in [start(NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]]
    assert results[0] == results[1]
    assert results[0][0] == "fused-cpu"
    compiled = sorted(tmp_path.rglob("*.nbc"))
    assert len(compiled) >= 2
    for file in compiled[::2]:  # the next process reads the others
        file.write_bytes(file.read_bytes()[:100])
    assert finish(start(NUMBA_CACHE_DIR=str(tmp_path))) == results[0]


@pytest.mark.slow
def test_no_place_for_a_cache_is_no_obstacle(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pipeline" / "kernels" / "__pycache__").write_text("a file where numba wants a directory")
    nowhere = str(tmp_path / "pipeline" / "kernels" / "cpu.py" / "cache")  # below a file: cannot be made by anyone
    process = start(PYTHONPATH=str(tmp_path), NUMBA_CACHE_DIR=nowhere, HOME=nowhere, XDG_CACHE_HOME=nowhere, PYTHONSAFEPATH="1")
    assert finish(process)[0] == "fused-cpu"


@pytest.mark.slow
def test_without_a_compiler_the_plain_path_runs_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('Numba needs another NumPy')")
    path, *_, dropped, reason = finish(start(PYTHONPATH=str(tmp_path)))
    assert path == "sdpa"
    torch.manual_seed(0)
    assert float(dropped) == float(Dropout(0.5)(torch.arange(50.0)).sum())
    assert "Numba needs another NumPy" in reason
    path, *_, reason = finish(start(NUMBA_DISABLE_JIT="1"))
    assert path == "sdpa"
    assert "None" not in reason


def test_a_head_dimension_that_does_not_compile_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dim: int, *, sliced: bool) -> None:
        raise RuntimeError(f"no code for {dim}")

    monkeypatch.setattr(small_head_attention.cpu, "prepare", refuse)
    monkeypatch.setattr(small_head_attention, "_prepared", set())
    monkeypatch.setattr(small_head_attention, "_unavailable", {})
    assert attention_path(device="cpu", head_dim=5, tokens=9) == "sdpa"
    assert "no code for 5" in (why_not_fused(5) or "")
    assert not fuses_slices(torch.zeros(2, 9, 10), 5)


def test_the_plain_path_runs_in_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    qkv = torch.randn(4, 2, 7, 3, 3, 4, generator=torch.Generator().manual_seed(0))
    stacked = torch.func.vmap(lambda x: attention(x, scale=0.5))(qkv)
    for s in range(len(qkv)):
        torch.testing.assert_close(stacked[s], attention(qkv[s], scale=0.5), rtol=0, atol=1e-6)
