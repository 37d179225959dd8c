"""The MLflow store: where it lies, how it is made safely, and what its faults mean."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.tracking import views

EXPERIMENT = "vit-ablations/{dataset}"
# MLflow reads these when it is imported or at each call. What the user has set wins, except for telemetry.
# No retries: MLflow would repeat a POST and so double a run that a slow server did create. The callers here look first.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}
# Where MLflow's tables keep the address of a folder: (table, column).
_ADDRESSES = (
    ("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
    ("model_versions", "source"), ("model_versions", "storage_location"),
)  # fmt: skip
_BUSY_ATTEMPTS = 6
_BUSY_SECONDS = 20.0  # for which opening a SQLite file waits while another program holds it


class StoreFault(Exception):
    """A fault of the store that is known by name: one clause, without a full stop."""


class StoreDamaged(StoreFault):
    """The SQLite file of the store is not whole."""


class StoreBusy(StoreFault):
    """Another process holds the lock."""


def set_environment() -> None:
    """Has MLflow be quiet and quick to give up. To be called before it is imported."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "1"
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def store_uri(uri: str | None = None) -> str:
    """The store's address: as given, else MLFLOW_TRACKING_URI, else the SQLite file `mlflow.db` in the repository."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(home() / "mlflow.db")


def experiment_name() -> str | None:
    """The name of the DVC experiment that this process is a stage of."""
    return os.environ.get("DVC_EXP_NAME") or None


def home() -> Path:
    """The folder of the store: the working directory, or the repository of a DVC experiment, which may run in a copy."""
    root = os.environ.get("DVC_ROOT", "")
    return Path(root) if experiment_name() and Path(root).is_absolute() else Path.cwd()


def sqlite_uri(path: Path) -> str:
    """The address of a SQLite store, absolute where that is possible."""
    # Versions of SQLAlchemy quote '%' and '?' differently; a relative path leaves out those in the folders' names.
    return f"sqlite:///{os.path.relpath(path) if {'%', '?'} & set(str(path)) else path.absolute()}"


def database_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    path = uri.removeprefix("sqlite:///").split("?", 1)[0]
    return Path(path).absolute() if path not in ("", ":memory:") else None


def is_server(uri: str) -> bool:
    """Whether the store is behind a server, which keeps the files of its runs itself."""
    return uri.startswith(("http://", "https://"))


def artifact_root(uri: str) -> str:
    """Address of the folder in which the runs of a store without a server keep their files."""
    path = database_path(uri)
    return ((path.parent if path else Path.cwd()) / "mlartifacts").as_uri()


def display_name(uri: str) -> str:
    """What messages call the store; a password in the address is left out."""
    if path := database_path(uri):
        return f"the MLflow store {path.name}"
    # Not urlsplit: it raises of an address that is mistyped, and that is what the message is about.
    return f"MLflow at {re.sub(r'(?<=://)[^/?#]*@', '', uri)}"


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock file `path`, which is removed afterwards. The lock of a process ends with it.

    Raises:
        StoreBusy: another process still held it after `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some cluster file systems have no locks. There, going on is better than never logging.
            if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                break
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() >= deadline:
                raise StoreBusy("another process is writing the same to MLflow at the moment") from None
            time.sleep(0.05)
            continue
        # If the last holder removed the file between our open and our lock, this lock guards nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


class Store:
    """An open MLflow store; `call` reaches the methods of mlflow.MlflowClient.

    A SQLite store that is missing or old is made or migrated first, under a lock: parallel first users are safe.

    Attributes:
        last_answer: time.monotonic() of the last call that succeeded.

    Raises:
        StoreFault, or whatever MLflow raises; `explain` names either.
    """

    def __init__(self, uri: str) -> None:
        path = database_path(uri)
        # Another database has no folder for the files of its runs, which only a server or a file's own folder gives.
        if path is None and not is_server(uri):
            raise StoreFault(
                f"{display_name(uri)} is neither a SQLite file nor a server: start `mlflow server` on it, as docs/mlflow.md says,"
                " and give MLFLOW_TRACKING_URI the server's http address"
            )
        set_environment()
        from mlflow import MlflowClient

        self.uri = uri
        self._experiments: dict[str, str] = {}
        if path is None:
            self._client = MlflowClient(uri, registry_uri=uri)
        else:
            # Takes seconds, in which the lock should be free for others.
            import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

            with locked(path.with_name(path.name + ".lock"), 120):
                _make_database(path)
                self._client = _open_database(path, uri)
        self.last_answer = time.monotonic()

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """One call of the MLflow client, repeated a few times while a SQLite file is busy."""
        for attempt in range(_BUSY_ATTEMPTS):
            try:
                answer = getattr(self._client, method)(*arguments, **keywords)
            except Exception as error:
                # SQLite refuses at once, without its busy timeout, where waiting could deadlock two writers.
                if attempt == _BUSY_ATTEMPTS - 1 or "database is locked" not in str(error):
                    raise
                time.sleep(random.uniform(0.1, 0.5) * (attempt + 1))
            else:
                self.last_answer = time.monotonic()
                return answer
        raise AssertionError("unreachable")

    def file(self, run: Any, name: str) -> bytes:
        """A file that a run, as `call` gives it, keeps."""
        folder = _local_folder(run.info.artifact_uri)
        if folder is not None:
            path = folder / name
            if not path.is_file():
                raise StoreFault(f"{display_name(self.uri)} lacks {path}: bring it back, or move the store away and run `make sync`")
            return path.read_bytes()
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        # Asked by the run's id, MLflow would look the run up again for every file.
        files = get_artifact_repository(run.info.artifact_uri, tracking_uri=self.uri)
        with TemporaryDirectory() as download:
            return Path(files.download_artifacts(name, download)).read_bytes()

    def experiment(self, dataset: str) -> str:
        """Id of the dataset's MLflow experiment, created when missing."""
        if dataset not in self._experiments:
            name = EXPERIMENT.format(dataset=dataset)
            found = self.call("get_experiment_by_name", name)
            if found is None:
                found = self._create_experiment(name)
            if found.lifecycle_stage != "active":
                command = f"mlflow experiments restore --experiment-id {found.experiment_id}"
                raise StoreFault(f"the experiment {name} is deleted in {display_name(self.uri)}: bring it back with `{command}`")
            home = _local_folder(found.artifact_location)
            # A server's folder may be on another machine, or be made with the first file. Of a copy the old folder is there, too.
            if home is not None and not is_server(self.uri) and (not home.parent.is_dir() or self._is_copy(found.artifact_location)):
                self._move(found.artifact_location)
            for key, value in views.missing_tags(found.tags).items():
                self.call("set_experiment_tag", found.experiment_id, key, value)
            self._experiments[dataset] = found.experiment_id
        return self._experiments[dataset]

    def datasets(self) -> list[str]:
        """The datasets that have an experiment here, the last updated one first."""
        prefix = EXPERIMENT.format(dataset="")
        found = self.call("search_experiments", filter_string=f"name LIKE '{prefix}%'", order_by=["last_update_time DESC"])
        return [experiment.name.removeprefix(prefix) for experiment in found]

    def _is_copy(self, location: str) -> bool:
        """Whether files lie beside a SQLite store, which names another place for them."""
        here = _local_folder(artifact_root(self.uri))
        return here is not None and here.is_dir() and not location.startswith(here.as_uri())

    def _move(self, location: str) -> None:
        """Has a SQLite store that was moved, or is of another machine, keep the files of its runs beside itself."""
        path = database_path(self.uri)
        assert path is not None, "stores without a server are SQLite files"
        here = artifact_root(self.uri)
        # MLflow writes addresses in full, and has no call that changes them.
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database, database:
            for table, column in _ADDRESSES:
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (here, len(location) + 1, location, len(location) + 1, f"{location}/"),
                )

    def _create_experiment(self, name: str) -> Any:
        try:
            self.call("create_experiment", name, artifact_location=None if is_server(self.uri) else artifact_root(self.uri))
        except Exception:
            # Somebody else may have been first.
            if (found := self.call("get_experiment_by_name", name)) is None:
                raise
            return found
        return self.call("get_experiment_by_name", name)


def _make_database(path: Path) -> None:
    """Creates the SQLite store beside its place and moves it there, so that a kill leaves nothing half made."""
    from mlflow import MlflowClient

    if path.exists() and path.stat().st_size > 0:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    for leftover in (new, path.with_name(path.name + ".new-journal")):
        leftover.unlink(missing_ok=True)
    MlflowClient(sqlite_uri(new), registry_uri=sqlite_uri(new)).search_experiments(max_results=1)
    new.replace(path)


def open_or_rebuild(uri: str) -> Store:
    """As `Store`, but sets a damaged SQLite file aside, says so, and makes an empty store in its place."""
    try:
        return Store(uri)
    except StoreDamaged:
        path = database_path(uri)
        assert path is not None, "no other store is said to be damaged"
    name = display_name(uri)
    with locked(path.with_name(path.name + ".lock"), 120):
        reason = _damage(path)
        if reason is not None:  # nobody else has been here meanwhile
            aside = next(new for n in itertools.count(1) if not (new := path.with_name(f"{path.name}.damaged-{n}")).exists())
            path.replace(aside)
            for suffix in ("-journal", "-wal", "-shm"):  # SQLite would apply them to the new file
                with suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
            print(
                f"{name[:1].upper()}{name[1:]} is damaged ({reason}): it is set aside as {aside.name}, and a new one is made from runs/."
                " Trainings that are no longer there are in the old one alone.",
                flush=True,
            )
    return Store(uri)


def _damage(path: Path) -> str | None:
    """What SQLite's own check finds wrong with a file; None where it is whole.

    SQLite's quick check does not compare indexes with their tables: of 30 stores with five flipped bits it found 5, this one all 30, in
    0.04 s for 2.7 MB.

    Raises:
        sqlite3.OperationalError: the file cannot be read now.
    """
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
        database.text_factory = lambda raw: raw.decode(errors="replace")
        try:
            answer = str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
        except UnicodeDecodeError as error:  # a message that quotes damaged text
            answer = str(error)
        except sqlite3.DatabaseError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")):
                raise
            answer = str(error)
    return None if answer == "ok" else " ".join(answer.split())[:100]


def _open_database(path: Path, uri: str) -> Any:
    from mlflow import MlflowClient

    # MLflow would try for a minute and a half to open a damaged file, or double points in it.
    if _damage(path) is not None:
        raise StoreDamaged(f"{display_name(uri)} is damaged: `make sync` makes it anew")
    client = MlflowClient(uri, registry_uri=uri)
    try:
        client.search_experiments(max_results=1)
    except Exception as error:
        if "out-of-date database schema" not in str(error):
            raise
        _migrate(path, uri)
        client.search_experiments(max_results=1)
    return client


def _migrate(path: Path, uri: str) -> None:
    backup = path.with_name(path.name + ".before-upgrade")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    done = subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", uri], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StoreFault(f"{path.name} could not be upgraded to this version of MLflow ({reason}); a copy is in {backup.name}")


def _local_folder(location: str) -> Path | None:
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def explain(error: BaseException, uri: str) -> str:
    """What is wrong with the store, as one clause that starts a sentence and has no full stop."""
    name = display_name(uri)
    text = " ".join(str(error).split())
    lowered = text.lower()
    if isinstance(error, StoreFault):
        clause = text
    elif isinstance(error, ImportError):
        clause = f"MLflow cannot be imported ({text}): run `make setup`"
    elif is_server(uri):
        # A RestException carries what a live server said; everything else is a connection that failed.
        clause = f"{name} answers with an error ({text[:160]})" if type(error).__name__ == "RestException" else f"{name} does not answer"
    elif "not a database" in lowered or "malformed" in lowered:
        clause = f"{name} is damaged: `make sync` makes it anew"
    elif "database is locked" in lowered:
        clause = f"{name} is locked by another program"
    elif "disk is full" in lowered or "disk i/o error" in lowered or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        clause = f"the disk of {name} is full or fails"
    elif "can't locate revision" in lowered:
        clause = f"{name} was written by a newer version of MLflow: run `make setup`"
    elif "readonly" in lowered or "unable to open" in lowered or isinstance(error, PermissionError):
        clause = f"{name} cannot be opened for writing: check the permissions of the file and its folder"
    else:
        clause = f"{name} failed ({type(error).__name__}: {text[:160]})"
    return clause[:1].upper() + clause[1:]
