"""`python -m pipeline.compare BASE [HEAD]`: what changed between two commits, as a page for a comment on a pull request."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path, PurePosixPath

from pipeline.compare import page, sides
from pipeline.compare.changes import compare
from pipeline.compare.predictions import Cache
from pipeline.errors import UserError, run_command
from pipeline.study import stored
from pipeline.study.git import Repository


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.compare", description="Compares the results that two commits hold; nothing is checked out or trained."
    )
    parser.add_argument("base", nargs="?", default="", help="commit, branch, tag or DVC experiment to compare with")
    parser.add_argument("head", nargs="?", default="", help="the other one (default: the working tree)")
    parser.add_argument("--source", default="", help="files: the tables (default); mlflow: the runs of the same trainings in MLflow")
    parser.add_argument(
        "--in", dest="folder", metavar="FOLDER", default="", help="where tables/ lies in the repository, for example build/demo"
    )
    parser.add_argument("--out", type=Path, default=Path("build/compare.md"), help="the page (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.base:
        raise UserError("Say which commit to compare with: make compare BASE=main~1, or python -m pipeline.compare main~1.")
    if arguments.source not in ("", "files", "mlflow"):
        raise UserError(f"There is no source {arguments.source!r}; the choices are files and mlflow.")
    repository = Repository.around(Path.cwd())
    folder = _folder(arguments.folder)
    store = stored.address(repository.root / folder) if arguments.source == "mlflow" else None
    base = sides.read_revision(repository, arguments.base, folder, store=store)
    if arguments.head:
        head = sides.read_revision(repository, arguments.head, folder, store=store)
    else:
        head = sides.read_working_tree(repository, folder, store=store)
    text = page.render(compare(base, head, Cache(repository.root)))
    print(text, end="", flush=True)
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
        print(f"Written to {arguments.out}.", file=sys.stderr)
    except OSError as error:  # in a checkout that is for reading alone the page above is all that was wanted
        print(f"Not written to {arguments.out}: {error.strerror}.", file=sys.stderr)


def _folder(name: str) -> str:
    """The folder that holds tables/, from the repository's top folder; "" is the top folder itself."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"--in {name}: give a folder from the repository's top, for example build/demo.")
    return "" if path == PurePosixPath(".") else path.as_posix()


if __name__ == "__main__":
    run_command(main)
