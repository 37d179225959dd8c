"""The GPU's attention kernel: its logic on CPU tensors with Triton's interpreter, and, marked cuda, the compiled kernel on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.kernels import attention, attention_path, small_head_attention, why_not_fused
from pipeline.models import attention_kernel
from pipeline.params import Params
from tests.helpers import ROOT

SHAPES = [
    (1, 1, 1, 2),
    (2, 2, 3, 3),
    (3, 49, 8, 4),
    (5, 50, 8, 4),
    (17, 5, 7, 4),
    (1, 197, 8, 4),
    (2, 50, 2, 8),
    (1, 50, 3, 16),
    (1, 9, 2, 32),
]

# Whether triton interprets is settled when it is imported, so the checks run in a process of their own.
INTERPRETED = """
import math, sys, torch
from pipeline.kernels import cuda

def exact(q, k, v, grad, scale):
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", *leaves[:2]) * scale, -1)
    out = torch.einsum("bhij,bjhd->bihd", weights, leaves[2])
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]

def run(q, k, v, grad, scale):
    out, statistics = cuda.forward(q, k, v, scale)
    return [out, *cuda.backward(grad, q, k, v, out, statistics, scale)]

def draw(batch, tokens, heads, dim, dtype=torch.float32):
    torch.manual_seed(0)
    return [*torch.randn(batch, tokens, 3, heads, dim).to(dtype).unbind(2), torch.randn(batch, tokens, heads, dim).to(dtype)]

def close(actual, expected, tolerance):
    largest = max(float(x.abs().max()) for x in expected)
    for a, e in zip(actual, expected):
        assert float((a - e).abs().max()) <= tolerance * largest, float((a - e).abs().max()) / largest

def equals_the_definition(*shape):
    inputs = draw(*shape)
    actual = run(*inputs, shape[-1] ** -0.5)
    close(actual, exact(*inputs, shape[-1] ** -0.5), 1e-6)
    assert all(x.is_contiguous() for x in actual)
"""
CASES = {
    "the base's heads": """
equals_the_definition(2, 9, 2, 4)
""",
    "shapes": """
for shape in [(1, 1, 1, 2), (3, 7, 3, 3), (1, 5, 3, 6), (1, 3, 2, 8), (1, 2, 1, 16), (1, 2, 1, 32)]:
    equals_the_definition(*shape)
""",
    "extreme scores": """
for factor in (100.0, 10000.0):
    q, k, v, grad = draw(2, 9, 2, 4)
    q = q * factor
    size = float(torch.einsum("bihd,bjhd->bhij", q, k).abs().max()) * 0.5
    close(run(q, k, v, grad, 0.5), exact(q, k, v, grad, 0.5), 2e-6 + size * 2**-20)
same = torch.full((1, 7, 2, 4), 100.0)
out = cuda.forward(same, same, v[:1, :7], 0.5)[0]
torch.testing.assert_close(out, v[:1, :7].mean(1, keepdim=True).expand_as(out), rtol=0, atol=1e-6)
""",
    "layouts": """
inputs = [x.contiguous() for x in draw(3, 6, 2, 4)]
expected = run(*inputs, 0.5)
for change in (
    lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    lambda x: x.repeat_interleave(2, -1)[..., ::2],
    lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
):
    for a, e in zip(run(*(change(x) for x in inputs), 0.5), expected):
        assert torch.equal(a, e)
q, k, v, grad = (x[:, :, :1].expand(3, 6, 2, 4) for x in inputs)
for a, e in zip(run(q, k, v, grad, 0.5), run(*(x.contiguous() for x in (q, k, v, grad)), 0.5)):
    assert torch.equal(a, e)
""",
    "not finite": """
values = (math.nan, math.inf, -math.inf)  # each in an image of its own
clean = run(*draw(4, 6, 2, 4), 0.5)
for where in range(4):
    inputs = [x.clone() for x in draw(4, 6, 2, 4)]
    for image, value in enumerate(values):
        inputs[where][image, 4, 1, 3] = value
    actual, expected = run(*inputs, 0.5), exact(*inputs, 0.5)
    assert torch.equal(actual[0].isnan(), expected[0].isnan()), where
    assert torch.equal(actual[0].isinf(), expected[0].isinf()), where
    for a, e, c in zip(actual, expected, clean):
        healthy = torch.ones(a.shape, dtype=torch.bool)
        healthy[: len(values), :, 1] = False
        assert torch.equal(a[healthy], c[healthy])  # the neighbours' bits do not change
        for image, value in enumerate(values):
            assert bool(a[image].isnan().any()) == bool(e[image].isnan().any()), (where, value)
""",
    "bfloat16": """
inputs = draw(2, 9, 2, 4, torch.bfloat16)
actual = run(*inputs, 0.5)
assert {x.dtype for x in actual} == {torch.bfloat16}
assert cuda.forward(*inputs[:3], 0.5)[1].dtype == torch.float32
close([x.double() for x in actual], exact(*inputs, 0.5), 2**-7)
""",
    "nothing is written beside the results": """
q, k, v, grad = draw(3, 5, 1, 3)
fences = []
plain = torch.Tensor.new_empty
def fenced(like, shape, **options):
    if "device" in options:  # the interpreter's own
        return plain(like, shape, **options)
    fence = torch.full((math.prod(shape) + 64,), 12345.0)
    fences.append(fence)
    return fence[32:-32].view(shape)
torch.Tensor.new_empty = fenced
out, statistics = cuda.forward(q, k, v, 0.5)
cuda.backward(grad, q, k, v, out, statistics, 0.5)
torch.Tensor.new_empty = plain
assert len(fences) == 5
for fence in fences:
    assert bool((fence[:32] == 12345.0).all()) and bool((fence[-32:] == 12345.0).all())
    assert not bool((fence[32:-32] == 12345.0).any())
""",
    "self-check": """
cpu = torch.device("cpu")
for dim, dtype in ((4, torch.float32), (3, torch.float32), (16, torch.bfloat16)):
    assert cuda.self_check(dim, dtype, cpu) is None, (dim, dtype, cuda.self_check(dim, dtype, cpu))
inputs = [x.double() for x in draw(2, 5, 3, 4)]
for a, e in zip(cuda._formula(inputs, 0.5), exact(*inputs, 0.5)):
    torch.testing.assert_close(a, e)
forward, backward = cuda.forward, cuda.backward
cuda.forward = lambda *inputs: (forward(*inputs)[0] + 1e-5, forward(*inputs)[1])
assert "its output is up to 1e-05 from the formula's, more than 2e-06" in cuda.self_check(4, torch.float32, cpu)
cuda.forward, cuda.backward = forward, lambda *inputs: [*backward(*inputs)[:2], backward(*inputs)[2] * float("nan")]
assert "its gradient of the values is up to nan" in cuda.self_check(4, torch.float32, cpu)
cuda.backward = backward
torch.func.vmap(lambda x: x * (cuda.self_check(4, torch.float32, cpu) is None))(torch.ones(2))
""",
    "empty": """
x = torch.zeros(0, 5, 2, 4)
assert [y.shape for y in run(x, x, x, x, 0.5)] == [x.shape] * 4
""",
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("names", [list(CASES)[:1], pytest.param(list(CASES)[1:], marks=pytest.mark.long)], ids=["base", "others"])
def test_interpreted(names: list[str]) -> None:
    """Several cases in one process, which says each one's name, because a start of torch and triton takes longer than most cases."""
    program = INTERPRETED + "".join(f"print({name!r})\n{CASES[name]}" for name in names)
    process = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::RuntimeWarning", "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, f"{process.stdout}{process.stderr}"
    assert process.stdout.splitlines() == names


def test_without_a_gpu_the_plain_path_is_chosen_and_says_why() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert attention_path(device="cuda", head_dim=4, tokens=50) == "sdpa"
    assert why_not_fused(4, "cuda")


def test_without_triton_the_reason_is_given(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('no triton for this Python')")
    program = (
        "from pipeline.kernels import attention_path as p, why_not_fused as w; print(p(device='cuda', head_dim=4, tokens=9), w(4, 'cuda'))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout.startswith("sdpa triton cannot be used: ImportError: no triton for this Python")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "fused-cuda"),
        ("the kernel computes something else", "sdpa: the kernel computes something else"),
        (
            RuntimeError("Failed to find C compiler.\nPlease specify"),
            "sdpa: the kernel cannot be compiled or launched here: RuntimeError: Failed to find C compiler.",
        ),
    ],
    ids=["right", "wrong", "no compiler"],
)
def test_the_self_check_decides_once(monkeypatch: pytest.MonkeyPatch, study: Params, found: str | Exception | None, said: str) -> None:
    cuda = pytest.importorskip("pipeline.kernels.cuda")
    asked = []

    def self_check(*case: object) -> str | None:
        asked.append(case)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cuda, "self_check", self_check)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    small_head_attention._why_not_cuda.cache_clear()
    try:
        with monkeypatch.context() as patch:  # of a process that starts once more without the kernel
            patch.setenv("LAB_ATTENTION", "sdpa")
            assert attention_kernel(study.base, "cuda") == "sdpa"
        assert not asked
        assert [attention_kernel(study.base, "cuda") for _ in range(2)] == [said] * 2
    finally:
        small_head_attention._why_not_cuda.cache_clear()
    assert asked == [(4, torch.float32, torch.device("cuda"))]


def test_the_plain_path_runs_in_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    qkv = torch.randn(4, 2, 7, 3, 3, 4, generator=torch.Generator().manual_seed(0))
    stacked = torch.func.vmap(lambda x: attention(x, scale=0.5))(qkv)
    for s in range(len(qkv)):
        torch.testing.assert_close(stacked[s], attention(qkv[s], scale=0.5), rtol=0, atol=1e-6)


def inputs(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch, tokens, heads, dim = shape
    qkv = torch.randn(batch, tokens, 3, heads, dim, generator=generator).to("cuda", dtype)
    return [*qkv.unbind(2), torch.randn(shape, generator=generator).to("cuda", dtype)]


def run(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: float) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(torch.stack(leaves, dim=2), scale=scale)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def definition(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: float) -> list[Tensor]:
    """The formula in float64."""
    leaves = [x.double().detach().requires_grad_() for x in (q, k, v)]
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", *leaves[:2]) * scale, -1)
    out = torch.einsum("bhij,bjhd->bihd", weights, leaves[2])
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_definition_in_float64_on_a_gpu(shape: tuple[int, int, int, int]) -> None:
    assert attention_path(device="cuda", head_dim=shape[3], tokens=shape[1]) == "fused-cuda"
    case, scale = inputs(shape), shape[3] ** -0.5
    actual, expected = run(*case, scale), definition(*case, scale)
    largest = max(float(x.abs().max()) for x in expected[1:])
    assert float((actual[0] - expected[0]).abs().max()) <= 2e-6
    for a, e in zip(actual[1:], expected[1:], strict=True):
        assert float((a - e).abs().max()) <= 1e-5 * largest
    for a, e in zip(run(*case, scale), actual, strict=True):
        assert torch.equal(a, e)  # bitwise repeatable


@pytest.mark.cuda
def test_bfloat16_extreme_scores_and_nan_on_a_gpu() -> None:
    case = inputs((3, 50, 8, 4), torch.bfloat16)
    for a, e in zip(run(*case, 0.5), definition(*case, 0.5), strict=True):
        assert float((a - e).abs().max()) <= 2**-6 * float(e.abs().max())
    q, k, v, grad = inputs((3, 50, 8, 4))
    rounding = float(torch.einsum("bihd,bjhd->bhij", 1000 * q, k).abs().max()) * 0.5 * 2**-22
    for a, e in zip(run(1000 * q, k, v, grad, 0.5), definition(1000 * q, k, v, grad, 0.5), strict=True):
        assert float((a - e).abs().max()) <= (1e-5 + 8 * rounding) * float(e.abs().max())
    q[1, 4, 2, 3] = float("nan")
    actual, expected = run(q, k, v, grad, 0.5), definition(q, k, v, grad, 0.5)
    assert torch.equal(actual[0].isnan(), expected[0].isnan())


@pytest.mark.cuda
def test_layouts_and_stacks_on_a_gpu() -> None:
    q, k, v, grad = (x.contiguous() for x in inputs((6, 50, 8, 4)))
    expected = run(q, k, v, grad, 0.5)
    qkv = torch.stack((q, k, v), dim=2)
    other = qkv.transpose(1, 3).contiguous().transpose(1, 3).requires_grad_()
    out = attention(other, scale=0.5)
    assert torch.equal(out, expected[0])
    (gradient,) = torch.autograd.grad(out, other, grad.transpose(1, 2).contiguous().transpose(1, 2))
    assert torch.equal(gradient, torch.stack(expected[1:], dim=2))
    leaves = [x.unflatten(0, (3, 2)).detach().requires_grad_() for x in (q, k, v)]
    out = torch.func.vmap(lambda *x: attention(torch.stack(x, dim=2), scale=0.5))(*leaves)
    assert torch.equal(out.flatten(0, 1), expected[0])
    for a, e in zip(torch.autograd.grad(out, leaves, grad.unflatten(0, (3, 2))), expected[1:], strict=True):
        assert torch.equal(a.flatten(0, 1), e)


@pytest.mark.cuda
def test_no_matrix_of_weights_is_stored() -> None:
    case = inputs((64, 256, 8, 4))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(*case, 0.5)
    assert torch.cuda.max_memory_allocated() - before < 12 * case[0].numel() * 4  # the weights would be 64 times q's size
    torch.testing.assert_close(run(*case, 0.5)[0], definition(*case, 0.5)[0].float(), rtol=0, atol=2e-6)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")  # opcheck's own
def test_opcheck_on_a_gpu() -> None:
    q, k, v, _ = inputs((2, 6, 3, 4))
    torch.library.opcheck(torch.ops.lab.small_head_attention, (torch.stack((q, k, v), dim=2).requires_grad_(), 0.5))
