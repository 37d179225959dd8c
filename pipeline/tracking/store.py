"""The MLflow store: where it lies, how it is made and opened, and what its faults mean.

A SQLite store is a cache of the trainings in store/. No code repairs it: `rm mlflow.db && make sync` makes it anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.provenance import mapping

# MLflow reads these when it is imported or at each call; what the user has set wins, except for telemetry. Nothing is tried again,
# because a POST that a slow server did carry out would be doubled.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}  # fmt: skip
_REMAKE = "`rm {0}` and `make sync` make it anew from store/, without earlier trainings"
_PATIENCE = 20.0  # seconds for which a call waits while another program writes to a SQLite file


def study_name() -> str:
    """What MLflow calls the study in the working directory: its title in small letters. Its registered model is called so, too."""
    with contextlib.suppress(OSError, ValueError):
        title = mapping(Path("params.yaml").read_text(encoding="utf-8")).get("title")
        if isinstance(title, str) and (words := re.findall(r"\w+", title.lower())):
            return "-".join(words)
    return "vit-ablations"


def mlflow_name(dataset: str) -> str:
    """The name of the MLflow experiment on a data set."""
    return f"{study_name()}/{dataset}"


class StoreFault(Exception):
    """A fault of the store that is known by name: one clause, without a full stop."""


def set_environment() -> None:
    """Has MLflow be quiet and quick to give up. To be called before it is imported."""
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def store_uri(uri: str | None = None) -> str:
    """The store's address: as given, else MLFLOW_TRACKING_URI, else the SQLite file `mlflow.db` of this study."""
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
    path = uri.removeprefix("sqlite:///").split("?", 1)[0]
    return Path(path).absolute() if uri.startswith("sqlite:///") and path not in ("", ":memory:") else None


def is_server(uri: str) -> bool:
    """Whether the store is behind a server, which keeps the files of its runs itself."""
    return uri.startswith(("http://", "https://"))


def artifact_root(path: Path) -> str:
    """Address of the folder in which the runs of a SQLite file keep their files."""
    return (path.parent / "mlartifacts").as_uri()


def display_name(uri: str) -> str:
    """What messages call the store; a password in the address is left out."""
    if path := database_path(uri):
        return f"the MLflow store {path.name}"
    return f"MLflow at {re.sub(r'(?<=://)[^/?#]*@', '', uri)}"


def training_lock(training_id: str, seconds: float = 0) -> FileLock:
    """The lock of a training, as a context: one process of this study at a time writes its runs. Raises TimeoutError."""
    folder = home() / ".checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"mlflow-{training_id}.lock", timeout=seconds)


class Store:
    """An open MLflow store; `call` reaches the methods of mlflow.MlflowClient. A missing SQLite file is made.

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
        if path is not None:
            _make_or_check(path)
        from mlflow import MlflowClient

        self.uri = uri
        # The registry is named, too: else MLFLOW_REGISTRY_URI, of whatever project, would say where models go.
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._experiments: dict[str, str] = {}

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """One call of the MLflow client, repeated while another program writes to a SQLite file."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return getattr(self._client, method)(*arguments, **keywords)
            except Exception as error:
                # SQLite refuses at once, without its busy timeout, where waiting could deadlock two writers.
                if "database is locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def experiment(self, dataset: str) -> str:
        """Id of the dataset's MLflow experiment, created when missing."""
        if dataset not in self._experiments:
            name, path = mlflow_name(dataset), database_path(self.uri)
            found = self.call("get_experiment_by_name", name)
            if found is None:
                self.call("create_experiment", name, artifact_location=artifact_root(path) if path else None)
                found = self.call("get_experiment_by_name", name)
            if found.lifecycle_stage != "active":
                command = f"mlflow experiments restore --experiment-id {found.experiment_id}"
                raise StoreFault(f"the experiment {name} is deleted in {display_name(self.uri)}: bring it back with `{command}`")
            if path and found.artifact_location != artifact_root(path):  # MLflow would write into the folder that it was made in
                raise StoreFault(
                    f"{display_name(self.uri)} was made elsewhere and keeps its files in {found.artifact_location}:"
                    f" {_REMAKE.format(path.name)}"
                )
            self._experiments[dataset] = found.experiment_id
        return self._experiments[dataset]

    def experiments(self) -> list[Any]:
        """The study's experiments, one for each data set, the last updated one first."""
        name = mlflow_name("%")
        return list(self.call("search_experiments", filter_string=f"name LIKE '{name}'", order_by=["last_update_time DESC"]))

    def runs(self, experiments: Iterable[str], filter_string: str = "") -> Iterator[Any]:
        """Runs that are not deleted, the oldest first, always in the same order."""
        where, order, token = list(experiments), ["attributes.start_time ASC", "attributes.run_id ASC"], None
        while where:
            page = self.call("search_runs", where, filter_string, order_by=order, max_results=1000, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def discard(self, run: Any) -> None:
        """Deletes a run. As KILLED it counts as no finished training even where MLflow brings it back with its experiment."""
        self.call("set_terminated", run.info.run_id, status="KILLED")
        self.call("delete_run", run.info.run_id)


def _write_at_once(connection: Any, _: object) -> None:
    """Has SQLite not wait for the disk, which takes half the time of a fresh store. A kill harms nothing; a power cut may cost the file."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def _make_or_check(path: Path) -> None:
    """Creates the SQLite store beside its place and moves it there, so that a kill leaves nothing half made."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    if not event.contains(Engine, "connect", _write_at_once):
        event.listen(Engine, "connect", _write_at_once)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock"), timeout=120):
        if path.exists() and path.stat().st_size:
            # MLflow would try for a minute and a half to open a file that is no database.
            with closing(sqlite3.connect(path, timeout=_PATIENCE)) as database:
                database.execute("SELECT count(*) FROM sqlite_master")
            return
        from mlflow import MlflowClient

        new = path.with_name(path.name + ".new")
        for leftover in path.parent.glob(f"{new.name}*"):
            leftover.unlink()
        MlflowClient(tracking_uri=sqlite_uri(new), registry_uri=sqlite_uri(new)).search_experiments(max_results=1)
        new.replace(path)


def explain(error: BaseException, uri: str) -> str:
    """What is wrong with the store, as one clause that starts a sentence and has no full stop."""
    name, path, text = display_name(uri), database_path(uri), " ".join(str(error).split())[:200]
    if isinstance(error, StoreFault):
        clause = text if len(text) < 200 else " ".join(str(error).split())
    elif path is None:
        # A RestException carries what a live server said; everything else is a connection that failed.
        clause = f"{name} answers with an error ({text})" if type(error).__name__ == "RestException" else f"{name} does not answer"
    elif "database is locked" in text:
        clause = f"{name} is locked by another program"
    elif any(words in str(error).lower() for words in ("disk is full", "disk i/o error", "no space left", "file too large")):
        clause = f"the disk of {name} is full or fails"
    elif "readonly" in text or "unable to open" in text or isinstance(error, OSError):
        clause = f"{name} cannot be written ({text})"
    else:
        clause = f"{name} cannot be used ({type(error).__name__}: {text}): {_REMAKE.format(path.name)}"
    return clause[:1].upper() + clause[1:]
