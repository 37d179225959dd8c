"""`make repro`'s command: what it refuses, and that it goes on after kill -9, Ctrl-C and a merge conflict, with the real DVC."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import mending

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PREPARED = "prepare", "resolve"  # stages that take seconds


class Study:
    """A DVC repository of its own: the real dvc.yaml and code, a small params.yaml on the digits."""

    def __init__(self, path: Path, raw_params: dict[str, Any]) -> None:
        self.path = path
        shutil.copytree(ROOT / "pipeline", path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copyfile(ROOT / name, path / name)
        keys = {name: raw_params[name] for name in ("images_shown", "looks", "base", "timing")}
        keys["train"] = raw_params["train"] | {"seeds": [0], "epochs": 1}
        self.raw = {"data": {"dataset": "digits"}, **keys, "variants": {"base": {}}, "experiments": {}, "claims": {}}
        self.write()
        for arguments in (["init", "--no-scm"], ["config", "core.analytics", "false"], ["config", "core.check_update", "false"]):
            subprocess.run([sys.executable, "-m", "dvc", *arguments, "--quiet"], cwd=path, check=True)

    def write(self) -> None:
        (self.path / "params.yaml").write_text(yaml.safe_dump(self.raw, sort_keys=False))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.repro", *arguments],
            cwd=self.path,
            env=os.environ | {"PYTHONPATH": ""},  # the copy's code
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def repro(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate()
        return process.returncode, out, err

    def enlarge_lock(self) -> None:
        """Adds the stages of a real study, whose variants this one does not have: DVC now takes a second to write the file."""
        for place in (self.path / "dvc.lock", self.path / mending.COPY):
            own = place.read_text()
            others = mending._split((ROOT / "reports" / "preview" / "dvc.lock").read_text())
            place.write_text(own + "".join(block for name, block in others.items() if name not in mending._split(own)))


@pytest.fixture
def study(tmp_path: Path, raw_params: dict[str, Any]) -> Study:
    return Study(tmp_path / "study", raw_params)


def ran(out: str) -> list[str]:
    return re.findall(r"^Running stage '([^']+)':", out, flags=re.M)


def kill_while_writing(study: Study, process: subprocess.Popen[str]) -> int:
    """Kills the whole group as soon as dvc.lock is smaller than it was; the bytes that are left of it."""
    path = study.path / "dvc.lock"
    size = path.stat().st_size
    while (left := path.stat().st_size) >= size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.0005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return left


def test_after_a_kill_while_dvc_lock_is_written_the_same_command_goes_on(study: Study) -> None:
    status, out, err = study.repro(*PREPARED)
    assert (status, sorted(ran(out)), err) == (0, ["fetch", "prepare", "resolve"], "")
    assert (study.path / mending.COPY).read_bytes() == (study.path / "dvc.lock").read_bytes()
    study.enlarge_lock()
    whole = (study.path / "dvc.lock").read_text()

    study.raw["train"]["epochs"] = 2
    study.write()
    kill_while_writing(study, study.start(*PREPARED))
    assert mending._lacks((study.path / "dvc.lock").read_text(), mending._split(whole), {"fetch", "prepare", "resolve"})
    (study.path / ".dvc" / "tmp" / "rwlock").write_text("")  # as a kill a moment later leaves it
    refused = subprocess.run([sys.executable, "-m", "dvc", "repro", *PREPARED], cwd=study.path, capture_output=True, text=True)
    assert refused.returncode == 255  # the fault is real

    status, out, err = study.repro(*PREPARED)
    assert (status, err) == (0, "")
    assert re.search(r"^dvc\.lock was cut short: \d+ of its \d+ stages were taken from its last good copy\.$", out, flags=re.M)
    assert ".dvc/tmp/rwlock, left by a command that was killed, was removed." in out
    assert ran(out) in ([], ["resolve"])
    assert {"fetch", "prepare", "resolve"} <= mending._split((study.path / "dvc.lock").read_text()).keys()
    assert study.repro(*PREPARED)[1].splitlines()[-1] == "Data and pipelines are up to date."


def test_what_is_refused_touches_nothing(study: Study) -> None:
    assert study.repro("resolve")[0] == 0
    config = study.path / "configs" / "base.json"
    (study.path / "runs" / "base").mkdir(parents=True)
    (study.path / "runs" / "base" / "epochs.csv").write_text("a result")
    before = config.stat().st_mtime_ns
    study.raw["variants"]["base"] = {"train_images": 1_000_000}
    study.write()
    status, out, err = study.repro()
    assert (status, out) == (2, "")
    assert err == (
        "error: variants.base.train_images is 1,000,000, but digits has 1,437 training images; the nearest valid value is 1437.\n"
    )
    plain = subprocess.run([sys.executable, "-m", "dvc", "repro", "resolve"], cwd=study.path, capture_output=True, text=True)
    assert plain.returncode == 255
    assert "variants.base.train_images is 1,000,000" in plain.stderr
    assert config.stat().st_mtime_ns == before
    assert (study.path / "runs" / "base" / "epochs.csv").read_text() == "a result"


def test_a_stage_that_fails_and_another_dvc_at_work(study: Study) -> None:
    status, _, err = study.repro("no-such-stage")
    assert status == 1
    assert err.splitlines()[-1] == "error: `dvc repro` failed; the lines above say why."
    with (study.path / ".dvc" / "tmp" / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert study.repro() == (2, "", "error: Another DVC command is at work here: wait until it ends, then run this one again.\n")
    shutil.rmtree(study.path / ".dvc")
    status, _, err = study.repro()
    assert status == 2
    assert "There is no .dvc/ in" in err


@pytest.mark.parametrize("how", ["terminal", "this process alone", "kill"])
def test_dvc_and_its_stage_end_with_the_command(study: Study, how: str) -> None:
    study.raw["train"]["epochs"] = 10_000
    study.write()
    process = study.start("train@base")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("base  seed 0  epoch 1/"):
            break
    assert process.poll() is None
    if how == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
    _, err = process.communicate(timeout=60)  # ends when nobody holds the pipes any more
    assert process.returncode == (-signal.SIGKILL if how == "kill" else 130)
    assert how == "kill" or err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    deadline = time.monotonic() + 20
    while lives(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def lives(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_linked_folder_of_archives_stays_as_it_is(study: Study) -> None:
    """Whatever the data set: DVC itself is part of the question."""
    place = os.environ.get("MNIST_MIRROR", "")
    if not place or not Path(place).is_dir():
        pytest.skip("MNIST_MIRROR names no directory; tests/data tests the same with synthetic archives")
    folder = study.path.with_name("mine")
    folder.mkdir()
    for path in Path(place).glob("*.gz"):
        shutil.copyfile(path, folder / path.name)
    (folder / "notes.txt").write_text("mine")
    (study.path / "data").mkdir()
    (study.path / "data" / "raw").symlink_to(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for dataset in ("mnist", "digits", "mnist"):
        study.raw["data"]["dataset"] = dataset
        study.write()
        assert study.repro("prepare")[0] == 0
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"} == before
        assert (study.path / "data" / "raw").is_symlink()
    study.raw["data"]["dataset"] = "fashion_mnist"
    study.write()
    status, _, err = study.repro("prepare")
    assert status == 1
    assert "is not the archive of fashion_mnist and not this project's to replace: let the link point to another folder" in err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"} == before
