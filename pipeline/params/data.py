"""The data sets that params.yaml can name. A new one is an entry here, and what reads it in `pipeline/data/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, field_validator

from pipeline.params.faults import nearest, shown


class Shape(NamedTuple):
    """What a network has to fit: images of `size` x `size` pixels with so many `channels`, of so many `classes`; `words` of captions."""

    size: int = 28
    channels: int = 1
    classes: int = 10
    words: int = 35


MNIST_SHAPE = Shape()


@dataclass(frozen=True)
class DataSource:
    """A data set before it is here.

    Attributes:
        label: what pages call it.
        training_images, test_images: how many there are.
        reader: `module:function`, which makes the arrays of data/raw; see `pipeline.data.datasets.prepare`.
        torchvision: the class of torchvision.datasets that has mirrors and checksums of its archives; None where nothing is fetched.
    """

    label: str
    training_images: int
    test_images: int
    shape: Shape = MNIST_SHAPE
    reader: str = "pipeline.data.datasets:read_archives"
    torchvision: str | None = None


DATASETS = {
    "mnist": DataSource("MNIST", 60_000, 10_000, torchvision="MNIST"),
    "fashion_mnist": DataSource("Fashion-MNIST", 60_000, 10_000, torchvision="FashionMNIST"),
    "kmnist": DataSource("Kuzushiji-MNIST", 60_000, 10_000, torchvision="KMNIST"),
    "digits": DataSource("scikit-learn's digits", 1_437, 360, reader="pipeline.data.datasets:read_digits"),
}


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataSettings(Settings):
    dataset: str

    @field_validator("dataset")
    @classmethod
    def _known(cls, dataset: str) -> str:
        if dataset not in DATASETS:
            raise ValueError(f"is {shown(dataset)}, which is not a choice{nearest(dataset, DATASETS)}")
        return dataset

    @property
    def source(self) -> DataSource:
        return DATASETS[self.dataset]


def shape_context(data: Any) -> dict[str, Shape]:
    """The context in which network settings are validated: the shape of the data set that `data` (checked or not) names."""
    name = data.get("dataset") if isinstance(data, Mapping) else getattr(data, "dataset", None)
    return {"shape": DATASETS[name].shape} if isinstance(name, str) and name in DATASETS else {}
