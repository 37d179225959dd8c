"""What the Makefile passes on to commands, in a checkout whose path has a space and a letter that is not ASCII."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.system.environment import FOREIGN
from tests.helpers import ROOT

GIVEN = re.findall(r"^GIVEN := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)[0].split()
HOSTILE = ["'; touch hit; '", "$(shell touch hit)", "a b #c", "-x"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile beside an environment whose `python` prints where it runs and with what."""
    root = tmp_path / "a clone à moi"
    (root / ".venv" / "bin").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml"):
        (root / name).touch()
    python = root / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    python.chmod(0o755)
    (root / ".venv" / ".installed").write_text(f"{root}\n")
    shutil.copyfile(ROOT / "Makefile", root / "Makefile")
    (root / "pipeline").symlink_to(ROOT / "pipeline")
    return root


def make(checkout: Path, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    left_out = ("MAKE", "MFLAGS", "PYTHONPATH")  # of a `make test` around this one
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | given
    return subprocess.run(["make", "--silent", *arguments], cwd=checkout, env=environment, capture_output=True, text=True)


def test_values_are_text_and_never_run(checkout: Path) -> None:
    for value in HOSTILE[:3]:
        done = make(checkout, "compare", f"BASE={value}", f"HEAD={value}", f"SOURCE={value}", f"IN={value}")
        expected = [str(checkout), "-m", "pipeline.commands.compare", f"--source={value}", f"--in={value}", "--", value, value]
        assert done.stdout.splitlines() == expected
        assert make(checkout, "plan", f"IN={value}").returncode == 2
        assert f"--variant={value}" in make(checkout, "verify", f"VARIANT={value}").stdout.splitlines()
    assert not (checkout / "hit").exists()


@pytest.mark.parametrize("target", ["repro", "demo"])
def test_jobs_are_the_processes_of_all_that_trains(checkout: Path, target: str) -> None:
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$LAB_PROCESSES"\n')
    given = {name: make(checkout, target, *arguments, **variables).stdout for name, arguments, variables in (
        ("JOBS", ["JOBS=3"], {"LAB_PROCESSES": "2"}), ("LAB_PROCESSES", [], {"LAB_PROCESSES": "2"}), ("none", [], {"LAB_PROCESSES": ""}),
    )}  # fmt: skip
    assert given == {"JOBS": "3\n", "LAB_PROCESSES": "2\n", "none": "\n"}
    for value in HOSTILE:
        assert make(checkout, target, f"JOBS={value}").stdout == f"{value}\n"
    assert not (checkout / "hit").exists()


def test_a_folder_may_have_any_name_and_has_to_be_there(checkout: Path) -> None:
    folder = checkout / "build" / 'a demo\'s "folder"'
    folder.mkdir(parents=True)
    assert make(checkout, "ui", f"IN={folder.relative_to(checkout)}").stdout.splitlines()[0] == str(folder)
    assert make(checkout, "ui").stdout.splitlines()[0] == str(checkout)
    done = make(checkout, "ui", "IN=build/none")
    assert (done.stdout, done.stderr.splitlines()[0]) == ("", "error: IN names a folder, for example build/demo.")


def test_no_variable_of_another_project_reaches_a_command(checkout: Path) -> None:
    own = {"PYTHONPATH": "/elsewhere", "MPLBACKEND": "none", "OMP_NUM_THREADS": "64", "OMP_THREAD_LIMIT": "64", "PYTHON": "none"}
    hostile = dict.fromkeys(FOREIGN, "/nowhere") | own | dict.fromkeys(GIVEN, "ray")
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"; env\n')
    for target in ("repro", "train", "verify", "compare", "caption"):
        said = make(checkout, target, **hostile).stdout.splitlines()
        assert said[: said.index(f"PYTHONPATH={checkout}")]
        assert not {line.partition("=")[0] for line in said} & FOREIGN
        assert not [line for line in said if line.endswith("ray")]


def test_what_rules_read_comes_from_the_command_line_alone() -> None:
    read = re.findall(r"\$\$\{?([A-Z_]+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert {*read} - {"HOME", "LAB_PROCESSES", "PYTHON"} == {*GIVEN}


def test_set_up_runs_again_in_another_place_and_installs_nowhere_else(checkout: Path) -> None:
    assert make(checkout, "--dry-run", "setup").stdout == ""
    copied = shutil.copytree(checkout, checkout.with_name("a copy"), symlinks=True)
    for place in (copied, checkout.rename(checkout.with_name("moved"))):
        said = make(place, "--dry-run", "setup", "bench", "train", "ON=ray").stdout
        commands = re.findall(r"uv pip (?:sync|install) (.*)", said)
        assert len(commands) == 4
        assert all(command.startswith("--python .venv/bin/python ") for command in commands)


@pytest.mark.parametrize("left", ["nothing", "a Python without pip"])
def test_what_an_interrupted_set_up_left_is_made_anew(checkout: Path, left: str) -> None:
    (checkout / ".venv" / ".installed").unlink()
    python = checkout / ".venv" / "bin" / "python"
    python.unlink() if left == "nothing" else python.write_text("#!/bin/sh\nexit 1\n")
    python = checkout / "python"
    python.write_text('#!/bin/sh\ntest "$1" = -c || echo "$@" >> made\n')
    python.chmod(0o755)
    make(checkout, "setup", "PYTHON=./python")
    assert (checkout / "made").read_text() == "-m venv --clear .venv\n"


def test_a_path_that_mlflow_does_not_take_is_refused(checkout: Path) -> None:
    place = checkout.rename(checkout.with_name("100%"))
    done = make(place, "setup", f"PYTHON={sys.executable}")
    assert done.returncode == 2
    assert done.stderr.startswith("MLflow takes no folder whose path has a %: ")


def test_a_python_that_is_too_old(checkout: Path) -> None:
    """3.11 itself is not enough: `tarfile` has its filters since 3.11.4."""
    (checkout / ".venv" / ".installed").unlink()
    old = checkout / "python3.11.3"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; sys.version_info = (3, 11, 3, \'final\', 0); $2"\n')
    old.chmod(0o755)
    done = make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{old} is not Python 3.11.4 to 3.13: name one that is, ")
    old.write_text(old.read_text().replace("11, 3,", "11, 4,"))
    assert "is not Python" not in make(checkout, "setup", f"PYTHON={old}").stderr
