"""The two things compared: each a study at a commit or in the working tree."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.study import Study
from pipeline.study.files import FolderFiles
from pipeline.study.git import Commit, Repository
from pipeline.study.results import load_commit, read


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


def read_revision(repository: Repository, revision: str, folder: str | None = None, *, store: str | None = None) -> Side:
    """The study that a commit holds.

    Args:
        folder: where runs/ lies, from the repository's top folder; None: the top folder, or the one reports/NAME that has runs/.
        store: address of an MLflow store whose runs of the commit are read instead of its files.

    Raises:
        UserError: no such commit, no results there, more than one place that could be meant, a damaged file, or a store that cannot
            be read.
    """
    return Side(revision, repository.commit(revision), None, load_commit(repository, revision, folder, store=store))


def read_working_tree(repository: Repository, folder: str | None = None) -> Side:
    """The study as it lies in the working tree, committed or not. Raises as `read_revision`."""
    commit = repository.commit("HEAD") if repository.has_commits() else None
    found = read(FolderFiles(repository.root), folder, name="the working tree", hint=repository.newest_with_runs)
    return Side("working tree", commit, repository.changed(), found)
