"""Which commit holds a training: the first whose tables name it, and whose settings and code are those that it ran with."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline import params
from pipeline.errors import UserError
from pipeline.provenance import code_hash, code_of, git
from pipeline.study.files import TABLES, CommitFiles, places
from pipeline.study.git import Repository
from pipeline.study.results import read
from pipeline.study.training import Training

_PLACES = ("", "reports/*/")  # of the tables that git keeps: the study's own; older commits also hold a profile's
_REFS = (["HEAD"], ["--branches", "--tags", "--glob=refs/exps"])  # where to look first; the last are DVC's experiments
_ID = re.compile(rb"\b[0-9a-f]{32}\b")


def named(repository: Repository, commit: str) -> set[str]:
    """The ids of the trainings that a commit's tables name."""
    files = CommitFiles(repository, commit)
    paths = [path for place in _PLACES for path in files.matching(f"{place}{TABLES}/variants.csv")]
    return {id.decode() for content in files.read(paths).values() for id in _ID.findall(content)}


def holders(repository: Repository, ids: Collection[str]) -> dict[str, str]:
    """The commit that holds each training, by its id; those that no branch, tag or experiment holds are left out."""
    found: dict[str, str] = {}
    tables = [f":(top,glob){place}{TABLES}/variants.csv" for place in _PLACES]

    def look(commit: str, there: Collection[str]) -> None:
        if wanted := (set(ids) - found.keys()) & set(there):
            found.update(dict.fromkeys(_held(repository, commit, wanted), commit))

    for refs in _REFS:
        for commit, added in repository.additions(tables, refs):
            look(commit, [id.decode() for id in _ID.findall(added)])
        head = repository.commit("HEAD").id  # settings or code may have been committed after the tables
        look(head, named(repository, head))
    return found


def _held(repository: Repository, commit: str, ids: Collection[str]) -> list[str]:
    """Those of the trainings that the commit's tables name, and that come out of its settings and code."""
    files = CommitFiles(repository, commit)
    with TemporaryDirectory(prefix="commit-") as folder:
        shown = git("archive", commit, "pipeline", "params.yaml", cwd=repository.root)
        if shown.returncode:
            return []
        with tarfile.open(fileobj=io.BytesIO(shown.stdout)) as archive:
            archive.extractall(folder, filter="data")
        held = []
        for prefix in (prefix for place in _PLACES for prefix in places(files, place)):
            try:
                trainings = read(files, prefix.removesuffix("/"), name=f"the commit {commit}").trainings.values()
            except UserError:
                continue
            held += [str(one.id) for one in trainings if one.id in ids and _comes_from(one, Path(folder), of_profile=bool(prefix))]
    return held


def _comes_from(training: Training, folder: Path, *, of_profile: bool) -> bool:
    """Whether code and settings in a folder are those of a training. A profile's settings are not looked at."""
    try:
        settings = training.settings
        code = code_hash(code_of(settings.task), folder / "pipeline")
        same = of_profile or params.load(folder / "params.yaml").resolve(training.variant) == settings
    except (UserError, ValueError, KeyError, OSError, SyntaxError):
        return False
    codes = [[group.get("code_hash"), *(replay["code_hash"] for replay in group.get("replays", ()))] for group in training.trainings]
    return same and all(code in known for known in codes)
