"""A study whose results DVC keeps in another remote than results/: a fresh clone asks for what it lacks, and trains nothing."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from pipeline import params
from pipeline.commands import train
from pipeline.errors import UserError
from pipeline.runner import seeds
from pipeline.runner.train import survey
from pipeline.stages import bring, sync
from pipeline.tracking.store import Store, store_uri
from tests.conftest import Repository
from tests.helpers import ROOT, commit_all, git

DVC = (sys.executable, "-m", "dvc")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RECORDS = [f"runs/{variant}/run.json" for variant in ("base", "wide")]


@pytest.fixture(scope="module")
def pushed(once: Callable[[str, Callable[[Path], str]], tuple[Path, str]], trained: Repository) -> Path:
    """`origin` has two trained variants, committed, and pushed to `store`, a folder outside of it. To be copied, not to be changed."""

    def make(path: Path) -> str:
        origin = trained.copy(path / "origin")
        with (origin.path / ".dvc" / "config").open("w") as file:
            file.write("[core]\n    analytics = false\n    check_update = false\n    remote = store\n")
            file.write(f"['remote \"store\"']\n    url = {path / 'store'}\n")
        shutil.copyfile(ROOT / ".dvc" / ".gitignore", origin.path / ".dvc" / ".gitignore")
        (origin.path / ".gitignore").write_text(
            (ROOT / ".gitignore").read_text() + "model.safetensors\nsteps.npz\nrun.json\n/predictions\n"
        )
        git(origin.path, "init", "--quiet", "--initial-branch=main")
        origin.succeed(*DVC, "push", "--quiet")
        commit_all(origin.path, "Trained.")
        return ""

    return once("pushed elsewhere", make)[0]


@pytest.fixture
def clone(pushed: Path, tmp_path: Path, trained: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A fresh clone, in which what this process computes is computed as its stages do."""
    git(tmp_path, "clone", "--quiet", str(pushed / "origin"), "clone")
    repository = Repository(tmp_path / "clone")
    for name in ("PATH", "LAB_DEVICE", "LAB_PROCESSES", "LAB_ATTENTION"):
        monkeypatch.setenv(name, repository.environment[name])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert not list(repository.path.glob("runs/*/*"))
    assert not (repository.path / "results").exists()
    return repository


def files(clone: Repository, *patterns: str) -> list[str]:
    return sorted(path.relative_to(clone.path).as_posix() for pattern in patterns for path in clone.path.glob(pattern))


def test_what_was_trained_elsewhere_is_kept(clone: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it cannot be had, the seeds have to be trained."""
    with chdir(clone.path):
        train.main([])
        assert capsys.readouterr().out == "Nothing is to be trained.\n"
        assert files(clone, "runs/*/*") == sorted(
            RECORDS + [f"runs/{variant}/{name}" for variant in ("base", "wide") for name in seeds.OUTPUTS]
        )
        assert not [stage for stage in clone.repro("train@base", "train@wide") if stage.startswith("train")]
        for lost in ("runs", ".dvc/cache"):
            shutil.rmtree(lost)
        config = clone.path / ".dvc" / "config"
        config.write_text(config.read_text().replace("/store", "/gone"))
        with contextlib.suppress(UserError):
            bring.runs(["base", "wide"])
        assert [entry.trained for entry in survey(params.load(), "cpu")] == [[0, 1], [0, 1]]


def test_one_sync_has_models_and_evaluations(clone: Repository) -> None:
    """A second one brings and adds nothing."""
    with chdir(clone.path):
        sync.main([])
        store = Store(store_uri())
        found = store.call("search_runs", [store.experiment("digits")], filter_string="tags.kind = 'parent'")
        assert all("evaluation.ensemble_accuracy" in run.data.metrics for run in found)
        sync.main([])
        assert len(store.call("search_runs", [store.experiment("digits")], filter_string="tags.kind = 'parent'")) == len(found)


def test_a_clone_is_verified_without_results(clone: Repository) -> None:
    said = clone.succeed(sys.executable, "-m", "pipeline.commands.verify", "--variant=base", "--seed=0").splitlines()
    assert said[-2:] == ["base  seed 0  same bits", "Verified: seed 0 of base."]


def test_a_remote_that_fails_stops_the_command(clone: Repository) -> None:
    config = clone.path / ".dvc" / "config"
    config.write_text(re.sub("url = .*", "url = s3://bucket", config.read_text()))
    with chdir(clone.path), pytest.raises(UserError) as caught:
        bring.runs(["base", "wide"])
    assert caught.value.status == 1
