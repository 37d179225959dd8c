"""Copies of earlier results of a profile's folder in build/, which git ignores, by the settings and code that they came from.

Any commit with these settings and this code finds them, whether it was made before or after the run.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path, PurePosixPath

from pipeline.errors import UserError
from pipeline.study.files import TABLES, CommitFiles, Files, FolderFiles
from pipeline.study.git import Repository

STATES = Path("states")
_MAX_STATES = 20
_COPIED = (
    *(f"{TABLES}/{name}" for name in ("epochs.csv", "seeds.csv", "variants.csv")),
    "reports/README.md",
    "reports/claims.csv",
    "dvc.lock",
)


def key(root: Path, directory: Path) -> str:
    """What the settings and code of a profile are called that a run of it would come from now.

    Args:
        root: of the repository; `directory`, the profile's, lies in it.
    """
    return _key(FolderFiles(root), directory.name)


def keep(root: Path, directory: Path, begun: str) -> bool:
    """Copies what `make compare` reads of a finished profile's folder to a folder of its own in there.

    Args:
        root, directory: as for `key`.
        begun: the key at the run's start.

    Returns:
        Whether it was copied: not where settings or code have changed since, which then are not all that the results come from.
    """
    if key(root, directory) != begun:
        return False
    state = directory / STATES / begun
    shutil.rmtree(state, ignore_errors=True)
    for name in _COPIED:
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / name, state / name)
    by_age = sorted((directory / STATES).iterdir(), key=lambda path: path.stat().st_mtime)
    for old in by_age[:-_MAX_STATES]:
        shutil.rmtree(old)
    return True


def find(repository: Repository, revision: str, folder: str) -> str:
    """Where the results of a commit's settings and code are kept, from the repository's top.

    Args:
        folder: of the profile, such as build/demo.

    Raises:
        UserError: no such commit, or its results are not there.
    """
    profile = PurePosixPath(folder).name
    kept = {path.name for path in (repository.root / folder / STATES).glob("*")}
    wanted = _key(CommitFiles(repository, repository.commit(revision).id), profile)
    if wanted in kept:
        return f"{folder}/{STATES}/{wanted}"
    recent = repository.recent(["params.yaml", f"profiles/{profile}", "pipeline"])
    there = [commit.short for commit in recent if _key(CommitFiles(repository, commit.id), profile) in kept] if kept else []
    others = f", only of {', '.join(there)}" if there else ""
    raise UserError(
        f"{folder} has no results of the settings and code of {revision}{others}: check that commit out and run `make {profile}` there."
    )


def _key(files: Files, profile: str) -> str:
    paths = ["params.yaml", f"profiles/{profile}/params.yaml"]
    paths += [path for depth in range(5) for path in files.matching(f"pipeline/{'*/' * depth}*") if path.endswith((".py", ".j2", ".csv"))]
    digest = hashlib.sha256()
    for path, content in sorted(files.read(paths).items()):
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
