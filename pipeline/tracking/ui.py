"""MLflow's pages on the store of the working directory: `python -m pipeline.tracking.ui [--port N]`, or `make ui`."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from pipeline.errors import UserError, run_command
from pipeline.tracking.store import artifact_root, database_path, display_name, is_server, store_uri, telemetry_off


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking.ui", description="Serves MLflow's pages on the local store.")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: %(default)s)")
    port = parser.parse_args(argv).port
    uri = store_uri()
    path = database_path(uri)
    if is_server(uri):
        print(f"MLFLOW_TRACKING_URI names a server: open {display_name(uri).removeprefix('MLflow at ')} in a browser.")
        return
    if path is not None and not path.exists():
        raise UserError(f"There is no {path.name} in {path.parent.name}/ yet: run `make demo` or `dvc repro` first.")
    if not _is_free(port):
        free = next((candidate for candidate in range(port + 1, 65536) if _is_free(candidate)), None)
        raise UserError(f"Port {port} is taken: choose another one, for example --port {free}.")
    telemetry_off()
    # Without it the server starts workers for jobs, of which there are none here.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    print(f"MLflow's pages come up at http://127.0.0.1:{port} in about 15 seconds; Ctrl-C ends them.", flush=True)
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


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As servers do; without it a port whose last connections are still closing would look taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    run_command(main)
