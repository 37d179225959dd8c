"""The settings of one variant, which decide its training, and the records of those that earlier versions of the code had."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator

from pipeline.params.architectures import ARCHITECTURES
from pipeline.params.data import MNIST_SHAPE, DataSettings, ScenesSettings, Settings, shape_context
from pipeline.params.model import AnyModelSettings, ModelSettings, NetworkSettings, settings_class
from pipeline.params.reading import sentence, shown
from pipeline.params.train import TrainSettings
from pipeline.system.errors import UserError


class VariantSettings(Settings):
    """All settings that decide the result of a variant's train stage. Their canonical JSON is the file `configs/VARIANT.json`."""

    data: DataSettings
    train: TrainSettings
    model: AnyModelSettings
    scenes: ScenesSettings | None = None  # None for a classifier

    @field_validator("model", mode="before")
    @classmethod
    def _fits_the_data(cls, model: Any, info: ValidationInfo) -> Any:
        """The options of the architecture, with the shape of the data set, which is not part of their JSON."""
        context = shape_context(info.data.get("data"))
        if isinstance(model, NetworkSettings) and context.get("shape", model.shape) != model.shape:
            model = model.model_dump()
        if not isinstance(model, Mapping):
            return model
        if (architecture := model.get("architecture")) not in ARCHITECTURES:
            raise ValueError(f"architecture: there is no {shown(architecture)}")
        return settings_class(architecture).model_validate(model, context=context)

    def to_json(self) -> str:
        """Canonical JSON with sorted keys and one trailing newline; equal for equal settings."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=2) + "\n"

    @property
    def task(self) -> str:
        """What the network is trained for: "classification" or "captioning"."""
        return ARCHITECTURES[self.model.architecture].task

    @property
    def stackable(self) -> bool:
        """Whether the seeds on a GPU train together as one stack."""
        has_batch_norm = isinstance(self.model, ModelSettings) and self.model.has_batch_norm
        return ARCHITECTURES[self.model.architecture].stackable and not has_batch_norm

    @property
    def num_outputs(self) -> int:
        """The number of outcomes that a network chooses from: classes, or words of the vocabulary."""
        return self.model.shape.words if self.scenes else self.model.shape.classes

    @property
    def num_steps(self) -> int:
        """Of the whole training."""
        return self.train.epochs * math.ceil(self.epoch_examples / self.train.batch_size)

    @property
    def supervised_epochs(self) -> int:
        """The epochs that minimise a cross-entropy: those before any self-critical ones."""
        return self.train.epochs - self.train.self_critical_epochs

    @property
    def images_shown(self) -> int:
        """Training images, or scenes, that a seed is shown in all its epochs, counting repetitions."""
        return self.train.epochs * self.epoch_examples

    @property
    def training_images(self) -> int:
        """Distinct training images, or scenes, that a seed sees."""
        return self.train.train_images or self._available

    @property
    def epoch_examples(self) -> int:
        """Training images, or scenes, that a seed is shown in an epoch."""
        return self.train.epoch_images or self._available

    @property
    def _available(self) -> int:
        """Training images, or scenes, without those held out for validation."""
        return self.scenes.train if self.scenes else self.data.count("train") - self.train.validation

    @property
    def num_tests(self) -> int:
        """Images, or scenes, in the test after an epoch."""
        return self.scenes.validation if self.scenes else self.data.count("test")

    @property
    def config_hash(self) -> str:
        """sha256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def training_hash(self) -> str:
        """sha256 of the settings that decide the training of one seed, which are all but the seeds; 64 hexadecimal digits.

        Options at their frozen value do not count: a new option keeps the hashes of earlier trainings, another default changes them.
        """
        parts: dict[str, Any] = {name: _counted(part) for name in type(self).model_fields if (part := getattr(self, name)) is not None}
        del parts["train"]["seeds"]
        if self.model.shape[:3] != MNIST_SHAPE[:3]:
            parts["shape"] = self.model.shape[:3]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def trained_as(self, config: Mapping[str, Any], *, seeds: bool = False) -> bool:
        """Whether recorded settings are these. What they alone have had its frozen value, or else another `training_hash`.

        Args:
            seeds: whether they have to be of the same seeds, too.
        """
        own, found = (dict(flatten(one)) for one in (self.model_dump(mode="json"), completed(config)))
        return all((name == "train.seeds" and not seeds) or found.get(name) == value for name, value in own.items())


# What an option was when it came, of each that settings files or older records may leave out. It never changes: trainings with this
# value have keys without the option, and any other default gives another key. A new option with a default needs a line here.
FROZEN: dict[type[Settings], dict[str, Any]] = {
    DataSettings: {"size": None, "channels": None, "classes": None},
    TrainSettings: {
        "beta2": 0.999, "validation": 0, "crop": 0, "flip": False, "pretrained": None,
        "self_critical_epochs": 0, "self_critical_rate": 2e-4,
    },
    NetworkSettings: {"normalize": "none"},
    ModelSettings: {"position_std": 1.0, "norm_kind": "layer", "mlp": "full"},
    ScenesSettings: {"train": 30_000, "validation": 2_000, "test": 5_000, "repeat": 0.25},
}  # fmt: skip
# Options that are gone, with the value at which the code still computes the same: keys still have it, and records with it are read.
REMOVED: dict[type[Settings], dict[str, Any]] = {}


def _frozen(kind: type[Settings]) -> dict[str, Any]:
    """A class's own options of `FROZEN`, and those that it inherits; an own model's class has them itself. As JSON has their values."""
    own = json.loads(json.dumps(kind.frozen)) if issubclass(kind, NetworkSettings) else {}
    return own | {name: value for one in kind.__mro__ if issubclass(one, Settings) for name, value in FROZEN.get(one, {}).items()}


def _counted(settings: Settings) -> dict[str, Any]:
    """The options that count in a training's key."""
    frozen = _frozen(type(settings))
    values = REMOVED.get(type(settings), {}) | settings.model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in frozen or value != frozen[name]}


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings with the options that came later, and without those that are gone."""
    found = dict(config)
    architecture = config.get("model", {}).get("architecture")
    network = settings_class(architecture) if architecture in ARCHITECTURES else NetworkSettings
    kinds: dict[str, type[Settings]] = {"data": DataSettings, "train": TrainSettings, "model": network, "scenes": ScenesSettings}
    for name, kind in kinds.items():
        if (part := config.get(name)) is not None:
            later = {option: value for option, value in _frozen(kind).items() if option in kind.model_fields}
            gone = REMOVED.get(kind, {}).items()
            found[name] = later | {option: value for option, value in part.items() if (option, value) not in gone}
    return found


def recorded(config: Mapping[str, Any], where: str) -> VariantSettings:
    """The settings that a training's record has, of whatever age; `where` names the record.

    Raises:
        UserError: the settings of today have no place for them. Training anew without a word would lose what is finished.
    """
    try:
        return VariantSettings.model_validate_json(json.dumps(completed(config)))
    except ValidationError as error:
        raise UserError(
            f"{where} has settings that this code does not read, {sentence(error, '', VariantSettings)} Name the option in FROZEN or "
            "REMOVED of pipeline/params/variant.py, so that its seeds are kept, or train anew with `REPLAY=0`."
        ) from None


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings with its dotted key: {"train": {"epochs": 3}} gives ("train.epochs", 3)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
