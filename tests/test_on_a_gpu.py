"""`docs/on_a_gpu.py`: new seeds without DVC and MLflow, and what a study makes of them."""

import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from docs import on_a_gpu
from pipeline.runner import seeds, train
from pipeline.system.paths import ARRAYS, FINISHED
from pipeline.system.provenance import training_code
from pipeline.training.tasks import data_digest
from tests.conftest import small_study
from tests.helpers import lay_out


def test_its_seeds_are_those_of_a_study_elsewhere(
    tmp_path: Path, raw_params: dict[str, Any], arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = lay_out(tmp_path, small_study(raw_params), arrays)
    for name, value in (("OUT", "out"), ("LAB_DEVICE", "cpu"), ("LAB_ATTENTION", "sdpa")):
        monkeypatch.setenv(name, value)
    for module in ("dvc", "mlflow", "pooch"):
        monkeypatch.setitem(sys.modules, module, None)
    on_a_gpu.main(["seeds", "--claims", "none,W1", "--count", "2", "--seconds", "600"])
    assert sorted(path.name for path in Path("out").iterdir()) == ["seeds-1.tar.gz"]
    shutil.rmtree(".checkpoints")
    with tarfile.open("out/seeds-1.tar.gz") as archive:
        archive.extractall(filter="data")
    for variant in ("base", "wide"):
        settings = study.resolve(variant)
        asked = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": (1000, 1001)})})
        place = seeds.folder(FINISHED, asked, data_digest(asked.task, ARRAYS))
        found, damaged = seeds.find(place, training_code("classification"))
        assert (sorted(found), damaged) == ([1000, 1001], [])
        assert {part.origin["engine"] for part in found.values()} == {"torch: CPU"}
        assert train.plan(asked, found, training_code("classification"), "cpu") == []
