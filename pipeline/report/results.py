"""What the earlier stages left under `runs/`, `evaluations/`, `predictions/` and `data/`, read and checked against params.yaml."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import UserError
from pipeline.files import sha256
from pipeline.measures import SHIFTS, NotMeasured, is_diverged
from pipeline.params import ModelSettings, Params, VariantSettings
from pipeline.runner.results import read_run
from pipeline.study.statistics import FloatArray, vote
from pipeline.training.records import read_epochs

_SHIFTS = tuple(f"shift_{pixels}" for pixels in SHIFTS)
_ATTENTION = ("attention_entropy", "ink_correlation")


@dataclass(frozen=True)
class Epochs:
    """`epochs.csv` as arrays of shape (seeds, epochs): losses in nats, accuracy a fraction, seconds of one epoch.

    Losses and gradient norms of a seed that diverged may be NaN or infinite; accuracy and seconds are finite.
    """

    seeds: tuple[int, ...]
    train_loss: FloatArray
    test_loss: FloatArray
    test_accuracy: FloatArray
    gradient_norm: FloatArray
    seconds: FloatArray

    @classmethod
    def read(cls, path: Path) -> Epochs:
        """Raises UserError when the file is missing, or not a full table with epochs counted from 1."""
        rows = read_epochs(path)
        seeds = tuple(dict.fromkeys(row.seed for row in rows))
        epochs = max((row.epoch for row in rows), default=0)
        expected = [(seed, epoch) for seed in seeds for epoch in range(1, epochs + 1)]
        if not rows or [(row.seed, row.epoch) for row in rows] != expected:
            raise _damaged(path, "it has not one row for every seed and epoch")
        columns = {
            name: np.array([getattr(row, name) for row in rows], dtype=np.float64).reshape(len(seeds), epochs)
            for name in ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "seconds")
        }
        if not (np.isfinite(columns["test_accuracy"]).all() and np.isfinite(columns["seconds"]).all()):
            raise _damaged(path, "it holds an accuracy or a time that is not a finite number")
        return cls(seeds, **columns)


@dataclass(frozen=True)
class VariantResult:
    """One trained variant, and what the evaluate stage left of it; satisfies `pipeline.study.claims.Evidence`.

    Attributes:
        evaluation: the columns of `evaluations/V/seeds.csv`, (seeds,) each; None where the variant was not evaluated.
        predictions_digest: the sha256 that its evaluation recorded.
    """

    name: str
    settings: VariantSettings
    epochs: Epochs
    parameters: int
    flops: int
    run: dict[str, Any]
    evaluation: dict[str, FloatArray] | None
    predictions_path: Path
    predictions_digest: str | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.epochs.seeds

    @property
    def images_shown(self) -> int:
        return self.settings.images_shown

    @property
    def test_accuracy(self) -> FloatArray:
        return self.epochs.test_accuracy

    @property
    def test_loss(self) -> FloatArray:
        return self.epochs.test_loss

    @property
    def train_loss(self) -> FloatArray:
        return self.epochs.train_loss

    @property
    def gradient_norm(self) -> FloatArray:
        return self.epochs.gradient_norm

    @property
    def classes(self) -> int:
        return self.settings.model.shape.classes

    @property
    def diverged(self) -> int:
        """Seeds whose last train loss is not finite or no better than a guess."""
        return int(is_diverged(self.epochs.train_loss[:, -1], self.classes).sum())

    @property
    def grid(self) -> int:
        """Patches along one side; 0 for a network without patches."""
        return self.settings.model.grid if isinstance(self.settings.model, ModelSettings) else 0

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]] | None:
        """All of `predictions/V.npz`; None where it is not here.

        Raises:
            UserError: it is damaged, or of other seeds.
        """
        path = self.predictions_path
        if not path.exists():
            return None
        if sha256(path) != self.predictions_digest:
            raise _damaged(path, "it is not what the evaluation wrote")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        lacking = {"labels", "predictions", "seeds", "positions"} - arrays.keys()
        if lacking:
            raise _damaged(path, f"it lacks {', '.join(sorted(lacking))}")
        if tuple(arrays["seeds"].tolist()) != self.seeds or arrays["predictions"].shape != (len(self.seeds), len(arrays["labels"])):
            raise _damaged(path, "its arrays do not fit the seeds of the training")
        accuracy = (arrays["predictions"] == arrays["labels"]).mean(axis=1)
        if not np.allclose(accuracy, self.test_accuracy[:, -1], rtol=0, atol=1e-6):
            raise UserError(f"{path} is of another training than {Path('runs') / self.name}: run `dvc repro evaluate`.")
        return arrays

    @property
    def correct(self) -> npt.NDArray[np.bool_] | None:
        """(seeds, images): whether a seed's prediction of a test image is right."""
        if self._arrays is None:
            return None
        right: npt.NDArray[np.bool_] = self._arrays["predictions"] == self._arrays["labels"]
        return right

    @property
    def vote_correct(self) -> npt.NDArray[np.bool_] | None:
        """(images,): whether the vote of all seeds is right about the test image."""
        if self._arrays is None:
            return None
        right: npt.NDArray[np.bool_] = vote(self._arrays["predictions"]) == self._arrays["labels"]
        return right

    @property
    def has_positions(self) -> bool:
        """Whether `predictions/V.npz`, which holds the position vectors, is here."""
        return self._arrays is not None

    @property
    def patch_positions(self) -> FloatArray:
        """(seeds, grid^2, dim) float64, the class token's row left out; (seeds, 0, dim) where the variant adds none.

        Raises:
            NotMeasured: `predictions/V.npz` is not here.
            UserError: it is damaged or of another shape.
        """
        model = self.settings.model
        if not isinstance(model, ModelSettings):
            return np.zeros((len(self.seeds), 0, 0))
        if model.position == "none":
            return np.zeros((len(self.seeds), 0, model.dim))
        if self._arrays is None:
            raise NotMeasured("its position vectors are not there: `dvc repro evaluate` writes them")
        positions = self._arrays["positions"]
        if positions.shape != (len(self.seeds), model.num_tokens, model.dim):
            raise _damaged(self.predictions_path, f"its array `positions` has the shape {positions.shape}")
        return positions[:, int(model.has_cls) :].astype(np.float64)

    @property
    def attention(self) -> Attention | None:
        """What the trained model attends to; None where that was not evaluated. Raises UserError where it is damaged."""
        model = self.settings.model
        if self._arrays is None or "maps" not in self._arrays or not isinstance(model, ModelSettings):
            return None
        try:
            has_cls = int(self._arrays["has_cls"])
            images, maps, rollout = (self._arrays[name] for name in ("images", "maps", "rollout"))
            patches = slice(has_cls, has_cls + self.grid**2)
            row = maps[:, :, :, 0] if has_cls else maps.mean(axis=3, dtype=np.float32)
            shape = (self.grid, self.grid)
            return Attention(
                images=images.reshape(len(images), -1, *images.shape[-2:]).astype(np.float64).mean(1) / 255,
                labels=tuple(self._arrays["image_labels"].tolist()),
                maps=row[..., patches].astype(np.float64).reshape(*row.shape[:3], *shape),
                keys=model.num_tokens + model.memory,
                rollout=rollout[..., patches].astype(np.float64).reshape(*rollout.shape[:2], *shape),
                has_cls=bool(has_cls),
            )
        except (KeyError, ValueError, IndexError, TypeError):
            raise _damaged(self.predictions_path, "its attention maps do not fit the model") from None


@dataclass(frozen=True)
class Attention:
    """Attention on the same test images, on the patch grid.

    Attributes:
        images: (images, height, width), in [0, 1], the mean over channels; `labels` are their classes.
        maps: (images, block, head, grid, grid): softmax weights of the first seed, from the class token (without one: mean over all
            tokens) to the patches.
        keys: how many tokens and memory slots share the weight of 1.
        rollout: (seeds, images, grid, grid): attention rollout to the patches.
    """

    images: FloatArray
    labels: tuple[int, ...]
    maps: FloatArray
    keys: int
    rollout: FloatArray
    has_cls: bool


def load(params: Params, root: Path = Path()) -> dict[str, VariantResult]:
    """Reads what there is of every variant that params name, in their order; one that was not trained is left out.

    Raises:
        UserError: no variant was trained, one not with these settings, or its files are damaged; names the command that mends it.
    """
    trained = [v for v in params.variants if (root / "runs" / v / "run.json").exists()]
    if not trained:
        raise UserError("runs/ has no results of any variant that params.yaml names: run `dvc repro`.")
    return {variant: _load_variant(params, variant, root) for variant in trained}


def _load_variant(params: Params, variant: str, root: Path) -> VariantResult:
    directory = root / "runs" / variant
    settings = params.resolve(variant)
    run, metrics = read_run(directory), _read_json(directory / "metrics.json")
    epochs = Epochs.read(directory / "epochs.csv")
    trained = (settings.train.seeds, settings.train.epochs)
    if run.get("config") != settings.model_dump(mode="json") or (epochs.seeds, epochs.test_accuracy.shape[1]) != trained:
        raise UserError(f"{directory} was trained with other settings than params.yaml now has: run `dvc repro train@{variant}`.")
    try:
        parameters, flops = int(metrics["parameters"]), int(metrics["flops"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(directory / "metrics.json", "it lacks `parameters` or `flops`") from None
    evaluation = _read_evaluation(root / "evaluations" / variant, variant, epochs)
    digest = None if evaluation is None else _outputs(root / "evaluations" / variant)["predictions"]
    return VariantResult(variant, settings, epochs, parameters, flops, run, evaluation, root / "predictions" / f"{variant}.npz", digest)


def _outputs(folder: Path) -> dict[str, str]:
    """The digests of what an evaluation wrote. Raises UserError where inputs.json, which holds them, is damaged."""
    outputs = _read_json(folder / "inputs.json").get("outputs")
    if not isinstance(outputs, dict) or not {"predictions", "seeds.csv"} <= outputs.keys():
        raise _damaged(folder / "inputs.json", "it lacks `outputs`")
    return outputs


def _read_evaluation(folder: Path, variant: str, epochs: Epochs) -> dict[str, FloatArray] | None:
    path = folder / "seeds.csv"
    if path.exists() and sha256(path) != _outputs(folder)["seeds.csv"]:
        raise _damaged(path, "it is not what the evaluation wrote")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise _damaged(path, "it is not text") from None
    try:
        seeds = tuple(int(row["seed"]) for row in rows)
        known = [name for name in ("test_accuracy", "test_loss", *_SHIFTS, *_ATTENTION) if rows and name in rows[0]]
        columns = {name: np.array([float(row[name]) for row in rows]) for name in known}
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, "it is not a table of numbers by seed") from None
    if "test_accuracy" not in columns:
        raise _damaged(path, "it lacks `test_accuracy`")
    if seeds != epochs.seeds or not np.allclose(columns["test_accuracy"], epochs.test_accuracy[:, -1], rtol=0, atol=1e-6):
        raise UserError(f"{path.parent} is of another training than {Path('runs') / variant}: run `dvc repro evaluate`.")
    return columns


def load_dataset(root: Path = Path()) -> dict[str, Any] | None:
    """`data/arrays/dataset.json` as `pipeline.data.datasets.prepare` writes it, or None where the data are not here."""
    path = root / "data/arrays/dataset.json"
    if not path.exists():
        return None
    data = _read_json(path)
    lacking = {"arrays", "class_counts", "pixel_mean", "pixel_std", "digest"} - data.keys()
    if lacking:
        raise _damaged(path, f"it lacks {', '.join(sorted(lacking))}")
    return data


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _damaged(path, "it is not a JSON object")
    return content


def _damaged(path: Path, fault: str) -> UserError:
    """The sentence about a damaged file, with the stage that writes it."""
    stages = {"arrays": "prepare", "predictions": "evaluate", "evaluations": "evaluate"}
    folder = path.parent.name if path.parent.name in stages else path.parent.parent.name
    stage = stages.get(folder, f"train@{path.parent.name}")
    return UserError(f"{path} is damaged, {fault}: run `dvc repro --force --single-item {stage}`.")
