"""DVC stage `code`: the hash of each later stage's code as a file, so that a reworded comment runs none of them.

DVC compares files byte by byte. What these files hold changes only when the code means something else.
"""

from pipeline.system.errors import run_command
from pipeline.system.files import write_text
from pipeline.system.paths import CODE_HASHES
from pipeline.system.provenance import STAGE_CODE, code_hash


def main(_: list[str]) -> None:
    for stage, entries in STAGE_CODE.items():
        write_text(CODE_HASHES / f"{stage}.txt", f"{code_hash(entries)}\n")


if __name__ == "__main__":
    run_command(main)
