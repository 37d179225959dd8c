"""The data sets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

IMAGE_SIZE = 28
NUM_CHANNELS = 1
NUM_CLASSES = 10
TRAINING_IMAGES = {"mnist": 60_000, "fashion_mnist": 60_000, "kmnist": 60_000, "digits": 1_437}  # in the whole training set
TEST_IMAGES = {"mnist": 10_000, "fashion_mnist": 10_000, "kmnist": 10_000, "digits": 360}


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataSettings(Settings):
    dataset: Literal["mnist", "fashion_mnist", "kmnist", "digits"]
