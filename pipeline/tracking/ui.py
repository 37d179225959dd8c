"""MLflow's pages on the store of the working directory, with links to the study's views (`make ui`)."""

import argparse
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from pipeline.system.errors import UserError, run_command
from pipeline.tracking.store import Store, artifact_root, display_name, fault, store_uri
from pipeline.tracking.views import link


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking.ui", description="Serves MLflow's pages on the local store.")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: %(default)s)")
    port, uri = parser.parse_args(argv).port, store_uri()
    if not 0 < port < 65536:
        raise UserError(f"PORT is {port}, but has to be a whole number from 1 to 65,535.")
    try:
        store = Store(uri)
        experiments = store.experiments()
    except Exception as error:
        raise fault(error, uri, "run `make ui` again") from None
    if not experiments:
        raise UserError("The store has no training yet: run `make sync`, which logs all that are finished.")
    for one in experiments:
        address = f"http://127.0.0.1:{port}" if store.path else display_name(uri).removeprefix("MLflow at ").rstrip("/")
        print(f"{one.name.rpartition('/')[2]}: {link(address, one.experiment_id)}")
    if store.path is None:
        return
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise UserError(f"Port {port} is taken: name another, for example `make ui PORT={port + 1}`.")
    print("The pages are there in about 15 seconds; Ctrl-C ends them.")
    # Without it the server starts workers for jobs, of which there are none here.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The server's workers are its children and outlive it: they end with its group.
    server = subprocess.Popen([
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--default-artifact-root", artifact_root(store.path),
        "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning",
    ], start_new_session=True)  # fmt: skip
    try:
        server.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)


if __name__ == "__main__":
    run_command(main)
