"""MLflow's pages on the store of the working directory, with links to the study's views (`make ui`)."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from pipeline.errors import UserError, run_command
from pipeline.tracking.store import Store, artifact_root, database_path, display_name, explain, mlflow_name, store_uri
from pipeline.tracking.views import TAG, link


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking.ui", description="Serves MLflow's pages on the local store.")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: %(default)s)")
    port, uri = parser.parse_args(argv).port, store_uri()
    path = database_path(uri)
    if path is not None and not path.exists():
        raise UserError(f"There is no {path.name} in {path.parent.name}/ yet: run `make sync`, which makes it of all finished trainings.")
    address = f"http://127.0.0.1:{port}" if path else display_name(uri).removeprefix("MLflow at ").rstrip("/")
    try:
        experiments = Store(uri).experiments()
    except Exception as error:
        raise UserError(f"{explain(error, uri)}; mend that, then run `make ui` again.") from None
    for one in experiments:
        count = sum(key.startswith(TAG) for key in one.tags) - 1
        dataset = one.name.removeprefix(mlflow_name(""))
        print(f"{dataset}: {link(address, one.experiment_id)}", flush=True)
        print(f"  and {count} views of charts, one for each experiment, in the list of views at the upper right", flush=True)
    if path is None:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"Port {port} cannot be taken ({error}): `python -m pipeline.tracking.ui --port 5001` takes another one."
            ) from None
    print("The pages are there in about 15 seconds; Ctrl-C ends them.", flush=True)
    # Without it the server starts workers for jobs, of which there are none here.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    os.execv(sys.executable, [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--default-artifact-root", artifact_root(path),
        "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning",
    ])  # fmt: skip


if __name__ == "__main__":
    run_command(main)
