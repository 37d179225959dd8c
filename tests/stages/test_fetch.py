from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.commands import profiles
from pipeline.errors import UserError
from pipeline.stages import fetch

ROOT = Path(__file__).parents[2]


def run_stage(directory: Path, dataset: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline.stages.fetch` in `directory`, with the repository's params.yaml for this data set; the demo's for digits."""
    study = (ROOT / "params.yaml").read_text()
    text = yaml.safe_dump(profiles.read("demo")) if dataset == "digits" else study.replace("dataset: mnist ", f"dataset: {dataset} ")
    (directory / "params.yaml").write_text(text)
    without = {"MNIST_MIRROR", *(name for name in os.environ if name.lower().endswith("_proxy"))}
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(
        [sys.executable, "-m", "pipeline.stages.fetch"],
        cwd=directory,
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_digits(tmp_path):
    done = run_stage(tmp_path, "digits")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "data" / "raw" / "manifest.json").read_text()) == {"dataset": "digits", "files": {}}


def test_params_with_a_fault(tmp_path):
    done = run_stage(tmp_path, "mnisst")
    assert done.returncode == 2
    assert "'mnisst'" in done.stderr
    assert "'mnist'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_without_a_network_the_stage_ends_with_one_sentence(tmp_path, monkeypatch):
    """Every request goes through a proxy that takes connections and never answers; each silence ends sooner than by default."""
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch, "fetch", functools.partial(fetch.fetch, stall_seconds=0.2))
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("MNIST_MIRROR", "http://mirror.invalid/mnist")
        with pytest.raises(UserError) as caught:
            fetch.main([])
    sentence = str(caught.value)
    assert caught.value.status == 2
    assert len(sentence.splitlines()) == 1
    assert sentence.startswith("train-images-idx3-ubyte.gz of mnist could not be fetched (http://mirror.invalid/mnist: ")
    assert "`MNIST_MIRROR=<directory or URL> dvc repro`" in sentence
    assert "`make demo`" in sentence
    assert list((tmp_path / "data" / "raw").iterdir()) == []


def test_a_missing_directory_is_named_and_no_network_ends_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    done = run_stage(tmp_path, "mnist", http_proxy=nobody, https_proxy=nobody, MNIST_MIRROR="archives")
    assert done.returncode == 2
    assert f"archives: there is no directory {tmp_path.resolve() / 'archives'}" in done.stderr
    assert done.stderr.count("refused") >= 2


def test_archives_from_a_directory(tmp_path, monkeypatch):
    """The stage with other bytes than MNIST's: only torchvision's table of checksums is exchanged."""
    from torchvision.datasets import MNIST

    files = {name: gzip.compress(name.encode()) for name, _ in MNIST.resources}
    (tmp_path / "archives").mkdir()
    for name, content in files.items():
        (tmp_path / "archives" / name).write_bytes(content)
    monkeypatch.setattr(MNIST, "resources", [(name, hashlib.md5(content).hexdigest()) for name, content in files.items()])
    monkeypatch.setenv("MNIST_MIRROR", "archives")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    fetch.main([])
    assert {path.name: path.read_bytes() for path in (tmp_path / "data" / "raw").glob("*.gz")} == files
    assert json.loads((tmp_path / "data" / "raw" / "manifest.json").read_text())["dataset"] == "mnist"


def test_real_mnist(tmp_path, monkeypatch, capsys):
    place = os.environ.get("MNIST_MIRROR", "")
    if not place or not Path(place).is_dir():
        pytest.skip("MNIST_MIRROR names no directory; tests/data tests the same path with synthetic archives")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    fetch.main([])
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert len(list((tmp_path / "data" / "raw").iterdir())) == 5
