import gzip
import hashlib
import json
from pathlib import Path

import pytest

from pipeline.data.fetch import MANIFEST, fetch
from pipeline.system.errors import UserError
from tests.helpers import flip_bit, free_port

NAME = "train-images-idx3-ubyte.gz"


def test_archives_are_verified_listed_and_not_fetched_again(archives, mirror, source_of, tmp_path):
    """Where a later one failed, was damaged or is gone, it alone is fetched."""
    raw, (first, *others) = tmp_path / "deep" / "raw", archives
    with pytest.raises(UserError):
        fetch(source_of(archives, mirror({first: archives[first]}).url), raw)
    assert contents(raw) == {first: archives[first]}
    server = mirror(archives)
    wanted = source_of(archives, server.url)
    manifest = fetch(wanted, raw)
    assert server.requests == others
    expected = {name: {"md5": hashlib.md5(content).hexdigest(), "size": len(content)} for name, content in archives.items()}
    assert manifest == json.loads((raw / MANIFEST).read_text()) == {"dataset": "mnist", "files": expected}
    flip_bit(raw / first)
    (raw / others[0]).unlink()
    server.requests.clear()
    fetch(wanted, raw)
    assert set(server.requests) == {first, others[0]}
    assert contents(raw) == archives
    server.requests.clear()
    fetch(wanted, raw)
    assert server.requests == []


@pytest.mark.parametrize(
    ("spelt", "address"),
    [("{}.idx{}-ubyte", "~/my mnist"), ("MNIST/raw/{}-ubyte.gz", "uri"), ("of {0}/{0}-ubyte", "path"), ("packed anew", "path")],
)
def test_a_folder_is_a_mirror_and_the_spellings_of_other_places_are_known_by_their_content(
    archives, source_of, tmp_path, spelt, address, monkeypatch
):
    there = tmp_path / "my mnist"
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = source_of(archives, {"uri": there.as_uri(), "path": str(there)}.get(address, address))
    contents = {md5: hashlib.md5(gzip.decompress(archives[name])).hexdigest() for name, md5 in wanted.archives}
    monkeypatch.setattr("pipeline.data.fetch._CONTENTS", contents)
    for name, content in archives.items():
        stem, kind = name.removesuffix("-ubyte.gz").split("-idx")
        file = spelt.format(stem, kind) if ".idx" in spelt else name if spelt == "packed anew" else spelt.format(f"{stem}-idx{kind}")
        path = there / file
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(gzip.decompress(content), 1) if spelt == "packed anew" else content
        path.write_bytes(packed if path.suffix == ".gz" or spelt == "packed anew" else gzip.decompress(content))
    manifest = fetch(wanted, tmp_path / "raw")
    assert fetch(wanted, tmp_path / "raw") == manifest
    assert all(gzip.decompress((tmp_path / "raw" / name).read_bytes()) == gzip.decompress(archives[name]) for name in archives)
    (tmp_path / "raw" / NAME).write_bytes(gzip.compress(b"others"))
    assert fetch(wanted, tmp_path / "raw") == manifest


@pytest.mark.parametrize("fault", ["flipped", "missing", "cut", "refused", "no file", "not a scheme"])
def test_the_next_mirror_helps_and_alone_the_fault_is_one_sentence(archives, mirror, source_of, tmp_path, fault):
    """The next one declares the archive as packed, which it is kept as."""
    one = {NAME: archives[NAME]}
    bad = {
        "refused": lambda: f"http://127.0.0.1:{free_port()}",
        "no file": lambda: str(tmp_path / "alone"),
        "not a scheme": lambda: "s3://bucket/mnist",
        "missing": lambda: mirror({}).url,
    }.get(fault, lambda: mirror(one, fault).url)()
    fetch(source_of(one, bad, mirror(one, "packed").url), tmp_path / "raw")
    assert (tmp_path / "raw" / NAME).read_bytes() == one[NAME]
    with pytest.raises(UserError) as caught:
        fetch(source_of(one, bad), tmp_path / "alone")
    assert caught.value.status == 2
    assert f"{NAME} of mnist could not be fetched ({bad}: " in str(caught.value)
    assert (f"no {NAME} or " in str(caught.value)) == (fault in ("no file", "not a scheme"))
    assert "MNIST_MIRROR" in str(caught.value)
    assert list((tmp_path / "alone").iterdir()) == []


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != MANIFEST}


def test_a_linked_folder_is_the_users(archives, mirror, source_of, tmp_path):
    """It is read, and nothing in it is replaced, also not by another data set."""
    (tmp_path / "mine").mkdir()
    for name, content in archives.items():
        (tmp_path / "mine" / name).write_bytes(content)
    linked = tmp_path / "raw"
    linked.symlink_to(tmp_path / "mine")
    manifest = fetch(source_of(archives, str(tmp_path / "nowhere")), linked)
    other = {name: content[:-8] + b"12345678" for name, content in archives.items()}
    with pytest.raises(UserError, match=r"raw/train-images.* is not the archive of mnist: let the link .* point to another folder"):
        fetch(source_of(other, mirror(other).url), linked)
    assert contents(linked) == archives
    assert json.loads((linked / MANIFEST).read_text()) == manifest
