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
from pipeline.params import VariantSettings
from pipeline.training.records import EpochRow, write_epochs

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
SIDECAR = "model.sha256"


def write(
    directory: Path,
    settings: VariantSettings,
    weights: dict[int, dict[str, np.ndarray]],
    rows: Sequence[EpochRow],
    *,
    parameters: int,
    flops: int,
) -> dict[str, Any]:
    """Writes model.safetensors with its sha256, epochs.csv and metrics.json.

    Args:
        directory: `runs/VARIANT`.
        weights: of each seed, the tensors without a seed dimension.
        rows: every epoch of every seed.
        parameters, flops: of the model, for metrics.json.

    Returns:
        what metrics.json holds.
    """
    seeds = settings.train.seeds
    stacked = {name: np.stack([weights[seed][name] for seed in seeds]) for name in weights[seeds[0]]}
    with replacing(directory / WEIGHTS) as temporary:
        save_file(stacked, temporary, metadata={"seeds": json.dumps(seeds)})
    write_text(directory / SIDECAR, f"{sha256(directory / WEIGHTS)}  {WEIGHTS}\n")
    place = {seed: i for i, seed in enumerate(seeds)}
    rows = sorted(rows, key=lambda row: (place[row.seed], row.epoch))
    write_epochs(directory / "epochs.csv", rows)
    last = [row for row in rows if row.epoch == settings.train.epochs]
    metrics: dict[str, Any] = {"n": len(last)}
    for name in ("test_accuracy", "test_loss", "train_loss"):
        values = [float(getattr(row, name)) for row in last]
        mean = math.fsum(values) / len(values)
        metrics[f"{name}_mean"] = mean
        metrics[f"{name}_sd"] = (
            math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0
        )
    metrics |= {"parameters": parameters, "flops": flops}
    write_json(directory / "metrics.json", metrics)
    return metrics


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
