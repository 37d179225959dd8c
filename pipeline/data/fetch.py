"""Fetches a data set's archives into `data/raw` and verifies their md5. Pooch downloads; this module chooses mirrors and reports faults."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pooch

from pipeline.errors import UserError
from pipeline.files import replacing, write_json
from pipeline.params import DATASETS

MANIFEST = "manifest.json"
# Silence after which a mirror is given up. With three mirrors and the import of torchvision, a command without a network ends within half
# a minute. A slow but steady download may take longer in total.
_STALL_SECONDS = 5.0
_MIN_BYTES = 1 << 14  # fewer bytes in that time count as silence, because the largest archive would take hours
_MAX_BYTES = 1 << 28  # ten times the largest archive; a server that sends more is stopped
# MNIST's archives by their md5, and the md5 of what is in each: other places offer it unpacked, or packed anew.
_CONTENTS = {
    "f68b3c2dcbeaaa9fbdd348bbdeb94873": "6bbc9ace898e44ae57da46a324031adb",
    "d53e105ee54ea40749a09fcbcd1e9432": "a25bea736e30d166cdddb491f175f624",
    "9fb629c4189551a2d022fa330f9573f3": "2646ac647ad5339dbf082846283269ea",
    "ec29112dd5afa0611ce80d1b7f02629c": "27ae3e4e09519cfbb04c329615203637",
}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        mirrors: directories and file://, http:// or https:// addresses, in the order to try.
        archives: (file name, md5 as 32 hexadecimal digits) of each file.
    """

    dataset: str
    mirrors: tuple[str, ...]
    archives: tuple[tuple[str, str], ...]


def source(dataset: str) -> Source:
    """The source of a data set: torchvision's mirrors and checksums, or no files.

    The environment variable `MNIST_MIRROR`, a directory or an address, is tried before the public mirrors.
    """
    name = DATASETS[dataset].torchvision
    if name is None:
        return Source(dataset, (), ())
    import torchvision.datasets

    published = getattr(torchvision.datasets, name)
    own = os.environ.get("MNIST_MIRROR", "").strip()
    inside = [f"{own}/{name}/raw"] if os.path.isdir(os.path.expanduser(f"{own}/{name}/raw")) else []  # as torchvision keeps them
    return Source(dataset, (*([own] if own else []), *inside, *published.mirrors), tuple(published.resources))


def fetch(source: Source, raw: Path) -> dict[str, Any]:
    """Puts the source's archives and `manifest.json` into the directory `raw`; a verified archive is not fetched again.

    Archives of another data set that the manifest lists are removed; other files belong to the user and stay. If `raw` is a symbolic
    link, all files there belong to the user: missing archives are added, but nothing is removed or overwritten.

    Returns:
        The manifest: {"dataset", "files": {name: {"md5", "size" in bytes}}}.

    Raises:
        UserError: no mirror delivers an archive, the disk is full, another fetch is running, or a file of the user is in the way.
    """
    mirrors, linked = list(source.mirrors), raw.is_symlink()
    with _locked(raw):
        ours = _recorded(raw / MANIFEST, linked)
        for name, md5 in source.archives:
            path = raw / name
            if _matches(path, md5):
                print(f"{name}: already here, md5 verified", flush=True)
                continue
            if path.exists() and (linked or name not in ours):
                raise UserError(
                    f"{path} is not the archive of {source.dataset} and not this project's to replace: "
                    f"{'let the link point to another folder' if linked else 'move it away'}, then run the command again."
                )
            _fetch_archive(source.dataset, path, md5, mirrors)
            # Written after each archive, so that after a kill the manifest says which archives are this project's.
            ours[name] = _described(path)
            write_json(raw / MANIFEST, {"dataset": source.dataset, "files": ours})
        files = {name: _described(raw / name) for name, _ in source.archives}
        for name in ours.keys() - files.keys():
            if not linked and _matches(raw / name, ours[name]["md5"]):
                (raw / name).unlink()
        write_json(raw / MANIFEST, manifest := {"dataset": source.dataset, "files": files})
    return manifest


@contextlib.contextmanager
def _locked(raw: Path) -> Iterator[None]:
    """Makes `raw` and holds its lock, which the kernel releases when the process ends. Turns errors of the local disk into UserErrors."""
    with contextlib.ExitStack() as stack:
        try:
            raw.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(raw, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise UserError(f"Another fetch is writing {raw}: wait until it ends, then run the command again.") from None
        except OSError as error:
            path, full = error.filename or raw, error.errno in _DISK_FULL
            fault = f"The disk is full ({path} cannot be written)" if full else f"{path} cannot be written ({error.strerror or error})"
            raise UserError(f"{fault}: {'free some space' if full else 'mend that'}, then run the command again.") from None


def _recorded(path: Path, linked: bool) -> dict[str, dict[str, Any]]:
    """The files that the manifest lists; none if it is missing or damaged. Raises UserError if it may be the user's own file."""
    try:
        manifest = json.loads(path.read_bytes())
        files = {str(name): {"md5": str(file["md5"]), "size": int(file["size"])} for name, file in manifest["files"].items()}
        if manifest.keys() == {"dataset", "files"} and all(Path(name).name == name for name in files):
            return files
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    if linked:
        raise UserError(f"{path} was not written by this project, so it stays: let the link point to another folder.")
    return {}


def _matches(path: Path, md5: str) -> bool:
    """Whether a file is the archive with this md5, or packs the same content."""
    if not path.is_file() or _described(path)["md5"] == md5:
        return path.is_file()
    try:
        return md5 in _CONTENTS and hashlib.md5(gzip.decompress(path.read_bytes()), usedforsecurity=False).hexdigest() == _CONTENTS[md5]
    except (OSError, EOFError, zlib.error):
        return False


def _described(path: Path) -> dict[str, Any]:
    return {"md5": pooch.file_hash(path, alg="md5"), "size": path.stat().st_size}


class _Fault(Exception):
    """Why a mirror did not deliver."""


def _fetch_archive(dataset: str, path: Path, md5: str, mirrors: list[str]) -> None:
    """Fetches one archive to `path` and verifies it. A silent mirror moves to the end of `mirrors`, so that it costs time only once."""
    reasons = []
    for mirror in tuple(mirrors):
        try:
            with replacing(path) as temporary:
                _download(mirror, path.name, temporary)
                if not _matches(temporary, md5):
                    page = temporary.read_bytes()[:2] not in (b"", b"\x1f\x8b")
                    raise _Fault("wrong md5" + ", no gzip archive: perhaps a log-in or error page" * page)
            print(f"{path.name}: {path.stat().st_size:,} bytes from {mirror}, md5 verified", flush=True)
            return
        except (_Fault, TimeoutError) as fault:
            reasons.append(f"{mirror}: {fault}")
            print(f"{path.name}: {mirror}: {fault}", flush=True)
            if isinstance(fault, TimeoutError):
                mirrors.append(mirrors.pop(mirrors.index(mirror)))
    raise UserError(
        f"{path.name} of {dataset} could not be fetched ({'; '.join(reasons)}): name a place that has it with "
        "`MNIST_MIRROR=<directory or URL> dvc repro`, or run `make demo`, which needs no network."
    )


def _download(mirror: str, name: str, path: Path) -> None:
    """Writes a mirror's file to `path`.

    The download runs in a thread, because pooch's time-out covers one address and one read only. It does not end a slow name lookup,
    attempts at many dead addresses, or a header that arrives byte by byte. An abandoned thread finds its file closed and ends.
    """
    errors: list[BaseException] = []
    with path.open("wb") as file:
        thread = threading.Thread(target=_transfer, args=(mirror, name, file, errors), daemon=True)
        thread.start()
        since, size, mark = time.monotonic(), 0, 0
        while thread.is_alive() and size <= _MAX_BYTES and time.monotonic() - since < _STALL_SECONDS:
            thread.join(0.05)
            size = os.fstat(file.fileno()).st_size
            if size - mark >= _MIN_BYTES:
                since, mark = time.monotonic(), size
        error = errors[0] if errors else None
        if size > _MAX_BYTES:
            raise _Fault(f"sent more than {_MAX_BYTES:,} bytes")
        if thread.is_alive() or isinstance(error, TimeoutError):
            raise TimeoutError(f"{f'stalled at byte {size:,}' if size else 'no answer'} within {_STALL_SECONDS:.3g} s")
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise error
        if error:
            raise _Fault(_reason(error))


def _transfer(mirror: str, name: str, file: IO[bytes], errors: list[BaseException]) -> None:
    """Writes a mirror's file to `file`. An error goes into `errors`, without the errors that requests wraps around it."""
    with contextlib.ExitStack() as opened:

        def prepare(response: Any, **_: Any) -> None:
            opened.callback(response.close)  # pooch leaves it open after an error
            # Some servers declare the archive's own gzip as the response's encoding, and requests would unpack it.
            response.raw.headers.discard("Content-Encoding")

        try:
            address = urlsplit(mirror)
            if address.scheme in ("http", "https"):
                options = {"headers": {"Accept-Encoding": "identity"}, "hooks": {"response": prepare}}
                trusted = os.environ.get("SSL_CERT_FILE") or True
                download = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=_STALL_SECONDS, verify=trusted, **options)
                return download(f"{mirror.rstrip('/')}/{name}", file, None)
            directory = urllib.request.url2pathname(address.path) if address.scheme == "file" else os.path.expanduser(mirror)
            if not os.path.isdir(directory):
                raise _Fault(f"there is no directory {os.path.abspath(directory)}")
            stem = name.removesuffix(".gz")
            spelled = [name, stem, stem.replace("-idx", ".idx"), name.replace("-idx", ".idx")]
            found = next((path for path in (os.path.join(directory, one) for one in spelled) if os.path.isfile(path)), None)
            if found is None:
                raise _Fault(f"there is no {' or '.join(spelled)} in {os.path.abspath(directory)}")
            packing = contextlib.nullcontext(file) if found.endswith(".gz") else gzip.GzipFile("", "wb", fileobj=file, mtime=0)
            with open(found, "rb") as archive, packing as packed:
                shutil.copyfileobj(archive, packed)
        except Exception as error:
            cause: BaseException = error
            while inner := cause.__cause__ or cause.__context__:
                cause = inner
            errors.append(cause)


def _reason(error: BaseException) -> str:
    """A few words on an error of the network or a directory."""
    if isinstance(error, socket.gaierror):
        return "its host name cannot be resolved"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    if isinstance(error, _Fault):
        return str(error)
    response = getattr(error, "response", None)  # of requests' HTTPError
    if response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    return getattr(error, "strerror", None) or repr(error)
