"""Gradients at what is carried from row to row are those of torch's own layers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipeline.evaluation import recurrence
from pipeline.models import build
from pipeline.params import BaselineSettings


def made(architecture: str) -> nn.Module:
    torch.manual_seed(1)
    return build(BaselineSettings.model_validate({"architecture": architecture, "widths": [6]}))


def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.integers(0, 256, (5, 28, 28), dtype=np.uint8), rng.integers(0, 10, 5, dtype=np.uint8)


@pytest.mark.parametrize("architecture", ["rnn", "lstm"])
def test_gradients_are_torchs_own(architecture: str) -> None:
    """The network cut after a row: what follows it is torch's own layer, started from the state of that row."""
    module, (images, labels) = made(architecture), examples()
    found = recurrence.state_gradients(module, images, labels)
    assert found.shape == (28,)
    model: Any = module.double()
    rows = torch.from_numpy(images.astype(np.float32) / 255).double()
    for cut in (1, 14, 27):
        with torch.no_grad():
            _, state = model.recurrent(rows[:, :cut])
        carried = [one.clone().requires_grad_() for one in (state if architecture == "lstm" else (state,))]
        after, _ = model.recurrent(rows[:, cut:], tuple(carried) if architecture == "lstm" else carried[0])
        loss = F.cross_entropy(model.head(after[:, -1]), torch.from_numpy(labels).long())
        norms = [float(gradient.norm()) for gradient in torch.autograd.grad(loss, carried)]
        assert found[cut - 1] == pytest.approx(math.hypot(*norms), rel=1e-6)


def test_a_ratio_that_is_none() -> None:
    assert recurrence.log_ratio(np.array([100.0, 5.0, 1.0])) == 2.0
    for norms in ([0.0, 1.0], [1.0, 0.0], [math.nan, 1.0], [1.0, math.inf]):
        assert math.isnan(recurrence.log_ratio(np.array(norms)))
