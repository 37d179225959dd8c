"""`make repro`'s command: what it refuses, and that it goes on after kill -9 and Ctrl-C, with the real DVC."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from pipeline import params
from pipeline.commands import repro, train
from pipeline.commands.repro import COPY
from pipeline.runner import seeds
from pipeline.system.errors import UserError
from pipeline.system.provenance import training_code
from tests.conftest import Repository, small_study
from tests.helpers import PATIENCE, git, rewrite, stored, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
REPRO = (sys.executable, "-m", "pipeline.commands.repro")
PREPARED = "prepare", "resolve"  # stages that take seconds


@pytest.fixture
def study(trained: Repository, tmp_path: Path) -> Repository:
    return trained.copy(tmp_path / "study")


def start(study: Repository, *arguments: str) -> subprocess.Popen[str]:
    """The command in a process group of its own."""
    return subprocess.Popen(
        [*REPRO, *arguments],
        cwd=study.path,
        env=study.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As in a terminal: a shell that starts the tests in the background has their children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def refusal(study: Repository, main: Callable[[list[str]], object], *arguments: str) -> str:
    """The sentence with which a command is refused in the study's folder, in this process."""
    with chdir(study.path), pytest.raises(UserError) as caught:
        main([*arguments])
    assert caught.value.status == 2
    return str(caught.value)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_after_an_end_while_dvc_lock_is_written_the_same_command_goes_on(study: Repository, how: signal.Signals) -> None:
    lock = study.path / "dvc.lock"
    stages = "".join(f"  other-{number}:\n    cmd: {'a word ' * 1000}\n" for number in range(60))  # so that DVC writes it for longer
    lock.write_text(lock.read_text() + stages)
    whole, noted = lock.read_text(), params.read(lock)["stages"]["resolve"]
    study.edit(train={"epochs": 2})
    with start(study, *PREPARED) as process:
        while lock.stat().st_size >= len(whole):
            assert process.poll() is None, process.communicate()
            time.sleep(0.0005)
        os.killpg(process.pid, how)
        process.communicate()
    if how == signal.SIGINT:  # the command has lived to put it back
        assert lock.read_text() == whole
    else:
        assert len(lock.read_text()) < len(whole)
        (study.path / ".dvc" / "tmp" / "rwlock").write_text("")  # as a kill a moment later leaves it

    again = study.run(*REPRO, *PREPARED)
    assert (again.returncode, again.stderr) == (0, "")
    assert study.stages_run(again.stdout) == ["resolve"]  # which it had not noted
    assert params.read(lock)["stages"]["resolve"] != noted
    assert lock.read_text().count("  other-") == 60
    assert not (study.path / COPY).exists()


def test_what_is_refused_touches_nothing(study: Repository) -> None:
    """Beside another one that runs, and with settings that cannot be, whoever starts DVC."""
    config, copy = study.path / "configs" / "base.json", study.path / COPY
    copy.write_text("schema: '2.0'\n")
    with (copy.parent / "repro.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert refusal(study, repro.main, *PREPARED).startswith("Another `make repro` runs DVC here")
    assert copy.read_text() == "schema: '2.0'\n"
    (study.path / "tables" / "epochs.csv").write_text("a result")
    before = config.stat().st_mtime_ns
    study.edit(variants={"base": {"train_images": 1_000_000}})
    assert refusal(study, repro.main).startswith("variants.base.train_images: ")
    plain = study.run(sys.executable, "-m", "dvc", "repro", "resolve")
    assert plain.returncode == 255
    assert "variants.base.train_images: digits has 1,437" in plain.stderr
    assert config.stat().st_mtime_ns == before
    assert (study.path / "tables" / "epochs.csv").read_text() == "a result"


def test_a_place_where_git_does_not_work_is_told(tmp_path: Path, raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As root on another's files git reads nothing, and a training would know no commit. git's own tests make it think so.

    A copy without its repository is none for DVC either, unless it is a nested one, which says so itself.
    """
    study = Repository.create(tmp_path / "study", small_study(raw_params))
    git(study.path, "init", "--quiet")
    before = sorted(study.path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        said = refusal(study, train.main)
    assert said.startswith("git refuses this repository (detected dubious ownership ")
    assert f"run `git config --global --add safe.directory {study.path}`" in said
    assert sorted(study.path.rglob("*")) == before
    shutil.rmtree(study.path / ".git")
    (study.path / ".dvc" / "config").write_text("")
    assert refusal(study, repro.main).startswith(f"{study.path} is not in a git repository, which this command needs: ")


@pytest.mark.parametrize(
    "how", [pytest.param("terminal", marks=pytest.mark.long), pytest.param("this process alone", marks=pytest.mark.long), "kill"]
)
def test_dvc_and_its_stage_end_with_the_command(study: Repository, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study.edit(train={"seeds": [0], "epochs": 10_000, "batch_size": 16})
    monkeypatch.setenv("SHELL", "/bin/sh")  # what DVC takes where nobody is logged in; some stay between it and its command
    with start(study, "train@base") as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("base  seed 0  epoch 1/"):
                    break
            assert process.poll() is None
            if how == "terminal":
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)  # ends when nobody holds the pipes any more
            assert process.returncode == (-signal.SIGKILL if how == "kill" else 130)
            assert how == "kill" or err.splitlines()[-1] == "interrupted"
            assert "Traceback" not in err
            wait_until(lambda: not lives(process.pid))
        finally:
            if lives(process.pid):  # a test that fails leaves no training behind
                os.killpg(process.pid, signal.SIGKILL)


def lives(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_without_replay_what_a_replay_had_kept_is_trained_and_its_stage_runs(study: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """To DVC nothing has changed."""
    path = stored(study.path, "base")
    run = seeds.read_record(path)
    (group,) = run["trainings"]
    replay = {name: group[name] for name in ("git_commit", "git_dirty", "device", "device_name", "versions")}
    replay |= {"code_hash": training_code(), "date": "2026-01-01T00:00:00+00:00", "exact": True}
    replayed = {**group, "code_hash": "f" * 64, "replays": [replay]}
    rewrite(path, code_hash="f" * 64, trainings=[replayed])
    study.succeed(sys.executable, "-m", "dvc", "commit", "--force", "train@base")
    shutil.rmtree(study.path / ".checkpoints")

    def codes() -> set[str]:
        return {group["code_hash"] for group in seeds.read_record(path)["trainings"]}

    assert codes() == {"f" * 64}
    assert study.repro("train@base") == []
    monkeypatch.setenv("REPLAY", "0")
    out = study.succeed(*REPRO)
    assert codes() == {training_code()}
    assert "seed 0  epoch 1/1" in out
