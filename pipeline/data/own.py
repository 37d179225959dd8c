"""Data of one's own: a folder of images, and a file of arrays. What they give is checked as every reader's (`datasets.prepare`)."""

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from pipeline.data.datasets import ARRAYS, Array, split, verified
from pipeline.params import DataSettings
from pipeline.system.errors import UserError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_TEST = ("test", "val", "valid", "validation")


def files(data: DataSettings) -> tuple[Path, list[str]]:
    """The folder of a data set's files, and their names in it, in order. Raises UserError if there are none."""
    path = Path(data.path or "").expanduser().resolve()
    if data.dataset == "npz":
        if not path.is_file():
            raise UserError(f"data.path: there is no file {path}.")
        return path.parent, [path.name]
    if not path.is_dir():
        raise UserError(f"data.path: there is no folder {path}.")
    there = [*path.glob("*/**/*")]
    if linked := next((file for file in there if file.is_symlink() and file.is_dir()), None):  # whose files a glob leaves out
        raise UserError(f"data.path: {linked} is a link to a folder, into which nothing looks: copy the folder there.")
    found = (file.relative_to(path) for file in there if file.suffix.lower() in SUFFIXES and file.is_file())
    # Jupyter keeps copies in .ipynb_checkpoints, which would be in training and in the test.
    names = sorted(file.as_posix() for file in found if not any(part.startswith(".") for part in file.parts))
    if not names:
        raise UserError(f"data.path: {path} has no folder of images for each class ({', '.join(SUFFIXES)}).")
    return path, names


def read_folder(folder: Path, checksums: dict[str, str], data: DataSettings) -> dict[str, Array]:
    """The images of CLASS/NAME, or of train/CLASS/NAME and test/CLASS/NAME, as torchvision's ImageFolder has them.

    The middle square of each is scaled to the side that `data` names. The classes are the folders' names in order. Without a folder for
    the test a fixed fifth of each class is it.
    """
    parts, classes = _parts(checksums)
    depth = len(parts) - 1
    nested = sorted({name.split("/")[0] for name in checksums if name.count("/") > 1})
    if not depth and (train := next((top for top in nested if top.lower().startswith("train")), None)):
        others = ", ".join(name for name in classes if name != train)
        raise UserError(
            f"data.path: beside {folder}/{train} lies {others or 'no folder of the test'}; leave one of each, called train and test, or the"
            " folders of the classes alone."
        )
    deeper = (name.split("/") for name in checksums if not depth and name.count("/") > 1)
    if mixed := next(("/".join(parts) for parts in deeper if parts[1].lower() in ("train", *_TEST)), None):
        raise UserError(f"data.path: {folder / mixed} is of a part inside a class; put classes into parts: train/CLASS and test/CLASS.")
    if loose := [name for name in checksums if name.count("/") <= depth]:
        raise UserError(f"{folder / loose[0]} lies in no class's folder: take it out.")
    in_parts = {(name.split("/")[0], name.split("/")[1]) for name in checksums if depth}
    if unpaired := [name for name in classes if depth and not {(part, name) for part in parts} <= in_parts]:
        raise UserError(
            f"data.path: {folder} has no pictures of {unpaired[0]} in both of {' and '.join(parts)}: rename its folder, or take it out."
        )
    if len(classes) < 2:
        raise UserError(f"data.path: {folder} has one folder of a class, and networks tell two or more apart: add another.")
    if len(classes) != data.shape.classes:
        raise UserError(f"data.classes: {folder} has {len(classes)} folders of classes; write {len(classes)}.")
    kind = np.min_scalar_type(len(classes) - 1)
    found: dict[str, Array] = {}
    for part in parts:
        names = [name for name in checksums if not depth or name.startswith(f"{part}/")]
        if depth:  # as `split` does: not class by class, because validation and probes take the last or the first images
            names = [names[place] for place in np.random.default_rng(0).permutation(len(names))]
        images = np.stack([_image(folder / name, verified(folder / name, checksums[name]), data) for name in names])
        labels = np.array([classes.index(name.split("/")[depth]) for name in names], kind)
        if not depth:
            try:
                return split(images, labels)
            except ValueError as error:
                raise UserError(f"{folder} has too few images for a test of a fifth of each class ({error}): add some.") from None
        found |= {f"{'train' if part == 'train' else 'test'}_{what}": of for what, of in (("images", images), ("labels", labels))}
    return found


def classes(raw: Path) -> list[str]:
    """The names of a folder's classes, by label; `raw` has its manifest."""
    return _parts(json.loads((raw / "manifest.json").read_bytes())["files"])[1]


def _parts(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The folders of training and test, or [""] where there are none, and the classes in their order."""
    tops = sorted({name.split("/")[0] for name in names})
    test = next((top for top in _TEST if top in tops), None)
    parts = ["train", test] if test and tops == sorted(["train", test]) else [""]
    return parts, sorted({name.split("/")[len(parts) - 1] for name in names})


def _image(path: Path, content: bytes, data: DataSettings) -> Array:
    """(size, size) uint8, of colours (3, size, size)."""
    from PIL import Image, ImageOps

    size, channels = data.shape[:2]
    try:
        with Image.open(io.BytesIO(content)) as file:
            picture = ImageOps.exif_transpose(file)  # a phone's may lie on its side
            if picture.mode[0] in "IF":  # `convert` would clip them at 255
                raise UserError(f"{path} has 16 or 32 bits for a pixel: write it with 8.")
            if picture.has_transparency_data and np.asarray(picture.convert("LA"))[..., 1].min() < 255:  # it would show what lies below
                raise UserError(f"{path} is transparent in places: draw it on a ground of one colour.")
            square = ImageOps.fit(picture.convert("L" if channels == 1 else "RGB"), (size, size), Image.Resampling.BICUBIC)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise UserError(f"{path} is no picture that can be read: mend it, or take it out of the folder.") from None
    pixels = np.asarray(square)
    return pixels if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_npz(folder: Path, checksums: dict[str, str], data: DataSettings) -> dict[str, Array]:
    """The arrays train_images, train_labels, test_images and test_labels.

    Images are (image, height, width), with channels before or after the two sides; labels may be of any type of whole numbers.
    """
    (name,) = checksums
    try:
        with np.load(io.BytesIO(verified(folder / name, checksums[name])), allow_pickle=False) as file:
            there = dict(file)
    except (OSError, ValueError, EOFError, AttributeError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{folder / name} cannot be read ({error}): write it with numpy.savez, without objects.") from None
    for what, of in there.items():
        if what.endswith("labels") and of.ndim == 1 and len(of) > data.shape.classes and 0 < (of[1:] != of[:-1]).sum() < data.shape.classes:
            taken = "validation takes the last images" if what == "train_labels" else "some measures look at the first images alone"
            raise UserError(f"{folder / name}: {what} are sorted by class, but {taken}: mix images and labels alike.")
    change: dict[str, Callable[[Array, DataSettings], Array]] = {"images": _images, "labels": _labels}
    return {name: change[name.split("_")[1]](array, data) if name in ARRAYS else array for name, array in there.items()}


def _images(images: Array, data: DataSettings) -> Array:
    size, channels = data.shape[:2]
    if images.shape[1:] == (size, size, channels):
        images = np.moveaxis(images, 3, 1)
    return images[:, 0] if images.shape[1:] == (1, size, size) else images


def _labels(labels: Array, data: DataSettings) -> Array:
    """Of the type that labels have here, where they fit it; what does not fit stays, to be refused."""
    kind = np.min_scalar_type(data.shape.classes - 1)
    fits = labels.dtype.kind in "iu" and labels.size and labels.min() >= 0 and labels.max() <= np.iinfo(kind).max
    return labels.astype(kind) if fits else labels
