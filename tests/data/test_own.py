"""Data of one's own, and CIFAR-10: what the files have is what networks get, and what does not fit is refused in one sentence."""

import hashlib
import io
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, ImageFolder

from pipeline.data.datasets import Dataset, load, prepare
from pipeline.data.fetch import MANIFEST, fetch, is_noted, note, source
from pipeline.params import DataSettings, parse
from pipeline.system.errors import UserError

RNG = np.random.default_rng(0)
NPZ = DataSettings(dataset="npz", path="own.npz", size=12, channels=1, classes=3)


def arrays(channels: int = 1) -> dict[str, Any]:
    """An own data set of images of 12 x 12."""
    shape = (12, 12) if channels == 1 else (channels, 12, 12)
    return {
        f"{split}_{what}": RNG.integers(256, size=(count, *shape), dtype=np.uint8) if what == "images" else np.arange(count) % 3
        for split, count in (("train", 9), ("test", 6))
        for what in ("images", "labels")
    }


def read(data: DataSettings, folder: Path) -> Dataset:
    note(data, folder / "raw")
    prepare(data, folder / "raw", folder / "arrays")
    return load(folder / "arrays")


def assert_refused(data: DataSettings, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read(data, Path())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("channels", "last"), [(1, False), (3, False), (3, True)])
def test_the_arrays_of_an_npz(here: Path, channels: int, last: bool) -> None:
    given = arrays(channels)
    np.savez("own.npz", **{name: np.moveaxis(of, 1, 3) if last and of.ndim > 1 else of for name, of in given.items()})
    found = read(NPZ.model_copy(update={"channels": channels}), here)
    for name, of in given.items():
        assert np.array_equal(getattr(found, name), of)
        assert getattr(found, name).dtype == np.uint8


def test_a_file_that_is_no_npz_does_not_fit_or_has_changed(here: Path) -> None:
    assert_refused(NPZ, r"there is no file .*own\.npz")
    np.savez("own.npz", **arrays() | {"train_images": arrays()["train_images"] / 255})
    assert_refused(NPZ, r"gives .* is expected")
    np.savez("own.npz", **arrays() | {"train_labels": np.arange(9) // 3})
    assert_refused(NPZ, r"train_labels are sorted by class, but validation takes")
    np.savez("own.npz", **arrays() | {"test_labels": np.array([2, 2, 0, 0, 1, 1])})
    assert_refused(NPZ, r"test_labels are sorted by class, but some measures")
    np.savez("own.npz", **arrays() | {"test_labels": np.array([object()])})
    assert_refused(NPZ, r"own\.npz cannot be read")
    Path("own.npz").write_bytes(b"PK\3\4 and no more")
    assert_refused(NPZ, r"own\.npz cannot be read")
    assert is_noted(NPZ, here / "raw")
    (here / "raw" / MANIFEST).write_text('{"dataset": "np')
    assert not is_noted(NPZ, here / "raw")
    note(NPZ, here / "raw")
    Path("own.npz").write_bytes(b"another")
    assert not is_noted(NPZ, here / "raw")
    with pytest.raises(UserError, match="dvc repro --force fetch"):
        prepare(NPZ, here / "raw", here / "arrays")


def picture(path: Path, size: tuple[int, int], mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(256, size=(*size, 3), dtype=np.uint8)).convert(mode).save(path)


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_a_folder_with_a_test_is_what_torchvision_reads(here: Path, channels: int, mode: str) -> None:
    for part, count in (("train", 3), ("test", 2)):
        for kind in ("cat", "dog", "emu"):
            for number in range(count):
                picture(here / "animals" / part / kind / f"{number}.png", (16, 16))
    data = DataSettings(dataset="folder", path="animals", size=16, channels=channels, classes=3)
    found = read(data, here)
    for part in ("train", "test"):
        theirs = ImageFolder(str(here / "animals" / part), loader=lambda path: Image.open(path).convert(mode))
        ours = np.asarray(getattr(found, f"{part}_images"))
        expected = np.stack([np.asarray(image).reshape(16, 16, channels).transpose(2, 0, 1) for image, _ in theirs])
        mixed = np.random.default_rng(0).permutation(len(expected))
        assert np.array_equal(ours.reshape(expected.shape), expected[mixed])
        assert getattr(found, f"{part}_labels").tolist() == [theirs.targets[place] for place in mixed]
    first, exif = here / "animals/train/cat/0.png", Image.Exif()
    exif[0x0112] = 6  # of a phone: it lies on its side
    Image.open(first).transpose(Image.Transpose.ROTATE_90).save(first, exif=exif)
    assert np.array_equal(read(data, here).train_images, found.train_images)


def test_a_folder_without_a_test_keeps_a_fifth_of_each_class(here: Path) -> None:
    for kind, count in (("cat", 10), ("dog", 5)):
        for number in range(count):
            picture(here / "animals" / kind / f"{number}.jpg", (24, 40))  # the middle square is read
    data = DataSettings(dataset="folder", path="animals", size=8, channels=3, classes=2)
    shutil.copytree(here / "animals/cat", here / "animals/cat/.ipynb_checkpoints")
    found = read(data, here)
    assert (found.train_images.shape, found.test_images.shape) == ((12, 3, 8, 8), (3, 3, 8, 8))
    assert np.bincount(found.test_labels).tolist() == [2, 1]
    assert_refused(data.model_copy(update={"classes": 5}), r"data\.classes: .* has 2 folders of classes; write 2\.")
    for name, kind in (("train", "cat"), ("val", "dog"), ("test", "cat")):
        picture(here / "three" / name / kind / "0.png", (8, 8))
        picture(here / "parts" / {"train": "Training", "test": "Testing"}.get(name, "Training") / kind / "0.png", (8, 8))
    assert_refused(data.model_copy(update={"path": "three"}), r"beside .*three/train lies test, val; leave one")
    assert_refused(data.model_copy(update={"path": "parts"}), r"beside .*parts/Training lies Testing; leave one")
    picture(here / "within/cat/Test/0.png", (9, 9))
    assert_refused(data.model_copy(update={"path": "within"}), r"within/cat/Test/0\.png is of a part inside a class")
    shutil.rmtree(here / "three" / "val")
    picture(here / "three/test/dogs/0.png", (8, 8))
    assert_refused(data.model_copy(update={"path": "three"}), "has no pictures of dogs in both of train and test")
    shutil.rmtree(here / "three/test/dogs")
    picture(here / "three/train/overview.png", (8, 8))
    assert_refused(data.model_copy(update={"path": "three"}), r"train/overview\.png lies in no class's folder")
    (here / "animals/cat/more").symlink_to(here / "animals/dog")
    assert_refused(data, r"cat/more is a link to a folder")
    (here / "animals/cat/more").unlink()
    Image.fromarray(np.full((8, 8), 60_000, np.uint16)).save(here / "animals/cat/deep.png")
    assert_refused(data, r"cat/deep\.png has 16 or 32 bits")
    (here / "animals/cat/deep.png").unlink()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(here / "animals/cat/clear.png")
    assert_refused(data, r"cat/clear\.png is transparent")
    (here / "animals/cat/clear.png").unlink()
    (here / "animals/dog/0.jpg").write_bytes(b"no picture")
    assert_refused(data, r"dog/0\.jpg is no picture")
    assert_refused(data.model_copy(update={"path": "nowhere"}), "there is no folder")
    assert_refused(data.model_copy(update={"path": "raw"}), "has no folder of images")


def test_cifar10_as_torchvision_reads_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has few images; its md5 and those of its members take the place of the published ones in torchvision's own class."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:

        def add(name: str, value: object) -> list[str]:
            packed = pickle.dumps(value)
            member = tarfile.TarInfo(f"{CIFAR10.base_folder}/{name}")
            member.size = len(packed)
            archive.addfile(member, io.BytesIO(packed))
            return [name, hashlib.md5(packed).hexdigest()]

        def batch(name: str) -> list[str]:
            return add(name, {"data": RNG.integers(256, size=(4, 3072), dtype=np.uint8), "labels": RNG.permutation(10)[:4].tolist()})

        train = [batch(f"data_batch_{number}") for number in (1, 2, 3, 4, 5)]
        monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch")])
        meta = add("batches.meta", {"label_names": list("abcdefghij")})
    (here / "place").mkdir()
    (here / "place" / CIFAR10.filename).write_bytes(content.getvalue())
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(content.getvalue()).hexdigest())
    fetch(source("cifar10", str(here / "place")), here / "raw")
    prepare(DataSettings(dataset="cifar10"), here / "raw", here / "arrays")
    found = load(here / "arrays")
    with tarfile.open(here / "place" / CIFAR10.filename) as packed:
        packed.extractall(here / "place", filter="data")
    for split in ("train", "test"):
        theirs = CIFAR10(here / "place", train=split == "train")
        assert np.array_equal(getattr(found, f"{split}_images"), theirs.data.transpose(0, 3, 1, 2))
        assert getattr(found, f"{split}_labels").tolist() == theirs.targets


def test_size_and_classes_of_own_data_reach_the_key_and_their_place_does_not(raw_params: dict[str, Any]) -> None:
    def key(**change: Any) -> str:
        data = {"dataset": "npz", "path": "a.npz", "size": 28, "channels": 1, "classes": 10, **change}
        raw = raw_params | {"data": data, "variants": {"base": {}}, "experiments": {}, "timing": raw_params["timing"] | {"tokens": [1, 4]}}
        return parse(raw).resolve("base").training_hash

    keys = [key(), key(classes=11), key(channels=3), key(size=56)]
    assert len(set(keys)) == 4
    assert key(path="elsewhere/b.npz") == keys[0]
