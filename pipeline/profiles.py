"""Profiles: the same pipeline with other params.yaml, in a nested DVC repository under build/ that leaves the root's files alone.

    python -m pipeline.profiles run NAME [--publish]

runs profiles/NAME/params.yaml in build/NAME; `--publish` then copies the pages and the text files of runs/ to reports/NAME, where
git keeps them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from pipeline import params
from pipeline.errors import UserError, run_command
from pipeline.files import write_text

ROOT = Path(__file__).parent.parent
_RUN_TEXT = ("epochs.csv", "metrics.json", "run.json", "model.sha256", "evaluation.json", "confusion.csv")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.profiles", description="Runs the pipeline with another params.yaml, in build/NAME."
    )
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="dvc repro in build/NAME")
    run.add_argument("name")
    run.add_argument("--publish", action="store_true", help="copy pages and text files of the runs to reports/NAME")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    mirror = os.environ.get("MNIST_MIRROR", "")
    if mirror and Path(mirror).is_dir():
        os.environ["MNIST_MIRROR"] = str(Path(mirror).resolve())  # relative to here, not to build/NAME
    directory = lay_out(arguments.name)
    reproduce(directory)
    shown = directory
    if arguments.publish:
        shown = publish(arguments.name, directory)
        print(f"\nPublished to {shown.relative_to(ROOT)}.")
    report = shown / "README.md" if arguments.publish else directory / "reports" / "README.md"
    print(f"\n{arguments.name}: done in {time.monotonic() - start:.0f} s.")
    print(f"  The report:   {report.relative_to(ROOT)}")
    print(f"  MLflow on it: make ui IN={directory.relative_to(ROOT)}   then open the address that it prints")


def lay_out(name: str) -> Path:
    """Makes or refreshes the nested repository build/NAME: a DVC repository without SCM whose dvc.yaml is the root's own.

    Raises:
        UserError: there is no such profile, or its params.yaml is wrong.
    """
    source = ROOT / "profiles" / name / "params.yaml"
    if not source.is_file():
        names = sorted(path.parent.name for path in (ROOT / "profiles").glob("*/params.yaml"))
        raise UserError(f"There is no profile {name!r}; the choices are {', '.join(names)}.")
    params.load(source)
    directory = ROOT / "build" / name
    directory.mkdir(parents=True, exist_ok=True)
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    stages["vars"] = [{"code": "../.."}]
    for stage in stages["stages"].values():
        stage = stage.get("do", stage)
        stage["deps"] = [file for dep in stage["deps"] for file in _files(dep)]
    _write_changed(directory / "dvc.yaml", yaml.safe_dump(stages, sort_keys=False))
    _write_changed(directory / "params.yaml", source.read_text(encoding="utf-8"))
    _write_changed(directory / ".dvcignore", (ROOT / ".dvcignore").read_text(encoding="utf-8"))
    if not (directory / ".dvc").is_dir():
        _dvc(directory, "init", "--no-scm", "--quiet")
        _dvc(directory, "config", "core.analytics", "false")
        _dvc(directory, "config", "core.check_update", "false")
    return directory


def _files(dep: str) -> list[str]:
    """A dependency's source files. DVC's ignore file does not reach outside its repository, so a folder would bring its bytecode."""
    place = dep.removeprefix("${code}/")
    if place == dep or not (ROOT / place).is_dir():
        return [dep]
    files = (path for path in (ROOT / place).rglob("*") if path.suffix in (".py", ".j2"))
    return sorted(f"${{code}}/{path.relative_to(ROOT).as_posix()}" for path in files)


def reproduce(directory: Path) -> None:
    """`dvc repro` in a directory. Raises UserError when a stage failed; what went wrong has been printed by then."""
    _dvc(directory, "repro")


def publish(name: str, directory: Path) -> Path:
    """Copies the pages, and of each run the text files, to reports/NAME in the root. Returns that folder."""
    target = ROOT / "reports" / name
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(directory / "reports", target)
    for variant in params.load(directory / "params.yaml").variants:
        (target / "runs" / variant).mkdir(parents=True)
        for file in _RUN_TEXT:
            shutil.copyfile(directory / "runs" / variant / file, target / "runs" / variant / file)
    shutil.copyfile(directory / "timing" / "results.json", target / "timing" / "results.json")
    shutil.copyfile(directory / "dvc.lock", target / "dvc.lock")
    return target


def _write_changed(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _dvc(directory: Path, *arguments: str) -> None:
    result = subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=directory)
    if result.returncode:
        raise UserError(f"`dvc {arguments[0]}` failed in {directory.relative_to(ROOT)}; the lines above say why.", status=1)


if __name__ == "__main__":
    run_command(main)
