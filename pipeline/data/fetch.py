"""Fetches a data set's archives into `data/raw` and verifies their md5. torchvision knows places and checksums, pooch downloads.

Of data of one's own it writes down what is there.
"""

import contextlib
import errno
import gzip
import hashlib
import json
import os
import shutil
import urllib.request
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.data import own
from pipeline.params import DATASETS, DataSettings
from pipeline.system.errors import UserError, first_line
from pipeline.system.files import replacing, write_json

MANIFEST = "manifest.json"
_TIMEOUT = 10.0  # seconds without a byte, after which the next mirror is asked
# Archives by their md5, and the md5 of what is in each: other places offer it unpacked, or packed anew. First MNIST, then Fashion-MNIST.
_CONTENTS = {
    "f68b3c2dcbeaaa9fbdd348bbdeb94873": "6bbc9ace898e44ae57da46a324031adb",
    "d53e105ee54ea40749a09fcbcd1e9432": "a25bea736e30d166cdddb491f175f624",
    "9fb629c4189551a2d022fa330f9573f3": "2646ac647ad5339dbf082846283269ea",
    "ec29112dd5afa0611ce80d1b7f02629c": "27ae3e4e09519cfbb04c329615203637",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "25c81989df183df01b3e8a0aad5dffbe": "9018921c3c673c538a1fc5bad174d6f9",
    "bef4ecab320f06d8554ea6380940ec79": "8181f5470baa50b63fa0f6fddb340f0a",
    "bb300cfdad3c16e7a12a480ee83cd310": "15d484375f8d13e6eb1aabb0c3f46965",
}


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


def source(dataset: str, path: str | None = None) -> Source:
    """The source of a data set: torchvision's mirrors and checksums, or no files.

    Args:
        path: a directory or an address, tried before the public mirrors. None: the environment variable `MNIST_MIRROR`.
    """
    name = DATASETS[dataset].torchvision
    if name is None:
        return Source(dataset, (), ())
    import torchvision.datasets

    published = getattr(torchvision.datasets, name)
    first = path or os.environ.get("MNIST_MIRROR", "").strip()
    places = (first,) if first else ()
    if not hasattr(published, "mirrors"):  # one archive at one address
        return Source(dataset, (*places, published.url.rpartition("/")[0]), ((published.filename, published.tgz_md5),))
    return Source(dataset, (*places, *published.mirrors), tuple(published.resources))


def note(data: DataSettings, raw: Path) -> dict[str, Any]:
    """Writes the manifest of one's own data, which stay where they are, to the directory `raw`.

    Returns:
        The manifest, see `fetch`, with "folder", in which the files lie.

    Raises:
        UserError: there are none.
    """
    manifest = _manifest(data)
    write_json(raw / MANIFEST, manifest)
    read = there = len(manifest["files"])
    if data.dataset == "folder":
        there = sum(file.is_file() for file in Path(manifest["folder"]).glob("*/**/*"))
    others = f"; {there - read:,} others are no pictures by their names or lie in hidden folders, and are left out" * (there > read)
    print(f"{manifest['folder']}: {read:,} file{'s' * (read > 1)}{others}")
    return manifest


def is_noted(data: DataSettings, raw: Path) -> bool:
    """Whether `note` would write what the directory `raw` has; of data that lie elsewhere DVC cannot know it. Raises as `note` does."""
    path = raw / MANIFEST
    manifest = _manifest(data)
    with contextlib.suppress(ValueError):  # damaged: it is to be written again
        return path.is_file() and bool(json.loads(path.read_bytes()) == manifest)
    return False


def _manifest(data: DataSettings) -> dict[str, Any]:
    folder, names = own.files(data)
    return {"dataset": data.dataset, "folder": str(folder), "files": _described(folder, names)}


def _described(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {name: {"md5": _md5(folder / name), "size": (folder / name).stat().st_size} for name in names}


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def fetch(source: Source, raw: Path) -> dict[str, Any]:
    """Puts the source's archives and `manifest.json` into the directory `raw`; a verified archive is not fetched again.

    Other files there stay. If `raw` is a symbolic link, its files belong to the user, and none is replaced.

    Returns:
        The manifest: {"dataset", "files": {name: {"md5", "size" in bytes}}}.

    Raises:
        UserError: no mirror delivers an archive, or a file of the user is in the way.
    """
    for name, md5 in source.archives:
        path = raw / name
        if _matches(path, md5):
            print(f"{name}: already here, md5 verified")
        elif path.exists() and raw.is_symlink():
            raise UserError(f"{path} is not the archive of {source.dataset}: let the link {raw} point to another folder.")
        else:
            _fetch_archive(source, path, md5)
    manifest = {"dataset": source.dataset, "files": _described(raw, (name for name, _ in source.archives))}
    write_json(raw / MANIFEST, manifest)
    return manifest


def _matches(path: Path, md5: str) -> bool:
    """Whether a file is the archive with this md5, or packs the same content."""
    if not path.is_file() or _md5(path) == md5:
        return path.is_file()
    try:
        return md5 in _CONTENTS and hashlib.md5(gzip.decompress(path.read_bytes()), usedforsecurity=False).hexdigest() == _CONTENTS[md5]
    except (OSError, EOFError, zlib.error):
        return False


def _fetch_archive(source: Source, path: Path, md5: str) -> None:
    """Fetches one archive from the first mirror that has it, and verifies it."""
    reasons = []
    for mirror in source.mirrors:
        try:
            with replacing(path) as temporary:
                _copy(mirror, path.name, temporary)
                if not _matches(temporary, md5):
                    raise ValueError("what it has there has another md5")
            print(f"{path.name}: {path.stat().st_size:,} bytes from {mirror}, md5 verified")
            return
        except (OSError, ValueError) as error:  # requests' errors are of these classes
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):  # the disk's, which no mirror mends
                raise
            reasons.append(f"{mirror}: {first_line(error)}")
            print(f"{path.name}: {reasons[-1]}")
    more = len(reasons) - 1
    others = f"; nor from {more} other place{'s' * (more > 1)}, see above" if more else ""
    raise UserError(
        f"{path.name} of {source.dataset} could not be fetched ({reasons[0]}{others}): name a folder or an address that has it, "
        "as `path` under `data:` of params.yaml, or in the environment as MNIST_MIRROR."
    )


def _copy(mirror: str, name: str, path: Path) -> None:
    """Writes a mirror's file to `path`, packed where it lies unpacked. Raises OSError or ValueError where it cannot be had."""
    address = urlsplit(mirror)
    if address.scheme in ("http", "https"):
        import pooch  # a machine with a GPU and without a network has none

        # Some servers declare the archive's own gzip as the response's encoding, and requests would unpack it.
        kept = {"response": lambda response, **_: response.raw.headers.discard("Content-Encoding")}
        download = pooch.HTTPDownloader(timeout=_TIMEOUT, headers={"Accept-Encoding": "identity"}, hooks=kept)
        download(f"{mirror.rstrip('/')}/{name}", path, None)
        return
    directory = Path(urllib.request.url2pathname(address.path) if address.scheme == "file" else os.path.expanduser(mirror))
    stem = name.removesuffix(".gz")
    spelled = [name, stem, stem.replace("-idx", ".idx"), name.replace("-idx", ".idx")]
    # Kaggle's archive has a folder for each file, torchvision MNIST/raw.
    found = next(
        (file for one in spelled for below in ("", "*/", "*/*/") for file in sorted(directory.glob(below + one)) if file.is_file()), None
    )
    if found is None:
        raise FileNotFoundError(f"no {' or '.join(spelled)} in {directory.absolute()}")
    with found.open("rb") as archive, path.open("wb") as file:
        if found.suffix == ".gz":
            shutil.copyfileobj(archive, file)
        else:
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                shutil.copyfileobj(archive, packed)
