"""A study's frames hold the numbers of its files, those of a folder and those of a commit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.runner.seeds import read_record
from pipeline.study import Study, load
from pipeline.study.files import ARRAYS, FolderFiles
from pipeline.study.results import load_dataset
from pipeline.training.records import EpochRow
from tests.helpers import git, stored

if TYPE_CHECKING:
    from tests.conftest import Repository


def read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


@pytest.mark.slow
def test_frames_hold_the_numbers_of_the_files(trained: Repository) -> None:
    study = load(trained.path)
    for variant in ("base", "wide"):
        run = read_record(stored(trained.path, variant))
        found = study.epochs[study.epochs.variant == variant].drop(columns="variant")
        assert found[list(EpochRow._fields)].values.tolist() == run["epochs"]
        evaluated = read_csv(trained.path / "tables" / "seeds.csv").query("variant == @variant")
        seeds = study.seeds[study.seeds.variant == variant]
        assert list(seeds.seed) == list(evaluated.seed)
        np.testing.assert_allclose(seeds.test_accuracy, evaluated.test_accuracy, rtol=0, atol=1e-9)
    assert list(study.variants.variant) == list(study.trainings) == ["base", "wide"]
    assert list(study.variants["model.mlp_dim"]) == [8, 12]
    assert {"train.epochs", "parameters", "flops", "code_hash", "versions.torch"} <= set(study.variants.columns)
    base = study.trainings["base"]
    assert base.correct is not None
    np.testing.assert_allclose(base.correct.mean(axis=1), base.accuracy, rtol=0, atol=1e-6)
    assert (study.timings.seconds > 0).all()
    assert set(study.timings.kind) == {"step", "growth", "attention"}


@pytest.mark.slow
def test_a_commit_keeps_what_the_folder_has_lost(trained: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "study"
    shutil.copytree(trained.path, copy, ignore=shutil.ignore_patterns(".dvc", ".checkpoints", "data", "pipeline"))
    monkeypatch.chdir(copy)
    for arguments in (("init", "--quiet"), ("add", "--force", "tables", "timing", "params.yaml"), ("commit", "-qm", "one")):
        git(copy, *arguments)
    folder, commit = load("."), load("HEAD")
    for frame in ("epochs", "seeds", "variants", "timings"):
        pd.testing.assert_frame_equal(getattr(folder, frame), getattr(commit, frame), check_exact=True)
    again = load(".")
    with Path("tables/epochs.csv").open("a") as file:
        file.write("base,0,3,1,1,1,1,1\n")
    with pytest.raises(
        UserError, match=r"^tables/ is damaged, epochs\.csv, variant base: it has not one row for every seed and epoch: run"
    ):
        load(".")
    for table in Path("tables").glob("*.csv"):
        table.write_text(table.read_text().splitlines(keepends=True)[0])
    with pytest.raises(UserError, match=r"^tables/ is damaged, variants\.csv names no variant: run"):
        load(".")
    pd.testing.assert_frame_equal(load("HEAD").epochs, commit.epochs)
    Path("timing/cpu.json").write_text("{}")
    with pytest.raises(UserError, match=r"^timing/cpu\.json is damaged: run `dvc repro --force --single-item timing`\.$"):
        _ = again.timings  # which are read when they are asked for


def test_without_results_the_sentence_says_where_they_were_sought(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no results in tables/"):
        load(tmp_path)


def test_a_damaged_table_of_claims_is_one_sentence_and_none_is_empty(tmp_path: Path) -> None:
    def claims() -> pd.DataFrame:
        return Study("here", "", {}, FolderFiles(tmp_path)).claims

    assert claims().empty
    table = tmp_path / "reports" / "claims.csv"
    table.parent.mkdir()
    header, line = "claim,verdict,comparison,n,effect,low,high,level,shown\n", "T1,supported,a / b,6,1.5,1.2,1.9,0.95,1.5 times\n"
    table.write_text(f"{header}{line}T2,not run,c,,,,,,\n")
    found = claims()
    assert found.to_dict("records")[0] == {
        "claim": "T1", "verdict": "supported", "comparison": "a / b", "n": 6, "effect": 1.5, "low": 1.2, "high": 1.9, "level": 0.95,
        "shown": "1.5 times", "fixed": "",
    }  # fmt: skip
    assert found.shown[1] == ""
    for damaged in ("", line, f"{header}{line}"[:-1], f"{header}T1,,a,,,,,,\n", f"{header}{line}\n\0{line[:3]}", f'{header}"'):
        table.write_text(damaged)
        with pytest.raises(UserError, match=r"^reports/claims\.csv is damaged: run `dvc repro --force --single-item report`\.$"):
            claims()


def test_a_damaged_record_of_the_data_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_dataset() is None
    ARRAYS.mkdir(parents=True)
    arrays = {f"{part}_images": {"shape": [2, 28, 28]} for part in ("train", "test")}
    whole = {"arrays": arrays, "class_counts": {"train": [2], "test": [2]}, "pixel_mean": 0.1, "pixel_std": 0.3, "digest": "0"}
    path = ARRAYS / "dataset.json"
    path.write_text(json.dumps(whole))
    assert load_dataset() == whole
    for change in (
        {"arrays": {}},
        {"arrays": {**arrays, "test_images": {"shape": []}}},
        {"class_counts": {"train": [2]}},
        {"pixel_mean": "x"},
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(UserError, match=r"dataset\.json is damaged, it is not what the stage writes: .*prepare") as caught:
            load_dataset()
        assert caught.value.status == 2
