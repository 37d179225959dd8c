"""`make study NAME=path`: a study of one's own in a new git repository, with the package, a params.yaml of one screen and one question.

    python -m pipeline.commands.study FOLDER

What belongs to the study of this repository stays here: results, weights, captions, the pages beside the thesis, profiles, benchmarks.
"""

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml

from pipeline import params
from pipeline.commands.profiles import stages_of
from pipeline.params.data import RECORD
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_text
from pipeline.system.provenance import ROOT, check_git, git

TEMPLATES = ROOT / "pipeline" / "templates" / "study"  # params.yaml, claims.yaml, README.md
_TAKEN = (
    "pipeline", "tests", "Makefile", "pyproject.toml", "requirements.lock", "requirements-cluster.lock", "LICENSE", ".gitignore",
    ".gitattributes", ".dvcignore", ".dvc", "docs/own_study.md", "docs/reference.md", "docs/judge.md", "docs/mlflow.md",
    "docs/method.md", "docs/glossary.md", "docs/mlflow-study.png", "docs/mlflow-thesis.png",
)  # fmt: skip
# Tests of what stays here: committed results, its pages and documents, its profiles and workflows.
LEFT = (
    "tests/golden", "tests/test_study.py", "tests/study/test_rates.py", "tests/test_readme.py",
    "tests/test_on_a_gpu.py", "tests/test_reference.py", "tests/test_workflows.py", "tests/test_commits.py", "tests/test_makefile.py",
    "tests/test_sizes.py", "tests/report/test_numbers.py", "tests/benchmarks", "tests/commands/test_profiles.py",
    "tests/commands/test_study.py", "tests/stages/test_captioning.py", "tests/stages/test_data.py", "tests/stages/test_sync.py",
    "tests/tracking/test_record.py",
)  # fmt: skip
_OF_THE_LAB = "*Written in the lab that this study was made from: numbers, profiles and commands of `docs.method` are the lab's.*"
_RULES = ("demo", "preview", "study", "caption", "bench")  # of the Makefile


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.study", description="Makes a repository for a study of one's own.")
    parser.add_argument("folder")
    folder = Path(parser.parse_args(argv).folder).expanduser()
    make(folder)
    print(f"{folder} is a study of its own: two variants and one question on scikit-learn's digits.\n  cd {shlex.quote(str(folder))}")
    print("  make repro       trains it, and writes reports/README.md; its first `make` sets up .venv")
    print("  docs/own_study.md says how to take other data, models and measures")


def make(folder: Path) -> None:
    """Writes the repository, with a first commit. Raises UserError where the folder is taken, or git is missing."""
    check_git(ROOT, needed=True)
    if not folder.name or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        what = f"{folder} is there already" if folder.name else "it is missing"
        raise UserError(f"NAME: {what}; name a folder that is not there yet, for example NAME=../a-new-name.")
    if folder.resolve().is_relative_to(ROOT) or "%" in str(folder.resolve()):
        raise UserError("NAME: take a folder outside this repository, whose path has no %.")
    listed = git("ls-files", "-z", "--", *_TAKEN, encoding="utf-8").stdout.split("\0")
    for name in filter(None, listed):
        if not name.startswith(tuple(f"{one}/" for one in LEFT)) and name not in LEFT and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for page in (folder / "docs").glob("*.md"):
        write_text(page, page.read_text(encoding="utf-8").replace("\n", f"\n\n{_OF_THE_LAB}\n", 1))
    title = re.sub(r"[\s_-]+", " ", folder.resolve().name).strip().capitalize()
    quoted = json.dumps(title, ensure_ascii=False)
    settings: dict[str, Any] = {}
    for template in sorted(TEMPLATES.iterdir()):
        text = template.read_text(encoding="utf-8").replace("title: TITLE", f"title: {quoted}").replace("TITLE", title)
        write_text(folder / template.name, text)
        settings |= params.read(folder / template.name) if template.suffix == ".yaml" else {}
    for name in ("params.yaml", "claims.yaml", RECORD):  # of which the tests take their variants
        (folder / "tests" / "catalogue" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "tests" / "catalogue" / name)
    write_text(folder / "dvc.yaml", yaml.safe_dump(stages_of(settings), sort_keys=False, width=140))
    rules = "|".join(_RULES)
    makefile = re.sub(rf"^(?:{rules}):.*\n(?:\t.*\n)+\n", "", (folder / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    write_text(folder / "Makefile", re.sub(rf"(?<=\w) (?:{rules})(?= )(?=.*\n\.DEFAULT_GOAL)", "", makefile))
    _commit(folder)


def _commit(folder: Path) -> None:
    who = [] if git("config", "user.email", cwd=folder).stdout else ["-c", "user.name=A study", "-c", "user.email=study@localhost"]
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"], [*who, "commit", "--quiet", "-m", "A study begins"]):
        done = git(*command, cwd=folder, encoding="utf-8")
        if done.returncode:
            raise UserError(f"git could not make a repository of {folder} ({done.stderr.strip()}): mend that, and run `git init` there.")


if __name__ == "__main__":
    run_command(main)
