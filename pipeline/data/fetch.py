"""A data set's archives, put into `data/raw` and verified by md5.

Built for bad networks: every wait has an end, a cut download goes on where it stopped, and whatever one mirror does
wrong, the next one is tried.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import itertools
import json
import os
import queue
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.params import DATASETS

MANIFEST = "manifest.json"

# A mirror that is silent for STALL_SECONDS is given up, and all mirrors together may cost STUCK_SECONDS of silence; with
# the import of torchvision a command without a network then ends within half a minute.
STALL_SECONDS = 5.0
STUCK_SECONDS = 15.0

_CHUNK_BYTES = 1 << 16
_LEAST_BYTES = 1 << 14  # fewer in STALL_SECONDS is silence: the largest archive would take hours
_MOST_BYTES = 1 << 28  # ten times the largest archive: more is a server that does not stop
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        mirrors: directories and file://, http:// or https:// addresses, in the order in which they are tried.
        archives: (file name, md5 as 32 hexadecimal digits) of each file.
    """

    dataset: str
    mirrors: tuple[str, ...]
    archives: tuple[tuple[str, str], ...]


def source(dataset: str) -> Source:
    """The source of a data set: torchvision's mirrors and checksums, or no files.

    The environment's `MNIST_MIRROR`, a directory or an address, comes before the public mirrors.
    """
    name = DATASETS[dataset].torchvision
    if name is None:
        return Source(dataset, (), ())
    import torchvision.datasets

    published = getattr(torchvision.datasets, name)
    own = os.environ.get("MNIST_MIRROR", "").strip()
    return Source(dataset, (*([own] if own else []), *published.mirrors), tuple(published.resources))


def fetch(source: Source, raw: Path, *, stall_seconds: float = STALL_SECONDS, stuck_seconds: float = STUCK_SECONDS) -> dict[str, Any]:
    """Makes `raw` hold the source's verified archives and `manifest.json`; a verified archive is not fetched again.

    An unfinished download stays as `NAME.part` and is resumed by the next call. What the manifest lists of another data set goes.
    Files that it does not list are the user's. Where `raw` is a symbolic link, all files of the folder that it points to are: what is
    there is read, what is missing is added, nothing is removed or overwritten.

    Args:
        raw: the directory; made when missing.
        stall_seconds: silence after which a mirror is given up.
        stuck_seconds: silence that all mirrors together may cost. A slow but steady download may take longer.

    Returns:
        The manifest: {"dataset", "files": {name: {"md5", "size" in bytes}}}.

    Raises:
        UserError: no mirror delivers an archive, the disk is full, another fetch is at work, or a file of the user's is in the way.
    """
    patience = _Patience(stall_seconds, stuck_seconds)
    mirrors = list(source.mirrors)
    with _local_faults(raw):
        raw.mkdir(parents=True, exist_ok=True)
    display = _Display()
    linked = raw.is_symlink()
    with _lock(raw):
        with _local_faults(raw):
            ours = _recorded(raw / MANIFEST, linked)
        for name, md5 in source.archives:
            path = raw / name
            with _local_faults(path):
                present = path.is_file() and _md5(path) == md5
            if present:
                display.say(f"{name}: already here, md5 verified")
                continue
            if path.exists() and (linked or name not in ours):
                way = "let the link point to another folder" if linked else "move it away"
                raise UserError(
                    f"{path} is not the archive of {source.dataset} and not this project's to replace: {way}, then run the command again."
                )
            _fetch_archive(source.dataset, path, md5, mirrors, patience, display)
            with _local_faults(raw):
                # At once: after a kill it is known whose the archive is.
                ours[name] = {"md5": md5, "size": path.stat().st_size}
                write_json(raw / MANIFEST, {"dataset": source.dataset, "files": ours})
        with _local_faults(raw):
            files = {name: {"md5": md5, "size": (raw / name).stat().st_size} for name, md5 in source.archives}
            if not linked:
                _remove(raw, ours, files)
            manifest = {"dataset": source.dataset, "files": files}
            write_json(raw / MANIFEST, manifest)
    return manifest


def _recorded(path: Path, linked: bool) -> dict[str, dict[str, Any]]:
    """The files that the manifest lists; none where it is missing or damaged. Raises UserError where it may be the user's own file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        manifest = json.loads(content)
        files = {str(name): {"md5": str(file["md5"]), "size": int(file["size"])} for name, file in manifest["files"].items()}
        if manifest.keys() == {"dataset", "files"} and all(Path(name).name == name for name in files):
            return files
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    if linked:
        raise UserError(f"{path} was not written by this project, so it stays: let the link point to another folder.")
    return {}


def _remove(raw: Path, ours: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> None:
    """Removes what a fetch left and does not belong to `wanted`, as DVC hashes the whole directory: archives of another data set,
    cut downloads and half-written manifests."""
    for name, file in ours.items():
        if name not in wanted and (raw / name).is_file() and _md5(raw / name) == file["md5"]:
            (raw / name).unlink()
    leftovers = [raw / f"{name}.part" for name in ours | wanted]
    for path in (*leftovers, *raw.glob(f".{MANIFEST}.*.tmp")):
        path.unlink(missing_ok=True)


class _Fault(Exception):
    """Why a mirror did not deliver.

    Attributes:
        silent: it cost time, so the mirror is tried last from now on.
        restart: the request to resume failed; without the .part the mirror may deliver.
    """

    def __init__(self, reason: str, *, silent: bool = False, restart: bool = False) -> None:
        super().__init__(reason)
        self.silent = silent
        self.restart = restart


@dataclass
class _Patience:
    """How long silence is borne, in seconds: `stall` at a stretch, `left` in all."""

    stall: float
    left: float


@dataclass(frozen=True)
class _Head:
    """The start of an answer: it begins at byte `start` of the file, whose size is `size` where the mirror says so."""

    start: int
    size: int | None


def _fetch_archive(dataset: str, path: Path, md5: str, mirrors: list[str], patience: _Patience, display: _Display) -> None:
    """Puts one verified archive to `path`; moves mirrors found silent to the end of `mirrors`."""
    part = path.with_name(path.name + ".part")
    reasons = []
    for mirror in tuple(mirrors):
        try:
            _fetch_part(mirror, path.name, part, md5, patience, display)
        except _Fault as fault:
            reasons.append(f"{mirror}: {fault}")
            display.say(f"{path.name}: {mirror}: {fault}")
            if fault.silent:
                mirrors.remove(mirror)
                mirrors.append(mirror)
            continue
        with _local_faults(path):
            os.replace(part, path)
            _sync(path.parent)
            size = path.stat().st_size
        display.say(f"{path.name}: {size:,} bytes from {mirror}, md5 verified")
        return
    raise UserError(
        f"{path.name} of {dataset} could not be fetched ({'; '.join(reasons)}): name a place that has it with "
        "`MNIST_MIRROR=<directory or URL> dvc repro`, or run `make demo`, which needs no network."
    )


def _fetch_part(mirror: str, name: str, part: Path, md5: str, patience: _Patience, display: _Display) -> None:
    """Completes `part` from one mirror and verifies it.

    Raises:
        _Fault: the mirror did not deliver. A `part` that may still be right stays, a wrong one goes.
    """
    while True:
        with _local_faults(part):
            offset = part.stat().st_size if part.exists() else 0
            # A kill between the last byte and the rename leaves a whole file here.
            if offset and _md5(part) == md5:
                return
        try:
            start = _download(mirror, name, part, offset, patience, display)
        except _Fault as fault:
            if not fault.restart:
                raise
            start = offset
            reason = str(fault)
        else:
            with _local_faults(part):
                if _md5(part) == md5:
                    return
                reason = f"wrong md5 in its {part.stat().st_size:,} bytes"
        with _local_faults(part):
            part.unlink(missing_ok=True)
        # If bytes from an earlier download are in it, they may be the wrong ones: the mirror gets one try of its own.
        if not start:
            raise _Fault(reason)


def _download(mirror: str, name: str, part: Path, offset: int, patience: _Patience, display: _Display) -> int:
    """Writes to `part` what the mirror sends, appended to the `offset` bytes there if the mirror can resume, and syncs it.

    Returns:
        The byte of the file at which the mirror began: `offset` or 0.
    """
    with contextlib.closing(_receive(mirror, name, offset, patience)) as items:
        head = next(items)
        assert isinstance(head, _Head)
        # Looked at before the .part is opened: a proxy's page shall not cost what is already there.
        first = next(items, b"")
        if not first:
            raise _Fault("sent nothing", restart=bool(head.start))
        assert isinstance(first, bytes)
        if not head.start and not _GZIP.startswith(first[:2]):
            raise _Fault("sent no gzip archive, but perhaps a log-in or error page")
        received = head.start
        with display.bar(name, head) as advance, _local_faults(part), part.open("ab" if head.start else "wb") as file:
            for chunk in itertools.chain([first], items):
                assert isinstance(chunk, bytes)
                file.write(chunk)
                received += len(chunk)
                advance(received)
            file.flush()
            os.fsync(file.fileno())
    if head.size is not None and received < head.size:
        raise _Fault(f"ended after {received:,} of {head.size:,} bytes")
    return head.start


def _receive(mirror: str, name: str, offset: int, patience: _Patience) -> Generator[_Head | bytes]:
    """A `_Head`, then the file's bytes from `head.start` on.

    A thread does the waiting, because some waits (for a host name, for one address after another, for a header that comes
    byte by byte) have no time-out of their own; it is left behind when patience ends.

    Raises:
        _Fault: the mirror cannot be read, or is silent.
    """
    limit = min(patience.stall, patience.left)
    if limit <= 0:
        raise _Fault("not tried, because the others had used up the time for waiting")
    items: queue.SimpleQueue[_Head | bytes | Exception | None] = queue.SimpleQueue()
    abandoned = threading.Event()
    threading.Thread(target=_pump, args=(mirror, name, offset, limit, items, abandoned), daemon=True).start()
    since, recent, position = time.monotonic(), 0, None
    try:
        while True:
            try:
                item = items.get(timeout=max(0.0, since + limit - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            if isinstance(item, _Head):
                position = item.start
            else:
                recent += len(item)
                position = (position or 0) + len(item)
            if recent >= _LEAST_BYTES:
                since, recent = time.monotonic(), 0
            yield item
    except TimeoutError:
        patience.left -= time.monotonic() - since
        what = "no answer" if position is None else f"stalled at byte {position:,}: next to nothing"
        raise _Fault(f"{what} within {limit:.3g} s", silent=True) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        patience.left -= time.monotonic() - since
        raise _Fault(_reason(error)) from None
    finally:
        abandoned.set()


def _pump(
    mirror: str,
    name: str,
    offset: int,
    timeout: float,
    items: queue.SimpleQueue[_Head | bytes | Exception | None],
    abandoned: threading.Event,
) -> None:
    """Puts a mirror's answer into `items`, then None; or the exception that ended it."""
    try:
        with contextlib.closing(_open(mirror, name, offset, timeout)) as answer:
            total = 0
            for item in answer:
                if abandoned.is_set():
                    return
                items.put(item)
                total += len(item) if isinstance(item, bytes) else 0
                # A server that never ends would fill the disk; cut off here, its bytes fail their md5.
                if total > _MOST_BYTES:
                    break
        items.put(None)
    except Exception as error:
        items.put(error)


def _open(mirror: str, name: str, offset: int, timeout: float) -> Generator[_Head | bytes]:
    scheme = urlsplit(mirror).scheme
    if scheme in ("http", "https"):
        return _read_address(f"{mirror.rstrip('/')}/{name}", offset, timeout)
    if scheme == "file":
        return _read_file(Path(urllib.request.url2pathname(urlsplit(mirror).path)) / name)
    if "://" in mirror:
        raise _Fault("neither a directory nor a file://, http:// or https:// address")
    return _read_file(Path(mirror).expanduser() / name)


def _read_file(path: Path) -> Generator[_Head | bytes]:
    if not path.parent.is_dir():
        raise _Fault(f"there is no directory {path.parent.resolve()}")
    with path.open("rb") as file:
        yield _Head(0, os.fstat(file.fileno()).st_size)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _read_address(address: str, offset: int, timeout: float) -> Generator[_Head | bytes]:
    request = urllib.request.Request(address, headers={"Range": f"bytes={offset}-"} if offset else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            raise _Fault(f"HTTP {error.code} {error.reason}", restart=bool(offset) and error.code == 416) from None
    with response:
        start = 0
        if response.status == 206:
            if not re.match(rf"bytes {offset}-", response.headers.get("Content-Range", "")):
                raise _Fault("sent another range than the one asked for", restart=bool(offset))
            start = offset
        length = response.headers.get("Content-Length")
        yield _Head(start, start + int(length) if length else None)
        while chunk := response.read1(_CHUNK_BYTES):
            yield chunk


def _reason(error: Exception) -> str:
    """A network's or a directory's fault in a few words."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "its host name cannot be resolved"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".rstrip(": ")


@contextlib.contextmanager
def _local_faults(path: Path) -> Iterator[None]:
    """Faults of our own disk, which no other mirror mends, as a sentence each."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk is full ({path} cannot be written): free some space, then run the command again; it goes on where it stopped."
            ) from None
        raise UserError(f"{path} cannot be written ({error.strerror or error}): mend that, then run the command again.") from None


@contextlib.contextmanager
def _lock(raw: Path) -> Iterator[None]:
    """One fetch at a time: two would append to the same .part. The kernel drops the lock with the process."""
    with _local_faults(raw):
        descriptor = os.open(raw, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"Another fetch is writing {raw}: wait until it ends, then run the command again.") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _sync(directory: Path) -> None:
    """Puts a rename on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Display:
    """A bar for the file under way on a terminal, plain lines everywhere."""

    def __init__(self) -> None:
        self._console = Console()

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, name: str, head: _Head) -> Iterator[Callable[[int], None]]:
        """Shows a download; the yielded function takes the bytes that are there."""
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            task = progress.add_task(name, total=head.size, completed=head.start)
            yield lambda received: progress.update(task, completed=received)
