"""The two things compared: each a study at a commit or in the working tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.study import Study, states, stored
from pipeline.study.files import TABLES, FolderFiles
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


def read_revision(repository: Repository, revision: str, folder: str = "", *, store: str | None = None) -> Side:
    """The study of a commit.

    Args:
        folder: where tables/ lies, from the repository's top folder. One in build/, which git ignores, is a profile's: the results that
            it had with the commit's settings and code are read.
        store: address of an MLflow store whose runs of the same trainings are read instead.

    Raises:
        UserError: no such commit, no results there, a damaged file, or a store that cannot be read.
    """
    commit = repository.commit(revision)
    if folder.startswith("build/"):
        place = states.find(repository, revision, folder)
        found = replace(read(FolderFiles(repository.root), place, name=f"{folder} at {revision}"), place=f"{folder}/{TABLES}")
    else:
        found = load_commit(repository, revision, folder)
    return Side(revision, commit, None, _stored(found, store, f"the commit {revision}"))


def read_working_tree(repository: Repository, folder: str = "", *, store: str | None = None) -> Side:
    """The study as it lies in the working tree, committed or not. Raises as `read_revision`."""
    commit = repository.commit("HEAD") if repository.has_commits() else None
    found = read(FolderFiles(repository.root), folder, name="the working tree", hint=repository.newest_with_tables)
    return Side("working tree", commit, repository.changed(), _stored(found, store, "the working tree"))


def _stored(study: Study, store: str | None, name: str) -> Study:
    return study if store is None else stored.read(study, store, name=name)
