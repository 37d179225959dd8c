"""A training beside a store: every run and point once, whatever is killed, gone or in parallel."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import time
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.stages.sync import sync
from pipeline.tracking import Tracker as DelayedTracker
from pipeline.tracking import live, runs_of
from pipeline.tracking.store import set_environment
from tests.helpers import wait_until
from tests.tracking.trainings import (
    ALL_POINTS,
    CHILD,
    METRICS,
    SEEDS,
    Tracker,
    artifacts_of,
    assert_complete,
    assert_diverged,
    child_training,
    expected_points,
    free_port,
    make_rows,
    make_run,
    read_store,
    serving,
    silent_server,
    track,
    train_in_process,
    wait_for_points,
    write_diverged,
    write_training,
)


def test_live_training_is_in_the_store_once_and_whole(project: Path, uri: str) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    assert track(make_run(), directory)

    content = assert_complete(uri, evaluated=False)
    parent, child = "0123 base", "0123 base, seed 7"
    assert content.params[parent] == {
        "data.dataset": "digits", "train.seeds": "[3, 0, 7]", "train.epochs": "4", "train.batch_size": "128",
        "train.learning_rate": "0.005",
        "model.patch": "4", "model.dim": "32", "model.final_norm": "False", "model.pool": "cls", "variant": "base",
    }  # fmt: skip
    assert content.params[child] == content.params[parent] | {"seed": "7"}
    shared = {
        "training.id": "0123456789abcdef" * 2, "variant": "base", "dvc.stage": "train@base", "config.hash": "c" * 64, "code.hash": "d" * 64,
        "data.digest": "e" * 64, "git.base": "f" * 40, "git.edits": "", "git.dirty": "true", "device": "cpu",
        "device.name": "A processor (2 cores)", "attention": "fused-cpu", "versions.python": "3.11.7", "versions.torch": "2.15.0",
    }  # fmt: skip
    assert content.tags[parent].items() >= (shared | {"kind": "parent"}).items()
    assert content.tags[child].items() >= (shared | {"kind": "seed", "seed": "7", "mlflow.parentRunId": parent}).items()
    assert all(datasets == [("digits", "e" * 32, "training")] for datasets in content.datasets.values())
    assert content.artifacts[parent] == artifacts_of(directory)
    assert not any(content.artifacts[name] for name in content.artifacts if name != parent)


def test_failed_training_that_goes_on_continues_its_runs(project: Path, uri: str) -> None:
    directory = write_training(project / "runs" / "base", make_run())
    tracker = Tracker(make_run())
    for row in make_rows():
        if row.epoch <= 2 or row.seed == 0:
            tracker.epoch(row)
    assert tracker.close("FAILED")
    statuses = read_store(uri).statuses
    assert statuses == {
        "0123 base": "FAILED",
        "0123 base, seed 3": "FAILED",
        "0123 base, seed 0": "FINISHED",
        "0123 base, seed 7": "FAILED",
    }

    assert track(make_run(), directory)
    assert_complete(uri, evaluated=False)


def test_a_short_training_opens_no_store_and_is_left_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said, written or imported for it: the import alone takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code = CHILD.replace(", start_after=0.0", "") + "print([name for name in sys.modules if name.startswith('mlflow')])"
    with child_training(code, make_run(), make_rows(), METRICS) as child:
        output, errors = child.communicate(timeout=100)
    assert (output, errors, child.returncode) == ("False\n[]\n", "", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_lasts_is_in_the_store_before_its_end(project: Path, uri: str) -> None:
    rows = make_rows()
    tracker = DelayedTracker(make_run(), start_after=0.5)
    for row in rows[:5]:
        tracker.epoch(row)
    wait_for_points(5 * 5 + 5, project / "mlflow.db", make_run()["training_id"])
    content = read_store(uri)
    assert sum(content.points.values()) == 5 * 5 + 5  # five rows, and the means of the first epoch
    assert set(content.statuses.values()) == {"RUNNING"}
    for row in rows[5:]:
        tracker.epoch(row)
    assert tracker.close("FINISHED", metrics=METRICS)
    assert_complete(uri, evaluated=False)


def test_a_short_training_that_fails_is_in_the_store(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`sync` does not see it: it leaves no files in runs/."""
    tracker = DelayedTracker(make_run())
    for row in make_rows()[:4]:
        tracker.epoch(row)
    assert tracker.close("FAILED")
    assert capsys.readouterr() == ("", "")
    content = read_store(uri)
    assert content.statuses == dict.fromkeys(["0123 base", *(f"0123 base, seed {seed}" for seed in SEEDS)], "FAILED")
    assert content.points == Counter({point: count for point, count in expected_points().items() if is_early(point)})

    # It is started again, goes on and is FINISHED soon: its runs are completed by `sync`.
    tracker = DelayedTracker(make_run())
    for row in make_rows():
        tracker.epoch(row)
    assert not tracker.close("FINISHED", metrics=METRICS)
    assert read_store(uri) == content
    write_training(project / "runs" / "base", make_run())
    sync()
    assert_complete(uri)


def is_early(point: tuple[str, str, int, float]) -> bool:
    """Whether the first four rows give it: epoch 1 of every seed and its means, and epoch 2 of the first seed."""
    name, _, epoch, _ = point
    return epoch == 1 or (epoch == 2 and name.endswith(f"seed {SEEDS[0]}"))


@pytest.mark.slow
def test_first_users_in_parallel_and_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trainings start at once where there is no store yet: one makes it, the others wait.

    The third dies in the middle of its writing; the next process gives all rows of its checkpoint again, and continues its runs.
    """
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    set_environment()  # in which MLflow is imported, once for all of them
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", "tests.tracking.trainings"])
    runs = [make_run(f"v{number}", f"000{number}" * 8) for number in range(3)]
    given = [(make_rows(), METRICS), (make_rows(), METRICS), (make_rows()[:5], None)]
    children = [context.Process(target=train_in_process, args=(folder, run, *what)) for run, what in zip(runs, given, strict=True)]
    try:
        for child in children:
            child.start()
        for child, run in zip(children[:2], runs, strict=False):
            child.join(200)
            assert (child.exitcode, (tmp_path / f"{run['variant']}.txt").read_text()) == (0, "True\n")
        wait_for_points(1, folder / "mlflow.db", runs[2]["training_id"], children[2].is_alive)
    finally:
        for child in children:
            child.kill()
            child.join()
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    assert read_store(uri).statuses["0002 v2"] == "RUNNING"

    tracker = Tracker(runs[2])
    for row in make_rows():
        tracker.epoch(row)
    assert tracker.close("FINISHED", metrics=METRICS)
    content = read_store(uri)
    assert len(content.statuses) == 12
    assert set(content.statuses.values()) == {"FINISHED"}
    expected = [expected_points(f"000{number}", f"v{number}", evaluated=False) for number in range(3)]
    assert content.points == sum(expected, Counter())
    assert sorted(path.name for path in folder.iterdir()) == [".checkpoints", "mlflow.db"]
    assert list((folder / ".checkpoints").iterdir()) == []


@pytest.fixture
def quick_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(live, "PATIENCE", 3.0)


def close_within_bound(tracker: Tracker) -> bool:
    started = time.monotonic()
    complete = tracker.close("FINISHED", metrics=METRICS)
    assert time.monotonic() - started < live.MAX_CLOSE_SECONDS + 1
    return complete


@pytest.mark.usefixtures("project", "quick_timeouts")
@pytest.mark.parametrize("server", ["closed", "silent"])
def test_a_server_that_does_not_answer(server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.1, 0.2))
    with silent_server() as silent:
        address = silent if server == "silent" else f"http://user:secret@127.0.0.1:{free_port()}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        tracker = Tracker(make_run())
        for row in make_rows():
            tracker.epoch(row)
        time.sleep(3)  # several attempts fail
        assert not close_within_bound(tracker)
        shown = f"http://{address.rpartition('@')[2].removeprefix('http://')}"
        sentence = f"MLflow at {shown} does not answer; training goes on, `make sync` will log this run later.\n"
        assert capsys.readouterr() == ("", sentence)
        write_training(Path("runs/base"), make_run())
        with pytest.raises(UserError, match="does not answer; mend that, then run `make sync` again"):
            sync()


@pytest.mark.slow
def test_a_hanging_store_does_not_hold_up_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends within `close`'s bound although its thread still waits for the server."""
    monkeypatch.chdir(tmp_path)
    code = CHILD.replace("live.FLUSH_SECONDS = 0.1", "live.PATIENCE = 1.0")
    with (
        silent_server() as address,
        child_training(code, make_run(), make_rows(), METRICS, MLFLOW_TRACKING_URI=address, MLFLOW_HTTP_REQUEST_TIMEOUT="250") as child,
    ):
        output, errors = child.communicate(timeout=100)
    assert (output, child.returncode) == ("False\n", 0)
    assert errors == f"MLflow at {address} is slow to answer; training goes on, `make sync` will log this run later.\n"


@pytest.mark.slow
def test_a_server_that_dies_midway(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP: half a training is logged, the server is killed, `make ui` serves its store, and `sync` adds the other half."""
    monkeypatch.setattr(live, "FLUSH_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a server that lives may be slow on a busy machine: not this test's fault
    directory = write_training(project / "runs" / "base", make_run())
    folder = project / "server"
    folder.mkdir()
    shutil.copyfile(project / "mlflow.db", folder / "mlflow.db")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    rows = make_rows()
    options = ("--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "./mlartifacts", "--workers", "1")
    with serving(folder, port, "mlflow", "server", *options) as server:
        tracker = Tracker(make_run())
        for row in rows[:7]:
            tracker.epoch(row)
        wait_for_points(7 * 5 + 2 * 5, folder / "mlflow.db", make_run()["training_id"])
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        for row in rows[7:]:
            tracker.epoch(row)
        assert not close_within_bound(tracker)
        assert capsys.readouterr().err == f"MLflow at {address} does not answer; training goes on, `make sync` will log this run later.\n"
    monkeypatch.setattr(live, "PATIENCE", 60.0)
    monkeypatch.setattr(live, "MAX_CLOSE_SECONDS", 120.0)
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with serving(folder, port, "pipeline.tracking.ui"):
        said = (folder / "server.log").read_text().splitlines()
        assert said[0] == f"MLflow's pages come up at {address} in about 15 seconds; Ctrl-C ends them."
        links = [line.split()[-1] for line in said[1:3]]
        assert [link.partition("?")[0] for link in links] == [f"{address}/#/experiments/1/runs"] * 2
        wait_until(lambda: (folder / "opened").exists() and (folder / "opened").read_text())
        assert (folder / "opened").read_text().strip() == links[0]
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"<title>MLflow</title>" in page.read()
        sync()
        assert capsys.readouterr().out == f"base: {ALL_POINTS - 45} points, 1 file added, 4 runs set to finished\n"
        content = assert_complete(address)
        assert content.artifacts["0123 base"] == artifacts_of(directory)
        sync()
        assert capsys.readouterr().out == "base: complete\n"
        # A whole training over HTTP, live.
        assert track(make_run(training_id="fedc" * 8), directory)
        assert read_store(address).points == expected_points() + expected_points("fedc", evaluated=False)
        # One that diverged, and what is read back of it.
        wild = make_run("wild", "abcd" * 8) | {"git_dirty": False}
        write_diverged(project / "runs" / "wild", wild)
        sync()
        sync()
        assert capsys.readouterr().out.splitlines()[3] == "wild: complete"
        assert_diverged(runs_of([wild["training_id"]], address))
    assert not (project / "mlartifacts").exists()


@pytest.mark.slow
def test_a_store_that_comes_back_gets_the_whole_run(
    project: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds the database for longer than MLflow waits, then lets go of it."""
    monkeypatch.setattr("pipeline.tracking.store._BUSY_ATTEMPTS", 1)
    monkeypatch.setattr("pipeline.tracking.store._BUSY_SECONDS", 1.0)
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.1, 0.2))
    directory = write_training(project / "runs" / "base", make_run())
    with closing(sqlite3.connect(project / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        tracker = Tracker(make_run())
        for row in make_rows():
            tracker.epoch(row)
        said: list[str] = []
        wait_until(lambda: said.append(capsys.readouterr().err) or said[-1])
        sentence = "The MLflow store mlflow.db is locked by another program; training goes on, `make sync` will log this run later.\n"
        assert said[-1] == sentence
        other.execute("ROLLBACK")
    assert tracker.close("FINISHED", metrics=METRICS, artifacts=[directory / "run.json"])
    assert capsys.readouterr().err == "The MLflow store mlflow.db answers again and has this run.\n"
    assert_complete(uri, evaluated=False)


def test_a_disk_without_room(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel refuses to let any file grow beyond what the database has."""
    size = (project / "mlflow.db").stat().st_size
    directory = write_training(project / "runs" / "base", make_run())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        assert not track(make_run(), directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sentence = "The disk of the MLflow store mlflow.db is full or fails; training goes on, `make sync` will log this run later.\n"
    assert capsys.readouterr() == ("", sentence)
    sync()
    assert_complete(uri)
