"""Optimisers against torch.optim, stacks against single models, and what a captured step must not do."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.params import Params, TrainSettings
from pipeline.training import schedules
from pipeline.training.optimizers import Optimizer, make_optimizer

SHAPES = [(33, 17), (7,), (2, 3, 5), ()]
STEPS = 20
OPTIONS: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "adam", "beta2": 0.98, "weight_decay": 0.05, "schedule": "cosine", "warmup": 0.2},
    {"optimizer": "radam"},
    {"optimizer": "radam", "weight_decay": 0.05, "clip_norm": 20.0, "schedule": "noam", "warmup": 0.2, "beta2": 0.9},
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 20.0, "schedule": "linear"},
]


def train(study: Params, **options: Any) -> TrainSettings:
    return TrainSettings.model_validate(study.train.model_dump() | {"learning_rate": 0.005} | options)


def weights(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(seed: int, step: int) -> list[Tensor]:
    """Norms from about 5 to 50, so that a bound of 20 clips some steps and some seeds."""
    generator = torch.Generator().manual_seed(1000 * seed + step + 1)
    size = 10 ** float(torch.rand((), generator=generator) - 0.7)
    return [size * torch.randn(shape, generator=generator) for shape in SHAPES]


class Run:
    """One optimiser on one model, or on a stack."""

    def __init__(self, settings: TrainSettings, seeds: Sequence[int], *, stacked: bool, device: str = "cpu") -> None:
        self.seeds, self.stacked = list(seeds), stacked
        self.parameters = [tensor.to(device).requires_grad_() for tensor in self._joined(weights)]
        self.optimizer: Optimizer = make_optimizer(settings, self.parameters, num_seeds=len(self.seeds), stacked=stacked, total_steps=STEPS)

    def _joined(self, make: Callable[[int], list[Tensor]]) -> list[Tensor]:
        models = [make(seed) for seed in self.seeds]
        return [torch.stack(tensors) for tensors in zip(*models, strict=True)] if self.stacked else models[0]

    def step(self, number: int, make: Callable[[int, int], list[Tensor]] = gradients) -> Tensor:
        for parameter, gradient in zip(self.parameters, self._joined(lambda seed: make(seed, number)), strict=True):
            parameter.grad = gradient.to(parameter.device)
        norm = self.optimizer.step()
        assert norm.shape == (len(self.seeds),)
        assert norm.dtype == torch.float32
        assert all(parameter.grad is None for parameter in self.parameters)
        return norm.cpu()

    def of(self, seed: int) -> list[Tensor]:
        return [parameter.detach()[self.seeds.index(seed)] if self.stacked else parameter.detach() for parameter in self.parameters]


def torchs(settings: TrainSettings, make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights of seed 3 after all steps of an optimiser of torch's, and the norms before clipping."""
    parameters = [tensor.requires_grad_() for tensor in weights(3)]
    optimizer = make(parameters)
    norms = []
    for number, rate in enumerate(schedules.learning_rates(settings, STEPS).tolist()):
        for parameter, gradient in zip(parameters, gradients(3, number), strict=True):
            parameter.grad = gradient
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm or math.inf))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return [parameter.detach() for parameter in parameters], norms


def reference(settings: TrainSettings, *, fused: bool) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    decay, betas = settings.weight_decay, (0.9, settings.beta2)
    if settings.optimizer == "adam":
        # AdamW without decay is Adam.
        adam: Any = torch.optim.AdamW if decay else torch.optim.Adam
        return lambda p: adam(p, weight_decay=decay, betas=betas, fused=fused)
    if settings.optimizer == "radam":
        return lambda p: torch.optim.RAdam(p, weight_decay=decay, betas=betas, decoupled_weight_decay=True)
    return lambda p: torch.optim.SGD(p, momentum=settings.momentum, weight_decay=decay, fused=fused)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_is_torchs_alone_and_in_a_stack_and_changes_its_state_in_place(study: Params, options: dict[str, Any]) -> None:
    settings = train(study, **options)
    alone, stack = Run(settings, [3], stacked=False), Run(settings, [1, 3, 4], stacked=True)
    places = {name: tensor.data_ptr() for name, tensor in alone.optimizer.state().items()}
    norms = torch.stack([torch.cat([alone.step(number), stack.step(number)[1:2]]) for number in range(STEPS)])
    expected, expected_norms = torchs(settings, reference(settings, fused=False))
    for run, norm in ((alone, norms[:, 0]), (stack, norms[:, 1])):
        torch.testing.assert_close(norm, torch.stack(expected_norms))
        for a, b, before in zip(run.of(3), expected, weights(3), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
            assert not torch.equal(a, before)
    if settings.optimizer != "radam" and settings.clip_norm is None:  # the rate is a tensor here and a number there
        assert all(map(torch.equal, alone.of(3), torchs(settings, reference(settings, fused=True))[0]))
    assert settings.clip_norm is None or len((norms > settings.clip_norm).unique()) == 2
    alone.optimizer.load({name: tensor.clone() for name, tensor in alone.optimizer.state().items()})
    # A captured step goes on with the tensors it was captured with.
    assert {name: tensor.data_ptr() for name, tensor in alone.optimizer.state().items()} == places
    assert int(alone.optimizer.state()["step"]) == STEPS


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_not_finite_stays_with_its_seed(study: Params, options: dict[str, Any]) -> None:
    settings = train(study, **options)
    for wrong in (math.nan, math.inf):

        def broken(seed: int, step: int, wrong: float = wrong) -> list[Tensor]:
            result = gradients(seed, step)
            if seed == 0 and step == 2:
                result[0][5, 5] = wrong
            return result

        healthy, ill = Run(settings, [0, 1, 2], stacked=True), Run(settings, [0, 1, 2], stacked=True)
        for number in range(6):
            expected, norm = healthy.step(number), ill.step(number, broken)
            assert torch.equal(norm[1:], expected[1:])
            assert bool(norm[0].isfinite()) == (number != 2)
        assert not all(bool(tensor.isfinite().all()) for tensor in ill.of(0))
        assert all(torch.equal(a, b) for seed in (1, 2) for a, b in zip(ill.of(seed), healthy.of(seed), strict=True))


def test_a_large_gradient_is_clipped_although_its_square_is_none(study: Params) -> None:
    """1e25 is a float32, its square is not: the norm is still right, and the update points along the gradient."""
    settings = train(study, optimizer="sgd", clip_norm=1.0, learning_rate=1.0)
    run = Run(settings, [3], stacked=False)
    norm = run.step(0, lambda seed, step: [1e25 * gradient for gradient in gradients(seed, step)])
    exact = torch.cat([gradient.flatten().double() for gradient in gradients(3, 0)])
    assert float(norm) == pytest.approx(1e25 * float(exact.norm()), rel=1e-6)
    moved = torch.cat([(b - a).flatten() for a, b in zip(run.of(3), weights(3), strict=True)])
    torch.testing.assert_close(moved.double(), exact / exact.norm(), rtol=0, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("stacked", [False, True])
def test_a_captured_step_follows_the_cpu_through_the_schedule(study: Params, options: dict[str, Any], stacked: bool) -> None:
    settings, seeds = train(study, **options), [3, 1] if stacked else [3]
    cpu, gpu = Run(settings, seeds, stacked=stacked), Run(settings, seeds, stacked=stacked, device="cuda")
    fed = [torch.zeros_like(parameter) for parameter in gpu.parameters]

    def step() -> Tensor:
        for parameter, gradient in zip(gpu.parameters, fed, strict=True):
            parameter.grad = gradient.clone()
        return gpu.optimizer.step()

    held = [*gpu.parameters, *gpu.optimizer.state().values()]
    before = [tensor.detach().clone() for tensor in held]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())  # which still makes the copies above
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    with torch.no_grad():
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    for number in range(STEPS):
        norm = cpu.step(number)
        for target, gradient in zip(fed, cpu._joined(lambda seed, number=number: gradients(seed, number)), strict=True):
            target.copy_(gradient)
        graph.replay()
        torch.testing.assert_close(captured.cpu(), norm)
    for a, b in zip(gpu.parameters, cpu.parameters, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-5, atol=2e-6)
