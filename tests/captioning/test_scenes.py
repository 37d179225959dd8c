"""Scenes: how they are drawn, what they look like, and what becomes of their files."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.captioning import data
from pipeline.captioning import scenes as module
from pipeline.captioning.grammar import PHRASINGS, grammar_of
from pipeline.captioning.scenes import SPLITS, VALIDATION_SHARE, Scenes, compose, draw, load, scene_of, write
from pipeline.data.datasets import Dataset
from pipeline.params import ScenesSettings
from pipeline.system.errors import UserError
from tests.helpers import flip_bit

SETTINGS = ScenesSettings(train=20_000, validation=500, test=800)


def noise(train: int = 1600, test: int = 400, classes: int = 10) -> Dataset:
    """Images of noise, as many of each class, under MNIST's name."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (count, 4, 4)).astype(np.uint8) for count in (train, test)]
    labels = [(np.arange(count) % classes).astype(np.uint8) for count in (train, test)]
    return Dataset("mnist", arrays[0], labels[0], arrays[1], labels[1], digest="0" * 64)


@pytest.fixture(scope="module")
def drawn() -> Scenes:
    return draw(noise(), SETTINGS)


@pytest.fixture(scope="module")
def few() -> Scenes:
    return draw(noise(), ScenesSettings(train=3, validation=2, test=2))


def close(observed: float, probability: float, trials: int) -> bool:
    """Within four and a half standard deviations of a share of so many trials."""
    return abs(observed - probability) <= 4.5 * np.sqrt(probability * (1 - probability) / trials)


# --- the draw ---


def test_the_numbers_of_images_their_cells_and_the_images_are_uniform(drawn: Scenes) -> None:
    occupied = drawn.train.cells >= 0
    for size in (1, 2, 3, 4):
        choices = list(combinations(range(4), size))
        for choice in choices:
            share = (occupied == np.isin(np.arange(4), choice)).all(1).mean()
            assert close(share, 1 / 4 / len(choices), len(occupied)), choice
    counts = np.bincount(drawn.train.cells[occupied], minlength=1600)
    counts = counts[counts > 0]
    assert len(counts) == 1500
    assert abs(((counts - counts.mean()) ** 2).sum() / counts.mean() - 1499) < 4.5 * np.sqrt(2 * 1499)  # chi square


@pytest.mark.parametrize("repeat", [0.0, 0.25, 1.0])
def test_so_many_scenes_have_a_class_more_than_once(drawn: Scenes, repeat: float) -> None:
    """A later image is of a new class where it does not repeat one on purpose and not by chance: with 10 classes alike, 43 % at 0.25."""
    split = (drawn if repeat == SETTINGS.repeat else draw(noise(), SETTINGS.model_copy(update={"repeat": repeat}))).train
    found = np.array([len(set(row[row >= 0])) < (row >= 0).sum() for row in split.labels])
    of = (split.cells >= 0).sum(1)
    for size in (1, 2, 3, 4):
        new = np.prod([(1 - repeat) * (1 - before / 10) for before in range(1, size)])
        assert close(found[of == size].mean(), 1 - new, (of == size).sum())
    assert repeat != 0.25 or close(found.mean(), 0.427, len(found))


def test_splits_have_no_image_in_common_and_scenes_no_image_twice(drawn: Scenes) -> None:
    train, validation = (set(split.cells[split.cells >= 0].tolist()) for split in (drawn.train, drawn.validation))
    assert not train & validation
    assert len(validation) == 1600 // VALIDATION_SHARE
    assert train | validation == set(range(1600))
    for name in SPLITS:
        split = getattr(drawn, name)
        assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in split.cells)


def test_labels_are_those_of_the_images_and_captions_describe_them(drawn: Scenes) -> None:
    dataset, grammar = noise(), grammar_of("mnist")
    for name in SPLITS:
        split = getattr(drawn, name)
        labels = dataset.test_labels if name == "test" else dataset.train_labels
        assert np.array_equal(split.labels, np.where(split.cells >= 0, labels.astype(int)[split.cells], -1))
        assert split.cells.max() < len(labels)
        for row, captions in zip(split.labels[:300], split.captions.tolist(), strict=False):
            scene = scene_of(row)
            assert [grammar.decode(ids) for ids in captions] == [grammar.describe(scene, phrasing) for phrasing in PHRASINGS]
            assert all(grammar.encode(grammar.decode(ids)) == tuple(ids) for ids in captions)


def test_fewer_scenes_are_the_first_of_more(drawn: Scenes) -> None:
    fewer = draw(noise(), ScenesSettings(train=300, validation=20, test=40))
    for name, array in fewer.arrays.items():
        assert np.array_equal(array, drawn.arrays[name][: len(array)])


def test_the_draw_is_the_one_that_results_are_of(drawn: Scenes) -> None:
    """A change that moves a scene has to be told apart from one that does not."""
    assert drawn.digest == "30c6391a3d416b5747c982d86bbc1efa89abe72fca4c97d021876372bd8dd88b"


# --- the pictures ---


@pytest.mark.parametrize("channels", [(), (3,)])
def test_compose_puts_each_image_into_its_cell(channels: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, (20, *channels, 3, 5)).astype(np.uint8)
    cells = rng.integers(-1, 20, (2, 50, 4)).astype(np.int32)
    expected = np.zeros((2, 50, *channels, 6, 10), np.uint8)
    for index in np.ndindex(2, 50):
        for cell, (row, column) in enumerate(((0, 0), (0, 5), (3, 0), (3, 5))):
            if cells[index][cell] >= 0:
                expected[index][..., row : row + 3, column : column + 5] = images[cells[index][cell]]
    composed = compose(torch.from_numpy(images), torch.from_numpy(cells))
    assert composed.dtype == torch.uint8
    assert np.array_equal(composed.numpy(), expected)
    assert torch.equal(compose(torch.from_numpy(images), torch.from_numpy(cells[0, 7]).long()), composed[0, 7])
    assert compose(torch.from_numpy(images), torch.from_numpy(cells[:, :0])).shape == (2, 0, *channels, 6, 10)


# --- the files ---


def test_what_is_loaded_is_what_was_written(few: Scenes, tmp_path: Path) -> None:
    for place in ("a", "b"):
        write(few, tmp_path / place)
    assert all(path.read_bytes() == (tmp_path / "b" / path.name).read_bytes() for path in (tmp_path / "a").iterdir())
    loaded = load(tmp_path / "a")
    assert (loaded.dataset, loaded.data_digest, loaded.words, loaded.digest) == ("mnist", "0" * 64, few.words, few.digest)
    for name, array in few.arrays.items():
        assert np.array_equal(loaded.arrays[name], array)
        assert loaded.arrays[name].dtype == array.dtype


def test_missing_and_damaged_files_are_one_sentence(few: Scenes, tmp_path: Path) -> None:
    arrays, description = tmp_path / module._ARRAYS, tmp_path / module._DESCRIPTION
    for path, spoil, said in (
        (arrays, Path.unlink, "missing"),
        (arrays, flip_bit, "damaged, not what"),
        (description, flip_bit, "damaged"),
    ):
        write(few, tmp_path)
        spoil(path)
        with pytest.raises(UserError, match=f"^{path} is {said}.* run `dvc repro --force scenes`"):
            load(tmp_path)


def test_scenes_of_other_arrays_are_not_used(few: Scenes, arrays: Path, tmp_path: Path) -> None:
    (tmp_path / "arrays").symlink_to(arrays)
    write(few, tmp_path / "scenes")
    with pytest.raises(UserError, match="scenes was made of other arrays: run `dvc repro scenes`"):
        data.load(tmp_path / "arrays")
