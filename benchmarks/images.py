"""The images that every implementation is timed on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data import datasets
from pipeline.data.datasets import ARRAYS, Dataset
from pipeline.errors import UserError
from pipeline.files import sha256
from pipeline.params import Shape

NUM_TRAIN, NUM_TEST = 60_000, 10_000
SYNTHETIC = "synthetic"


def load(directory: Path) -> Dataset:
    """The prepared data set when it has MNIST's shapes, else noise of those shapes, named `synthetic`: the time is the same."""
    try:
        dataset = datasets.load(directory)
    except UserError:
        return synthetic()
    return dataset if len(dataset.train_labels) == NUM_TRAIN and len(dataset.test_labels) == NUM_TEST else synthetic()


def synthetic(num_train: int = NUM_TRAIN, num_test: int = NUM_TEST) -> Dataset:
    """Images and labels drawn uniformly."""
    generator = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        images = generator.integers(256, size=(count, Shape().size, Shape().size), dtype=np.uint8)
        return images, generator.integers(Shape().classes, size=count, dtype=np.uint8)

    return Dataset(SYNTHETIC, *draw(num_train), *draw(num_test), digest="")


def part(dataset: Dataset, num_train: int, num_test: int) -> Dataset:
    """The first images of each split."""
    return Dataset(
        dataset.name,
        dataset.train_images[:num_train],
        dataset.train_labels[:num_train],
        dataset.test_images[:num_test],
        dataset.test_labels[:num_test],
        digest="",
    )


def write(dataset: Dataset, directory: Path) -> None:
    """Writes a data set as the `prepare` stage does, so that the trainers' processes can load it."""
    directory.mkdir(parents=True, exist_ok=True)
    described: dict[str, dict[str, Any]] = {}
    for name in ARRAYS:
        array, path = getattr(dataset, name), directory / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        described[name] = {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": sha256(path)}
    digest = hashlib.sha256("".join(entry["sha256"] for entry in described.values()).encode()).hexdigest()
    description = {"name": dataset.name, "arrays": described, "digest": digest}
    (directory / "dataset.json").write_text(json.dumps(description), encoding="utf-8")
