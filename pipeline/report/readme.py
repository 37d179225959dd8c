"""README.md's table of claims, copied from the first page of the report that README.md names.

    python -m pipeline.report.readme

replaces it between `<!-- claims of FOLDER -->` and `<!-- end of claims -->`; FOLDER holds the report.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pipeline.errors import UserError, run_command
from pipeline.files import write_text

README = Path("README.md")
_MARKED = re.compile(r"(<!-- claims of (\S+) -->\n).*?(<!-- end of claims -->)", flags=re.DOTALL)
_CELLS = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[(.+?)\]\((.+?)\)")
_SOURCE = re.compile(r" \*\([^*]*\)\*$")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.report.readme", description="Writes README.md's table of claims anew.")
    parser.parse_args(argv)
    try:
        text = README.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError("There is no README.md here: run the command from the repository's root.") from None
    except UnicodeDecodeError:
        raise UserError("README.md is not UTF-8: save it as that.") from None
    write_text(README, updated(text))


def updated(readme: str, root: Path = Path()) -> str:
    """The text of README.md with the present claims of its report.

    Raises:
        UserError: it has no marks to write them between, or its report is missing or has no claims.
    """
    marked = _MARKED.search(readme)
    if marked is None:
        raise UserError("README.md has no lines `<!-- claims of FOLDER -->` and `<!-- end of claims -->` to write claims between.")
    folder = marked[2]
    page = root / folder / "README.md"
    if not page.is_file():
        raise UserError(f"{folder}/README.md is missing: make the report first, then run this command again.")
    claims = table(page.read_text(encoding="utf-8"), folder)
    return readme[: marked.start()] + f"{marked[1]}{claims}\n{marked[3]}" + readme[marked.end() :]


def table(page: str, folder: str) -> str:
    """The number of claims of each verdict, and a row for each claim that was run, from the first page of the report in that folder.

    Raises:
        UserError: the page has no claims.
    """
    section = page.partition("\n## The claims\n")[2].partition("\n## ")[0].strip().splitlines()
    rows = [[cell.strip() for cell in _CELLS.split(line)[1:5]] for line in section if line.startswith("| [")]
    if not rows:
        raise UserError(f"{folder}/README.md has no table of claims: make the report again.")
    lines = [section[0].partition(" Of ")[0], "", "| id | claim | verdict | deciding comparison |", "|:---|:---|:---|:---|"]
    for id, claim, verdict, effect in rows:
        if verdict == "**not run**":
            continue
        link = _LINK.fullmatch(id)
        assert link is not None
        target = f"{folder}/{'README.md' if link[2].startswith('#') else ''}{link[2]}"
        lines.append(f"| [{link[1]}]({target}) | {_SOURCE.sub('', claim)} | {verdict} | {effect} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
