from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

from pipeline.commands import profiles
from pipeline.data import datasets
from pipeline.data.datasets import Dataset, data_digest, load
from pipeline.errors import UserError
from pipeline.params.data import DATASETS, MNIST_SHAPE, DataSource
from pipeline.stages import fetch, prepare
from tests.helpers import ROOT, flip_bit

if TYPE_CHECKING:
    from tests.conftest import Repository


@pytest.fixture
def study(tmp_path, monkeypatch) -> Path:
    """An empty study on the digits, as the working directory."""
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(profiles.read("demo")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noise(num_images: int) -> Dataset:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (num_images, 28, 28), dtype=np.uint8)
    labels = np.concatenate([np.arange(9), draw.integers(0, 9, num_images - 9)]).astype(np.uint8)
    return Dataset("mnist", images, labels, images[:1], labels[:1], "")


def test_arrays_and_picture(study, capsys):
    fetch.main([])
    prepare.main([])
    assert load().name == "digits"
    assert capsys.readouterr().out.startswith("digits: 1,437 training and 360 test images")
    first = (study / "reports/data/samples.png").read_bytes()
    prepare.main([])
    assert (study / "reports/data/samples.png").read_bytes() == first
    # PNG chunks that hold words or a time would differ between machines.
    assert not any(chunk in first for chunk in (b"tEXt", b"iTXt", b"zTXt", b"tIME"))
    assert len(first) < 150_000


def test_picture_shows_each_class_in_file_order(tmp_path):
    from PIL import Image

    dataset = noise(400)
    prepare.write_samples(dataset, MNIST_SHAPE, tmp_path / "samples.png")
    with Image.open(tmp_path / "samples.png") as picture:
        grey, alpha = (np.asarray(band) for band in picture.split())
    step, left = 28 + 3, 20
    for label in range(10):
        tiles = [(slice(label * step, label * step + 28), slice(left + column * step, left + column * step + 28)) for column in range(16)]
        shown = [grey[tile] for tile in tiles if alpha[tile].min() == 255]
        expected = [image for image, its in zip(dataset.train_images, dataset.train_labels, strict=True) if its == label][:16]
        assert len(shown) == len(expected) == (0 if label == 9 else 16)
        assert np.array_equal(np.array(shown).reshape(-1), np.array(expected).reshape(-1))
        # A number stands before the row, in a grey that shows on black and on white.
        number = (slice(label * step, label * step + 28), slice(0, left - 2))
        assert alpha[number].max() > 200
        assert set(grey[number][alpha[number] > 0].tolist()) == {128}
    # Between the images the page shows through.
    assert alpha[28 : 28 + 3].max() == 0


def test_prepare_before_fetch(study):
    with pytest.raises(UserError, match=r"manifest\.json is missing"):
        prepare.main([])


def test_what_an_own_reader_raises_is_shown_with_its_place(study, monkeypatch):
    names = {}
    exec(compile("\n\ndef read_own(*_):\n    raise KeyError('no such scan')\n", ROOT / "pipeline/data/lab.py", "exec"), names)
    monkeypatch.setattr(datasets, "read_own", names["read_own"], raising=False)
    monkeypatch.setitem(DATASETS, "own", DataSource("Own", reader="pipeline.data.datasets:read_own"))
    settings = yaml.safe_load((study / "params.yaml").read_text())
    (study / "params.yaml").write_text(yaml.safe_dump(settings | {"data": {"dataset": "own"}}))
    (study / "data/raw").mkdir(parents=True)
    (study / "data/raw/manifest.json").write_text(json.dumps({"dataset": "own", "files": {}}))
    with pytest.raises(UserError, match=r"read_own failed in pipeline/data/lab\.py, line 4, KeyError: 'no such scan': mend it"):
        prepare.main([])


def flip_unseen(path: Path) -> None:
    """Flips one bit; the file's time does not tell of it."""
    before = path.stat()
    flip_bit(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dvc_mends_damaged_arrays(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sentences advise, done with the real DVC."""
    study = trained.copy(tmp_path / "study")
    monkeypatch.chdir(study.path)
    digest = data_digest()
    array = Path("data/arrays/train_images.npy")

    flip_bit(array)
    with pytest.raises(UserError, match=r"train_images\.npy is damaged"):
        load()
    Path("data/arrays/test_images.npy").unlink()
    study.repro("prepare")
    assert load().digest == digest

    flip_unseen(array)
    with pytest.raises(UserError, match=r"train_images\.npy is damaged .*`dvc repro --force prepare`"):
        load()
    study.repro("--force", "prepare")
    assert load().digest == digest
    assert study.repro("prepare") == []
