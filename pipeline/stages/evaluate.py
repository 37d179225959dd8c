"""DVC stage `evaluate@VARIANT`: the stored weights, tested anew; what they predict, and where they err."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.datasets import Dataset, load
from pipeline.errors import UserError, run_command
from pipeline.files import replacing, write_json, write_text
from pipeline.params import NUM_CLASSES, VariantSettings, load_variant
from pipeline.stages.paths import ARRAYS, CHECKPOINTS, CONFIGS, RUNS
from pipeline.training import results, workers
from pipeline.training.engine import Stack, evaluate, set_reproducible
from pipeline.training.records import EpochRow, read_epochs


def main(argv: list[str]) -> None:
    if len(argv) != 1:
        raise UserError("Usage: python -m pipeline.stages.evaluate VARIANT")
    variant = argv[0]
    settings = load_variant(CONFIGS / f"{variant}.json")
    directory = RUNS / variant
    weights = results.load_weights(directory, settings)
    dataset = load(ARRAYS)
    losses, predictions, positions = predict(settings, weights, dataset)
    last = [row for row in read_epochs(directory / "epochs.csv") if row.epoch == settings.train.epochs]
    check_reproduced(variant, last, losses, (predictions == dataset.test_labels).mean(1))
    evaluation = summarize(losses, predictions, dataset.test_labels)
    _write(directory, settings, dataset.test_labels, predictions, positions, evaluation)
    # Not before now: until the train stage is committed, its checkpoints are the only copy that a kill cannot take.
    shutil.rmtree(CHECKPOINTS / variant, ignore_errors=True)


def predict(settings: VariantSettings, weights: dict[str, Tensor], dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tests the stored weights as the training did: the same device, grouping and batches.

    Args:
        weights: stacked (seed, ...).

    Returns:
        loss (seed,) float64, predicted classes (seed, image) uint8, position vectors (seed, token or 0, dim) float32.
    """
    name = workers.choose_device()
    device = torch.device(name)
    set_reproducible(device)
    images = torch.from_numpy(dataset.test_images).to(device)
    labels = torch.from_numpy(dataset.test_labels).long().to(device)
    seeds = settings.train.seeds
    losses, predictions, positions = [], [], []
    for group in workers.make_groups(seeds, name):
        stack = Stack(settings.model, group, device)
        chosen = [seeds.index(seed) for seed in group]
        stack.load({key: value[chosen].to(device) for key, value in weights.items()})
        loss, predicted = evaluate(stack, images, labels, num_seeds=len(group))
        losses.append(loss.cpu().numpy())
        predictions.append(predicted.cpu().numpy().astype(np.uint8))
        position = stack.position()
        positions.append(np.zeros((len(group), 0, settings.model.dim), np.float32) if position is None else position.cpu().numpy())
    return np.concatenate(losses), np.concatenate(predictions), np.concatenate(positions)


def check_reproduced(variant: str, last: list[EpochRow], losses: np.ndarray, accuracies: np.ndarray) -> None:
    """Compares with the training's last epoch: the accuracy has to be equal, the loss to five digits (bitwise on one machine).

    Raises:
        UserError: they differ, so weights and epochs.csv are not of the same training.
    """
    for row, loss, accuracy in zip(last, losses, accuracies, strict=True):
        if not (math.isclose(row.test_loss, loss, rel_tol=1e-5) and math.isclose(row.test_accuracy, accuracy, abs_tol=1e-9)):
            raise UserError(
                f"The weights of variant {variant}, seed {row.seed}, test at loss {loss:.6f} and accuracy {accuracy:.4f},"
                f" but its training ended at {row.test_loss:.6f} and {row.test_accuracy:.4f}:"
                f" train it again with `dvc repro --force --single-item train@{variant}`.",
                status=1,
            )


def summarize(losses: np.ndarray, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Means over the seeds: test loss and accuracy, and the accuracy on the images of each class."""
    correct = predictions == labels  # (seed, image)
    return {
        "test_accuracy": float(correct.mean()),
        "test_loss": float(losses.mean()),
        "per_class_accuracy": {str(digit): float(correct[:, labels == digit].mean()) for digit in range(NUM_CLASSES)},
    }


def _write(
    directory: Path,
    settings: VariantSettings,
    labels: np.ndarray,
    predictions: np.ndarray,
    positions: np.ndarray,
    evaluation: dict[str, Any],
) -> None:
    with replacing(directory / "predictions.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, labels=labels, predictions=predictions, seeds=np.array(settings.train.seeds), positions=positions)
    pairs = labels.astype(np.int64) * NUM_CLASSES + predictions  # (seed, image)
    counts = np.bincount(pairs.ravel(), minlength=NUM_CLASSES**2)
    lines = [f"{pair // NUM_CLASSES},{pair % NUM_CLASSES},{count}" for pair, count in enumerate(counts)]
    write_text(directory / "confusion.csv", "\n".join(["actual,predicted,count", *lines, ""]))
    write_json(directory / "evaluation.json", evaluation)


if __name__ == "__main__":
    run_command(main)
