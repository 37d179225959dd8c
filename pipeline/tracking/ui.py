"""MLflow's pages on the store of the working directory, with links to the study's views (`make ui`)."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser

from pipeline.errors import UserError, run_command
from pipeline.tracking.store import Store, artifact_root, database_path, display_name, explain, is_server, store_uri
from pipeline.tracking.views import VIEWS

_PORTS = 65536
_START_SECONDS = 120.0  # for which the browser waits for the pages


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking.ui", description="Serves MLflow's pages on the local store.")
    parser.add_argument("--port", type=_port, default=5000, help="port on 127.0.0.1, 1 to 65535 (default: %(default)s)")
    port = parser.parse_args(argv).port
    uri = store_uri()
    path = database_path(uri)
    if is_server(uri):
        address = display_name(uri).removeprefix("MLflow at ").rstrip("/")
        print(f"MLFLOW_TRACKING_URI names a server: open {address} in a browser.")
        _lead(uri, address)
        return
    if path is not None and not path.exists():
        raise UserError(f"There is no {path.name} in {path.parent.name}/ yet: run `make sync`, which makes it of all finished trainings.")
    if not _is_free(port):
        free = next((candidate for candidate in (*range(port + 1, _PORTS), *range(5000, port)) if _is_free(candidate)), "PORT")
        raise UserError(f"Port {port} is taken: `python -m pipeline.tracking.ui --port {free}` takes another one.")
    address = f"http://127.0.0.1:{port}"
    print(f"MLflow's pages come up at {address} in about 15 seconds; Ctrl-C ends them.", flush=True)
    _lead(uri, address)
    # Without it the server starts workers for jobs, of which there are none here.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    options = {
        "--backend-store-uri": uri,
        "--default-artifact-root": artifact_root(uri),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--workers": "1",
        "--uvicorn-opts": "--log-level warning",
    }
    command = [sys.executable, "-m", "mlflow", "server", *(word for option in options.items() for word in option)]
    os.execv(sys.executable, command)


def _lead(uri: str, address: str) -> None:
    """Prints the links to the views of each data set's experiment, and opens the first in a browser, once the server answers."""
    try:
        store = Store(uri)
        links = [(view, dataset, view.link(address, store.experiment(dataset))) for dataset in store.datasets() for view in VIEWS]
    except Exception as error:
        raise UserError(f"{explain(error, uri)}; mend that, then run `make ui` again.") from None
    for view, dataset, link in links:
        print(f"  {f'{view.name} ({dataset}):':48}{link}", flush=True)
    # Without these there may be only a text browser, which would take the terminal.
    if links and any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        code = f"from pipeline.tracking import ui; ui.open_page({address!r}, {links[0][2]!r})"
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def open_page(address: str, link: str) -> None:
    """Opens a page in the user's browser as soon as its server answers, within two minutes."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                webbrowser.open(link)
                return
        except OSError:
            time.sleep(0.5)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < _PORTS:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1 to {_PORTS - 1}")
    return int(text)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As servers do. Otherwise a port whose last connections are closing would look taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    run_command(main)
