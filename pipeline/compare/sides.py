"""The two things compared: each a study at a commit or in the working tree."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.study import Study
from pipeline.study.files import CommitFiles, FolderFiles
from pipeline.study.git import Commit, Repository
from pipeline.study.results import read


@dataclass(frozen=True)
class Side:
    """One of the two things compared.

    Attributes:
        commit: the commit itself, or the one that the working tree started from; None before the first commit.
        dirty: whether this is a working tree with changes of its own, or None for a commit.
    """

    revision: str
    commit: Commit | None
    dirty: bool | None
    study: Study


def read_revision(repository: Repository, revision: str, folder: str | None = None) -> Side:
    """The study that a commit holds.

    Args:
        folder: where runs/ lies, from the repository's top folder; None: the top folder, or the one reports/NAME that has runs/.

    Raises:
        UserError: no such commit, no results there, more than one place that could be meant, or a damaged file.
    """
    commit = repository.commit(revision)
    files = CommitFiles(repository, commit.id)
    return Side(revision, commit, None, read(files, folder, name=f"the commit {revision}", hint=repository.newest_with_runs))


def read_working_tree(repository: Repository, folder: str | None = None) -> Side:
    """The study as it lies in the working tree, committed or not. Raises as `read_revision`."""
    commit = repository.commit("HEAD") if repository.has_commits() else None
    found = read(FolderFiles(repository.root), folder, name="the working tree", hint=repository.newest_with_runs)
    return Side("working tree", commit, repository.changed(), found)
