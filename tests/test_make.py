"""The Makefile in a checkout whose path has a space and a letter that is not ASCII, and with values that are none."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import venv
from pathlib import Path

import pytest

from pipeline.params import Params

ROOT = Path(__file__).parent.parent
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Makefile, what `make list` needs, and an environment that counts as installed: it finds the packages of this one."""
    folder = tmp_path_factory.mktemp("make") / "a clone à moi"
    folder.mkdir()
    (folder / "pipeline").symlink_to(ROOT / "pipeline")
    for name in ("Makefile", "params.yaml", "pyproject.toml", "requirements.lock"):
        shutil.copyfile(ROOT / name, folder / name)
    venv.create(folder / ".venv", symlinks=True)
    (own,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (own / "packages.pth").write_text("\n".join(site.getsitepackages()))
    (folder / ".venv" / ".installed").touch()
    return folder


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV"}  # of a `make test` around this one
    given = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(["make", *arguments], cwd=folder, env=given | environment, capture_output=True, text=True)


def test_a_checkout_whose_path_has_a_space(checkout: Path, study: Params) -> None:
    """And what the catalogue writes to a pipe, into which nothing but ASCII goes."""
    done = make(checkout, "list", PYTHONIOENCODING="ascii", COLUMNS="300")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in checkout.parent.iterdir()] == [checkout.name]
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


def test_no_command_has_the_checkouts_path_in_its_text(checkout: Path) -> None:
    """So there is nothing to quote."""
    assert {"setup", "demo", "test", "clean"} <= set(TARGETS)
    os.utime(checkout / "requirements.lock", (2**32, 2**32))  # `make setup` would install anew
    done = make(checkout, "--dry-run", *TARGETS)
    os.utime(checkout / "requirements.lock", (0, 0))
    assert done.returncode == 0
    assert "uv pip sync" in done.stdout
    assert checkout.name.split()[0] + " clone" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["setup", "PYTHON=no-such-python"], "no-such-python is not Python 3.11 or newer: name one that is"),
        (["setup", "PYTHON=x'; touch a \"b"], "x'; touch a \"b is not Python 3.11 or newer"),
        (["setup", "PYTHON=$(shell touch a)"], "$(shell touch a) is not Python 3.11 or newer"),
        (["setup", "PYTHON="], " is not Python 3.11 or newer"),
        (["verify", "VARIANT=b'; touch a; '"], "error: There is no variant \"b'; touch a; '\"."),
        (["caption", "SCENE=1", 'SEED="; touch a; "'], "error: SEED is '\"; touch a; \"', but has to be a whole number from 0 to 5."),
        (["lsit"], "make: *** No rule to make target 'lsit'.  Stop."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_value_that_is_none(checkout: Path, arguments: list[str], sentence: str) -> None:
    before = sorted(path.name for path in checkout.iterdir())
    if "setup" in arguments:
        os.utime(checkout / "requirements.lock", (2**32, 2**32))
    done = make(checkout, *arguments)
    os.utime(checkout / "requirements.lock", (0, 0))
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines() or sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in checkout.iterdir()) == before
