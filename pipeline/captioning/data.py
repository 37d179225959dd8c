"""The data of captioning: the scenes, and the images that stand in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.data import datasets
from pipeline.data.datasets import Dataset
from pipeline.errors import UserError
from pipeline.files import DamagedError, read_sealed_json

if TYPE_CHECKING:
    from pipeline.captioning.scenes import Scenes

SCENES = "scenes"  # beside the folder of the arrays


@dataclass(frozen=True)
class SceneData:
    """Scenes, and the arrays that they are made of."""

    scenes: Scenes
    dataset: Dataset


def load(arrays: Path) -> SceneData:
    """Raises UserError where arrays or scenes are missing or damaged, or the scenes are of other arrays."""
    from pipeline.captioning import scenes

    dataset, found = datasets.load(arrays), scenes.load(arrays.with_name(SCENES))
    if found.data_digest != dataset.digest:
        raise UserError(f"{arrays.with_name(SCENES)} was made of other arrays: run `dvc repro scenes`.")
    return SceneData(found, dataset)


def data_digest(arrays: Path) -> str:
    """That of the scenes, which the arrays' own is part of. Raises UserError where they are missing or damaged."""
    path = arrays.with_name(SCENES) / "scenes.json"
    try:
        return str(read_sealed_json(path)["digest"])
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro --force scenes` to draw the scenes.") from None
    except DamagedError as fault:
        raise UserError(f"{fault}: run `dvc repro --force scenes` to draw the scenes again.") from None
