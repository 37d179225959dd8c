"""The data of captioning: the scenes, and the images in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.data import datasets
from pipeline.data.datasets import Dataset
from pipeline.system.errors import UserError
from pipeline.system.files import DamagedError, read_sealed_json

if TYPE_CHECKING:
    from pipeline.captioning.scenes import Scenes

SCENES = "scenes"  # beside the folder of the arrays


@dataclass(frozen=True)
class SceneData:
    """Scenes, and the data set whose images they use."""

    scenes: Scenes
    dataset: Dataset


def load(arrays: Path) -> SceneData:
    """Loads arrays and scenes. Raises UserError if either are missing or damaged, or if the scenes were made from other arrays."""
    from pipeline.captioning import scenes

    dataset, found = datasets.load(arrays), scenes.load(arrays.with_name(SCENES))
    if found.data_digest != dataset.digest:
        raise UserError(f"{arrays.with_name(SCENES)} was made of other arrays: run `dvc repro scenes`.")
    return SceneData(found, dataset)


def data_digest(arrays: Path) -> str:
    """The digest of the scenes, which includes that of the arrays. Raises UserError if the scenes are missing or damaged."""
    path = arrays.with_name(SCENES) / "scenes.json"
    try:
        return str(read_sealed_json(path)["digest"])
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro --force scenes` to draw the scenes.") from None
    except DamagedError as fault:
        raise UserError(f"{fault}: run `dvc repro --force scenes` to draw the scenes again.") from None
