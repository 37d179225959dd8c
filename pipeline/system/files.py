"""Files that are written atomically, their digests, and files that contain their own digest."""

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
    """Yields a temporary path beside `path`. The file written there replaces `path` if the block ends without an error.

    The bytes are on disk before the rename, so a kill or a power cut leaves the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno and not error.filename:  # a write that fails names no file
            error.filename = str(path.parent)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_changed(path: Path, text: str) -> None:
    """As `write_text`, but does not touch a file that already has this text."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


class DamagedError(Exception):
    """Says, as a clause, why an existing file cannot be used."""


def sealed(content: bytes) -> bytes:
    """With the sha256 of these bytes after them, so that any flipped bit is detected."""
    return content + hashlib.sha256(content).digest()


def write_sealed(path: Path, content: bytes) -> None:
    write_bytes(path, sealed(content))


def read_sealed(path: Path) -> bytes:
    """The content that was written by `write_sealed`.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: the file is not what was written.
    """
    stored = path.read_bytes()
    content, digest = stored[:-_SEAL], stored[-_SEAL:]
    if hashlib.sha256(content).digest() != digest:
        raise DamagedError(f"{path} does not match its checksum")
    return content


def sealed_json(content: dict[str, Any]) -> dict[str, Any]:
    """The mapping with the sha256 of its canonical JSON under `digest`, as the last key."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return rest | {"digest": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Reads a mapping that `sealed_json` returned. Raises FileNotFoundError or DamagedError, as `read_sealed` does."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise DamagedError(f"{path} is no JSON") from None
    if not isinstance(content, dict) or content.get("digest") != sealed_json(content)["digest"]:
        raise DamagedError(f"{path} does not match its checksum")
    return content
