"""Reading commits: whatever names, bytes and clones there are, and without a trace."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.study.git import Repository
from tests.helpers import commit_all, git


class Clone(Repository):
    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    def add(self, message: str = "results") -> str:
        return commit_all(self.root, message)


@pytest.fixture
def repository(tmp_path: Path) -> Clone:
    made = Clone(tmp_path / "clone")
    made.root.mkdir()
    made.git("init", "--quiet", "--initial-branch", "main")
    return made


def test_an_experiment_of_dvc_is_found_by_its_name(repository: Clone) -> None:
    base = repository.add("the base")
    experiment = repository.add("an experiment")
    repository.git("update-ref", f"refs/exps/{base[:2]}/{base[2:]}/wide-1", experiment)
    repository.git("update-ref", "refs/exps/exec/EXEC_HEAD", base)
    assert repository.commit("wide-1").id == experiment
    with pytest.raises(UserError, match="no commit 'wide-2' here; the nearest is 'wide-1'"):
        repository.commit("wide-2")
    with pytest.raises(UserError, match="no commit 'EXEC_HEAD' here"):
        repository.commit("EXEC_HEAD")


def test_a_commit_is_found_by_every_name_that_git_knows(repository: Clone) -> None:
    first = repository.add("the first")
    repository.git("tag", "v1")
    repository.git("tag", "--annotate", "v1-signed", "--message", "a tag object")
    second = repository.add("the second")
    for name in (first, first[:8], "v1", "v1-signed", "main~1", "HEAD^", ":/the first"):
        assert repository.commit(name).id == first
    assert repository.commit("main").id == second
    assert repository.commit("v1").subject == "the first"
    assert repository.commit("v1").date == "2026-01-02T03:04:05+02:00"


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("mian", "; the nearest is 'main'"),
        ("v1.O", "; the nearest is 'v1.0'"),
        ("zebra", ""),
        ("main~7", "; the nearest is 'main'"),
        ("-x", ""),
    ],
)
def test_an_unknown_commit_is_answered_with_the_nearest_name(repository: Clone, wrong: str, nearest: str) -> None:
    repository.add()
    repository.git("tag", "v1.0")
    with pytest.raises(UserError) as error:
        repository.commit(wrong)
    assert str(error.value) == f"There is no commit {wrong!r} here{nearest}."


def test_a_short_hash_is_a_commit_though_a_file_begins_alike(repository: Clone) -> None:
    commit = repository.add()
    alike = next(
        text
        for text in map(str, range(10**6))
        if hashlib.sha1(f"blob {len(text)}\0{text}".encode(), usedforsecurity=False).hexdigest()[:4] == commit[:4]
    )
    (repository.root / "alike.txt").write_text(alike)
    repository.git("hash-object", "-w", "alike.txt")
    assert repository.commit(commit[:4]).id == commit


def test_a_shallow_clone_says_so(repository: Clone, tmp_path: Path) -> None:
    first = repository.add("the first")
    repository.add("the second")
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", repository.root.as_uri(), str(tmp_path / "shallow")], check=True)
    with pytest.raises(UserError, match="this clone is shallow: run `git fetch --unshallow`"):
        Repository(tmp_path / "shallow").commit(first)


def test_a_file_that_a_partial_clone_lacks_is_one_sentence(repository: Clone, tmp_path: Path) -> None:
    (repository.root / "file").write_text("content")
    commit = repository.add()
    repository.git("config", "uploadpack.allowFilter", "true")
    partial = Clone(tmp_path / "partial")
    source = repository.root.as_uri()
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", "--filter=blob:none", source, str(partial.root)], check=True)
    partial.git("remote", "set-url", "origin", (tmp_path / "gone").as_uri())
    with pytest.raises(UserError, match="git does not hold all files of that commit"):
        partial.contents(partial.files(commit).values())


def test_files_of_any_name_and_content_are_read_as_they_were(repository: Clone) -> None:
    contents = {"empty": b"", 'a b/č\n\t"x"': b"\0\xff\nmissing\n", "same": b"one", "also/same": b"one", "crlf": b"a\r\nb"}
    for name, content in contents.items():
        (repository.root / name).parent.mkdir(exist_ok=True)
        (repository.root / name).write_bytes(content)
    commit = repository.add()
    for name in contents:
        (repository.root / name).write_bytes(b"changed")
    ids = repository.files(commit)
    assert ids.keys() == contents.keys()
    read = repository.contents(ids.values())
    assert {name: read[ids[name]] for name in contents} == contents
    assert repository.contents([]) == {}


def test_a_folder_without_git_is_answered_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError, match=r"is not in a git repository, .* inside a clone"):
        Repository.around(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no git here: install it"):
        Repository.around(tmp_path)
