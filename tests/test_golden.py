"""One tiny run with its numbers written down: a change of any of them is a change of what the laboratory computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.data.datasets import load
from pipeline.params import DataSettings, Params, VariantSettings
from pipeline.training.engine import Trainer, set_reproducible
from tests.helpers import finish

# (train loss, test loss) of epochs 1 to 3: the published configuration with patches of 7 on scikit-learn's digits, seed 0.
# Five digits hold on every processor; the last bits depend on its vector width.
EXPECTED = [(2.387268, 2.286501), (2.238690, 2.064643), (1.536093, 1.060086)]


def test_losses_of_the_golden_run(arrays: Path, study: Params) -> None:
    set_reproducible(torch.device("cpu"))
    settings = VariantSettings(
        data=DataSettings(dataset="digits"),
        train=study.train.model_copy(update={"seeds": (0,), "epochs": 3, "batch_size": 64, "learning_rate": 0.005}),
        model=study.resolve("patch-7").model,
    )
    trainer = Trainer(settings, load(arrays), [0], torch.device("cpu"))
    finish(trainer)
    assert [(row.train_loss, row.test_loss) for row in trainer.rows] == [pytest.approx(pair, rel=1e-4) for pair in EXPECTED]
