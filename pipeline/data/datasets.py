"""The data sets as arrays, made once from the archives and verified on every load."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import pickle
import shutil
import struct
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.params import DataSettings
from pipeline.system.errors import UserError

ARRAYS = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
_DESCRIPTION = "dataset.json"
_TEST_SHARE = 0.2  # of a data set that comes without a split
_SPLIT_SEED = 0

Array = NDArray[np.uint8]


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        train_images: (n, height, width) uint8, 0 is background; (n, channel, height, width) if there are several channels.
        train_labels: (n,) uint8, of more than 256 classes uint16; classes from 0 on.
        test_images: (m, ...) uint8.
        test_labels: (m,), as the others.
        digest: sha256 over the four arrays' sha256, 64 hexadecimal digits.
    """

    name: str
    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    digest: str


def load(directory: Path = Path("data/arrays")) -> Dataset:
    """Loads the arrays that `prepare` wrote, each verified by its sha256, shape and dtype.

    Raises:
        UserError: a file is missing or damaged; the sentence names it and the command that builds it again.
    """
    description = _describe(directory)
    arrays = {}
    for name in ARRAYS:
        path = directory / f"{name}.npy"
        expected = description["arrays"][name]
        content = _read(path)
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise _damaged(path)
        array = np.load(io.BytesIO(content), allow_pickle=False)
        if list(array.shape) != expected["shape"] or str(array.dtype) != expected["dtype"]:
            raise _damaged(directory / _DESCRIPTION)
        arrays[name] = array
    return Dataset(name=description["name"], digest=description["digest"], **arrays)


def data_digest(directory: Path = Path("data/arrays")) -> str:
    """The data set's digest as `prepare` recorded it, without reading the arrays. Raises UserError as `load` does."""
    digest: str = _describe(directory)["digest"]
    return digest


def prepare(data: DataSettings, raw: Path, out: Path) -> dict[str, Any]:
    """Writes the data set's arrays and `dataset.json` to `out`, which is replaced as a whole.

    Args:
        data: names the `reader`, which is called with the folder of the files, the md5 of each by name, and `data`; it returns the four
            arrays.
        raw: the manifest, as `fetch` wrote it, and the archives.
        out: gets train_images.npy, train_labels.npy, test_images.npy, test_labels.npy and dataset.json.

    Returns:
        The content of dataset.json: "name"; "arrays": {array: {"shape", "dtype", "sha256" of its file}}; "class_counts":
        {"train", "test"}, a number per class; "pixel_mean" and "pixel_std" of the training images in [0, 1]; "digest".

    Raises:
        UserError: an archive is missing, damaged or does not fit the data set, or `out` cannot be written.
    """
    if not data.source.reader.startswith("pipeline.data."):
        raise UserError(f"{data.source.reader} is not in pipeline/data, so no stage would notice an edit of it: move its module there.")
    folder, checksums = _manifest(raw, data.dataset)
    arrays: dict[str, Array] = resolve_name(data.source.reader)(folder, checksums, data)
    _check(data, arrays)
    contents = {name: _npy(array) for name, array in arrays.items()}
    described = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": hashlib.sha256(contents[name]).hexdigest()}
        for name, array in arrays.items()
    }
    mean, std = _statistics(arrays["train_images"])
    description = {
        "name": data.dataset,
        "arrays": described,
        "class_counts": {
            split: np.bincount(arrays[f"{split}_labels"], minlength=data.shape.classes).tolist() for split in ("train", "test")
        },
        "pixel_mean": mean,
        "pixel_std": std,
        "digest": _digest(described),
    }
    try:
        _replace(out, {f"{name}.npy": content for name, content in contents.items()} | {_DESCRIPTION: _json(description)})
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): mend that, then run the command again.") from None
    return description


def _check(data: DataSettings, arrays: dict[str, Any]) -> None:
    """Raises UserError where a reader's arrays are not as `Dataset` has them; the sentence says what was found and what is expected."""
    of, (size, channels, classes, words) = data.source, data.shape
    own = (data.label, "the file", "`data` in params.yaml")
    who = own if of.shape is None else (of.reader, "the reader", "the entry in pipeline/params/data.py")

    def expect(right: bool, expected: str, found: object) -> None:
        if not right:
            raise UserError(f"{who[0]} gives {found} for {data.dataset}, but {expected} is expected: mend {who[1]}, or {who[2]}.")

    expect(not of.nouns or (classes < 128 and words < 256), "at most 127 classes and 255 words of captions", f"{classes} and {words}")
    expect(
        isinstance(arrays, dict) and arrays.keys() == ARRAYS.keys(),
        " ".join(ARRAYS),
        " ".join(map(str, arrays)) if isinstance(arrays, dict) else type(arrays).__name__,
    )
    for name, array in arrays.items():
        of_images = np.dtype(np.uint8), (*((channels,) if channels > 1 else ()), size, size)
        kind, each = (np.min_scalar_type(classes - 1), ()) if name.endswith("labels") else of_images
        is_array = isinstance(array, np.ndarray) and array.ndim > 0
        found = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
        right = is_array and (array.dtype, array.shape[1:]) == (kind, each) and len(array) > 0
        expect(right, f"{name} of {kind}, each of shape {each}", found)
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        expect(len(images) == len(labels), f"a {split} label for each image", f"{len(labels)} for {len(images)}")
        least, most = int(labels.min()), int(labels.max())
        expect(most < classes and (split == "test" or not least), f"{split}_labels from 0 to {classes - 1}", f"{least} to {most}")


def read_idx(packed: bytes, num_dimensions: int, path: Path) -> Array:
    """Decodes a gzipped idx file of unsigned bytes into an array of `num_dimensions` dimensions; `path` names it.

    The format is that of Y. LeCun's MNIST page: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
    dimension's size as four big-endian bytes, then the values in row-major order.

    Raises:
        UserError: it is damaged or of another kind.
    """
    header = 4 + 4 * num_dimensions
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is no intact gzip file ({error}): run `dvc repro --force fetch`.") from None
    if len(content) < header or content[:4] != bytes([0, 0, 8, num_dimensions]):
        raise UserError(f"{path} holds no idx array of unsigned bytes in {num_dimensions} dimensions: run `dvc repro --force fetch`.")
    shape = struct.unpack_from(f">{num_dimensions}I", content, 4)
    if len(content) - header != math.prod(shape):
        raise UserError(f"{path} announces {math.prod(shape):,} values and holds {len(content) - header:,}: run `dvc repro --force fetch`.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _manifest(raw: Path, dataset: str) -> tuple[Path, dict[str, str]]:
    """The folder of a data set's files, and the md5 of each, as `fetch` has seen them."""
    path = raw / "manifest.json"
    again = "run `dvc repro --force fetch`, then `dvc repro`"
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["dataset"] != dataset:
            raise UserError(f"{raw} holds the data set {manifest['dataset']!r}, not {dataset!r}: {again}.")
        return Path(manifest.get("folder", raw)), {str(file): str(of["md5"]) for file, of in manifest["files"].items()}
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {again}.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged: {again}.") from None


def verified(path: Path, md5: str | None) -> bytes:
    """A file's content. Raises UserError if its md5 is not that of the manifest."""
    content = _read(path)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(f"{path} is damaged or another (its md5 is not the manifest's): run `dvc repro --force fetch`, then `dvc repro`.")
    return content


def read_archives(folder: Path, checksums: dict[str, str], data: DataSettings) -> dict[str, Array]:
    """The four arrays of MNIST's format."""
    return {
        name: read_idx(verified(folder / file, checksums.get(file)), 3 if "images" in name else 1, folder / file)
        for name, file in ARRAYS.items()
    }


def read_cifar10(folder: Path, checksums: dict[str, str], data: DataSettings) -> dict[str, Array]:
    """CIFAR-10's archive: six pickled batches, whose images are rows of 3 x 32 x 32 bytes."""
    (name,) = checksums
    content = verified(folder / name, checksums[name])  # unpickled as it was published
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        parts = {Path(one.name).name: archive.extractfile(one) for one in archive if one.isfile() and "_batch" in one.name}
        batches = {name: pickle.load(part, encoding="latin1") for name, part in parts.items() if part}
    splits = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    arrays = {}
    for split, names in splits.items():
        arrays[f"{split}_images"] = np.concatenate([batches[name]["data"] for name in names]).reshape(-1, 3, 32, 32)
        arrays[f"{split}_labels"] = np.concatenate([batches[name]["labels"] for name in names]).astype(np.uint8)
    return arrays


def read_digits(folder: Path, checksums: dict[str, str], data: DataSettings) -> dict[str, Array]:
    """scikit-learn's 1,797 digits, 8 x 8 pixels of 0 to 16, as 28 x 28 pixels of 0 to 255, with a fixed stratified split."""
    from PIL import Image
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # (image, 8, 8)
    # Pillow resamples bytes in integer arithmetic, so the result is the same on every machine.
    side = data.shape.size
    images = np.stack([np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)) for image in small])
    return split(images, bunch.target.astype(np.uint8))


def split(images: Array, labels: Array) -> dict[str, Array]:
    """A fixed fifth of each class as test images. Raises ValueError where a class has too few."""
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(labels)), test_size=_TEST_SHARE, stratify=labels, random_state=_SPLIT_SEED)
    return {"train_images": images[train], "train_labels": labels[train], "test_images": images[test], "test_labels": labels[test]}


def pixel_statistics(images: Array) -> tuple[list[float], list[float]]:
    """Mean and population standard deviation of each channel in [0, 1]; images as `Dataset` has them."""
    mean, std = zip(*(_statistics(channel) for channel in ([images] if images.ndim == 3 else images.swapaxes(0, 1))), strict=True)
    return list(mean), list(std)


def _statistics(images: Array) -> tuple[float, float]:
    """Mean and population standard deviation in [0, 1], from exact integer sums."""
    counts = np.bincount(images.reshape(-1), minlength=256)
    values = np.arange(256)
    total, squares, count = int(counts @ values), int(counts @ values**2), images.size
    return total / count / 255, math.sqrt(squares * count - total**2) / count / 255


def _digest(described: dict[str, dict[str, Any]]) -> str:
    """sha256 over the four arrays' sha256, in the order of ARRAYS."""
    return hashlib.sha256("".join(described[name]["sha256"] for name in ARRAYS).encode()).hexdigest()


def _describe(directory: Path) -> dict[str, Any]:
    """The content of dataset.json. Raises UserError if it does not match its digest."""
    path = directory / _DESCRIPTION
    try:
        description: dict[str, Any] = json.loads(_read(path))
        intact = description["digest"] == _digest(description["arrays"]) and isinstance(description["name"], str)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise _damaged(path)
    return description


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro --force prepare` to build it.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): mend that, or run `dvc repro --force prepare` to build it again."
        ) from None


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged (its content is not what was prepared): run `dvc repro --force prepare` to build it again.")


def _npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _replace(directory: Path, files: dict[str, bytes]) -> None:
    """Replaces `directory` by one with these files. A kill leaves the old directory, none, or the new one."""
    unfinished = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        for name, content in files.items():
            with (unfinished / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if directory.exists():
            shutil.rmtree(directory)
        unfinished.rename(directory)
    except OSError:
        # If the disk is full, this frees its space.
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
