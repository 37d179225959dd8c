"""Pictures of MLflow's pages on the root's store, in docs/: `python -m docs.mlflow_pictures`, after `make sync`.

Drives a headless Chromium through its DevTools protocol.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.system.environment import clean
from pipeline.system.errors import UserError, run_command

DOCS = Path(__file__).parent
_WAIT_SECONDS = 120.0
_DRAWING_SECONDS = 8.0  # after the last text is there, for the charts
_PORT = 5077


class Browser:
    """A headless Chromium with one page.

    Args:
        size: of the page, in pixels.
    """

    def __init__(self, size: tuple[int, int] = (1400, 760)) -> None:
        program = find_chromium()
        assert program is not None, "Chromium is not installed"
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._profile = TemporaryDirectory(ignore_cleanup_errors=True)
        # With --remote-debugging-pipe it reads commands from its descriptor 3 and answers on 4: JSON, each message ended by a NUL byte.
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        shell = f'exec 3<&{read_commands} 4>&{write_answers}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *options, f"--user-data-dir={self._profile.name}"],
            pass_fds=(read_commands, write_answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_commands)
        os.close(write_answers)
        self._buffer = b""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self.resize(*size)

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, link: str, *texts: str) -> None:
        """Opens a page and waits until it shows all these texts. Raises TimeoutError with what it shows instead."""
        deadline = time.monotonic() + _WAIT_SECONDS
        self._call("Page.navigate", url="about:blank")  # a link into the same page would not load it again
        self._call("Page.navigate", url=link)
        while lacking := [text for text in texts if text not in self.text()]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{link} does not show {lacking[0]!r} but: {self.text()}")
            time.sleep(0.2)

    def text(self) -> str:
        """What the page shows, as text."""
        return str(self.run("document.body ? document.body.innerText : ''") or "")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def picture(self, path: Path) -> None:
        """Writes what the page shows as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        message = {"id": next(self._numbers), "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                content = os.read(self._answers, 1 << 16)
                assert content, f"Chromium ended during {method}"
                self._buffer += content
            first, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(first)
            if answer.get("id") == message["id"]:  # else an event
                assert "error" not in answer, answer
                return answer["result"]


def find_chromium() -> str | None:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


@contextmanager
def _served() -> Iterator[list[str]]:
    """The links that `make ui` prints, while its server runs."""
    command = [sys.executable, "-u", "-m", "pipeline.tracking.ui", "--port", str(_PORT)]
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            words = server.stdout.readline().split()
            if len(words) != 2:
                raise UserError("`make ui` shows nothing here: run it to see why, mend that, then run the command again.")
            study = words[1]
            positions = study.replace("=study", "=positions").replace("=TABLE", "=CHART")
            deadline = time.monotonic() + _WAIT_SECONDS
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health", timeout=60).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "the server does not answer"
                    time.sleep(0.5)
            yield [study, positions]
        finally:
            server.terminate()


def main(argv: list[str]) -> None:
    clean()
    argparse.ArgumentParser(prog="python -m docs.mlflow_pictures", description="Takes the pictures of docs/mlflow.md.").parse_args(argv)
    with _served() as (study, thesis), closing(Browser()) as browser:
        for link, name, height, texts in (
            (study, "study", 900, ("late_test_error", "matching run")),
            (thesis, "thesis", 1060, ("late_test_error", "Parameters", "matching run")),
        ):
            browser.resize(1600, height)
            browser.open(link, *texts)
            # What lies beside or over the page at first, and what a chart shows only under the mouse.
            browser.run("document.querySelectorAll('[aria-label=Close], [aria-label=\"Hide banner\"]').forEach(b => b.click())")
            browser.run("document.head.insertAdjacentHTML('beforeend', '<style>.modebar { display: none }</style>')")
            time.sleep(_DRAWING_SECONDS)
            browser.picture(DOCS / f"mlflow-{name}.png")


if __name__ == "__main__":
    run_command(main)
