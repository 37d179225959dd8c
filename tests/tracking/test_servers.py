"""A fresh MLflow server with a folder of its own: it is used from the first run, and its page shows the study's views."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from docs.mlflow_pictures import Browser, find_chromium
from pipeline.stages.sync import sync
from pipeline.tracking import ui
from pipeline.tracking.recorder import Recorder
from pipeline.tracking.store import Store
from tests.helpers import wait_until
from tests.tracking.trainings import (
    EVALUATION_POINTS,
    LATE,
    artifacts_of,
    assert_complete,
    free_port,
    make_run,
    read_store,
    serving,
    track,
    write_training,
)


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    shutil.move("mlflow.db", folder)
    yield "sqlite:///mlflow.db"


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A cluster of its own, which ends with the test."""
    programs = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    programs += [Path(found).parent for found in [shutil.which("initdb")] if found]
    if not programs:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    # It does not run as root, and what it writes has to be its own.
    user = "postgres" if os.geteuid() == 0 else None
    port = free_port()
    with TemporaryDirectory(dir="/tmp") as home:
        if user is not None:
            shutil.chown(home, user)
        data = f"{home}/data"
        initdb = [programs[0] / "initdb", "--pgdata", data, "--username", "lab", "--auth", "trust", "--no-sync"]
        subprocess.run(initdb, user=user, cwd=home, capture_output=True, check=True)
        options = ["-D", data, "-k", home, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        with (folder / "postgresql.log").open("wb") as log:
            server = subprocess.Popen([programs[0] / "postgres", *options], user=user, cwd=home, stdout=log, stderr=log)
        try:
            ask = [programs[0] / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            wait_until(lambda: server.poll() is not None or subprocess.run(ask).returncode == 0)
            assert server.poll() is None, (folder / "postgresql.log").read_text()
            yield f"postgresql://lab@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database", "options"),
    [
        # Files go from the client to a folder that is not there yet, or through the server.
        (sqlite, ("--default-artifact-root", "not/there/yet", "--no-serve-artifacts")),
        pytest.param(postgresql, ("--artifacts-destination", "./mlartifacts"), marks=pytest.mark.long),
    ],
)
def test_a_fresh_server_has_the_first_training_whole(
    database: Callable[[Path], AbstractContextManager[str]],
    options: tuple[str, ...],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    folder = project / "server"
    folder.mkdir()
    directory = write_training(project / "runs" / "base", make_run())
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with database(folder) as backend, serving(folder, port, "mlflow", "server", "--backend-store-uri", backend, *options, "--workers", "1"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert track(make_run(), directory)
        sync()
        sync()
        assert capsys.readouterr() == (f"base: {len(LATE) + EVALUATION_POINTS} points added\nbase: complete\n", "")
        assert assert_complete(address).artifacts["0123 base"] == artifacts_of(directory)
        ui.main([])
        links = [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]]
        if database is sqlite and find_chromium():
            assert_views(*links)
        # Another machine may be training this one: its lock cannot be seen from here.
        Recorder(Store(address), make_run("other", "fedc" * 8))
        sync()
        assert read_store(address).statuses["fedc other"] == "RUNNING"


def assert_views(study: str, thesis: str) -> None:
    """A real browser shows what the links promise: the view's name, its columns in their order, the parent alone."""
    browser = Browser((2000, 800))
    place = "getBoundingClientRect().x"
    headers = f"[...document.querySelectorAll('[role=columnheader]')].sort((a, b) => a.{place} - b.{place})"
    try:
        browser.open(study, "The study, a row for each variant", "train.epochs", "0.888", "1 matching run")
        assert "base" in browser.text().splitlines()
        assert "base, seed 7" not in browser.text()
        names = browser.run(f"{headers}.map(header => header.innerText.trim()).filter(Boolean)")
        columns = ["late_accuracy", "late_accuracy_sd", "late_accuracy_low", "late_accuracy_high", "late_test_error", "epoch_seconds"]
        assert [name for name in dict.fromkeys(names) if name in columns] == columns
        # Without params.yaml nobody knows what the thesis names.
        browser.open(thesis, "The thesis's experiments", "0 matching runs")
    finally:
        browser.close()
