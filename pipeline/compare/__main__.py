"""`python -m pipeline.compare BASE [HEAD]`: what changed between two commits, as a page for a comment on a pull request."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import track

from pipeline.compare import page, sides
from pipeline.compare.changes import Change, compare
from pipeline.compare.predictions import Cache
from pipeline.errors import UserError, run_command
from pipeline.files import write_text
from pipeline.study.git import Repository
from pipeline.tracking.store import sqlite_uri, store_uri


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.compare", description="Compares the results that two commits hold; nothing is checked out or trained."
    )
    parser.add_argument("base", nargs="?", default="", help="commit, branch or tag to compare with")
    parser.add_argument("head", nargs="?", default="", help="the other one (default: the working tree; with --source mlflow: HEAD)")
    parser.add_argument("--source", default="files", help="files: text files in git (default); mlflow: the runs in the MLflow store")
    parser.add_argument("--in", dest="folder", metavar="FOLDER", help="where runs/ lies in the repository, for example reports/preview")
    parser.add_argument("--out", type=Path, default=Path("build/compare.md"), help="the page (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.base:
        raise UserError("Say which commit to compare with: make compare BASE=main~1, or python -m pipeline.compare main~1.")
    if arguments.source not in ("files", "mlflow"):
        raise UserError(f"There is no source {arguments.source!r}; the choices are files and mlflow.")
    repository = Repository.around(Path.cwd())
    folder = _folder(arguments.folder)
    if arguments.source == "mlflow":
        store, revisions = _store(repository, folder), (arguments.base, arguments.head or "HEAD")
        base, head = (sides.read_revision(repository, revision, folder, store=store) for revision in revisions)
    else:
        base = sides.read_revision(repository, arguments.base, folder)
        head = sides.read_revision(repository, arguments.head, folder) if arguments.head else sides.read_working_tree(repository, folder)
    text = page.render(compare(base, head, Cache(repository.root), _progress))
    write_text(arguments.out, text)
    print(text, end="")
    print(f"Written to {arguments.out}.", file=sys.stderr)


def _folder(name: str | None) -> str | None:
    """The folder that holds runs/, from the repository's top folder; "" is the top folder itself."""
    if name is None:
        return None
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"--in {name}: give a folder from the repository's top, for example reports/preview.")
    if path.name == "runs":
        path = path.parent
    return "" if path == PurePosixPath(".") else path.as_posix()


def _store(repository: Repository, folder: str | None) -> str:
    """The store of the folder, as build/preview has one, unless MLFLOW_TRACKING_URI names another; else that of the working directory."""
    own = repository.root / (folder or "") / "mlflow.db"
    return store_uri(sqlite_uri(own) if own.is_file() and "MLFLOW_TRACKING_URI" not in os.environ else None)


def _progress(changes: list[Change]) -> Iterable[Change]:
    console = Console(stderr=True)
    return track(changes, "Resampling seeds and images", console=console, transient=True, disable=not console.is_terminal)


if __name__ == "__main__":
    run_command(main)
