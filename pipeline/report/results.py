"""What the earlier stages left under `runs/` and `data/`, read and checked against params.yaml."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.analysis.statistics import FloatArray
from pipeline.errors import UserError
from pipeline.params import Params, VariantSettings
from pipeline.training.records import EpochRow, read_epochs


@dataclass(frozen=True)
class Epochs:
    """`epochs.csv` as arrays of shape (seeds, epochs): losses in nats, accuracy a fraction, seconds of one epoch."""

    seeds: tuple[int, ...]
    train_loss: FloatArray
    test_loss: FloatArray
    test_accuracy: FloatArray
    seconds: FloatArray

    @classmethod
    def read(cls, path: Path) -> Epochs:
        """Raises UserError when the file is missing, or not a full table of finite numbers with epochs counted from 1."""
        rows = read_epochs(path)
        seeds = tuple(dict.fromkeys(row.seed for row in rows))
        epochs = max((row.epoch for row in rows), default=0)
        expected = [(seed, epoch) for seed in seeds for epoch in range(1, epochs + 1)]
        if not rows or [(row.seed, row.epoch) for row in rows] != expected:
            raise _damaged(path, "it has not one row for every seed and epoch")
        columns = np.array([row[2:] for row in rows], dtype=np.float64).reshape(len(seeds), epochs, -1)
        if not np.isfinite(columns).all():
            raise _damaged(path, "it holds a value that is not a finite number")
        return cls(seeds, *(columns[..., i] for i in range(len(EpochRow._fields) - 2)))


@dataclass(frozen=True)
class VariantResult:
    """One trained variant; satisfies `pipeline.analysis.claims.Evidence`."""

    name: str
    settings: VariantSettings
    epochs: Epochs
    parameters: int
    flops: int
    run: dict[str, Any]
    directory: Path

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.epochs.seeds

    @property
    def test_accuracy(self) -> FloatArray:
        return self.epochs.test_accuracy

    @property
    def test_loss(self) -> FloatArray:
        return self.epochs.test_loss

    @property
    def seconds(self) -> FloatArray:
        return self.epochs.seconds

    @property
    def grid(self) -> int:
        return self.settings.model.grid

    @cached_property
    def patch_positions(self) -> FloatArray:
        """(seeds, grid^2, dim) float64, the class token's row left out; (seeds, 0, dim) where the variant adds none.

        Raises:
            UserError: predictions.npz is missing, damaged or of another shape.
        """
        path = self.directory / "predictions.npz"
        if not path.exists():
            raise UserError(f"{path} is missing: run `dvc repro evaluate@{self.name}`, or `dvc pull` where a remote has it.")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                positions: FloatArray = arrays["positions"].astype(np.float64)
        except (KeyError, ValueError, OSError, zipfile.BadZipFile):
            raise _damaged(path, "its array `positions` cannot be read", stage="evaluate") from None
        model = self.settings.model
        if model.position == "none":
            return positions[:, :0]
        if positions.shape != (len(self.seeds), model.num_tokens, model.dim):
            raise _damaged(path, f"its array `positions` has the shape {positions.shape}", stage="evaluate")
        return positions[:, int(model.has_cls) :]


def load(params: Params, root: Path = Path()) -> dict[str, VariantResult]:
    """Reads `runs/V/` of every variant that params name, in their order.

    Raises:
        UserError: a variant was not trained, not with these settings, or its files are damaged; names the command that mends it.
    """
    untrained = [
        v for v in params.variants if not all((root / "runs" / v / name).exists() for name in ("epochs.csv", "metrics.json", "run.json"))
    ]
    if untrained:
        raise UserError(f"runs/ has no results of {', '.join(untrained)}: run `dvc repro {' '.join(f'train@{v}' for v in untrained)}`.")
    return {variant: _load_variant(params, variant, root / "runs" / variant) for variant in params.variants}


def _load_variant(params: Params, variant: str, directory: Path) -> VariantResult:
    settings = params.resolve(variant)
    run, metrics = _read_json(directory / "run.json"), _read_json(directory / "metrics.json")
    epochs = Epochs.read(directory / "epochs.csv")
    trained = (settings.train.seeds, settings.train.epochs)
    if run.get("config") != settings.model_dump(mode="json") or (epochs.seeds, epochs.test_accuracy.shape[1]) != trained:
        raise UserError(f"{directory} was trained with other settings than params.yaml now has: run `dvc repro train@{variant}`.")
    try:
        parameters, flops = int(metrics["parameters"]), int(metrics["flops"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(directory / "metrics.json", "it lacks `parameters` or `flops`") from None
    return VariantResult(variant, settings, epochs, parameters, flops, run, directory)


def load_dataset(root: Path = Path()) -> dict[str, Any] | None:
    """`data/arrays/dataset.json` as `pipeline.data.datasets.prepare` writes it, or None where the data are not here."""
    path = root / "data/arrays/dataset.json"
    if not path.exists():
        return None
    data = _read_json(path, stage="prepare")
    lacking = {"arrays", "class_counts", "pixel_mean", "pixel_std", "digest"} - data.keys()
    if lacking:
        raise _damaged(path, f"it lacks {', '.join(sorted(lacking))}", stage="prepare")
    return data


def _read_json(path: Path, stage: str = "train") -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _damaged(path, "it is not a JSON object", stage=stage)
    return content


def _damaged(path: Path, fault: str, stage: str = "train") -> UserError:
    target = stage if stage == "prepare" else f"{stage}@{path.parent.name}"
    return UserError(f"{path} is damaged, {fault}: run `dvc repro --force --single-item {target}`.")
