"""Scenes: which image is in which cell, and the references that describe them. They are drawn once and verified on every load."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from pipeline.captioning.grammar import PHRASINGS, Grammar, Scene, Words, grammar_of
from pipeline.data.datasets import Dataset
from pipeline.models.dropout import mix
from pipeline.params import ScenesSettings
from pipeline.system.errors import UserError
from pipeline.system.files import DamagedError, read_sealed_json, replacing, sealed_json, write_json

SPLITS = ("train", "validation", "test")
SCENES = Path("data/scenes")
VALIDATION_SHARE = 16  # one in 16 training images is used in validation scenes only: of MNIST 3,750 for 2,000 scenes

_ARRAYS, _DESCRIPTION = "scenes.safetensors", "scenes.json"
_FIELDS = ("cells", "labels", "captions")
_CELLS = 4
_ORDERS = np.array(list(permutations(range(_CELLS))))
_DRAWS = 2 + 3 * _CELLS  # random numbers per scene: how many images, in which cells, and three for each image

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Scenes of one split.

    Attributes:
        cells: (scene, 4) int32, the index of the image in each cell (top left, top right, bottom left, bottom right), or -1 for an
            empty cell. It counts among the training images for train and validation, and among the test images for test.
        labels: (scene, 4) int8, the class of the image in each cell, or -1.
        captions: (scene, phrasing, word) uint8, ids of the grammar's words, then `EOS`, then `PAD`.
    """

    cells: NDArray[np.int32]
    labels: NDArray[np.int8]
    captions: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.cells)


@dataclass(frozen=True)
class Scenes:
    """The scenes of a data set.

    Attributes:
        dataset: its name.
        data_digest: digest of the arrays that the scenes are made from.
        words: the vocabulary of the captions; the index is the id.
    """

    dataset: str
    data_digest: str
    words: Words
    train: Split
    validation: Split
    test: Split

    @property
    def digest(self) -> str:
        """sha256 over the data set, the digest of its arrays, the words, and all cells, labels and captions, 64 hexadecimal digits."""
        return str(self.description["digest"])

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name: `train.cells` and so on."""
        return {f"{split}.{field}": getattr(getattr(self, split), field) for split in SPLITS for field in _FIELDS}

    @cached_property
    def description(self) -> dict[str, Any]:
        """The content of scenes.json."""
        sums = {name: _sha256(array) for name, array in self.arrays.items()}
        return sealed_json({"dataset": self.dataset, "data_digest": self.data_digest, "words": list(self.words), "arrays": sums})


def draw(dataset: Dataset, settings: ScenesSettings) -> Scenes:
    """Draws the scenes of a data set, each with 1 to 4 images, equally likely, in distinct random cells.

    Every random number is a hash of the split, the scene and its purpose. NumPy's generators are not used, because NumPy may change
    their streams. So equal arguments give equal scenes everywhere, and a larger number of scenes starts with the same ones.

    Returns:
        The scenes. Train and validation scenes have no image in common. A scene has no image twice, unless its class has no other.

    Raises:
        UserError: the data set has no captions, or too few images.
    """
    grammar = grammar_of(dataset.name)
    num_train = len(dataset.train_images)
    order = np.argsort(_bits("images", num_train, 1)[:, 0])  # there are no ties, because `mix` is a bijection
    validation, train = np.split(order, [num_train // VALIDATION_SHARE])
    pools = {"train": train, "validation": validation, "test": np.arange(len(dataset.test_images))}
    splits = {}
    for split, pool in pools.items():
        if not len(pool):
            raise UserError(f"{dataset.name} has too few images for {split} scenes: choose a data set with {VALIDATION_SHARE} or more.")
        labels = dataset.test_labels if split == "test" else dataset.train_labels
        cells = _draw_cells(split, getattr(settings, split), pool, labels, settings.repeat)
        found = np.where(cells >= 0, labels[cells].astype(np.int8), np.int8(-1))
        splits[split] = Split(cells.astype(np.int32), found, _references(found, grammar))
    return Scenes(dataset.name, dataset.digest, grammar.words, **splits)


def compose(images: Tensor, cells: Tensor) -> Tensor:
    """The scenes as pictures.

    Args:
        images: (n, [channel,] height, width) uint8.
        cells: (..., 4), indices of images, or -1.

    Returns:
        (..., [channel,] 2 height, 2 width) uint8; empty cells are 0.
    """
    *channels, height, width = images.shape[1:]
    chosen = images.index_select(0, cells.reshape(-1).clamp(min=0))
    chosen *= (cells.reshape(-1, *(1,) * (images.dim() - 1)) >= 0).to(images.dtype)
    # From (scene, row of cells, column of cells, [channel,] height, width), move each axis of cells before its axis of pixels.
    grid = chosen.view(cells.numel() // _CELLS, 2, 2, *channels, height, width).movedim((1, 2), (-4, -2))
    return grid.reshape(*cells.shape[:-1], *channels, 2 * height, 2 * width)


def write(scenes: Scenes, directory: Path = SCENES) -> None:
    """Writes scenes.safetensors and scenes.json. Raises UserError if the directory cannot be written."""
    try:
        with replacing(directory / _ARRAYS) as temporary:
            temporary.write_bytes(safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in scenes.arrays.items()}))
        write_json(directory / _DESCRIPTION, scenes.description)
    except OSError as error:
        raise UserError(f"{directory} cannot be written ({error.strerror}): mend that, then run the command again.") from None


def load(directory: Path = SCENES) -> Scenes:
    """Loads what `write` wrote, each array verified by its sha256.

    Raises:
        UserError: a file is missing or damaged; the sentence names it and the command that writes it again.
    """
    path = directory / _DESCRIPTION
    try:
        description = read_sealed_json(path)
        path = directory / _ARRAYS
        arrays = safetensors.numpy.load(path.read_bytes())
        if {name: _sha256(array) for name, array in arrays.items()} != description["arrays"]:
            raise DamagedError
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro --force scenes` to draw the scenes.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): mend that, or run `dvc repro --force scenes`.") from None
    except (DamagedError, SafetensorError):
        raise UserError(f"{path} is damaged, not what was drawn: run `dvc repro --force scenes` to draw the scenes again.") from None
    splits = {split: Split(*(arrays[f"{split}.{field}"] for field in _FIELDS)) for split in SPLITS}
    return Scenes(description["dataset"], description["data_digest"], tuple(description["words"]), **splits)


def scene_of(labels: NDArray[np.int8]) -> Scene:
    """A row of `Split.labels` as the grammar's `Scene`."""
    first, second, third, fourth = (None if label < 0 else int(label) for label in labels)
    return first, second, third, fourth


def _draw_cells(split: str, count: int, pool: Integers, labels: NDArray[np.uint8], repeat: float) -> Integers:
    """(scene, 4) indices among all images, or -1; only indices in `pool` are drawn."""
    bits = _bits(f"scenes/{split}", count, _DRAWS)
    pool = np.sort(pool)
    pool = pool[np.argsort(labels[pool], kind="stable")]  # sorted by class
    classes = labels[pool].astype(np.int64)
    first_of, after = np.searchsorted(classes, np.arange(classes.max() + 2)), len(pool)
    scenes = np.arange(count)
    drawn = np.zeros((count, _CELLS), np.int64)  # indices into `pool`
    for image in range(_CELLS):
        again, which, choice = bits[:, 2 + 3 * image : 5 + 3 * image].T
        low, high = np.zeros(count, np.int64), np.full(count, after)
        if image:
            of = classes[drawn[scenes, _below(which, image)]]
            repeated = again < int(repeat * 2**32)
            low, high = np.where(repeated, first_of[of], low), np.where(repeated, first_of[of + 1], high)
        used = np.sort(drawn[:, :image], axis=1)
        used_here = (used >= low[:, None]) & (used < high[:, None])
        free = high - low - used_here.sum(1)
        place = low + _below(choice, np.where(free > 0, free, high - low))
        # `place` counts only images that the scene does not have yet; each used one at or before it, in rising order, moves it by one.
        for number in range(image):
            place += (free > 0) & used_here[:, number] & (used[:, number] <= place)
        drawn[:, image] = place
    sizes, orders = 1 + _below(bits[:, 0], _CELLS), _ORDERS[_below(bits[:, 1], len(_ORDERS))]
    cells = np.full((count, _CELLS), -1)
    np.put_along_axis(cells, orders, np.where(np.arange(_CELLS) < sizes[:, None], pool[drawn], -1), axis=1)
    return cells


def _references(labels: NDArray[np.int8], grammar: Grammar) -> NDArray[np.uint8]:
    """(scene, phrasing, word) ids. Scenes with the same classes are described only once, to save time."""
    unique, scenes = np.unique(labels, axis=0, return_inverse=True)
    described = [[grammar.encode(grammar.describe(scene, phrasing)) for phrasing in PHRASINGS] for scene in map(scene_of, unique)]
    return np.array(described, np.uint8)[scenes.reshape(-1)]


def _bits(purpose: str, count: int, draws: int) -> Integers:
    """(count, draws) random 32-bit numbers, each a hash of the purpose and its position."""
    key = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "big")
    bits: Integers = mix(mix(torch.arange(count).unsqueeze(1) + key) + torch.arange(draws)).numpy()
    return bits


def _below(bits: Integers, bound: int | Integers) -> Integers:
    """Random numbers from 0 to `bound` - 1. Bounds far below 2^31 avoid overflow and make all numbers practically equally likely."""
    numbers: Integers = (bits * bound) >> 32
    return numbers


def _sha256(array: NDArray[Any]) -> str:
    """sha256 of an array's type, shape and values, in little-endian byte order."""
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
    return hashlib.sha256(f"{little.dtype.str} {little.shape} ".encode() + little.tobytes()).hexdigest()
