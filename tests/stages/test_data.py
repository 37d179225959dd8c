"""The stages before train: archives, arrays, scenes, and the settings of each variant."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from PIL import Image

from pipeline import params
from pipeline.captioning.scenes import load as load_scenes
from pipeline.commands import profiles
from pipeline.data import datasets
from pipeline.data.datasets import Dataset, data_digest, load
from pipeline.params import DATASETS, Params, load_variant
from pipeline.params.data import MNIST_SHAPE, DataSource
from pipeline.stages import fetch, prepare, scenes
from pipeline.stages.resolve import digest, write_configs
from pipeline.system.errors import UserError, run_command
from tests.helpers import ROOT, STUDY, flip_bit

if TYPE_CHECKING:
    from tests.conftest import Repository


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty study on the digits, as the working directory."""
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(profiles.read("demo")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def prepared(demo: Path, arrays: Path) -> Path:
    """The same after its stage prepare."""
    (demo / "data").mkdir()
    (demo / "data/arrays").symlink_to(arrays)
    return demo


def test_archives_from_a_directory(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage with other bytes than MNIST's: only torchvision's table of checksums is exchanged."""
    from torchvision.datasets import MNIST

    (demo / "params.yaml").write_bytes((STUDY / "params.yaml").read_bytes())
    files = {name: gzip.compress(name.encode()) for name, _ in MNIST.resources}
    (demo / "archives").mkdir()
    for name, content in files.items():
        (demo / "archives" / name).write_bytes(content)
    monkeypatch.setattr(MNIST, "resources", [(name, hashlib.md5(content).hexdigest()) for name, content in files.items()])
    monkeypatch.setenv("MNIST_MIRROR", "archives")
    fetch.main([])
    assert {path.name: path.read_bytes() for path in (demo / "data" / "raw").glob("*.gz")} == files
    assert json.loads((demo / "data" / "raw" / "manifest.json").read_text())["dataset"] == "mnist"


def test_arrays_and_picture(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"manifest\.json is missing"):
        prepare.main([])
    fetch.main([])
    assert json.loads((demo / "data" / "raw" / "manifest.json").read_text()) == {"dataset": "digits", "files": {}}
    prepare.main([])
    assert load().name == "digits"
    assert capsys.readouterr().out.startswith("digits: 1,437 training and 360 test images")
    first = (demo / "reports/data/samples.png").read_bytes()
    prepare.main([])
    assert (demo / "reports/data/samples.png").read_bytes() == first
    # PNG chunks that hold words or a time would differ between machines.
    assert not any(chunk in first for chunk in (b"tEXt", b"iTXt", b"zTXt", b"tIME"))


def test_picture_shows_each_class_in_file_order(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (400, 28, 28), dtype=np.uint8), (np.arange(400) % 9).astype(np.uint8)
    prepare.write_samples(Dataset("mnist", images, labels, images[:1], labels[:1], ""), MNIST_SHAPE, tmp_path / "samples.png")
    with Image.open(tmp_path / "samples.png") as picture:
        grey, alpha = (np.asarray(band) for band in picture.split())
    step, left = 28 + 3, 20
    for label in range(10):
        tiles = [(slice(label * step, label * step + 28), slice(left + column * step, left + column * step + 28)) for column in range(16)]
        shown = [grey[tile] for tile in tiles if alpha[tile].min() == 255]
        assert len(shown) == (0 if label == 9 else 16)
        assert np.array_equal(np.array(shown).reshape(-1), images[labels == label][:16].reshape(-1))


def test_what_an_own_reader_raises_is_shown_with_its_place(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    exec(compile("\n\ndef read_own(*_):\n    raise KeyError('no such scan')\n", ROOT / "pipeline/data/lab.py", "exec"), names)
    monkeypatch.setattr(datasets, "read_own", names["read_own"], raising=False)
    monkeypatch.setitem(DATASETS, "own", DataSource("Own", reader="pipeline.data.datasets:read_own"))
    settings = yaml.safe_load((demo / "params.yaml").read_text())
    (demo / "params.yaml").write_text(yaml.safe_dump(settings | {"data": {"dataset": "own"}}))
    (demo / "data/raw").mkdir(parents=True)
    (demo / "data/raw/manifest.json").write_text(json.dumps({"dataset": "own", "files": {}}))
    with pytest.raises(UserError, match=r"read_own failed in pipeline/data/lab\.py, line 4, KeyError: 'no such scan': mend it"):
        prepare.main([])


def test_own_data_that_test_what_was_learned_are_told(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = np.random.default_rng(0).integers(256, size=(9, 28, 28), dtype=np.uint8), np.arange(9) % 3
    np.savez("own.npz", train_images=images, train_labels=labels, test_images=images[:4], test_labels=labels[:4])
    data = {"data": {"dataset": "npz", "path": "own.npz", "size": 28, "channels": 1, "classes": 4}}
    (demo / "params.yaml").write_text(yaml.safe_dump(profiles.read("demo") | data))
    fetch.main([])
    prepare.main([])
    twice, empty = (line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: "))
    assert ("4 of the 4 test images" in twice, "of class 3;" in empty) == (True, True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dvc_mends_damaged_arrays(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sentence advises, done with the real DVC; of the damage the file's time does not tell."""
    study = trained.copy(tmp_path / "study")
    monkeypatch.chdir(study.path)
    digest, array = data_digest(), Path("data/arrays/train_images.npy")
    before = array.stat()
    flip_bit(array)
    os.utime(array, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match=r"train_images\.npy is damaged .*`dvc repro --force prepare`"):
        load()
    Path("data/arrays/test_images.npy").unlink()
    study.repro("--force", "prepare")
    assert load().digest == digest


def test_scenes_are_drawn_from_the_arrays(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes.main([])
    drawn, sizes = load_scenes(), params.load().scenes
    assert (drawn.dataset, drawn.data_digest) == ("digits", data_digest())
    counts = [sizes.train, sizes.validation, sizes.test]
    assert [len(split) for split in (drawn.train, drawn.validation, drawn.test)] == counts
    said = "{:,} train, {:,} validation, {:,} test scenes, digest ".format(*counts)
    assert capsys.readouterr().out == f"{said}{drawn.digest[:12]}\n"


def test_a_data_set_without_nouns_stops_no_study(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], nouns=()))
    scenes.main([])
    assert capsys.readouterr().out == "scikit-learn's digits has no captions: its classes have no nouns\n"
    assert list((prepared / "data/scenes").iterdir()) == []  # the folder is there, because dvc.yaml names it


def test_one_file_a_variant(tmp_path: Path, study: Params) -> None:
    """Equal bytes for equal settings, and nothing of variants that are gone."""
    (tmp_path / "gone.json").write_text("{}")
    write_configs(study, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.json")} == set(study.variants)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert all(load_variant(tmp_path / f"{variant}.json") == study.resolve(variant) for variant in study.variants)
    write_configs(study, tmp_path)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


def test_what_lies_in_the_way_is_one_sentence(tmp_path: Path, study: Params, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "configs/base.json").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        run_command(lambda _: write_configs(study, tmp_path / "configs"))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: Something else lies in the place of a file or folder \(.*configs.*\): move it elsewhere, .*\n", said)


def test_all_that_params_yaml_says_runs_what_writes_tables_and_pages(tmp_path: Path, own: dict[str, Any]) -> None:
    """DVC compares mappings without their order, and of a made study no section that its params.yaml began without."""
    turned = {"variants": dict(reversed(own["variants"].items()))}
    digests = set()
    for change in ({}, turned, {"images_shown": 7}, {"title": "Another"}):
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(own | change, sort_keys=False))
        digests.add(digest(tmp_path / "params.yaml"))
    assert len(digests) == 4
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert "params.yaml" in stages["resolve"]["deps"]
    assert {"data.dataset", "scenes"} <= {*stages["scenes"]["params"]}
    assert all({"configs", "claims.yaml"} <= {*stages[name]["deps"]} for name in ("evaluate", "report"))
