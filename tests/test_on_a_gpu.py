"""`docs/on_a_gpu.py`: new seeds without DVC and MLflow, and what a study makes of them."""

import shutil
import subprocess
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
from tests.helpers import ROOT, lay_out

ABSENT = ("dvc", "mlflow", "pooch", "seaborn", "matplotlib", "jinja2", "sklearn")  # of the machine that it runs on


def test_what_it_runs_needs_no_module_that_is_absent_there() -> None:
    """The seeds, the benchmark, and what all tests share."""
    code = f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); import benchmarks.__main__, docs.on_a_gpu, tests.conftest"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_seeds_are_those_of_a_study_elsewhere(
    tmp_path: Path, raw_params: dict[str, Any], arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = lay_out(tmp_path, small_study(raw_params), arrays)
    for name, value in (("OUT", "out"), ("LAB_DEVICE", "cpu"), ("LAB_ATTENTION", "sdpa")):
        monkeypatch.setenv(name, value)
    for module in ABSENT:
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
        assert {tuple(part.origin["claims"]) for part in found.values()} == {study.claims_of(variant)} != {()}
        assert train.plan(asked, found, training_code("classification"), "cpu") == []
