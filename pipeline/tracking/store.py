"""The MLflow store: where it lies, how it is made and opened, and what its faults mean.

A SQLite store is a cache of the trainings in store/. No code repairs it: `rm mlflow.db && make sync` makes it anew.
"""

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.system.errors import UserError
from pipeline.system.provenance import mapping

# MLflow reads these when it is imported or at each call; what the user has set wins, except for telemetry. Nothing is tried again,
# because a POST that a slow server did carry out would be doubled.
os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}.items():  # fmt: skip
    os.environ.setdefault(_name, _value)
_PATIENCE = 20.0  # seconds for which a call waits while another program writes to a SQLite file


def study_name() -> str:
    """What MLflow calls the study in the working directory, and its registered model: title and profile in small letters."""
    said: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        said = mapping(Path("params.yaml").read_text(encoding="utf-8"))
    words = re.findall(r"\w+", str(said.get("title") or "").lower()) or ["vit-ablations"]
    return "-".join([*words, *([str(profile)] if (profile := said.get("profile")) else [])])


def store_uri(file: Path | None = None) -> str:
    """The store's address: MLFLOW_TRACKING_URI, else the given SQLite file, by default the study's `mlflow.db`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(file or home() / "mlflow.db")


def experiment_name() -> str | None:
    """The name of the DVC experiment that this process is a stage of."""
    return os.environ.get("DVC_EXP_NAME") or None


def home() -> Path:
    """The folder of the store: the working directory, or the repository of a DVC experiment, which may run in a copy."""
    root = os.environ.get("DVC_ROOT", "")
    return Path(root) if experiment_name() and Path(root).is_absolute() else Path.cwd()


def sqlite_uri(path: Path) -> str:
    return f"sqlite:///{path.absolute()}"


def database_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def artifact_root(path: Path) -> str:
    """Address of the folder in which the runs of a SQLite file keep their files."""
    return (path.parent / "mlartifacts").absolute().as_uri()


def display_name(uri: str) -> str:
    """What messages call the store."""
    path = database_path(uri)
    return f"MLflow's store {path.name}" if path else f"MLflow at {_without_password(uri)}"


def fault(error: Exception, uri: str, then: str) -> UserError:
    """What is wrong with the store, and what to do when it is mended."""
    if isinstance(error, UserError):
        return error
    text, path = _without_password(" ".join(str(error).split()))[:300], database_path(uri)
    if path is None:
        return UserError(f"{display_name(uri)} does not answer, or with an error ({text}); mend that, then {then}.")
    anew = f"if it is damaged or of another version of MLflow, `rm {path.name}` and `make sync` make it anew, without earlier trainings"
    return UserError(f"{display_name(uri)} cannot be used ({text}): {anew}; then {then}.")


def _without_password(text: str) -> str:
    return re.sub(r"(?<=://)[^/?#\s]*@", "", text)


def training_lock(training_id: str, seconds: float = 0) -> FileLock:
    """The lock of a training, as a context: one process of this study at a time writes its runs. Raises TimeoutError."""
    folder = home() / ".checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"mlflow-{training_id}.lock", timeout=seconds)


class Store:
    """An open MLflow store, with the methods of mlflow.MlflowClient, which wait for other writers. A missing SQLite file is made.

    Raises:
        UserError, or whatever MLflow raises; `fault` makes a UserError of either.
    """

    def __init__(self, uri: str) -> None:
        self.uri, self.path = uri, database_path(uri)
        if self.path is not None:
            _make_or_check(self.path)
        elif not uri.startswith(("http://", "https://")):
            # Another database has no folder for the files of its runs, which only a server or a file's own folder gives.
            raise UserError(
                f"{display_name(uri)} is neither a SQLite file nor a server: start `mlflow server` on it, as docs/mlflow.md says,"
                " and give MLFLOW_TRACKING_URI the server's http address."
            )
        from mlflow import MlflowClient

        # The registry is named, too: else MLFLOW_REGISTRY_URI, of whatever project, would say where models go.
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            deadline = time.monotonic() + _PATIENCE
            while True:
                try:
                    return getattr(self._client, method)(*arguments, **keywords)
                except Exception as error:
                    # SQLite refuses at once, without its busy timeout, where waiting could deadlock two writers.
                    if "database is locked" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)

        return call

    def experiment(self, dataset: str) -> str:
        """Id of the dataset's MLflow experiment, created when missing."""
        name, root = f"{study_name()}/{dataset}", artifact_root(self.path) if self.path else None
        found = self.get_experiment_by_name(name)
        if found is None:
            return str(self.create_experiment(name, artifact_location=root))
        if found.lifecycle_stage != "active":
            command = f"mlflow experiments restore --experiment-id {found.experiment_id}"
            raise UserError(f"The experiment {name} is deleted in {display_name(self.uri)}: bring it back with `{command}`.")
        if self.path and found.artifact_location != root:  # MLflow would write into the folder that it was made in
            raise UserError(
                f"{display_name(self.uri)} was made elsewhere and keeps its files in {found.artifact_location}: `rm {self.path.name}` and"
                " `make sync` make it anew, without earlier trainings."
            )
        return str(found.experiment_id)

    def experiments(self) -> list[Any]:
        """The study's experiments, one for each data set, the last updated one first."""
        return list(self.search_experiments(filter_string=f"name LIKE '{study_name()}/%'", order_by=["last_update_time DESC"]))

    def runs(self, experiments: Iterable[str], filter_string: str = "") -> Iterator[Any]:
        """Runs that are not deleted, the oldest first, always in the same order."""
        where, order, token = list(experiments), ["attributes.start_time ASC", "attributes.run_id ASC"], None
        while where:
            page = self.search_runs(where, filter_string, order_by=order, max_results=1000, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def discard(self, run: Any) -> None:
        """Deletes a run. As KILLED it counts as no finished training even where MLflow brings it back with its experiment."""
        self.set_terminated(run.info.run_id, status="KILLED")
        self.delete_run(run.info.run_id)


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
            with contextlib.closing(sqlite3.connect(path, timeout=_PATIENCE)) as database:
                database.execute("SELECT count(*) FROM sqlite_master")
            return
        from mlflow import MlflowClient

        new = path.with_name(path.name + ".new")
        for leftover in path.parent.glob(f"{new.name}*"):
            leftover.unlink()
        MlflowClient(tracking_uri=sqlite_uri(new), registry_uri=sqlite_uri(new)).search_experiments(max_results=1)
        new.replace(path)
