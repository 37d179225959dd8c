"""The store itself: made safely, and its faults in one sentence."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.stages.sync import sync
from pipeline.tracking import store as stores
from pipeline.tracking.store import display_name, store_uri
from pipeline.tracking.ui import main as ui_command
from tests.helpers import stored
from tests.tracking.trainings import assert_complete, free_port, make_run, write_training


def test_a_kill_while_it_is_made_leaves_nothing_half(empty_database: Path) -> None:
    """What a killed creation leaves is not taken for a store, nor is an empty file. The fixture made it amid such."""
    assert {path.name for path in empty_database.parent.iterdir()} - {"mlflow.db.lock"} == {"mlflow.db"}
    with closing(sqlite3.connect(empty_database)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("content", [os.urandom(5000), b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_cannot_be_read_says_how_to_make_it_anew(content: bytes, project: Path) -> None:
    write_training(stored(project, "base"), make_run())
    (project / "mlflow.db").write_bytes(content)
    with pytest.raises(UserError, match=r"^The MLflow store mlflow.db cannot be used .*`rm mlflow.db` and `make sync` make it anew"):
        sync()
    assert (project / "mlflow.db").read_bytes() == content


@pytest.mark.parametrize("uri", ["postgresql://lab:secret@host/mlflow", "file:///a/folder", "sqlite://", "sqlite:///:memory:"])
def test_a_store_is_a_sqlite_file_or_a_server(uri: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database alone has no place for files: on a second machine it would lead to folders of the first."""
    write_training(stored(project, "base"), make_run())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=r"^MLflow at .* is neither a SQLite file nor a server: start `mlflow server` on it, ") as caught:
        sync()
    assert caught.value.status == 2
    assert "secret" not in str(caught.value)


def test_an_address_is_named_without_its_password() -> None:
    assert display_name("http://me:secret@host:5000/x@y") == "MLflow at http://host:5000/x@y"
    assert display_name("http://[") == "MLflow at http://["


def test_another_program_that_writes_is_waited_for_and_then_named(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_PATIENCE", 0.5)
    write_training(stored(project, "base"), make_run())
    with closing(sqlite3.connect(project / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match=r"^The MLflow store mlflow.db is locked by another program"):
            sync()
        other.execute("ROLLBACK")
    sync()
    assert_complete(uri)


def test_a_copied_store_does_not_write_into_the_original(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow wrote the place of the runs' files into it, in full."""
    write_training(stored(project, "base"), make_run())
    sync()
    copy = project / "copy"
    shutil.copytree(project / "store", copy / "store")
    shutil.copyfile(project / "mlflow.db", copy / "mlflow.db")
    monkeypatch.chdir(copy)
    before = sorted((project / "mlartifacts").rglob("*"))
    with pytest.raises(UserError, match=r"^The MLflow store mlflow.db was made elsewhere .*: `rm mlflow.db` and `make sync`"):
        sync()
    assert sorted((project / "mlartifacts").rglob("*")) == before


@pytest.mark.parametrize("name", ["with space, č#ü", "100%25?"])
def test_unusual_folder_names(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / name
    folder.mkdir()
    shutil.move(project / "mlflow.db", folder)
    monkeypatch.chdir(folder)
    write_training(stored(folder, "base"), make_run())
    sync()
    assert_complete(store_uri())
    assert len(list((folder / "mlartifacts").rglob("run.json"))) == 1


def test_command_ui_says_what_is_missing(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"There is no mlflow\.db in .*: run `make sync`"):
        ui_command([])
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port in (server.getsockname()[1], 70000):
            with pytest.raises(UserError, match=rf"Port {port} cannot be taken .*: `python -m pipeline\.tracking\.ui --port"):
                ui_command(["--port", str(port)])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"^MLflow at http://127.* does not answer; mend that, then run `make ui` again"):
        ui_command([])
