"""From the checkpoints of a finished training to the files of `runs/VARIANT/`, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from pipeline.errors import UserError
from pipeline.files import replacing, sha256, write_json, write_text
from pipeline.params import NUM_CLASSES, VariantSettings
from pipeline.training.records import EpochRow, write_epochs

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
SIDECAR = "model.sha256"
STEPS = "steps.npz"


def is_diverged(train_loss: float) -> bool:
    """Whether a seed's last train loss is not finite, or no better than that of a guess among the ten classes."""
    return not train_loss < math.log(NUM_CLASSES)


def write(
    directory: Path,
    settings: VariantSettings,
    tensors: dict[int, dict[str, np.ndarray]],
    rows: Sequence[EpochRow],
    *,
    parameters: int,
    flops: int,
) -> dict[str, Any]:
    """Writes model.safetensors with its sha256, steps.npz, epochs.csv and metrics.json.

    Args:
        directory: `runs/VARIANT`.
        tensors: of each seed, as `checkpoint.load_seeds` gives them.
        rows: every epoch of every seed.
        parameters, flops: of the model, for metrics.json.

    Returns:
        what metrics.json holds.
    """
    seeds = settings.train.seeds
    stacked = {name: np.stack([tensors[seed][name] for seed in seeds]) for name in tensors[seeds[0]]}
    weights = {name.removeprefix("model."): value for name, value in stacked.items() if name.startswith("model.")}
    with replacing(directory / WEIGHTS) as temporary:
        save_file(weights, temporary, metadata={"seeds": json.dumps(seeds)})
    with replacing(directory / STEPS) as temporary, temporary.open("wb") as file:
        np.savez(file, seeds=np.array(seeds), loss=stacked["trace.loss"], gradient_norm=stacked["trace.gradient_norm"])
    write_text(directory / SIDECAR, f"{sha256(directory / WEIGHTS)}  {WEIGHTS}\n")
    place = {seed: i for i, seed in enumerate(seeds)}
    rows = sorted(rows, key=lambda row: (place[row.seed], row.epoch))
    write_epochs(directory / "epochs.csv", rows)
    last = [row for row in rows if row.epoch == settings.train.epochs]
    metrics: dict[str, Any] = {"n": len(last), "diverged": sum(is_diverged(row.train_loss) for row in last)}
    for name in ("test_accuracy", "test_loss", "train_loss"):
        values = [value for row in last if math.isfinite(value := float(getattr(row, name)))]
        metrics[f"{name}_mean"], metrics[f"{name}_sd"] = _mean_sd(values) if values else (None, None)
    metrics |= {"parameters": parameters, "flops": flops}
    write_json(directory / "metrics.json", metrics)
    return metrics


def _mean_sd(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def load_weights(directory: Path, settings: VariantSettings) -> dict[str, Tensor]:
    """The stacked weights (seed, ...) of a finished training.

    Raises:
        UserError: a file is missing, the weights do not have the recorded sha256, or they are of other seeds.
    """
    variant = directory.name
    path, sidecar = directory / WEIGHTS, directory / SIDECAR
    try:
        expected = sidecar.read_text(encoding="utf-8").split()[0]
        actual = sha256(path)
    except (FileNotFoundError, IndexError):
        raise UserError(f"{path} or its {SIDECAR} is missing: run `dvc repro train@{variant}`, or `dvc checkout` to restore it.") from None
    if actual != expected:
        raise UserError(
            f"{path} does not have the sha256 recorded in {SIDECAR}: the file is damaged;"
            f" train it again with `dvc repro --force --single-item train@{variant}`."
        )
    with safe_open(path, framework="pt") as file:
        seeds = json.loads(file.metadata()["seeds"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if tuple(seeds) != settings.train.seeds:
        raise UserError(f"{path} holds seeds {seeds}, but params.yaml asks for {list(settings.train.seeds)}: run `dvc repro`.")
    return tensors
