"""Steps with static inputs: what a rehearsal leaves behind, and how a driver is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.data.datasets import Dataset
from pipeline.params import Params, VariantSettings
from pipeline.training.classification import Classification, EvaluationStep
from pipeline.training.optimizers import make_optimizer
from pipeline.training.stack import Stack
from pipeline.training.step import Trace, TrainingStep, batch_sizes, make_driver, rehearse

CPU = torch.device("cpu")
STEPS = 4  # of the whole training


def make(study: Params, seeds: list[int]) -> tuple[Stack, TrainingStep, EvaluationStep, Tensor]:
    settings = study.base.changed({"patch": 14, "blocks": 1, "dropout": 0.1})
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


def test_batch_sizes_are_those_of_a_split() -> None:
    for images, size in ((300, 64), (128, 64), (10, 64), (65, 64)):
        assert batch_sizes(images, size) == {len(part) for part in torch.arange(images).split(size)}
