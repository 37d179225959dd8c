"""DVC stage `code`: the hash of each later stage's code as a file, so that a reworded comment runs none of them.

DVC compares files byte by byte. What these files hold changes only when the code means something else.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_text
from pipeline.system.paths import CODE_HASHES
from pipeline.system.provenance import PACKAGE, ROOT, STAGE_CODE, TRAINING_CODE, code_hash, code_of, files_of

_SETTLED = ("params", "system")  # settings are compared by their values; files, processes and errors decide no number


def check_imports() -> None:
    """Raises UserError where code that decides results imports a module of this folder that is not in the same hash."""
    for entries in (TRAINING_CODE, code_of("captioning"), STAGE_CODE["evaluate"]):
        hashed = [*files_of(entries, PACKAGE)]
        for file in (one for one in hashed if one.suffix == ".py"):
            for name in _imported(file):
                top, *parts = name.split(".")
                if top == PACKAGE.name:
                    noticed = not parts or parts[0] in _SETTLED or _module(parts) in hashed
                else:
                    noticed = not ((ROOT / f"{top}.py").exists() or (ROOT / top).is_dir())
                if not noticed:
                    place = f"{PACKAGE.name}/{file.relative_to(PACKAGE)}"
                    raise UserError(f"{place} imports {name}, whose edits would change results unnoticed: move that module beside it.")


def _module(parts: list[str]) -> Path:
    """The file of the package that a dotted name speaks of, whose last part may be a name in it."""
    whole, above = PACKAGE.joinpath(*parts), PACKAGE.joinpath(*parts[:-1])
    places = (whole.with_suffix(".py"), whole / "__init__.py", above.with_suffix(".py"), above / "__init__.py")
    return next(filter(Path.exists, places), whole)


def _imported(file: Path) -> Iterator[str]:
    place = file.relative_to(PACKAGE.parent).parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = place[: -node.level] if node.level else ()
            yield from (".".join([*above, *filter(None, [node.module]), one.name]) for one in node.names)


def main(_: list[str]) -> None:
    hashes = {stage: code_hash(entries) for stage, entries in STAGE_CODE.items()}
    check_imports()
    for stage, found in hashes.items():
        write_text(CODE_HASHES / f"{stage}.txt", f"{found}\n")


if __name__ == "__main__":
    run_command(main)
