"""Self-critical training: numbers worked out by hand, and that the expected gradient is that of the expected reward."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.captioning.self_critical import advantages, self_critical_losses


def test_advantages_are_over_the_mean_of_a_scenes_samples() -> None:
    result = advantages(np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]]))
    assert result.tolist() == [[-2, -1, 3], [0, 0, 0]]


def test_loss_by_hand_with_what_lies_behind_the_end() -> None:
    log_probabilities = torch.tensor([[[-1.0, -2.0, -torch.inf], [-3.0, -4.0, -5.0]]], requires_grad=True)
    mask = torch.tensor([[[True, True, False], [True, False, False]]])
    better = torch.tensor([[0.5, -0.5]], requires_grad=True)
    loss = self_critical_losses(log_probabilities, mask, better).mean()
    assert loss.item() == -(0.5 * -3 + -0.5 * -3) / 2 == 0
    loss.backward()
    assert log_probabilities.grad is not None
    assert log_probabilities.grad.tolist() == [[[-0.25, -0.25, 0], [0.25, 0, 0]]]
    assert better.grad is None


def test_gradient_is_that_of_the_expected_reward() -> None:
    # All pairs of samples from three captions of one word, each weighted by its probability, stand for infinitely many scenes. A
    # baseline that contains the sample itself takes 1/k off the gradient, here a half.
    logits = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([4.0, 1.0, 2.5], dtype=torch.float64)
    p = logits.softmax(0)
    (expected,) = torch.autograd.grad((p * reward).sum(), logits, retain_graph=True)
    total = torch.zeros(3, dtype=torch.float64)
    for first in range(3):
        for second in range(3):
            pair = torch.tensor([[first, second]])
            better = torch.from_numpy(advantages(reward[pair].numpy()))
            loss = self_critical_losses(p.log()[pair][..., None], torch.ones(1, 2, 1, dtype=torch.bool), better).mean()
            total += (p[first] * p[second]).detach() * torch.autograd.grad(loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(-total, expected / 2)
