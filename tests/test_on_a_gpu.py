"""`docs/on_a_gpu.py`: new seeds without DVC and MLflow, and what a study makes of them."""

import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import on_a_gpu
from pipeline import params
from pipeline.runner import seeds, train
from pipeline.system.provenance import training_code
from pipeline.training.tasks import data_digest
from tests.conftest import small_study


@pytest.fixture
def folder(tmp_path: Path, raw_params: dict[str, Any], arrays: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(small_study(raw_params), sort_keys=False))
    shutil.copytree(arrays, tmp_path / "data" / "arrays")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    for name, value in (("LAB_DEVICE", "cpu"), ("LAB_ATTENTION", "sdpa")):
        monkeypatch.setenv(name, value)
    return tmp_path


def test_its_seeds_are_those_of_a_study_elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("dvc", "mlflow", "pooch"):
        monkeypatch.setitem(sys.modules, module, None)
    on_a_gpu.main(["seeds", "--claims", "none,W1", "--count", "2", "--seconds", "600"])
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["seeds-1.tar.gz"]
    shutil.rmtree(folder / ".checkpoints")
    with tarfile.open(folder / "out" / "seeds-1.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    study = params.load(folder / "params.yaml")
    for variant in ("base", "wide"):
        settings = study.resolve(variant)
        asked = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": (1000, 1001)})})
        place = seeds.folder(folder / ".checkpoints" / "seeds", asked, data_digest(asked.task, folder / "data" / "arrays"))
        found, damaged = seeds.find(place, training_code("classification"))
        assert (sorted(found), damaged) == ([1000, 1001], [])
        assert {part.origin["engine"] for part in found.values()} == {"torch: CPU"}
        assert train.plan(asked, found, training_code("classification"), "cpu") == []
