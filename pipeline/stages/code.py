"""DVC stage `code`: the hash of each later stage's code as a file, so that a reworded comment runs none of them.

DVC compares files byte by byte. What these files hold changes only when the code means something else.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_text
from pipeline.system.paths import CODE_HASHES
from pipeline.system.provenance import PACKAGE, ROOT, STAGE_CODE, code_hash

_ROOMS = {entry.partition("/")[0] for entries in STAGE_CODE.values() for entry in entries}
_CHECKED = ("captioning", "data", "evaluation", "kernels", "measures", "models", "training")


def check_imports() -> None:
    """Raises UserError where code that decides results imports a module of this folder that is in no stage's code."""
    for file in (one for room in _CHECKED for one in sorted((PACKAGE / room).rglob("*.py"))):
        for name in _imported(file):
            top, room, *_ = [*name.split("."), ""]
            if room not in _ROOMS if top == PACKAGE.name else (ROOT / f"{top}.py").exists() or (ROOT / top).is_dir():
                place = f"{PACKAGE.name}/{file.relative_to(PACKAGE)}"
                raise UserError(f"{place} imports {name}, of which no stage would notice an edit: move that module beside it.")


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
