"""What the Makefile passes on to commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOSTILE = ["'; touch hit; '", '"; touch hit; "', "$(shell touch hit)", "`touch hit`", "$$(touch hit)", "a b #c", "-x"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile beside an environment whose `python` prints where it runs and with what."""
    root = tmp_path / "checkout"
    (root / ".venv" / "bin").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml"):
        (root / name).touch()
    python = root / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    python.chmod(0o755)
    (root / ".venv" / ".installed").touch()
    shutil.copyfile(ROOT / "Makefile", root / "Makefile")
    return root


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
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


@pytest.mark.parametrize("target", ["plan", "ui", "sync"])
def test_a_folder_may_have_any_name_and_has_to_be_there(checkout: Path, target: str) -> None:
    folder = checkout / "build" / 'a demo\'s "folder"'
    folder.mkdir(parents=True)
    assert make(checkout, target, f"IN={folder.relative_to(checkout)}").stdout.splitlines()[0] == str(folder)
    assert make(checkout, target).stdout.splitlines()[0] == str(checkout)
    done = make(checkout, target, "IN=build/none")
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "error: IN names a folder, for example build/demo."
