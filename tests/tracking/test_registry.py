"""The baseline's network in the model registry: registered once, without a pickle, loaded and served as people do it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.models import build
from pipeline.runner import seeds
from pipeline.stages.sync import sync
from pipeline.tracking.store import Store
from tests.conftest import Repository
from tests.helpers import stored
from tests.tracking.trainings import ROOT, free_port, serving

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*type hint:UserWarning")]  # in MLflow's own modules


def test_a_study_registers_its_baseline_alone(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaded network computes what the stored weights do."""
    import mlflow

    trained = trained.copy(tmp_path / "study")
    (trained.path / "mlflow.db").unlink(missing_ok=True)  # a copied store keeps its files in the original's folder
    monkeypatch.chdir(trained.path)
    other_place = tmp_path / "registry-of-another-project.db"
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{other_place}")
    sync()
    uri = f"sqlite:///{trained.path / 'mlflow.db'}"
    assert not other_place.exists()
    store = Store(uri)
    [version] = store.search_model_versions()
    [parent] = store.search_runs([store.experiment("digits")], filter_string="tags.kind = 'parent' and tags.variant = 'base'")
    assert (version.name, version.run_id) == ("vit-ablations", parent.info.run_id)
    # Another network was registered since, or a process was killed before it gave the name.
    other = store.create_model_version("vit-ablations", version.source, run_id=version.run_id)
    store.set_registered_model_alias("vit-ablations", "base-digits", other.version)
    sync()
    version = store.get_model_version_by_alias("vit-ablations", "base-digits")
    assert version.version != other.version
    run = seeds.read_record(stored(trained.path, "base"))
    expected = {"variant": "base", "dataset": "digits", "seed": "0", "weights": run["outputs"]["weights"]["0"]}
    assert version.tags.items() >= expected.items()
    assert float(version.tags["late_test_error"]) == parent.data.metrics["late_test_error"]

    settings = seeds.settings_of(run)
    network = build(settings.model)
    weights = seeds.load_weights(stored(trained.path, "base"), settings.train.seeds[:1])
    network.load_state_dict({name: value[0] for name, value in weights.items()})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI")
    loaded = mlflow.pytorch.load_model("models:/vit-ablations@base-digits")
    images = torch.rand(5, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), network.eval()(images), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_real_digit_over_http(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The committed baseline, served by `mlflow models serve`, reads MNIST's first test digits."""
    mirror = Path(os.environ.get("MNIST_MIRROR", ""))
    if not (mirror / "t10k-images-idx3-ubyte.gz").is_file():
        pytest.skip("MNIST_MIRROR names no directory")
    (project / "store/trainings").mkdir(parents=True)
    shutil.copyfile(stored(ROOT, "base"), stored(project, "base"))
    sync()
    sync()
    assert capsys.readouterr().out.count("its first seed is registered as") == 1
    [archive] = project.glob("mlartifacts/**/model.pt2")
    assert not [name for name in zipfile.ZipFile(archive).namelist() if name.endswith(".pkl")]

    images, labels = (gzip.decompress((mirror / f"t10k-{name}-ubyte.gz").read_bytes()) for name in ("images-idx3", "labels-idx1"))
    digits = np.frombuffer(images, np.uint8, 20 * 28 * 28, offset=16).reshape(20, 1, 28, 28).astype(np.float32) / 255
    port = free_port()
    model = ("--model-uri", "models:/vit-ablations@base-mnist", "--env-manager", "local", "--host", "127.0.0.1")
    with serving(project, port, "mlflow", "models", "serve", *model):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", json.dumps({"inputs": digits.tolist()}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            logits = np.array(json.load(answer)["predictions"])
    assert (logits.argmax(axis=1) == np.frombuffer(labels, np.uint8, 20, offset=8)).mean() >= 0.9
