"""Curves beside a training: they harm nothing, and what they leave is written anew once the training is finished."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.stages.sync import sync
from pipeline.tracking import live
from pipeline.tracking.live import Live
from tests.helpers import free_port, stored, wait_until
from tests.tracking.trainings import EPOCHS, KEYS, SEEDS, assert_complete, make_rows, make_run, read_store, write_training

NAMES = ["0123 base", *(f"0123 base, seed {seed}" for seed in SEEDS)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FLUSH_SECONDS", 0.1)
    monkeypatch.setattr(live, "CLOSE_SECONDS", 90.0)  # a machine that is busy with other things is no fault of the store


def test_curves_are_there_before_the_end_and_the_finished_training_replaces_them(project: Path, uri: str) -> None:
    """Before them a training of the same name failed, whose runs go."""
    failed = Live(make_run(), start_after=0.0)
    failed.epoch(make_rows()[0])
    wait_until(lambda: read_store(uri).points)
    failed.close("FAILED")
    assert set(read_store(uri).statuses.values()) == {"FAILED"}
    log = Live(make_run(), start_after=0.0)
    for row in make_rows()[:5]:
        log.epoch(row)
    wait_until(lambda: len(read_store(uri).points) >= 5 * 5 + 5)  # five rows, and the means of the first epoch
    assert read_store(uri).statuses == dict.fromkeys(NAMES, "RUNNING")
    for row in make_rows()[5:]:
        log.epoch(row)
    log.close("SCHEDULED")
    content = read_store(uri)
    assert content.statuses == dict.fromkeys(NAMES, "SCHEDULED")  # FINISHED is only what was recorded whole
    write_training(stored(project, "base"), make_run())
    sync()
    after = assert_complete(uri)
    assert {point for point in content.points if point[0] != NAMES[0]} <= set(after.points)
    assert {point[:3] for point in content.points} == {(name, key, e) for name in NAMES for key in KEYS for e in range(1, EPOCHS + 1)}


def test_what_the_driver_says_of_the_gpus_stays_with_the_finished_training(
    project: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs, one of which does not tell its power."""
    driver = project / "bin/nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\nprintf '1024, 61.50, 93\\n2048, [N/A], 7\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    run = make_run() | {"device": "cuda"}
    log = Live(run, start_after=0.0)
    for row in make_rows():
        log.epoch(row)
    wait_until(lambda: len({step for _, key, step, _ in read_store(uri).points if key.startswith("system/")}) > 1)
    log.close("SCHEDULED")
    told = {"gpu_0_memory_usage_megabytes": 1024, "gpu_0_power_usage_watts": 61.5, "gpu_0_utilization_percentage": 93}
    told |= {"gpu_1_memory_usage_megabytes": 2048, "gpu_1_utilization_percentage": 7}
    before = {point for point in read_store(uri).points if point[1].startswith("system/")}
    assert {(name, key.removeprefix("system/"), value) for name, key, _, value in before} == {("0123 base", *pair) for pair in told.items()}
    write_training(stored(project, "base"), run)
    sync()
    assert {point for point in read_store(uri).points if point[1].startswith("system/")} == before


def test_a_short_training_opens_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    log = Live(make_run())
    log.epoch(make_rows()[0])
    log.close("SCHEDULED")
    assert list(tmp_path.iterdir()) == []


def test_a_fault_is_said_once_and_costs_the_curves_alone(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//user:secret@"))
    log = Live(make_run(), start_after=0.0)
    for row in make_rows():
        log.epoch(row)
    log.close("SCHEDULED")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Training goes on: MLflow at {address} does not answer")


def test_what_a_kill_left_is_killed_once_no_process_holds_it(project: Path, uri: str) -> None:
    """A training that runs now stays as it is, and is shown beside the finished one."""
    write_training(stored(project, "base"), make_run() | {"started": "2026-01-01T00:00:00+00:00"})
    running = make_run(training_id="fedc" * 8)
    log = Live(running, start_after=0.0)
    log.epoch(make_rows()[0])
    wait_until(lambda: (project / ".checkpoints" / f"mlflow-{'fedc' * 8}.lock").exists() and read_store(uri).points)
    sync()
    content = read_store(uri)
    assert (content.statuses["fedc base"], content.tags["fedc base"]["current"]) == ("RUNNING", "true")
    shutil.copyfile(project / "mlflow.db", project / "killed.db")  # what a kill would leave here
    log.close("SCHEDULED")
    shutil.copyfile(project / "killed.db", project / "mlflow.db")
    sync()
    content = read_store(uri)
    assert (content.statuses["fedc base"], content.tags["0123 base"]["current"]) == ("KILLED", "true")
