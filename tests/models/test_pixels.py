"""Standardised pixels: numpy's mean and deviation, in every model, alone and in a stack, in training, in a test and in the probes."""

import numpy as np
import pytest
import torch

from pipeline.data.datasets import Dataset
from pipeline.models import attention_maps, build
from pipeline.params import BaselineSettings, DataSettings, ModelSettings, NetworkSettings, Params, Shape, VariantSettings
from pipeline.training.engine import Trainer
from pipeline.training.stack import Stack
from tests.helpers import finish

CPU = torch.device("cpu")
SHAPE = Shape(28, 3, 10)


@pytest.fixture
def colours() -> Dataset:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(20, 200, (60, 3, 28, 28)).astype(np.uint8), np.arange(60).astype(np.uint8) % 10
    images[:, 1] //= 4
    images[:, 2] = 7  # has no deviation
    return Dataset("colours", images, labels, images[:20], labels[:20], digest="0" * 64)


def settings(study: Params, kind: str, normalize: str) -> NetworkSettings:
    context = {"shape": SHAPE}
    if kind == "vit":
        return ModelSettings.model_validate(study.base.model_dump() | {"patch": 14, "blocks": 1, "normalize": normalize}, context=context)
    return BaselineSettings.model_validate({"architecture": "cnn", "widths": [3, 4], "normalize": normalize}, context=context)


def by_hand(dataset: Dataset, images: np.ndarray) -> torch.Tensor:
    pixels = dataset.train_images / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    std[2] = 1
    return torch.tensor((images / 255 - mean[:, None, None]) / std[:, None, None], dtype=torch.float32)


@pytest.mark.parametrize(("kind", "seeds"), [("vit", (0,)), ("vit", (0, 1)), ("cnn", (0,))])
def test_a_network_reads_standardised_pixels(kind: str, seeds: tuple[int, ...], study: Params, colours: Dataset) -> None:
    train = study.train.model_copy(update={"seeds": seeds, "epochs": 2, "batch_size": 20})
    of = VariantSettings(
        data=DataSettings(dataset="npz", size=28, channels=3, classes=10), train=train, model=settings(study, kind, "standard")
    )
    trainer = Trainer(of, colours, seeds, CPU)
    finish(trainer)
    state = trainer.stack.state()
    plain, raw = build(settings(study, kind, "none")), torch.from_numpy(colours.test_images)[None].float() / 255
    logits = trainer.stack(raw.expand(len(seeds), -1, -1, -1, -1))
    for place in range(len(seeds)):
        plain.load_state_dict({name: value[place] for name, value in state.items() if not name.startswith("pixel_")})
        plain.train(trainer.stack.module.training)
        torch.testing.assert_close(plain(by_hand(colours, colours.test_images)), logits[place])
    again = Stack(of.model, seeds, CPU)
    again.load(state)
    again.train(trainer.stack.module.training)
    assert torch.equal(again(raw.expand(len(seeds), -1, -1, -1, -1)), logits)
    if kind == "vit" and again.single:
        torch.testing.assert_close(attention_maps(again.module, raw[0]), attention_maps(plain, by_hand(colours, colours.test_images)))
