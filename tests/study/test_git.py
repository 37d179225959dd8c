"""Reading commits: whatever names, bytes and clones there are, and without a trace."""

from pathlib import Path

import pytest

from pipeline.study.git import commit_of, root_of
from pipeline.system.errors import UserError
from pipeline.system.paths import Files
from tests.helpers import commit_all, git


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    return tmp_path


def test_a_commit_is_found_by_every_name_that_git_knows(root: Path) -> None:
    first = commit_all(root, "the first")
    git(root, "tag", "v1")
    git(root, "tag", "--annotate", "v1-signed", "--message", "a tag object")
    second = commit_all(root, "the second")
    for name in (first, first[:7], "v1", "v1-signed", "main~1", "HEAD^", ":/the first"):
        assert commit_of(root, name) == first
    git(root, "update-ref", f"refs/exps/{first[:2]}/{first[2:]}/wide-1", second)  # as DVC keeps an experiment
    git(root, "update-ref", "refs/exps/exec/EXEC_HEAD", first)
    assert commit_of(root, "wide-1") == second


def test_an_unknown_commit_is_answered_with_the_nearest_name(root: Path) -> None:
    first = commit_all(root)
    git(root, "update-ref", f"refs/exps/{first[:2]}/{first[2:]}/wide-1", commit_all(root))
    for wrong, nearest in (("mian", "main"), ("wide-2", "wide-1"), ("-x", "")):
        with pytest.raises(UserError, match=f"^There is no commit '{wrong}' here.*{nearest}"):
            commit_of(root, wrong)
    git(root, "clone", "--quiet", "--depth", "1", root.as_uri(), "shallow")
    with pytest.raises(UserError, match="this clone is shallow: run `git fetch --unshallow`"):
        commit_of(root / "shallow", first)


def test_files_of_any_name_and_content_are_read_as_they_were(root: Path) -> None:
    contents = {"empty": b"", "caf\udce9": b"latin-1", 'a b/č\n\t"x"': b"\0\xff\nmissing\n", "also/same": b"one", "crlf": b"a\r\nb"}
    for name, content in contents.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
    commit = commit_all(root)
    for name in contents:
        (root / name).write_bytes(b"changed")
    read = Files(root, commit).read("*") | Files(root, commit).read("a*/*")
    assert read == contents
    assert Files(root).read("a*/*") == dict.fromkeys(('a b/č\n\t"x"', "also/same"), b"changed")
    assert Files(root, commit).read("none/*.csv") == {}


def test_a_folder_without_git_is_answered_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError, match=r"is not in a git repository, .* inside a clone"):
        root_of(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no git here: install it"):
        root_of(tmp_path)
