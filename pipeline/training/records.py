"""The record of a training: one row per seed and epoch."""

from __future__ import annotations

from typing import NamedTuple


class EpochRow(NamedTuple):
    """One epoch of one seed.

    Attributes:
        epoch: counted from 1.
        train_loss: mean cross-entropy (nats) over the epoch's training images, each before the update of its own batch.
        test_loss: mean cross-entropy (nats) over the test images after the epoch.
        test_accuracy: fraction of the test images.
        gradient_norm: L2 norm of the seed's gradient over all its weights, before clipping; mean over the epoch's steps.
        seconds: wall time of the epoch's training, without test and checkpoint; of the whole stack if seeds share one.
    """

    seed: int
    epoch: int
    train_loss: float
    test_loss: float
    test_accuracy: float
    gradient_norm: float
    seconds: float
