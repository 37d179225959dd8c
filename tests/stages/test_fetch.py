from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.commands import profiles
from pipeline.stages import fetch
from tests.helpers import STUDY


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository's params.yaml alone, in the working directory; the environment names neither mirror nor proxy."""
    for name in ("MNIST_MIRROR", *(name for name in os.environ if name.lower().endswith("_proxy"))):
        monkeypatch.delenv(name, raising=False)
    shutil.copyfile(STUDY / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_digits(folder, capsys):
    (folder / "params.yaml").write_text(yaml.safe_dump(profiles.read("demo")))
    fetch.main([])
    assert capsys.readouterr() == ("", "")
    assert json.loads((folder / "data" / "raw" / "manifest.json").read_text()) == {"dataset": "digits", "files": {}}


def test_archives_from_a_directory(folder, monkeypatch):
    """The stage with other bytes than MNIST's: only torchvision's table of checksums is exchanged."""
    from torchvision.datasets import MNIST

    files = {name: gzip.compress(name.encode()) for name, _ in MNIST.resources}
    (folder / "archives").mkdir()
    for name, content in files.items():
        (folder / "archives" / name).write_bytes(content)
    monkeypatch.setattr(MNIST, "resources", [(name, hashlib.md5(content).hexdigest()) for name, content in files.items()])
    monkeypatch.setenv("MNIST_MIRROR", "archives")
    fetch.main([])
    assert {path.name: path.read_bytes() for path in (folder / "data" / "raw").glob("*.gz")} == files
    assert json.loads((folder / "data" / "raw" / "manifest.json").read_text())["dataset"] == "mnist"
