"""Spikes and steps of traces that are made up to be counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.measures.traces import loss_spikes, steps_to_loss


def test_spikes_are_counted_above_the_median_before_them() -> None:
    loss = np.ones(300)
    loss[[50, 120, 121, 250]] = [2.5, 2.01, 1.99, 9.0]
    assert loss_spikes(loss) == 3
    loss[49] = 9.0  # of the first 50 steps none has 50 before it
    assert loss_spikes(loss) == 3
    assert loss_spikes(np.array([1.0, 2.5, 1.0])) == 0


def test_a_higher_level_is_a_spike_until_it_is_half_of_the_window() -> None:
    assert loss_spikes(np.array([1.0] * 100 + [3.0] * 100)) == 25


def test_every_loss_that_is_not_finite_is_a_spike() -> None:
    assert loss_spikes(np.array([1.0, math.inf, 1.0, *[math.nan] * 60])) == 61


def test_steps_to_a_loss_by_hand() -> None:
    """From 2 to 0 at step 100: the mean of 20 falls to 0.5 once 15 of them are 0, at step 114."""
    step, loss = np.arange(1, 301), np.where(np.arange(1, 301) < 100, 2.0, 0.0)
    assert steps_to_loss(step, loss, 300) == 114
    # Thinned to each tenth step from the 100th on, the fifteenth recorded zero is that of step 240.
    kept = (step <= 100) | (step % 10 == 0)
    assert steps_to_loss(step[kept], loss[kept], 300) == 240
    assert steps_to_loss(step, np.full(300, 0.5), 300) == 20  # the first full window


@pytest.mark.parametrize("loss", [np.full(300, 0.51), np.full(300, math.nan), np.zeros(19)])
def test_a_loss_that_is_never_reached_is_censored_after_the_last_step(loss: np.ndarray) -> None:
    assert steps_to_loss(np.arange(1, len(loss) + 1), loss, 300) == 301
