from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline import profiles
from pipeline.data.datasets import Dataset, data_digest, load
from pipeline.errors import UserError
from pipeline.stages import fetch, prepare

ROOT = Path(__file__).parents[2]
# The two stages as the repository's dvc.yaml declares their outputs.
DVC = """
stages:
  fetch:
    cmd: python -m pipeline.stages.fetch
    params: [data.dataset]
    outs: [{data/raw: {persist: true}}]
  prepare:
    cmd: python -m pipeline.stages.prepare
    params: [data.dataset]
    deps: [data/raw]
    outs: [data/arrays, {reports/data/samples.png: {cache: false}}]
"""


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
    prepare.write_samples(dataset, tmp_path / "samples.png")
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


def repro(*arguments: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], env=environment, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def flip(path: Path, *, show: bool) -> None:
    """Flips one bit; `show` says whether the file's time tells of it."""
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    if not show:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.slow
def test_dvc_mends_damaged_arrays(study):
    """What the sentences advise, done with the real DVC."""
    repro("init", "--no-scm", "--quiet")
    (study / "dvc.yaml").write_text(DVC)
    repro("repro")
    digest = data_digest()
    array = study / "data/arrays/train_images.npy"

    flip(array, show=True)
    with pytest.raises(UserError, match=r"train_images\.npy is damaged"):
        load()
    repro("repro")
    assert load().digest == digest

    flip(array, show=False)
    with pytest.raises(UserError, match=r"train_images\.npy is damaged .*`dvc repro --force prepare`"):
        load()
    repro("repro", "--force", "prepare")
    assert load().digest == digest

    array.unlink()
    repro("repro")
    assert load().digest == digest
    assert "up to date" in repro("repro")


@pytest.mark.slow
def test_dvc_mends_damaged_archives(study, monkeypatch):
    place = os.environ.get("MNIST_MIRROR", "")
    if not place or not Path(place).is_dir():
        pytest.skip("MNIST_MIRROR names no directory; the checksums are torchvision's, so no other archives will do")
    (study / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    repro("init", "--no-scm", "--quiet")
    (study / "dvc.yaml").write_text(DVC)
    repro("repro")
    digest = data_digest()
    archive = study / "data/raw/train-images-idx3-ubyte.gz"

    flip(archive, show=True)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        prepare.main([])
    # Only the damaged one is fetched again, and with the same bytes back the arrays stay as they are.
    output = repro("repro")
    assert output.count("already here") == 3
    assert "Stage 'prepare' didn't change" in output

    flip(archive, show=False)
    with pytest.raises(UserError, match=r"`dvc repro --force fetch`"):
        prepare.main([])
    repro("repro", "--force", "fetch")
    prepare.main([])
    assert load().digest == digest
