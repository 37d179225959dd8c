"""The store itself: made safely, and its faults in one sentence."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.stages.sync import sync
from pipeline.tracking import store as stores
from pipeline.tracking.store import store_uri
from pipeline.tracking.ui import main as ui_command
from tests.helpers import stored
from tests.tracking.trainings import assert_complete, free_port, make_run, write_training


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


def test_a_copied_store_does_not_write_into_the_original(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow wrote the place of the runs' files into it, in full."""
    write_training(stored(project, "base"), make_run())
    sync()
    copy = project / "copy"
    shutil.copytree(project / "store", copy / "store")
    shutil.copyfile(project / "mlflow.db", copy / "mlflow.db")
    monkeypatch.chdir(copy)
    before = sorted((project / "mlartifacts").rglob("*"))
    with pytest.raises(UserError, match=r"^MLflow's store mlflow.db was made elsewhere .*: `rm mlflow.db` and `make sync`"):
        sync()
    assert sorted((project / "mlartifacts").rglob("*")) == before


def test_an_unusual_folder_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / "with space, č#ü"
    folder.mkdir()
    shutil.move(project / "mlflow.db", folder)
    monkeypatch.chdir(folder)
    write_training(stored(folder, "base"), make_run())
    sync()
    assert_complete(store_uri())
    assert len(list((folder / "mlartifacts").rglob("training.json"))) == 1


def test_command_ui_says_what_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="run `make sync`"):
        ui_command([])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"^MLflow at http://127.* does not answer"):
        ui_command([])
