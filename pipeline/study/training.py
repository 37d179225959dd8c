"""One trained variant, whatever its results are read from."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.measures import or_half
from pipeline.measures.definitions import FloatArray, is_diverged
from pipeline.params import ModelSettings, VariantSettings, flatten, recorded
from pipeline.system.errors import UserError
from pipeline.system.paths import PREDICTIONS

# Entries of a record that decide a result, besides settings and versions.
CAUSES = ("code_hash", "data_digest", "device", "device_name", "attention")
ROUNDED = 2  # images of a test that an evaluation on another kind of processor may decide otherwise, as `runner.seeds` has it
Arrays = dict[str, npt.NDArray[Any]]
_READERS = {"cls": "class token", "first": "first patch"}


@dataclass(frozen=True)
class Attention:
    """Attention on the same test images, on the patch grid.

    Attributes:
        images: (images, height, width), in [0, 1], the mean over channels; `labels` are their classes.
        reader: what the head reads: the class token, the first patch, or the mean patch for all other pooling.
        maps: (images, block, head, grid, grid): softmax weights of the first seed, from the reader to the patches.
        keys: how many tokens and memory slots share the weight of 1.
        rollout: (seeds, images, grid, grid): attention rollout from the reader to the patches.
        filters: (channels of a token, values of a patch): the first seed's patch embedding; None of an evaluation that lacks it.
    """

    images: FloatArray
    labels: tuple[int, ...]
    reader: str
    maps: FloatArray
    keys: int
    rollout: FloatArray
    filters: FloatArray | None = None


@dataclass(frozen=True)
class Captions:
    """What was written of the test scenes.

    Attributes:
        cells: (scene, 4): the class in each cell, -1 for none.
        greedy: (seed, scene, place) ids of words.
        scenes: the first ones, (example, height, width) in [0, 1], the mean over channels.
        attention: (block, level, example, place, token): where the first seed's decoder looks before it writes the word at a place of
            its greedy caption, tokens row by row; None for a network that does not look.
    """

    cells: npt.NDArray[np.int8]
    greedy: npt.NDArray[np.uint8]
    scenes: FloatArray
    attention: FloatArray | None


@dataclass(frozen=True)
class Training:
    """One trained variant, and what the evaluation left of it.

    Attributes:
        record: what the store's file says, as far as it is recorded.
        curves: (seeds, epochs) each, by the columns of epochs.csv: losses in nats, accuracy a fraction, seconds of one epoch.
        parameters, flops: of one seed's model, of one image's forward pass; None where not recorded.
        evaluation: the columns of seeds.csv, (seeds,) each; None where the variant was not evaluated.
        stored: reads the predictions' npz file; None where it is not here. Raises UserError where it is damaged.
    """

    variant: str
    record: Mapping[str, Any]
    seeds: tuple[int, ...]
    curves: Mapping[str, FloatArray]
    parameters: int | None = None
    flops: int | None = None
    evaluation: Mapping[str, FloatArray] | None = None
    stored: Callable[[], Arrays | None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def id(self) -> str | None:
        """The identifier of this training, or None where not recorded."""
        return str(self.record["training_id"]) if self.record.get("training_id") else None

    @cached_property
    def options(self) -> dict[str, Any]:
        """The resolved settings by dotted key, as far as they are recorded."""
        return dict(flatten(self.record.get("config", {})))

    @cached_property
    def settings(self) -> VariantSettings:
        """The resolved settings. Raises UserError where they are of another version."""
        return recorded(self.record["config"], f"the record of {self.variant}")

    @property
    def is_captioner(self) -> bool:
        """Whether it describes scenes, and so was tested on validation scenes after each epoch."""
        return bool(self.record.get("config", {}).get("scenes"))

    def origin_of(self, seeds: Collection[int]) -> dict[str, str]:
        """What else decided the training of these seeds, as far as it is recorded: those of CAUSES, and versions.NAME.

        What differs among them is listed, with semicolons.
        """
        found: dict[str, set[str]] = {}
        for group in self.trainings:
            if not {*group["seeds"]}.isdisjoint(seeds):
                record = {**self.record, **group}
                known = {key: record.get(key) for key in CAUSES} | dict(flatten({"versions": record.get("versions") or {}}))
                for key, value in known.items():
                    if value is not None:
                        found.setdefault(key, set()).add(str(value))
        return {key: "; ".join(sorted(values)) for key, values in found.items()}

    @property
    def trainings(self) -> list[Mapping[str, Any]]:
        """The origins of the seeds: groups of `seeds` that were trained alike, each with its commit, code, device and replays."""
        return self.record.get("trainings") or [{**self.record, "seeds": list(self.seeds)}]

    @property
    def test_accuracy(self) -> FloatArray:
        return self.curves["test_accuracy"]

    @property
    def test_error(self) -> FloatArray:
        """Where no image of a test is wrong, half an image is counted: a ratio of errors takes their logarithms."""
        return or_half(1 - self.test_accuracy, lambda: len(self.predictions[1]) if self.predictions else self.settings.num_tests)

    @property
    def test_loss(self) -> FloatArray:
        return self.curves["test_loss"]

    @property
    def train_loss(self) -> FloatArray:
        """NaN in self-critical epochs, which minimise no cross-entropy."""
        losses = self.curves["train_loss"]
        return np.where(np.arange(losses.shape[1]) < self.supervised_epochs, losses, np.nan)

    @property
    def supervised_epochs(self) -> int:
        """The epochs before any self-critical ones."""
        return self.test_loss.shape[1] - int(self.options.get("train.self_critical_epochs", 0))

    @property
    def accuracy(self) -> FloatArray:
        """(seeds,) test accuracy after the last epoch."""
        return self.test_accuracy[:, -1]

    @property
    def diverged(self) -> int:
        """Seeds whose last train loss is not finite or no better than a guess."""
        return int(is_diverged(self.train_loss[:, self.supervised_epochs - 1], self.settings.num_outputs).sum())

    @property
    def grid(self) -> int:
        """Patches along one side; 0 for a network without patches."""
        return self.settings.model.grid if isinstance(self.settings.model, ModelSettings) else 0

    @cached_property
    def _arrays(self) -> Arrays | None:
        """All of the predictions' file; None where it is not here. Raises UserError where it is damaged or of another training."""
        arrays = self.stored()
        if arrays is None:
            return None
        same = tuple(arrays["seeds"].tolist()) == self.seeds
        if "predictions" not in arrays:  # a captioner's: of other weights than the record's the tables have no evaluation
            same &= self.evaluation is not None
        elif same:
            right = (arrays["predictions"] == arrays["labels"]).sum(axis=1)
            same = bool((np.abs(right - np.rint(self.accuracy * len(arrays["labels"]))) <= ROUNDED).all())
        if not same:
            raise UserError(f"{PREDICTIONS}/{self.variant}.npz is of another training than the record: run `dvc repro evaluate`.")
        return arrays

    @property
    def predictions(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] | None:
        """(seeds, images) predicted classes and (images,) labels of the test images; None where they are not here."""
        if self._arrays is None or "predictions" not in self._arrays:
            return None
        return self._arrays["predictions"], self._arrays["labels"]

    @property
    def patch_positions(self) -> FloatArray | None:
        """(seeds, grid^2, dim) float64, the class token's row left out; None where the variant adds none, or none are stored here."""
        model = self.settings.model
        if self._arrays is None or "positions" not in self._arrays or not isinstance(model, ModelSettings):
            return None
        return self._arrays["positions"][:, int(model.has_cls) :].astype(np.float64)

    @property
    def captions(self) -> Captions | None:
        """What a captioner wrote of the test scenes; None where that is not here."""
        if self._arrays is None or "greedy" not in self._arrays:
            return None
        attention, scenes = self._arrays.get("attention"), _grey(self._arrays["scenes"])
        return Captions(self._arrays["cells"], self._arrays["greedy"], scenes, None if attention is None else attention.astype(np.float64))

    @property
    def attention(self) -> Attention | None:
        """What the trained model attends to; None where that was not evaluated."""
        model = self.settings.model
        if self._arrays is None or "maps" not in self._arrays or not isinstance(model, ModelSettings):
            return None
        maps, rollout = self._arrays["maps"], self._arrays["rollout"]
        patches = slice(int(model.has_cls), int(model.has_cls) + self.grid**2)
        shape = (self.grid, self.grid)
        return Attention(
            images=_grey(self._arrays["images"]),
            labels=tuple(self._arrays["image_labels"].tolist()),
            reader=_READERS.get(model.pool, "mean patch"),
            maps=maps[..., patches].astype(np.float64).reshape(*maps.shape[:3], *shape),
            keys=model.num_tokens + model.memory,
            rollout=rollout[..., patches].astype(np.float64).reshape(*rollout.shape[:2], *shape),
            filters=self._arrays.get("filters"),
        )


def _grey(images: npt.NDArray[np.uint8]) -> FloatArray:
    """(images, height, width) in [0, 1]: the mean over channels."""
    return images.reshape(len(images), -1, *images.shape[-2:]).astype(np.float64).mean(1) / 255
