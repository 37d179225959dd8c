"""MLflow's store: a training is in it whole, once and nowhere else, whatever is killed, gone, deleted or brought back; its faults."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.runner import seeds
from pipeline.stages.sync import sync
from pipeline.system.errors import UserError
from pipeline.tracking import store as stores
from pipeline.tracking.store import Store, store_uri
from pipeline.tracking.ui import main as ui_command
from tests.helpers import free_port, stored, wait_until
from tests.tracking.trainings import (
    COLUMNS,
    ROOT,
    SEEDS,
    assert_complete,
    expected_points,
    make_run,
    read_store,
    serving,
    write_diverged,
    write_evaluation,
    write_training,
)


def runs_in(uri: str, where: str = "") -> list[Any]:
    store = Store(uri)
    return list(store.runs([store.experiment("digits")], where))


def test_a_training_is_logged_whole_and_once(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_training(stored(project, "base"), make_run())
    sync()
    content = assert_complete(uri)
    ids = {run.info.run_id for run in runs_in(uri)}
    parent, child = "0123 base", "0123 base, seed 7"
    assert content.params[parent] == {
        "data.dataset": "digits", "train.seeds": "[3, 0, 7]", "train.epochs": "4", "train.batch_size": "128",
        "train.learning_rate": "0.005",
        "model.patch": "4", "model.dim": "32", "model.final_norm": "False", "model.pool": "cls", "variant": "base",
    }  # fmt: skip
    assert content.params[child] == content.params[parent] | {"seed": "7"}
    shared = {
        "training.id": "0123456789abcdef" * 2, "variant": "base", "dvc.stage": "train@base", "config.hash": "c" * 64, "code.hash": "d" * 64,
        "data.digest": "e" * 64, "git.commit": "f" * 40, "git.dirty": "true", "device": "cpu",
        "device.name": "A processor (2 cores)", "attention": "fused-cpu", "versions.python": "3.11.7", "versions.torch": "2.15.0",
    }  # fmt: skip
    assert content.tags[parent].items() >= (shared | {"kind": "parent", "current": "true"}).items()
    assert content.tags[child].items() >= (shared | {"kind": "seed", "seed": "7", "mlflow.parentRunId": parent}).items()
    assert content.datasets[parent] == [("digits", "e" * 32, "training")]
    assert content.artifacts == {name: {} for name in content.artifacts} | {parent: {"training.json": kept_of(path)}}
    capsys.readouterr()
    sync()
    assert capsys.readouterr().out.splitlines()[-1] == "1 training of store/trainings/ in MLflow's store mlflow.db."
    assert {run.info.run_id for run in runs_in(uri)} == ids
    assert read_store(uri) == content


def test_what_is_half_or_different_is_logged_anew_and_what_is_brought_back_brings_no_doubles(project: Path, uri: str) -> None:
    """A later evaluation, a deleted experiment, a seed and a parent deleted by hand, and a parent that a kill left running.

    MLflow brings back an experiment with all its runs, those that were deleted before, too. None of them counts as complete.
    """
    path = write_training(stored(project, "base"), make_run())
    write_evaluation(path, {"3": "b" * 32})  # of an earlier training
    sync()
    assert not any(key.startswith("evaluation.") for _, key, _, _ in read_store(uri).points)
    write_evaluation(path)
    sync()
    assert_complete(uri)
    store = Store(uri)
    number = store.experiment("digits")
    store.delete_experiment(number)
    with pytest.raises(UserError, match=f"bring it back with `mlflow experiments restore --experiment-id {number}`"):
        sync()
    store.restore_experiment(number)
    found = runs_in(uri)
    assert len(found) == 2 * (1 + len(SEEDS))
    assert sum(run.info.status == "FINISHED" for run in found) == 1 + len(SEEDS)
    sync()
    assert_complete(uri)
    for kind in ("seed", "parent"):
        store.delete_run(runs_in(uri, f"tags.kind = '{kind}'")[0].info.run_id)
        sync()
        assert_complete(uri)
    store.update_run(runs_in(uri, "tags.kind = 'parent'")[0].info.run_id, status="RUNNING")
    sync()
    assert_complete(uri)


def test_a_training_that_diverged(project: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Infinity and NaN are logged, and are no difference the next time."""
    write_diverged(stored(project, "base"), make_run())
    sync()
    ids = {run.info.run_id for run in runs_in(uri)}
    points = {(name, key, step): value for name, key, step, value in read_store(uri).points}
    bad = f"0123 base, seed {SEEDS[1]}"
    assert points[bad, "train_loss", 2] == sys.float_info.max
    assert points[bad, "train_loss", 3] != points[bad, "train_loss", 3]
    assert points["0123 base", "diverged", 0] == 1
    sync()
    assert {run.info.run_id for run in runs_in(uri)} == ids


@pytest.mark.slow
def test_kill_9_in_the_middle(project: Path, uri: str) -> None:
    for number in range(12):
        write_training(stored(project, f"v{number:02}"), make_run(f"v{number:02}", f"{number:04}" * 8))
    command = [sys.executable, "-m", "pipeline.stages.sync"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL) as killed:
        wait_until(lambda: killed.poll() is not None or counted(project / "mlflow.db") >= 5)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    sync()
    content = read_store(uri)
    assert set(content.statuses.values()) == {"FINISHED"}
    assert content.points == sum((expected_points(f"{n:04}", f"v{n:02}") for n in range(1, 12)), expected_points("0000", "v00"))


def counted(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


@pytest.mark.slow
def test_a_server_gets_all_once_until_it_dies(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A fresh one; a training whose numbers are not finite comes later."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a server that lives may be slow on a busy machine: not this test's fault
    folder = project / "server"
    folder.mkdir()
    (project / "mlflow.db").rename(folder / "mlflow.db")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    path = write_training(stored(project, "base"), make_run())
    options = ("--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "./mlartifacts", "--workers", "1")
    with serving(folder, port, "mlflow", "server", *options) as server:
        sync()
        assert assert_complete(address).artifacts["0123 base"] == {"training.json": kept_of(path)}
        write_diverged(stored(project, "wild"), make_run("wild", "abcd" * 8))
        sync()
        sync()
        assert len(read_store(address).statuses) == 2 * (1 + len(SEEDS))
        capsys.readouterr()
        ui_command([])
        assert capsys.readouterr().out.startswith(f"digits: {address}/#/experiments/")
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        with pytest.raises(UserError, match="does not answer"):
            sync()
    assert not (project / "mlartifacts").exists()


def kept_of(path: Path) -> bytes:
    """What MLflow keeps of a training's record and evaluation."""
    return json.dumps({"run": seeds.read_record(path), "evaluation": COLUMNS}, indent=2).encode()


def test_a_kill_while_it_is_made_leaves_nothing_half(empty_database: Path) -> None:
    """What a killed creation leaves is not taken for a store, nor is an empty file. The fixture made it amid such."""
    assert {path.name for path in empty_database.parent.iterdir()} - {"mlflow.db.lock"} == {"mlflow.db"}
    with closing(sqlite3.connect(empty_database)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_file_that_cannot_be_read_says_how_to_make_it_anew(project: Path) -> None:
    write_training(stored(project, "base"), make_run())
    content = b"SQLite format 3\0" + bytes(5000)
    (project / "mlflow.db").write_bytes(content)
    with pytest.raises(UserError, match=r"^MLflow's store mlflow.db cannot be used .*`rm mlflow.db` and `make sync` make it anew"):
        sync()
    assert (project / "mlflow.db").read_bytes() == content


@pytest.mark.parametrize("uri", ["postgresql://lab:secret@host/mlflow", "file:///a/folder"])
def test_a_store_is_a_sqlite_file_or_a_server(uri: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database alone has no place for files: on a second machine it would lead to folders of the first."""
    write_training(stored(project, "base"), make_run())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=r"^MLflow at .* is neither a SQLite file nor a server: start `mlflow server` on it, ") as caught:
        sync()
    assert caught.value.status == 2
    assert "secret" not in str(caught.value)


def test_another_program_that_writes_is_waited_for_and_then_named(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_PATIENCE", 0.5)
    write_training(stored(project, "base"), make_run())
    with closing(sqlite3.connect(project / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match=r"^MLflow's store mlflow.db cannot be used .*database is locked"):
            sync()
        other.execute("ROLLBACK")
    sync()
    assert_complete(uri)


def test_a_store_lies_in_any_folder_and_a_copy_of_it_does_not_write_there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow wrote the place of the runs' files into it, in full."""
    folder, copy = project / "with space, č#ü", project / "copy"
    folder.mkdir()
    shutil.move(project / "mlflow.db", folder)
    monkeypatch.chdir(folder)
    write_training(stored(folder, "base"), make_run())
    sync()
    assert_complete(store_uri())
    assert len(list((folder / "mlartifacts").rglob("training.json"))) == 1
    shutil.copytree(folder / "store", copy / "store")
    shutil.copyfile(folder / "mlflow.db", copy / "mlflow.db")
    monkeypatch.chdir(copy)
    before = sorted((folder / "mlartifacts").rglob("*"))
    with pytest.raises(UserError, match=r"^MLflow's store mlflow.db was made elsewhere .*: `rm mlflow.db` and `make sync`"):
        sync()
    assert sorted((folder / "mlartifacts").rglob("*")) == before


def test_command_ui_says_what_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="run `make sync`"):
        ui_command([])
    with pytest.raises(UserError, match="PORT is 70000"):
        ui_command(["--port", "70000"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"^MLflow at http://127.* does not answer"):
        ui_command([])
