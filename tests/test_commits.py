"""A page's commands bring its results back in a second clone, whether they were committed after the run or before it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.runner import seeds
from tests.helpers import ROOT, commit_all, git, stored

if TYPE_CHECKING:
    from tests.conftest import Repository

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_PARTS = re.compile(r"```sh\n(.*?)```", flags=re.DOTALL)


def commit(repository: Repository, message: str) -> str:
    """Adds what README says, and commits it."""
    readme = (ROOT / "README.md").read_text()
    (words,) = re.findall(r"`git add (.*?) && git commit`", readme)
    git(repository.path, "add", *words.split())
    git(repository.path, "commit", "--quiet", "--allow-empty", "--message", message)
    assert git(repository.path, "status", "--porcelain") == ""  # it was all
    return git(repository.path, "rev-parse", "HEAD").strip()


def record_of(repository: Repository, variant: str) -> dict[str, Any]:
    return seeds.read_record(stored(repository.path, variant))


def make_again(clone: Repository, page: str) -> str:
    """Runs the commands at the end of a page, of which the Makefile's does no more than it has to here; gives what they printed."""
    text = (clone.path / page).read_text()
    git(clone.path, "clean", "--quiet", "-d", "--force")
    return clone.succeed("bash", "-ec", _PARTS.findall(text)[-1])


def test_a_page_names_the_commit_that_gives_its_results_again(trained: Repository, tmp_path: Path) -> None:
    study = trained.copy(tmp_path / "study")
    for name in (".gitignore", ".dvc/config", ".dvc/.gitignore"):
        shutil.copyfile(ROOT / name, study.path / name)
    (study.path / "Makefile").write_text("setup:\n\tmkdir -p .venv/bin && touch .venv/bin/activate\nrepro:\n\tpython -m dvc repro\n")
    for folder in ("docs", "profiles"):
        (study.path / folder).mkdir()
        (study.path / folder / "kept.txt").touch()
    git(study.path, "init", "--quiet", "--initial-branch", "main")
    commit_all(study.path, "a study")

    study.edit(variants={"narrow": {"mlp_dim": 4}})
    study.repro()
    first = commit(study, "run, then committed")
    record = record_of(study, "narrow")
    assert record["git_dirty"] is True
    git(study.path, "commit", "--quiet", "--allow-empty", "--message", "words")

    git(tmp_path, "clone", "--quiet", "study", "clone")
    clone = type(study)(tmp_path / "clone")
    again = {*study.stages_run(make_again(clone, "reports/README.md"))}
    assert {"code", "resolve"} <= again <= {"code", "resolve", "fetch", "prepare", "scenes"}  # of which git holds nothing
    assert git(clone.path, "rev-parse", "HEAD").strip() == first
    assert git(clone.path, "status", "--porcelain") == ""  # pages and tables included
    assert record_of(clone, "narrow") == record

    study.edit(variants={"narrow": {"mlp_dim": 6}})
    before = commit(study, "committed, then run")
    study.repro()
    record = record_of(study, "narrow")
    assert (record["git_commit"], record["git_dirty"]) == (before, False)
    second = commit(study, "its results")
    git(clone.path, "fetch", "--quiet", "origin")
    git(clone.path, "checkout", "--quiet", "--force", "origin/main")
    assert "  epoch " not in make_again(clone, "reports/README.md")
    assert git(clone.path, "rev-parse", "HEAD").strip() == second
    assert record_of(clone, "narrow")["outputs"] == record["outputs"]
    assert record_of(clone, "base") == record_of(study, "base")
