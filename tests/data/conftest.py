"""Loopback mirrors with real faults, and archives to fetch: the real MNIST where MNIST_MIRROR names it, else synthetic ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.data.datasets import ARRAYS
from pipeline.data.fetch import Source


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


class Mirror(ThreadingHTTPServer):
    """A server of `files` that misbehaves as `fault` says; `requests` holds the file name of each request."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], fault: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.fault = files, fault
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/some/where/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what several tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Mirror
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, fault = self.server, self.server.fault
        self.close_connection = True
        name = self.path.removeprefix("/some/where/")
        server.requests.append(name)
        if name not in server.files:
            self._answer(404, b"no such file")
            return
        content = server.files[name]
        if fault == "flipped":
            content = content[:500] + bytes([content[500] ^ 1]) + content[501:]
        if fault == "cut":
            self._answer(200, content[: len(content) // 2], length=len(content))
        else:
            self._answer(200, content, {"Content-Encoding": "x-gzip"} if fault == "packed" else None)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback is asked directly, whatever this machine's proxy is."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def mirror() -> Iterator[Callable[..., Mirror]]:
    """Starts a Mirror; all end with the test."""
    servers: list[Mirror] = []

    def start(files: dict[str, bytes], fault: str | None = None) -> Mirror:
        server = Mirror(files, fault)
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


@pytest.fixture(scope="session")
def real_mirror() -> Path | None:
    """The directory with the real MNIST archives, where this machine has one."""
    place = os.environ.get("MNIST_MIRROR", "")
    return Path(place) if place and Path(place).is_dir() else None
