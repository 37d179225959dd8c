"""Files written whole or not at all, their digests, and files that carry their own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SEAL = hashlib.sha256().digest_size


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; what was written there takes `path`'s place when the block ends without error.

    The bytes are on disk before the name changes, so a kill or a power cut leaves the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_changed(path: Path, text: str) -> None:
    """As `write_text`, but a file that holds this text already is left alone."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DamagedError(Exception):
    """Why a file that is there cannot be used, as a clause about it."""


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a file that ends with the sha256 of all that stands before it, so that a flipped bit anywhere is noticed."""
    with replacing(path) as temporary:
        temporary.write_bytes(content + hashlib.sha256(content).digest())


def read_sealed(path: Path) -> bytes:
    """The content that `write_sealed` was given.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it is not what was written.
    """
    stored = path.read_bytes()
    content, digest = stored[:-_SEAL], stored[-_SEAL:]
    if hashlib.sha256(content).digest() != digest:
        raise DamagedError(f"{path} does not match its checksum")
    return content


def sealed_json(content: dict[str, Any]) -> dict[str, Any]:
    """The mapping with the sha256 of its own canonical text under `digest`, which comes last."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return rest | {"digest": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def read_sealed_json(path: Path) -> dict[str, Any]:
    """A mapping that was written as `sealed_json` gave it. Raises FileNotFoundError or DamagedError, as `read_sealed` does."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise DamagedError(f"{path} is no JSON") from None
    if not isinstance(content, dict) or content.get("digest") != sealed_json(content)["digest"]:
        raise DamagedError(f"{path} does not match its checksum")
    return content
