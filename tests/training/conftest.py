"""A trainer small enough to run in a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.data.datasets import Dataset
from pipeline.params import DataSettings, ModelSettings, Params, VariantSettings
from pipeline.training.engine import Trainer


@pytest.fixture
def tiny_settings(study: Params) -> Callable[..., VariantSettings]:
    """Settings of a one-block network with dropout, 4 epochs of 3 steps; keywords change how it is trained."""

    def make(**train: Any) -> VariantSettings:
        own = {"seeds": (0, 1), "epochs": 4, "batch_size": 40, "learning_rate": 0.005, **train}
        return VariantSettings(
            data=DataSettings(dataset="digits"),
            train=study.train.model_copy(update=own),
            model=ModelSettings.model_validate(study.base.model_dump() | {"patch": 14, "blocks": 1, "dropout": 0.1}),
        )

    return make


@pytest.fixture
def tiny_trainer(tiny_settings: Callable[..., VariantSettings], one_thread: None) -> Callable[..., Trainer]:
    """A new trainer of seeds on 96 images of noise; keywords change how it is trained."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (96, 28, 28)).astype(np.uint8), rng.integers(0, 10, 96).astype(np.uint8)
    dataset = Dataset("noise", images, labels, images[:32], labels[:32], digest="0" * 64)

    def make(seeds: Sequence[int] = (0, 1), **train: Any) -> Trainer:
        return Trainer(tiny_settings(seeds=tuple(seeds), **train), dataset, list(seeds), torch.device("cpu"))

    return make
