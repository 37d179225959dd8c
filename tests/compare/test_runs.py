"""MLflow as the source: the numbers of the text files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.compare.__main__ import main
from pipeline.compare.runs import read_store
from pipeline.compare.sides import read_revision
from pipeline.errors import UserError
from pipeline.study.git import Repository
from pipeline.sync import sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compare.conftest import Study

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory, study_class: type[Study]) -> tuple[Study, str, str]:
    """A study whose two commits were both synced to MLflow when they were checked out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        study = study_class(tmp_path_factory.mktemp("synced") / "study")
        patch.chdir(study.root)
        (study.root / ".gitignore").write_text("/mlflow.db*\n/mlartifacts/\n/.checkpoints/\n/build/\n")
        (study.root / "params.yaml").write_text(
            "data: {dataset: digits}\nvariants: {base: {}, kept: {}, same: {}, gone: {}, few: {}, new: {}}\n"
        )
        for variant in ("base", "kept", "same", "gone", "few"):
            study.train(variant, {7: 0.1 + 0.2, 0: 0.9, 2: 1 / 3})
        first = study.commit("the first")
        sync()
        study.train("base", {7: 0.5, 0: 0.95, 2: 2 / 3}, change={"model.dim": 64, "train.clip_norm": 1.5}, run={"code_hash": "e" * 64})
        study.train("same", {7: 0.1 + 0.2, 0: 0.9, 2: 1 / 3}, run={"versions": {"python": "3.12.1", "torch": "2.16"}}, seconds=20)
        study.train("few", {7: 0.4, 0: 0.8}, parameters=77)
        study.remove("gone")
        study.train("new", {7: 0.3, 0: 0.2, 2: 0.1}, change={"model.architecture": "cnn"})
        second = study.commit("the second")
        sync()
    return study, first, second


def test_every_number_is_that_of_the_text_files(synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    study, *commits = synced
    monkeypatch.chdir(study.root)
    repository = Repository(study.root)
    for commit in commits:
        files, store = read_revision(repository, commit), read_store(repository, commit)
        assert list(store.study.trainings) == list(files.study.trainings)
        for variant, training in files.study.trainings.items():
            other = store.study.trainings[variant]
            assert (other.options, other.seeds, other.parameters, other.flops) == (
                training.options, training.seeds, training.parameters, training.flops,
            )  # fmt: skip
            assert other.curves.keys() == training.curves.keys()
            for name, values in training.curves.items():
                assert np.array_equal(other.curves[name], values), (variant, name)
            assert (other.id, other.origin) == (training.id, training.origin)


def test_the_two_sources_make_the_same_page(
    synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, first, second = synced
    monkeypatch.chdir(study.root)
    main([first, second])
    files = capsys.readouterr().out
    main([first, second, "--source", "mlflow"])
    store = capsys.readouterr().out
    assert "MLflow store mlflow.db" in store
    assert re.sub(r"\| results in .*\n", "", store) == re.sub(r"\| results in .*\n", "", files)
    assert "| `base` | 51.11" in files
    main([first, "--source", "mlflow"])  # to HEAD, as MLflow knows of no working tree
    assert capsys.readouterr().out.replace("`HEAD`", f"`{second}`") == store


def test_a_commit_that_mlflow_does_not_know_is_said(synced: tuple[Study, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    study, first, _ = synced
    monkeypatch.chdir(study.root)
    study.git("checkout", "--quiet", "--detach", first)
    study.git("commit", "--quiet", "--allow-empty", "--message", "unknown")
    unknown = study.git("rev-parse", "HEAD").strip()
    study.git("checkout", "--quiet", "main")
    with pytest.raises(UserError, match=f"^The MLflow store mlflow.db has no finished runs of commit {unknown}: check that commit out"):
        main([first, unknown, "--source", "mlflow"])


def test_without_a_store_none_is_made(make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = make_study()
    study.commit()
    monkeypatch.chdir(study.root)
    with pytest.raises(UserError, match=r"There is no MLflow store mlflow\.db in study/ yet: run `make sync`"):
        main(["HEAD", "--source", "mlflow"])
    assert not (study.root / "mlflow.db").exists()


def test_the_store_of_a_profile_is_read_from_its_folder(
    synced: tuple[Study, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, first, second = synced
    monkeypatch.chdir(study.root)
    store = study.root / "build" / "preview" / "mlflow.db"
    store.parent.mkdir(parents=True)
    (study.root / "mlflow.db").rename(store)
    try:
        main([first, second, "--source", "mlflow", "--in", "build/preview"])
    finally:
        store.rename(study.root / "mlflow.db")
    assert "| `base` | 51.11" in capsys.readouterr().out
