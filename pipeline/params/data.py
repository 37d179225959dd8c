"""The data sets that params.yaml can name. A new one needs an entry here, and a reader in `pipeline/data/`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.params.reading import nearest, refuse
from pipeline.system.errors import UserError


class Shape(NamedTuple):
    """The data that a network has to fit: images of `size` x `size` pixels with `channels` channels, and `classes` classes.

    `words` is the size of the captions' vocabulary; it has no meaning for a data set without captions.
    """

    size: int = 28
    channels: int = 1
    classes: int = 10
    words: int = 35


MNIST_SHAPE = Shape()

Nouns = tuple[tuple[str, str], ...]  # (singular, plural) of each class

_DIGITS: Nouns = (
    ("zero", "zeros"), ("one", "ones"), ("two", "twos"), ("three", "threes"), ("four", "fours"),
    ("five", "fives"), ("six", "sixes"), ("seven", "sevens"), ("eight", "eights"), ("nine", "nines"),
)  # fmt: skip
_CLOTHES: Nouns = (
    ("t-shirt", "t-shirts"), ("trouser", "trousers"), ("pullover", "pullovers"), ("dress", "dresses"), ("coat", "coats"),
    ("sandal", "sandals"), ("shirt", "shirts"), ("sneaker", "sneakers"), ("bag", "bags"), ("boot", "boots"),
)  # fmt: skip
# The characters' readings; Japanese has no plural.
_HIRAGANA: Nouns = tuple((reading, reading) for reading in ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"))


@dataclass(frozen=True)
class DataSource:
    """The description of a data set that params.yaml can name.

    Attributes:
        label: its name on pages; None where it is the name of what `data.path` names.
        shape: None where `data` says it.
        reader: `module:function`, which makes the arrays from the files; see `pipeline.data.datasets.prepare`.
        torchvision: the class of torchvision.datasets that knows places and checksums of its archives; None if nothing is downloaded.
        nouns: the words for an image of each class in captions, (singular, plural), single words; empty if there are no captions.
    """

    label: str | None
    shape: Shape | None = MNIST_SHAPE
    reader: str = "pipeline.data.datasets:read_archives"
    torchvision: str | None = None
    nouns: Nouns = ()


DATASETS = {
    "mnist": DataSource("MNIST", torchvision="MNIST", nouns=_DIGITS),
    "fashion_mnist": DataSource("Fashion-MNIST", Shape(words=37), torchvision="FashionMNIST", nouns=_CLOTHES),
    "kmnist": DataSource("Kuzushiji-MNIST", Shape(words=28), torchvision="KMNIST", nouns=_HIRAGANA),
    "digits": DataSource("scikit-learn's digits", reader="pipeline.data.datasets:read_digits", nouns=_DIGITS),
    "cifar10": DataSource("CIFAR-10", Shape(32, 3), reader="pipeline.data.datasets:read_cifar10", torchvision="CIFAR10"),
    "folder": DataSource(None, None, reader="pipeline.data.own:read_folder"),
    "npz": DataSource(None, None, reader="pipeline.data.own:read_npz"),
}


# What `pipeline.data.datasets.prepare` says of the arrays: of those here, else as git keeps it, here or for the whole study.
RECORD = Path("reports/data/dataset.json")
COUNTED = (Path("data/arrays/dataset.json"), RECORD, Path(__file__).parents[2] / RECORD)


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataSettings(Settings):
    """What all variants train on.

    Attributes:
        path: the file of `npz` or the folder of `folder`; for data sets with archives, a folder or an address that is asked for them
            first. What lies there has a digest of its own, so the settings of a variant do not have it.
        size: of `npz` and `folder`, the side of an image in pixels.
        channels: of `npz` and `folder`, 1 for grey or 3 for colours.
        classes: of `npz` and `folder`, how many there are.
    """

    dataset: str
    path: Annotated[str, Field(min_length=1)] | None = Field(default=None, exclude=True)
    size: Annotated[int, Field(ge=1, le=1024)] | None = None
    channels: Literal[1, 3] | None = None
    classes: Annotated[int, Field(ge=2, le=1000)] | None = None

    @model_validator(mode="after")
    def _possible(self) -> DataSettings:
        refuse((self.dataset not in DATASETS, f"dataset: there is no {self.dataset!r}{nearest(self.dataset, DATASETS)}"))
        own = self.source.shape is None
        said = "needs it, a number" if own else "has its own; leave it out"
        refuse(*((own == (getattr(self, name) is None), f"{name}: {self.dataset} {said}") for name in ("size", "channels", "classes")))
        return self

    @property
    def source(self) -> DataSource:
        return DATASETS[self.dataset]

    @property
    def shape(self) -> Shape:
        """Of its images and classes."""
        return self.source.shape or Shape(self.size or 0, self.channels or 0, self.classes or 0, 0)

    @property
    def label(self) -> str:
        """Its name on pages."""
        return self.source.label or Path(self.path or self.dataset).stem

    def count(self, split: Literal["train", "test"]) -> int:
        """Images of a split, as the prepare stage has counted them. Raises UserError where it has not yet."""
        for path in COUNTED:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                described = json.loads(path.read_bytes())
                if described["name"] == self.dataset:
                    return int(described["arrays"][f"{split}_images"]["shape"][0])
        raise UserError(f"How many images {self.dataset} has is not known before they are counted: run `dvc repro prepare`.")


class ScenesSettings(Settings):
    """How many scenes of one to four images are drawn for captioning.

    Attributes:
        train, validation, test: numbers of scenes.
        repeat: probability with which an image after a scene's first is drawn from a class that the scene has; else it is any image.
    """

    train: Annotated[int, Field(ge=1, le=1_000_000)] = 30_000
    validation: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    test: Annotated[int, Field(ge=1, le=1_000_000)] = 5_000
    repeat: Annotated[float, Field(ge=0, le=1)] = 0.25


def shape_context(data: Any) -> dict[str, Shape]:
    """The context for validating network settings: the shape of the data set that `data` (validated or not) names."""
    try:
        return {"shape": (DataSettings.model_validate(data) if isinstance(data, Mapping) else data).shape}
    except (ValidationError, AttributeError):  # the fault is found where the data themselves are validated
        return {}
