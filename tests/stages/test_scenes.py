from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from pipeline import params
from pipeline.captioning.scenes import load
from pipeline.commands import profiles
from pipeline.data import datasets
from pipeline.errors import UserError
from pipeline.params import DATASETS
from pipeline.stages import scenes

if TYPE_CHECKING:
    from tests.conftest import Repository


@pytest.fixture
def study(tmp_path: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's params.yaml and the digits' arrays, in the working directory."""
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(profiles.read("demo")))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/arrays").symlink_to(arrays)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scenes_are_drawn_from_the_arrays(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes.main([])
    drawn = load()
    assert (drawn.dataset, drawn.data_digest) == ("digits", datasets.data_digest())
    sizes = params.load().scenes
    train, validation, test = sizes.train, sizes.validation, sizes.test
    assert [len(split) for split in (drawn.train, drawn.validation, drawn.test)] == [train, validation, test]
    assert capsys.readouterr().out == f"{train:,} train, {validation:,} validation, {test:,} test scenes, digest {drawn.digest[:12]}\n"


def test_a_data_set_without_nouns_stops_no_study(study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], nouns=()))
    scenes.main([])
    assert capsys.readouterr().out == "scikit-learn's digits has no captions: its classes have no nouns\n"
    assert list((study / "data/scenes").iterdir()) == []  # the folder is there, because dvc.yaml names it


@pytest.mark.slow
def test_dvc_draws_what_is_missing_and_what_params_change(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = trained.copy(tmp_path / "study")
    monkeypatch.chdir(study.path)
    digest = load().digest
    (study.path / "data/scenes/scenes.json").unlink()
    with pytest.raises(UserError, match=r"scenes\.json is missing: run `dvc repro --force scenes`"):
        load()
    scenes.main([])  # which is what DVC runs then
    assert load().digest == digest
    study.edit(scenes={"test": 12})
    assert study.repro("scenes") == ["scenes"]
    assert len(load().test) == 12
