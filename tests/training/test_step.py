"""Steps with static inputs: what a rehearsal leaves behind, and how a driver is chosen."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.data.datasets import Dataset
from pipeline.params import ModelSettings, Params, VariantSettings
from pipeline.training.classification import Classification, EvaluationStep
from pipeline.training.optimizers import make_optimizer
from pipeline.training.stack import Stack
from pipeline.training.step import GraphDriver, Trace, TrainingStep, batch_sizes, make_driver, rehearse

CPU = torch.device("cpu")
STEPS = 4  # of the whole training


def make(study: Params, seeds: list[int]) -> tuple[Stack, TrainingStep, EvaluationStep, Tensor]:
    settings = ModelSettings.model_validate(study.base.model_dump() | {"patch": 14, "blocks": 1, "dropout": 0.1})
    stack = Stack(settings, seeds, CPU)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (20,), generator=generator)
    total = torch.zeros(len(seeds), dtype=torch.float64)
    optimizer = make_optimizer(study.train, stack.parameters, num_seeds=len(seeds), stacked=len(seeds) > 1, total_steps=STEPS)
    train = study.train.model_copy(update={"batch_size": 8, "augment": "affine"})
    variant = VariantSettings(data=study.data, train=train, model=settings)
    arrays = images.numpy(), labels.numpy().astype(np.uint8)
    learning = Classification(variant, Dataset("random", *arrays, *arrays, digest=""), seeds, stack, make_driver(CPU), CPU)
    training = TrainingStep(stack, optimizer, learning.losses, total, Trace.empty(len(seeds), STEPS, CPU), 8, 20)
    return stack, training, EvaluationStep(stack, images, labels, total, 5), total


@pytest.mark.parametrize("seeds", [[3], [0, 1]])
def test_a_rehearsal_leaves_no_trace(study: Params, seeds: list[int]) -> None:
    """Capturing a graph runs the step a few times: weights, moments, counters of dropout and sums must not show it."""
    results = []
    for rehearsed in (False, True):
        stack, training, evaluation, total = make(study, seeds)
        for step in range(STEPS):  # the last rehearsal counts beyond the end
            stack.train(True)
            if rehearsed:
                rehearse(training)
            training.index.copy_(torch.arange(8 * len(seeds)).view(len(seeds), 8) % 20)
            training()
            if rehearsed and step == 2:
                stack.train(False)
                rehearse(evaluation)
        results.append([tensor.clone() for tensor in training.changed()])
        assert any(bool(tensor.any()) for tensor in results[-1])
        assert bool((total > 0).all())
    for plain, rehearsal in zip(*results, strict=True):
        assert torch.equal(plain, rehearsal)


def test_a_step_that_failed_half_way_leaves_no_gradient(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients left over would be added to the next step's."""
    results = []
    for failing in (False, True):
        stack, training, _, _ = make(study, [0, 1])
        stack.train(False)  # without dropout, whose counter the failed call moves
        if failing:
            with monkeypatch.context() as patch:
                patch.setattr(training._optimizer, "step", lambda: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    training()
            training.discard()
        training()
        results.append([value.clone() for value in stack.state().values()])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("images", "size", "sizes"), [(300, 64, {64, 44}), (128, 64, {64}), (10, 64, {10}), (65, 64, {64, 1})])
def test_batch_sizes_are_those_of_a_split(images: int, size: int, sizes: set[int]) -> None:
    assert batch_sizes(images, size) == sizes == {len(part) for part in torch.arange(images).split(size)}


class Recorder:
    """A GPU on the CPU, as far as a capture needs one: `graph` executes nothing for good, and a replay is the step itself.

    Attributes:
        failure: what a capture raises.
        rounding: what a replay adds to the step's last tensor.
        captures: how many were tried.
    """

    def __init__(self, patch: pytest.MonkeyPatch, step: TrainingStep) -> None:
        self.step, self.captures, self.rounding = step, 0, 0.0
        self.failure: Exception | None = None
        stream = SimpleNamespace(wait_stream=lambda other: None)
        named = {
            "Stream": lambda: stream, "current_stream": lambda: stream, "stream": lambda chosen: nullcontext(), "graph": self.graph,
            "synchronize": lambda: None, "graph_pool_handle": lambda: None, "CUDAGraph": lambda: SimpleNamespace(replay=self.replay),
        }  # fmt: skip
        for name, value in named.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(GraphDriver, "_failed", None)

    @contextmanager
    def graph(self, graph: Any, *, pool: Any, stream: Any) -> Iterator[None]:
        assert not gc.isenabled()
        self.captures += 1
        before = [tensor.clone() for tensor in self.step.changed()]
        yield
        with torch.no_grad():
            for tensor, value in zip(self.step.changed(), before, strict=True):
                tensor.copy_(value)
        if self.failure is not None:
            raise self.failure

    def replay(self) -> None:
        self.step()
        list(self.step.changed())[-1].add_(self.rounding)


@pytest.fixture
def recorded(study: Params, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, TrainingStep, EvaluationStep]:
    stack, training, evaluation, _ = make(study, [0, 1])
    stack.train(True)
    return Recorder(monkeypatch, training), training, evaluation


def test_a_capture_changes_nothing_and_is_replayed(recorded: tuple[Recorder, TrainingStep, EvaluationStep]) -> None:
    recorder, training, _ = recorded
    before = [tensor.clone() for tensor in training.changed()]
    driver = GraphDriver()
    for _ in range(2):
        driver.prepare(training)
    assert (driver.graphs, recorder.captures, gc.isenabled()) == ("captured", 1, True)
    assert (driver.note or "").startswith("Steps run as CUDA graphs, captured in ")
    assert all(torch.equal(a, b) for a, b in zip(training.changed(), before, strict=True))
    recorder.rounding = 1.0
    driver.run(training)
    assert bool((training._total > 1).all())
    driver.stop_graphs()
    driver.prepare(training)
    driver.run(training)
    assert int(training._trace.step) == 2
    assert (driver.graphs, recorder.captures) == ("captured", 1)


@pytest.mark.parametrize(
    ("failure", "rounding", "said"),
    [
        (RuntimeError("operation not permitted\nCompile with"), 0.0, "operation not permitted"),
        (None, 1e-9, "a captured step computes something else than its operations one by one."),
    ],
    ids=["refused", "different"],
)
def test_after_a_failed_capture_there_is_none(
    recorded: tuple[Recorder, TrainingStep, EvaluationStep], failure: Exception | None, rounding: float, said: str
) -> None:
    recorder, training, evaluation = recorded
    recorder.failure, recorder.rounding = failure, rounding
    before = [tensor.clone() for tensor in training.changed()]
    driver = GraphDriver()
    driver.prepare(training)
    assert all(torch.equal(a, b) for a, b in zip(training.changed(), before, strict=True))
    assert all(parameter.grad is None for parameter in training._stack.parameters)
    recorder.failure, recorder.rounding = ValueError("of the allocator"), 0.0
    driver.prepare(evaluation)
    other = GraphDriver()
    other.prepare(training)
    for one in (driver, other):
        assert (one.graphs, one.note) == ("none", f"No CUDA graph, every operation is launched by itself: RuntimeError: {said}")
    assert (recorder.captures, gc.isenabled()) == (1, True)
    driver.run(training)
    assert int(training._trace.step) == 1


def test_a_capture_without_memory_is_not_the_graphs_fault(recorded: tuple[Recorder, TrainingStep, EvaluationStep]) -> None:
    recorder, training, _ = recorded
    recorder.failure = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")
    with pytest.raises(torch.OutOfMemoryError):
        GraphDriver().prepare(training)
    assert GraphDriver._failed is None
