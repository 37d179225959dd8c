"""Loopback mirrors with real faults, and synthetic archives to fetch."""

import gzip
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from pipeline.data.datasets import ARRAYS
from pipeline.data.fetch import Source


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback is asked directly, whatever this machine's proxy is."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def mirror() -> Iterator[Callable[..., Any]]:
    """Starts a server of `files` that misbehaves as `fault` says; its `requests` are the files that it was asked for."""
    servers: list[Any] = []

    def start(files: dict[str, bytes], fault: str | None = None) -> Any:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                name = self.path.removeprefix("/some/where/")
                server.requests.append(name)
                body = files.get(name, b"")
                if fault == "flipped":
                    body = body[:500] + bytes([body[500] ^ 1]) + body[501:]
                self.send_response(200 if name in files else 404)
                self.send_header("Content-Length", str(len(body)))
                if fault == "packed":
                    self.send_header("Content-Encoding", "x-gzip")
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.requests, server.url = [], f"http://127.0.0.1:{server.server_port}/some/where/"
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def synthetic() -> dict[str, np.ndarray]:
    """A small data set of noise, which gzip cannot make smaller: {array name: array}."""
    draw = np.random.default_rng(0)
    return {
        "train_images": draw.integers(0, 256, (700, 28, 28), dtype=np.uint8),
        "train_labels": draw.integers(0, 10, 700, dtype=np.uint8),
        "test_images": draw.integers(0, 256, (60, 28, 28), dtype=np.uint8),
        "test_labels": draw.integers(0, 10, 60, dtype=np.uint8),
    }


@pytest.fixture(scope="session")
def archives(synthetic: dict[str, np.ndarray]) -> dict[str, bytes]:
    """The synthetic data set as {archive name: bytes}."""
    return {ARRAYS[name]: gzip.compress(idx(array), mtime=0) for name, array in synthetic.items()}


@pytest.fixture(scope="session")
def source_of() -> Callable[..., Source]:
    """Source with the true checksums of `files`, to be fetched from the mirrors."""

    def build(files: dict[str, bytes], *mirrors: str) -> Source:
        return Source("mnist", mirrors, tuple((name, hashlib.md5(content).hexdigest()) for name, content in files.items()))

    return build
