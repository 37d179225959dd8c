"""Checkpoints: whole or not at all, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data.datasets import Dataset
from pipeline.errors import UserError
from pipeline.params import DataSettings, ModelSettings, Params, VariantSettings
from pipeline.training import checkpoint
from pipeline.training.engine import Trainer


@pytest.fixture
def make(study: Params) -> object:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (96, 28, 28)).astype(np.uint8), rng.integers(0, 10, 96).astype(np.uint8)
    dataset = Dataset("noise", images, labels, images[:32], labels[:32], digest="0" * 64)
    settings = VariantSettings(
        data=DataSettings(dataset="digits"),
        train=study.train.model_copy(update={"seeds": (0, 1), "epochs": 4, "batch_size": 40, "learning_rate": 0.005}),
        model=ModelSettings.model_validate(study.base.model_dump() | {"patch": 14, "blocks": 1, "dropout": 0.1}),
    )
    return lambda: Trainer(settings, dataset, [0, 1], torch.device("cpu"))


def test_round_trip_is_bitwise(tmp_path: Path, make: object) -> None:
    trainer: Trainer = make()  # type: ignore[operator]
    trainer.run_epoch()
    checkpoint.save(tmp_path, trainer)
    trainer.run_epoch()
    other: Trainer = make()  # type: ignore[operator]
    assert checkpoint.restore(tmp_path, other) is None
    assert other.epoch == 1
    other.run_epoch()
    assert [row[:5] for row in other.rows] == [row[:5] for row in trainer.rows]
    for name, value in trainer.state().items():
        assert torch.equal(other.state()[name], value)


def test_one_checkpoint_is_kept_and_nothing_else(tmp_path: Path, make: object) -> None:
    trainer: Trainer = make()  # type: ignore[operator]
    for _ in range(3):
        trainer.run_epoch()
        checkpoint.save(tmp_path, trainer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0-1.3.safetensors", "seed-0-1.json"]


def test_nothing_to_restore(tmp_path: Path, make: object) -> None:
    trainer: Trainer = make()  # type: ignore[operator]
    assert checkpoint.restore(tmp_path, trainer) is None
    assert trainer.epoch == 0


@pytest.mark.parametrize("fault", ["bit", "truncated", "missing", "json", "cut json"])
def test_damage_is_noticed_and_leaves_the_trainer_at_the_start(tmp_path: Path, make: object, fault: str) -> None:
    trainer: Trainer = make()  # type: ignore[operator]
    trainer.run_epoch()
    checkpoint.save(tmp_path, trainer)
    tensors, description = tmp_path / "seed-0-1.1.safetensors", tmp_path / "seed-0-1.json"
    content = bytearray(tensors.read_bytes())
    match fault:
        case "bit":
            content[len(content) // 2] ^= 1
            tensors.write_bytes(content)
        case "truncated":
            tensors.write_bytes(content[:-100])
        case "missing":
            tensors.unlink()
        case "json":
            description.write_text(json.dumps({"epoch": 1}))
        case "cut json":
            description.write_bytes(description.read_bytes()[:-20])
    other: Trainer = make()  # type: ignore[operator]
    before = other.state()
    warning = checkpoint.restore(tmp_path, other)
    assert warning is not None
    assert "seed-0-1" in warning
    assert other.epoch == 0
    assert all(torch.equal(other.state()[name], value) for name, value in before.items())
    with pytest.raises(UserError, match="run the same command again"):
        checkpoint.load_seeds(tmp_path, [[0, 1]])


def test_weights_of_each_seed(tmp_path: Path, make: object) -> None:
    trainer: Trainer = make()  # type: ignore[operator]
    trainer.run_epoch()
    checkpoint.save(tmp_path, trainer)
    weights = checkpoint.load_seeds(tmp_path, [[0, 1]])
    state = trainer.stack.state()
    assert list(weights) == [0, 1]
    for i in (0, 1):
        assert weights[i].keys() == {f"model.{name}" for name in state} | {"trace.loss", "trace.gradient_norm"}
        assert all(np.array_equal(weights[i][f"model.{name}"], state[name][i].numpy()) for name in state)
        assert (weights[i]["trace.loss"][:3] > 0).all()  # three steps of one epoch
        assert not weights[i]["trace.loss"][3:].any()
