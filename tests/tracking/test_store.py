"""The store itself: made, migrated and moved; its faults have names."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.stages.sync import sync
from pipeline.tracking import runs_of
from pipeline.tracking.store import Store, StoreBusy, StoreDamaged, display_name, explain, locked, store_uri
from tests.tracking.trainings import (
    ALL_POINTS,
    ROOT,
    Tracker,
    artifacts_of,
    assert_complete,
    make_run,
    read_store,
    track,
    write_training,
)


def test_a_damaged_database_is_set_aside_and_made_anew(
    project: Path, uri: str, empty_database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 flipped bits: a training leaves the file alone, readers name it, `sync` rebuilds it from runs/."""
    directory = write_training(project / "runs" / "base", make_run())
    sync()
    whole = read_store(uri)
    content = bytearray((project / "mlflow.db").read_bytes())
    for place in random.Random(1).sample(range(8 * len(content)), 40):
        content[place // 8] ^= 1 << place % 8
    (project / "mlflow.db").write_bytes(content)
    capsys.readouterr()
    assert not track(make_run(training_id="fedc" * 8), directory)
    said = "The MLflow store mlflow.db is damaged: `make sync` makes it anew"
    assert capsys.readouterr().err == f"{said}; training goes on, `make sync` will log this run later.\n"
    with pytest.raises(UserError, match=f"^{said}; mend that, then run the command again"):
        runs_of([], uri)
    assert (project / "mlflow.db").read_bytes() == content

    (project / "mlflow.db.damaged-1").write_bytes(b"an earlier one")
    forget_connections()
    # A new store takes seconds, so a copy takes its place.
    monkeypatch.setattr("pipeline.tracking.store._make_database", lambda path: path.exists() or shutil.copyfile(empty_database, path))
    sync()
    damaged, logged = capsys.readouterr().out.splitlines()
    assert re.match(r"The MLflow store mlflow\.db is damaged \(.+\): it is set aside as mlflow\.db\.damaged-2, and a new", damaged)
    assert logged == f"base: 4 runs, {ALL_POINTS} points, 1 file added, 4 runs set to finished"
    assert read_store(uri) == whole
    kept = {path.name: path.read_bytes() for path in project.glob("mlflow.db?*")}
    assert kept == {"mlflow.db.damaged-1": b"an earlier one", "mlflow.db.damaged-2": content}


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(os.urandom(5000))
    with pytest.raises(StoreDamaged):
        Store(f"sqlite:///{path}")


@pytest.mark.parametrize("uri", ["postgresql://lab:secret@host/mlflow", "file:///a/folder", "sqlite://", "sqlite:///:memory:"])
def test_a_store_is_a_sqlite_file_or_a_server(uri: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database alone has no place for files: on a second machine it would lead to folders of the first."""
    write_training(project / "runs" / "base", make_run())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=r"^MLflow at .* is neither a SQLite file nor a server: start `mlflow server` on it, ") as caught:
        sync()
    assert caught.value.status == 2
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "name"), [("http://me:secret@host:5000/x@y", "http://host:5000/x@y"), ("http://[", "http://["), ("sqlite:/", "sqlite:/")]
)
def test_a_mistyped_address_is_named_without_its_password(uri: str, name: str) -> None:
    assert display_name(uri) == f"MLflow at {name}"


def forget_connections() -> None:
    """Closes the files that MLflow keeps open, as the end of a process does: `sync` runs in one of its own."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()


def test_faults_of_sqlite_have_names(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as full:
            database.execute("CREATE TABLE t (x)")
        database.execute("PRAGMA query_only = 1")
    assert explain(full.value, uri) == "The disk of the MLflow store mlflow.db is full or fails"
    (tmp_path / "other.db").touch()
    with (
        closing(sqlite3.connect(f"file:{tmp_path / 'other.db'}?mode=ro", uri=True)) as database,
        pytest.raises(sqlite3.OperationalError) as e,
    ):
        database.execute("CREATE TABLE t (x)")
    assert "cannot be opened for writing" in explain(e.value, uri)
    assert explain(ZeroDivisionError("x" * 1000), uri).startswith("The MLflow store mlflow.db failed (ZeroDivisionError: xxx")
    assert len(explain(ZeroDivisionError("x" * 1000), uri)) < 250


def test_a_deleted_experiment_is_named(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(uri)
    number = store.experiment("digits")
    store.call("delete_experiment", number)
    assert not Tracker(make_run()).close("FINISHED")
    command = f"mlflow experiments restore --experiment-id {number}"
    assert capsys.readouterr().err.startswith(
        f"The experiment vit-ablations/digits is deleted in the MLflow store mlflow.db: bring it back with `{command}`;"
    )
    store.call("restore_experiment", number)
    assert not Tracker(make_run()).close("FINISHED")
    assert read_store(uri).statuses == {"0123 base": "RUNNING"}


def store_in_old(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's store with a training, in a folder of its own, in which the test then works."""
    old = project / "old"
    old.mkdir()
    shutil.move(project / "mlflow.db", old)
    monkeypatch.chdir(old)
    write_training(old / "runs" / "base", make_run())
    sync()
    return old


def test_a_store_that_was_moved_goes_on(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its runs, new and old, keep their files where the project lies now; MLflow wrote the old place into the store, in full."""
    old, new = store_in_old(project, monkeypatch), project / "new"
    before = read_store(store_uri())
    old.rename(new)
    monkeypatch.chdir(new)
    write_training(new / "runs" / "other", make_run("other", "fedc" * 8))
    capsys.readouterr()
    sync()
    first, second = capsys.readouterr().out.splitlines()
    assert first == "base: complete"
    assert second.startswith(f"other: 4 runs, {ALL_POINTS} points, 1 file added")
    content = read_store(store_uri())
    assert content.artifacts["0123 base"] == before.artifacts["0123 base"] == artifacts_of(new / "runs" / "base")
    assert content.artifacts["fedc other"] == artifacts_of(new / "runs" / "other")
    assert sorted(path.name for path in project.iterdir()) == ["new"]


def test_a_copy_of_a_store_keeps_its_files_to_itself(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside the original, whose files are where the copied addresses say."""
    old, new = store_in_old(project, monkeypatch), project / "new"
    shutil.copytree(old, new)
    monkeypatch.chdir(new)
    write_training(new / "runs" / "other", make_run("other", "fedc" * 8))
    sync()
    shutil.rmtree(old)
    content = read_store(store_uri())
    for name, variant in (("0123 base", "base"), ("fedc other", "other")):
        assert content.artifacts[name] == artifacts_of(new / "runs" / variant)


def test_creation_after_a_kill_during_creation(empty_database: Path) -> None:
    """What a killed creation leaves is not taken for a store, whatever is in it; nor is an empty file. The fixture made it amid such."""
    assert [path.name for path in empty_database.parent.iterdir()] == ["mlflow.db"]
    with closing(sqlite3.connect(empty_database)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.slow
def test_a_database_of_an_earlier_mlflow_is_migrated(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real earlier schema: MLflow's own migrations, stopped one before the last."""
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    engine = create_engine(f"sqlite:///{tmp_path / 'mlflow.db'}")
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(f"sqlite:///{tmp_path / 'mlflow.db'}")
    scripts = ScriptDirectory.from_config(config)
    [head] = scripts.get_heads()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, scripts.get_revision(head).down_revision)
    engine.dispose()
    directory = write_training(tmp_path / "runs" / "base", make_run())
    assert track(make_run(), directory)
    assert_complete(f"sqlite:///{tmp_path / 'mlflow.db'}", evaluated=False)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, closing(sqlite3.connect(empty_database)) as fresh:
        query = "SELECT version_num FROM alembic_version"
        assert database.execute(query).fetchall() == fresh.execute(query).fetchall()


@pytest.mark.parametrize("name", ["with space, č#ü", "100%25?"])
def test_unusual_folder_names(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project / name
    folder.mkdir()
    shutil.move(project / "mlflow.db", folder)
    monkeypatch.chdir(folder)
    assert track(make_run(), write_training(folder / "runs" / "base", make_run()))
    assert_complete(store_uri(), evaluated=False)
    assert len(list((folder / "mlartifacts").rglob("run.json"))) == 1


def test_a_lock_is_held_by_one_and_left_by_none(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a.lock"
    with locked(path, 0), pytest.raises(StoreBusy), locked(path, 0.2):
        pass
    assert not path.exists()
    code = f"""
from pathlib import Path
from pipeline.tracking.store import locked
with locked(Path({str(path)!r}), 0):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreBusy), locked(path, 0):
            pass
        holder.kill()
        holder.wait()
        with locked(path, 0):
            assert path.exists()
