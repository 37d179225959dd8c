from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from pipeline.commands import profiles
from pipeline.errors import UserError
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


def test_without_a_network_the_stage_ends_with_one_sentence(folder, monkeypatch):
    """Every request goes through a proxy that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, address)
    monkeypatch.setenv("MNIST_MIRROR", "http://mirror.invalid/mnist")
    with pytest.raises(UserError) as caught:
        fetch.main([])
    assert caught.value.status == 2
    assert str(caught.value).startswith("train-images-idx3-ubyte.gz of mnist could not be fetched (http://mirror.invalid/mnist: ")
    assert list((folder / "data" / "raw").iterdir()) == []


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


def test_real_mnist(tmp_path, monkeypatch, capsys):
    place = os.environ.get("MNIST_MIRROR", "")
    if not place or not Path(place).is_dir():
        pytest.skip("MNIST_MIRROR names no directory; tests/data tests the same path with synthetic archives")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((STUDY / "params.yaml").read_text())
    fetch.main([])
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert len(list((tmp_path / "data" / "raw").iterdir())) == 5
