"""Measures of a training's trace: the loss of every step to the 500th, then of each tenth (`runner/seeds.py`).

So a spike between two recorded steps is not seen, and a window of recorded steps is ten times as long after the 500th.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pipeline.measures.definitions import FloatArray

SPIKE_STEPS = 50  # recorded ones, whose median a spike stands out from
SPIKE_HEIGHT = 1.0  # nats
REACHED_LOSS = 0.5  # nats
REACHED_STEPS = 20  # recorded ones; the loss of a single batch scatters too much


def loss_spikes(loss: FloatArray) -> int:
    """How many steps have a loss that exceeds the median of the `SPIKE_STEPS` steps before by more than `SPIKE_HEIGHT`.

    The first `SPIKE_STEPS` steps are compared with nothing: Adam's second step is often worse than its first, which is no spike out of a
    level. A loss that is not finite is a spike wherever it stands.

    Args:
        loss: (step,), of the recorded steps in order.
    """
    loss = np.where(np.isfinite(loss), np.asarray(loss, dtype=np.float64), np.inf)
    spikes = int(np.isinf(loss).sum())
    if len(loss) > SPIKE_STEPS:
        before, later = np.median(sliding_window_view(loss, SPIKE_STEPS)[:-1], axis=1), loss[SPIKE_STEPS:]
        spikes += int((np.isfinite(later) & (later > before + SPIKE_HEIGHT)).sum())
    return spikes


def steps_to_loss(step: FloatArray, loss: FloatArray, num_steps: int) -> int:
    """The first step at which the mean over the last `REACHED_STEPS` recorded losses is `REACHED_LOSS` or less.

    A training that never reaches it has the value `num_steps` + 1. That value is censored: the training would have taken at least so
    long.

    Args:
        step, loss: (recorded steps,) in order, steps counted from 1.
        num_steps: of the whole training.
    """
    if len(loss) < REACHED_STEPS:
        return num_steps + 1
    reached = sliding_window_view(np.asarray(loss, dtype=np.float64), REACHED_STEPS).mean(axis=1) <= REACHED_LOSS
    return int(step[REACHED_STEPS - 1 + int(reached.argmax())]) if reached.any() else num_steps + 1
