"""Predictions out of real DVC caches, and only those that belong to the training."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

from pipeline.compare.changes import compare
from pipeline.compare.page import render
from pipeline.compare.predictions import Cache, with_predictions
from pipeline.compare.sides import Side, read_revision, read_working_tree
from pipeline.errors import UserError
from pipeline.runner.seeds import IMAGES_APART
from pipeline.study.git import Repository
from pipeline.study.statistics import hierarchical_bootstrap

if TYPE_CHECKING:
    from tests.compare.conftest import Study

IMAGES = 400
DVC = {
    "stages": {
        "evaluate": {"cmd": "mkdir -p predictions && cp prepared/*.npz predictions/", "deps": ["prepared"], "outs": ["predictions"]},
    }
}


def write_predictions(path: Path, right: float, *, start: int, seeds: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    """A file as the evaluate stage leaves it. Returns (seeds, images), where the predictions are right."""
    rng = np.random.default_rng(start)
    labels = np.arange(IMAGES, dtype=np.uint8) % 10
    correct = rng.random((len(seeds), IMAGES)) < right
    predictions = np.where(correct, labels, (labels + 1) % 10).astype(np.uint8)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        path, labels=labels, predictions=predictions, seeds=np.array(seeds), positions=np.zeros((len(seeds), 0, 0), np.float32)
    )
    return correct


def dvc(study: Study, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments, "--quiet"], cwd=study.root, check=True, capture_output=True)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, study_class: type[Study]) -> tuple[Study, list[str], list[dict[str, np.ndarray]]]:
    """A study whose predictions two commits have left in the cache: its commits, and who was right where."""
    study = study_class(tmp_path_factory.mktemp("evaluated") / "study")
    dvc(study, "init")
    (study.root / "dvc.yaml").write_text(yaml.safe_dump(DVC))
    commits, truths = [], []
    for start, right in enumerate((0.9, 0.95)):
        prepared = study.root / "prepared"
        truth = {name: write_predictions(prepared / f"{name}.npz", right, start=7 * start + len(name)) for name in ("wide", "base")}
        for name, correct in truth.items():
            study.train(name, correct.mean(axis=1).tolist())
        dvc(study, "repro")
        commits.append(study.commit())
        truths.append(truth)
    shutil.rmtree(study.root / "predictions")
    return study, commits, truths


Evaluation = tuple["Study", list[str], list[dict[str, np.ndarray]]]


def found(side: Side, root: Path, variant: str) -> np.ndarray | None:
    """(seeds, images), where the predictions that are found are right."""
    return with_predictions(side.study, Cache(root)).trainings[variant].correct


def test_both_commits_predictions_give_an_interval_over_images(evaluated: Evaluation) -> None:
    study, commits, truths = evaluated
    repository = Repository(study.root)
    comparison = compare(*(read_revision(repository, commit) for commit in commits), Cache(study.root))
    for change in comparison.common:
        assert change.images == hierarchical_bootstrap(truths[1][change.variant], truths[0][change.variant])
        assert change.images is not None
    assert "with other test images" in render(comparison)


def test_other_data_have_no_interval_over_images(evaluated: Evaluation) -> None:
    study, commits, _ = evaluated
    base, head = (read_revision(Repository(study.root), commit) for commit in commits)
    trainings = {name: replace(one, record={**one.record, "data_digest": "e" * 64}) for name, one in head.study.trainings.items()}
    head = replace(head, study=replace(head.study, trainings=trainings))
    assert [change.images for change in compare(base, head, Cache(study.root)).common] == [None, None]


def test_a_cache_that_is_configured_elsewhere_is_used(evaluated: Evaluation, tmp_path: Path) -> None:
    study, commits, truths = evaluated
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(study.root), str(clone)], check=True)
    side = read_revision(Repository(clone), commits[0])
    assert found(side, clone, "wide") is None
    subprocess.run([sys.executable, "-m", "dvc", "cache", "dir", "--local", str(study.root / ".dvc" / "cache")], cwd=clone, check=True)
    np.testing.assert_array_equal(found(side, clone, "wide"), truths[0]["wide"])


def test_a_damaged_or_foreign_cache_file_is_passed_over(evaluated: Evaluation, tmp_path: Path) -> None:
    study, commits, _ = evaluated
    copy = tmp_path / "copy"
    shutil.copytree(study.root, copy)
    sides = [read_revision(Repository(copy), commit) for commit in commits]
    assert found(sides[0], copy, "base") is not None
    for path in (copy / ".dvc" / "cache" / "files" / "md5").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"PK\3\4 not a zip file any more")
    assert [change.images for change in compare(*sides, Cache(copy)).common] == [None, None]
    (copy / "dvc.lock").write_text("schema: '2.0'\nstages: {evaluate: {outs: [{path: predictions, md5: ../../etc/passwd.dir}]}}\n")
    assert found(read_working_tree(Repository(copy)), copy, "wide") is None


def test_a_working_trees_own_files_are_used(study: Study) -> None:
    correct = write_predictions(study.root / "predictions" / "base.npz", 0.9, start=1)
    study.train("base", correct.mean(axis=1).tolist())
    np.testing.assert_array_equal(found(read_working_tree(Repository(study.root)), study.root, "base"), correct)


def test_predictions_of_another_training_are_not_used(study: Study) -> None:
    correct = write_predictions(study.root / "predictions" / "base.npz", 0.9, start=1)
    accuracy = correct.mean(axis=1)
    # What the evaluation accepts as rounding, every reader has to accept.
    study.train("base", (accuracy + IMAGES_APART / IMAGES).tolist())
    np.testing.assert_array_equal(found(read_working_tree(Repository(study.root)), study.root, "base"), correct)
    study.train("base", (accuracy + (IMAGES_APART + 1) / IMAGES).tolist())
    with pytest.raises(UserError, match="is of another training"):
        found(read_working_tree(Repository(study.root)), study.root, "base")
    study.train("base", dict(zip((0, 1, 3), accuracy.tolist(), strict=True)))
    with pytest.raises(UserError, match="do not fit the seeds"):
        found(read_working_tree(Repository(study.root)), study.root, "base")


def test_a_profiles_cache_in_build_is_used(evaluated: Evaluation, make_study: Callable[..., Study]) -> None:
    source, commits, truths = evaluated
    study = make_study("published", "reports/preview")
    shutil.copytree(source.root / ".dvc", study.root / "build" / "preview" / ".dvc")
    study.train("wide", truths[0]["wide"].mean(axis=1).tolist())
    lock = source.git("show", f"{commits[0]}:dvc.lock")
    (study.root / "reports" / "preview" / "dvc.lock").write_text(lock)
    (study.root / ".gitignore").write_text("/build/\n")
    side = read_revision(Repository(study.root), study.commit(), "reports/preview")
    np.testing.assert_array_equal(found(side, study.root, "wide"), truths[0]["wide"])
