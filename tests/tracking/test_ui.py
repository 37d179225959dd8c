"""The command that serves MLflow's pages; tests/tracking/test_live.py has it serve some."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.tracking.ui import main as ui_command
from tests.tracking.trainings import free_port


def test_command_ui_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"There is no mlflow\.db in .*: run `make sync`"):
        ui_command([])
    (tmp_path / "mlflow.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=rf"Port {port} is taken: `python -m pipeline\.tracking\.ui --port \d+` takes another"):
            ui_command(["--port", str(port)])


@pytest.mark.parametrize("port", ["0", "65536", "70000", "-1", "web"])
def test_what_is_no_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ui_command([f"--port={port}"])
    assert ended.value.code == 2
    assert f"{port} is not a port from 1 to 65535" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@{address}")
    with pytest.raises(UserError, match=f"^MLflow at http://{address} does not answer; mend that, then run `make ui` again"):
        ui_command([])
    assert capsys.readouterr().out == f"MLFLOW_TRACKING_URI names a server: open http://{address} in a browser.\n"
