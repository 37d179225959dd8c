"""Whatever `python` the path has: a command runs in the project's own environment, or says what to activate. And any output will do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from pipeline import environment
from tests.helpers import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package's first modules in a folder with a space, and a stage that none of them gets to."""
    folder = tmp_path / "a checkout"
    (folder / "pipeline").mkdir(parents=True)
    for name in ("__init__.py", "environment.py"):
        shutil.copyfile(ROOT / "pipeline" / name, folder / "pipeline" / name)
    (folder / "pipeline" / "stage.py").write_text("raise SystemExit('with a Python that lacks its packages')")
    return folder


def bare(folder: Path) -> subprocess.CompletedProcess[str]:
    """A stage with a Python that has no packages: `-S` keeps it from looking for them."""
    command = [sys.executable, "-S", "-m", "pipeline.stage", "a b", "c"]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True)


def test_a_stage_finds_its_own_environment(checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\nexit 7\n')
    python.chmod(0o755)
    done = bare(checkout)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split("\n") == ["<-S>", "<-m>", "<pipeline.stage>", "<a b>", "<c>", ""]


def test_without_one_it_says_what_to_do(checkout: Path) -> None:
    done = bare(checkout)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {sys.executable} has no dvc, ")
    assert done.stderr.endswith(": `make setup` makes a whole environment in .venv, then run the command again.\n")
    assert done.stderr.count("\n") == 1


def test_an_installation_that_was_interrupted_is_not_to_be_activated_again(checkout: Path) -> None:
    venv.create(checkout / ".venv")
    python = checkout / ".venv/bin/python"
    done = subprocess.run(
        [python, "-m", "pipeline.stage"], cwd=checkout, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.endswith(": `make setup` makes a whole environment in .venv, then run the command again.\n")


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 3, "final", 0))
    assert environment._lack() == "is Python 3.11.3, and the project needs 3.11.4 or a newer one"
    monkeypatch.setattr(sys, "version_info", (3, 11, 4, "final", 0))
    assert environment._lack() == ""


def test_what_the_outputs_encoding_lacks_is_written_as_its_code() -> None:
    code = """
from pipeline.errors import UserError, run_command
def main(_):
    print("−30.88 \\udcff")
    raise UserError("±")
run_command(main)
"""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "\\u221230.88 \\udcff\n", "error: \\xb1\n")


def test_variables_are_afterwards_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_GRAPHS", "1")
    monkeypatch.delenv("LAB_ATTENTION", raising=False)
    with environment.variables(LAB_GRAPHS="0", LAB_ATTENTION="sdpa"):
        assert (os.environ["LAB_GRAPHS"], os.environ["LAB_ATTENTION"]) == ("0", "sdpa")
    assert os.environ["LAB_GRAPHS"] == "1"
    assert "LAB_ATTENTION" not in os.environ


def test_no_environment_is_tracked() -> None:
    """One that a mistyped path had put into the checkout was once committed with everything else."""
    command = ["git", "ls-files", "--", "*pyvenv.cfg", "*site-packages/*"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


def test_the_oldest_mlflow_has_what_the_registry_asks_for() -> None:
    """`save_model` has `serialization_format` since 3.11."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (floor,) = [re.fullmatch(r"mlflow>=(\d+)\.(\d+)", one) for one in project["dependencies"] if one.startswith("mlflow")]
    assert floor
    assert tuple(map(int, floor.groups())) >= (3, 11)
