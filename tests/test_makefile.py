"""What the Makefile passes on to commands, in a checkout whose path has a space and a letter that is not ASCII."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pipeline.params import Params
from tests.helpers import ROOT

TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
HOSTILE = ["'; touch hit; '", '"; touch hit; "', "$(shell touch hit)", "`touch hit`", "$$(touch hit)", "a b #c", "-x"]


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
    (root / ".venv" / ".installed").touch()
    shutil.copyfile(ROOT / "Makefile", root / "Makefile")
    return root


def make(checkout: Path, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    left_out = ("MAKE", "MFLAGS", "PYTHONPATH")  # of a `make test` around this one
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | given
    return subprocess.run(["make", "--silent", *arguments], cwd=checkout, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("value", HOSTILE)
def test_values_are_text_and_never_run(checkout: Path, value: str) -> None:
    done = make(checkout, "compare", f"BASE={value}", f"HEAD={value}", f"SOURCE={value}", f"IN={value}")
    expected = [str(checkout), "-m", "pipeline.compare", f"--source={value}", f"--in={value}", "--", value, value]
    assert done.stdout.splitlines() == expected
    for target in ("plan", "ui", "sync"):
        assert make(checkout, target, f"IN={value}").returncode == 2
    for target in ("verify", "caption"):
        assert f"--variant={value}" in make(checkout, target, f"VARIANT={value}").stdout.splitlines()
    assert not (checkout / "hit").exists()


@pytest.mark.parametrize("target", ["repro", "demo", "preview"])
def test_jobs_are_the_processes_of_all_that_trains(checkout: Path, target: str) -> None:
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$LAB_PROCESSES"\n')
    given = {name: make(checkout, target, *arguments, **variables).stdout for name, arguments, variables in (
        ("JOBS", ["JOBS=3"], {"LAB_PROCESSES": "2"}), ("LAB_PROCESSES", [], {"LAB_PROCESSES": "2"}), ("none", [], {"LAB_PROCESSES": ""}),
    )}  # fmt: skip
    assert given == {"JOBS": "3\n", "LAB_PROCESSES": "2\n", "none": "\n"}
    for value in HOSTILE:
        assert make(checkout, target, f"JOBS={value}").stdout == f"{value}\n"
    assert not (checkout / "hit").exists()


@pytest.mark.parametrize("target", ["plan", "ui", "sync"])
def test_a_folder_may_have_any_name_and_has_to_be_there(checkout: Path, target: str) -> None:
    folder = checkout / "build" / 'a demo\'s "folder"'
    folder.mkdir(parents=True)
    assert make(checkout, target, f"IN={folder.relative_to(checkout)}").stdout.splitlines()[0] == str(folder)
    assert make(checkout, target).stdout.splitlines()[0] == str(checkout)
    done = make(checkout, target, "IN=build/none")
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "error: IN names a folder, for example build/demo."


@pytest.fixture
def working(checkout: Path) -> Path:
    """The checkout with the package, params.yaml and an environment that has the packages of this one."""
    shutil.rmtree(checkout / ".venv")
    venv.create(checkout / ".venv", symlinks=True)
    (packages,) = (checkout / ".venv" / "lib").glob("python*/site-packages")
    (packages / "those-of-the-tests.pth").write_text("\n".join(site.getsitepackages()))
    (checkout / ".venv" / ".installed").touch()
    (checkout / "pipeline").symlink_to(ROOT / "pipeline")
    shutil.copyfile(ROOT / "params.yaml", checkout / "params.yaml")
    return checkout


def test_dvc_finds_the_environment_without_activation(working: Path) -> None:
    """Where the path has another `python`, or none."""
    own = working / ".venv" / "bin" / "python"
    (command,) = re.findall(r"python -c '(from pipeline.environment.*)'", make(working, "-n", "-W", "pyproject.toml", "setup").stdout)
    subprocess.run([own, "-c", command], cwd=working, check=True)
    code = "import subprocess; subprocess.run('python -c \"import os; print(os.environ[\\'PATH\\'])\"', shell=True, check=True)"
    found = subprocess.run([own, "-c", code], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert found.stdout == f"{own.parent}:/usr/bin:/bin\n"


def test_the_catalogue_in_a_folder_with_a_space(working: Path, study: Params) -> None:
    """And what goes to a pipe, of which nothing but ASCII is wanted."""
    done = make(working, "list", PYTHONIOENCODING="ascii", COLUMNS="300")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in working.parent.iterdir()] == [working.name]  # and no environment beside it
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert not any(line != line.rstrip() for line in lines)
    for names in (study.variants, study.experiments, study.claims):
        assert names.keys() <= {line.split(" ")[0].strip("|") for line in lines}
    numbers = sorted({len(study.resolve(variant).train.seeds) for variant in study.variants})
    seeds = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    assert lines[-1] == (
        f"params.yaml is valid: {len(study.variants)} variants with {seeds} seeds each, "
        f"{len(study.experiments)} experiments, {len(study.claims)} claims."
    )


def test_no_command_has_the_path_of_the_checkout_in_its_text(checkout: Path) -> None:
    """So there is nothing to quote."""
    assert {"setup", "demo", "test", "clean"} <= set(TARGETS)
    (checkout / ".venv" / ".installed").unlink()
    done = make(checkout, "--dry-run", *TARGETS)
    assert done.returncode == 0
    assert "uv pip sync" in done.stdout
    assert "clone" not in done.stdout


@pytest.mark.parametrize("value", ["no-such-python", "", *HOSTILE])
def test_a_python_that_is_none(checkout: Path, value: str) -> None:
    (checkout / ".venv" / ".installed").unlink()
    before = sorted(checkout.rglob("*"))
    done = make(checkout, "setup", f"PYTHON={value}")
    assert done.returncode == 2
    assert f"\n{value} is not Python 3.11.4 to 3.13: name one that is, for example 'make setup PYTHON=python3.12'.\n" in done.stderr
    assert sorted(checkout.rglob("*")) == before


def test_a_python_that_is_too_old(checkout: Path) -> None:
    """3.11 itself is not enough: `tarfile` has its filters since 3.11.4."""
    (checkout / ".venv" / ".installed").unlink()
    old = checkout / "python3.11.3"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c \"import sys; sys.version_info = (3, 11, 3, 'final', 0); $2\"\n")
    old.chmod(0o755)
    done = make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{old} is not Python 3.11.4 to 3.13: name one that is, ")
    old.write_text(old.read_text().replace("11, 3,", "11, 4,"))
    assert "is not Python" not in make(checkout, "setup", f"PYTHON={old}").stderr
