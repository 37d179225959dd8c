"""Steps with static inputs: what a rehearsal and a failure leave behind."""

from collections.abc import Callable

import pytest
import torch

from pipeline.training.classification import EvaluationStep
from pipeline.training.engine import Trainer
from pipeline.training.step import batch_sizes, rehearse


@pytest.mark.parametrize("seeds", [[3], [0, 1]])
def test_a_rehearsal_leaves_no_trace(tiny_trainer: Callable[..., Trainer], seeds: list[int]) -> None:
    """Capturing a graph runs the step a few times: weights, moments, counters of dropout and sums must not show it."""
    results = []
    for rehearsed in (False, True):
        trainer = tiny_trainer(seeds, epochs=1, batch_size=24, augment="affine")
        training, learning = trainer._steps[24], trainer.learning
        evaluation = EvaluationStep(trainer.stack, learning._test_images, learning._test_labels, trainer._total, 5)
        for step in range(trainer.num_steps):  # the last rehearsal counts beyond the end
            trainer.stack.train(True)
            if rehearsed:
                rehearse(training)
            training.index.copy_(torch.arange(24 * len(seeds)).view(len(seeds), 24))
            training()
            if rehearsed and step == 2:
                trainer.stack.train(False)
                rehearse(evaluation)
        results.append([tensor.clone() for tensor in training.changed()])
        assert any(bool(tensor.any()) for tensor in results[-1])
        assert bool((trainer._total > 0).all())
    assert all(map(torch.equal, *results))


def test_a_step_that_failed_half_way_leaves_no_gradient(tiny_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients left over would be added to the next step's."""
    trainer = tiny_trainer([0, 1])
    training = trainer._steps[40]
    monkeypatch.setattr(training._optimizer, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        training()
    assert all(parameter.grad is not None for parameter in trainer.stack.parameters)
    training.discard()
    assert all(parameter.grad is None for parameter in trainer.stack.parameters)


def test_batch_sizes_are_those_of_a_split() -> None:
    for images, size in ((300, 64), (128, 64), (10, 64), (65, 64)):
        assert batch_sizes(images, size) == {len(part) for part in torch.arange(images).split(size)}
