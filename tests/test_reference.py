"""`reference.py` and the package are one network, trained in one way."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import reference
from pipeline.data.datasets import Dataset
from pipeline.params import Params
from pipeline.training.engine import Trainer

BATCH = 32  # a quarter of both programs', which takes as much less time
IMAGES = 50 * BATCH


def archives(folder: Path) -> Path:
    """The folder with those of MNIST that MNIST_MIRROR names; where it names none, this one, with archives of noise."""
    if (place := os.environ.get("MNIST_MIRROR")) and Path(place).is_dir():
        return Path(place)
    draw = np.random.default_rng(0)
    for kind, shape, top in (("images-idx3", (IMAGES, 28, 28), 256), ("labels-idx1", (IMAGES,), 10)):
        content = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + draw.integers(0, top, shape, dtype=np.uint8).tobytes()
        (folder / f"train-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    return folder


def test_first_fifty_losses_are_the_engines(tmp_path: Path, study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = study.resolve("base")
    assert settings.train.batch_size == reference.BATCH
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"batch_size": BATCH})})
    monkeypatch.setattr(reference, "BATCH", BATCH)
    images, labels = (array[:IMAGES] for array in reference.mnist(archives(tmp_path), "train"))
    model = reference.initial_model(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=reference.RATE)
    losses = reference.train_epoch(model, optimizer, images, labels, reference.epoch_order(3, 1, IMAGES))

    pixels, classes = (images[:, 0] * 255).round().byte().numpy(), labels.byte().numpy()
    dataset = Dataset("mnist", pixels, classes, pixels[:100], classes[:100], "")
    trainer = Trainer(settings, dataset, [3], torch.device("cpu"))
    trainer.run_epoch()
    np.testing.assert_allclose(trainer.trace.loss[0, :50].numpy(), losses, rtol=1e-5)
    assert losses[-1] < losses[0]
