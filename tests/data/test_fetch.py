from __future__ import annotations

import dataclasses
import datetime
import fcntl
import gzip
import hashlib
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.data import fetch as module
from pipeline.data.fetch import MANIFEST, Source, fetch, source
from pipeline.errors import UserError
from tests.helpers import ROOT, flip_bit, wait_until

NAME = "train-images-idx3-ubyte.gz"


@pytest.fixture
def one(archives: dict[str, bytes]) -> dict[str, bytes]:
    return {NAME: archives[NAME]}


def run_fetch(source: Source, raw: Path, preamble: str) -> subprocess.Popen[str]:
    """The same fetch in a process of its own."""
    code = (
        f"{preamble}\nfrom pathlib import Path\nfrom pipeline.data.fetch import Source, fetch\nfrom pipeline.errors import run_command\n"
        f"run_command(lambda _: (fetch({source!r}, Path({str(raw)!r})), 0)[1])"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refused() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_archives_and_manifest(archives, mirror, source_of, tmp_path, capsys):
    server = mirror(archives)
    manifest = fetch(source_of(archives, server.url), tmp_path / "deep" / "raw")
    raw = tmp_path / "deep" / "raw"
    assert {path.name: path.read_bytes() for path in raw.iterdir() if path.name != MANIFEST} == archives
    expected = {name: {"md5": hashlib.md5(content).hexdigest(), "size": len(content)} for name, content in archives.items()}
    assert manifest == json.loads((raw / MANIFEST).read_text()) == {"dataset": "mnist", "files": expected}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(archives)
    assert all("md5 verified" in line and server.url in line for line in lines)


def test_verified_archives_are_not_fetched_again(archives, mirror, source_of, tmp_path):
    server = mirror(archives)
    wanted = source_of(archives, server.url)
    fetch(wanted, tmp_path)
    damaged = tmp_path / NAME
    flip_bit(damaged)
    (tmp_path / list(archives)[1]).unlink()
    server.requests.clear()
    fetch(wanted, tmp_path)
    assert set(server.requests) == {NAME, list(archives)[1]}
    assert damaged.read_bytes() == archives[NAME]
    server.requests.clear()
    fetch(wanted, tmp_path)
    assert server.requests == []


@pytest.mark.parametrize("form", ["directory", "relative", "home", "address"])
def test_directory_as_mirror(archives, source_of, tmp_path, form, monkeypatch):
    place = tmp_path / "my mnist"
    place.mkdir()
    for name, content in archives.items():
        (place / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spelt = {"directory": str(place), "relative": "my mnist", "home": "~/my mnist", "address": place.as_uri()}[form]
    fetch(source_of(archives, spelt), tmp_path / "raw")
    assert all((tmp_path / "raw" / name).read_bytes() == content for name, content in archives.items())


@pytest.mark.parametrize(
    "spelt", ["{}-ubyte", "{}.idx{}-ubyte", "{}.idx{}-ubyte.gz", "MNIST/raw/{}-ubyte.gz", "MNIST/raw/{}-ubyte", "packed anew"]
)
def test_the_spellings_of_other_places_are_known_by_their_content(archives, source_of, tmp_path, spelt, monkeypatch):
    wanted = source_of(archives, str(tmp_path / "there"))
    contents = {md5: hashlib.md5(gzip.decompress(archives[name])).hexdigest() for name, md5 in wanted.archives}
    monkeypatch.setattr("pipeline.data.fetch._CONTENTS", contents)
    for name, content in archives.items():
        stem, kind = name.removesuffix("-ubyte.gz").split("-idx")
        file = spelt.format(stem, kind) if ".idx" in spelt else name if spelt == "packed anew" else spelt.format(f"{stem}-idx{kind}")
        path = tmp_path / "there" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(gzip.decompress(content), 1) if spelt == "packed anew" else content
        path.write_bytes(packed if path.suffix == ".gz" or spelt == "packed anew" else gzip.decompress(content))
    if spelt.startswith("MNIST/raw"):
        monkeypatch.setenv("MNIST_MIRROR", str(tmp_path / "there"))
        wanted = dataclasses.replace(wanted, mirrors=source("mnist").mirrors[:2])
    manifest = fetch(wanted, tmp_path / "raw")
    assert fetch(wanted, tmp_path / "raw") == manifest
    assert all(gzip.decompress((tmp_path / "raw" / name).read_bytes()) == gzip.decompress(archives[name]) for name in archives)
    (tmp_path / "raw" / NAME).write_bytes(gzip.compress(b"others"))
    assert fetch(wanted, tmp_path / "raw") == manifest


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("flipped", "wrong md5"),
        ("error", "HTTP 503"),
        ("page", "log-in or error page"),
        ("cut", "IncompleteRead"),
        ("false length", "IncompleteRead"),
        ("no length", "wrong md5"),
        ("garbage", "BadStatusLine"),
        ("missing", "HTTP 404"),
        ("refused", "refused"),
        ("no directory", "there is no directory /"),  # with the whole path
        ("no file", f"there is no {NAME} or train-images-idx3-ubyte or train-images.idx3-ubyte"),
        ("not a scheme", "there is no directory"),
        ("not a port", "not a valid host or port"),
        ("nobody's home", "there is no directory"),
        ("link loop", "there is no directory"),
    ],
)
def test_the_next_mirror_helps_and_alone_the_fault_is_named(one, mirror, source_of, tmp_path, capsys, fault, reason):
    (tmp_path / "loop").symlink_to("loop")
    bad = {
        "refused": refused,
        "no directory": lambda: "nowhere",
        "no file": lambda: str(tmp_path),
        "not a scheme": lambda: "s3://bucket/mnist",
        "not a port": lambda: "http://127.0.0.1:mnist",
        "nobody's home": lambda: "~no-such-user/mnist",
        "link loop": lambda: str(tmp_path / "loop"),
        "missing": lambda: mirror({}).url,
    }.get(fault, lambda: mirror(one, fault).url)()
    good = mirror(one).url
    fetch(source_of(one, bad, good), tmp_path / "raw")
    assert (tmp_path / "raw" / NAME).read_bytes() == one[NAME]
    told = capsys.readouterr().out
    assert f"{bad}: " in told
    assert f"bytes from {good}, md5 verified" in told

    with pytest.raises(UserError) as caught:
        fetch(source_of(one, bad), tmp_path / "alone")
    sentence = str(caught.value)
    assert NAME in sentence
    assert f"{bad}: " in sentence
    assert reason in sentence
    assert "MNIST_MIRROR=<directory or URL> dvc repro" in sentence
    assert "make demo" in sentence
    assert list((tmp_path / "alone").iterdir()) == []


def test_a_name_that_does_not_resolve(one, mirror, source_of, tmp_path):
    with pytest.raises(UserError, match=r"no-such-host\.invalid: (its host name cannot be resolved|no answer)"):
        fetch(source_of(one, "http://no-such-host.invalid"), tmp_path)


@pytest.mark.parametrize("fault", ["silent", "endless header", "stalls", "trickle"])
def test_a_silent_mirror_is_left_for_the_next(archives, mirror, source_of, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(module, "_STALL_SECONDS", 1.0)
    silent, good = mirror(archives, fault), mirror(archives)
    fetch(source_of(archives, silent.url, good.url), tmp_path)
    assert all((tmp_path / name).read_bytes() == content for name, content in archives.items())
    # After its first silence it is tried last: four archives do not wait four times.
    assert len(silent.requests) == 1


def test_a_slow_but_steady_download_may_take_longer(one, mirror, source_of, tmp_path, monkeypatch):
    server = mirror(one, "slow")
    limit = 1.0
    assert len(one[NAME]) / (1 << 15) * 0.1 > 1.5 * limit
    monkeypatch.setattr(module, "_STALL_SECONDS", limit)
    fetch(source_of(one, server.url), tmp_path)
    assert (tmp_path / NAME).read_bytes() == one[NAME]


def test_a_server_that_never_ends_is_cut_off(one, mirror, source_of, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_BYTES", 1 << 20)
    endless = mirror({NAME: one[NAME] * 20})
    with pytest.raises(UserError, match="sent more than 1,048,576 bytes"):
        fetch(source_of(one, endless.url), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_kill_and_run_again(archives, mirror, source_of, tmp_path):
    """What was verified stays. The archive under way is fetched again, for pooch does not resume."""
    second, first = list(archives)[:2]
    archives = {name: archives[name] for name in (first, second)}  # the large one last
    server = mirror({first: archives[first]})
    silent = mirror({second: archives[second]}, "stalls")
    wanted = source_of(archives, server.url, silent.url)
    process = run_fetch(wanted, tmp_path, "from pipeline.data import fetch as module; module._STALL_SECONDS = 60.0")
    try:
        wait_until(lambda: process.poll() is not None or any(path.stat().st_size for path in tmp_path.glob(f".{second}.*.tmp")))
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert contents(tmp_path).keys() == {
        first,
        f".{second}.{process.pid}.tmp",
    }  # DVC ignores *.tmp, and a later `make repro` removes them
    server.files = archives
    server.requests.clear()
    fetch(wanted, tmp_path)
    assert server.requests == [second]
    assert contents(tmp_path).items() >= archives.items()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device /dev/full")
def test_full_disk_stops_at_once(one, mirror, source_of, tmp_path):
    (tmp_path / f".{NAME}.{os.getpid()}.tmp").symlink_to("/dev/full")
    other = mirror(one)
    with pytest.raises(UserError, match=r"disk is full .*free some space") as caught:
        fetch(source_of(one, mirror(one).url, other.url), tmp_path)
    assert "MNIST_MIRROR" not in str(caught.value)
    assert other.requests == []
    assert not (tmp_path / NAME).exists()


def test_a_write_that_fails_in_the_middle(one, mirror, source_of, tmp_path):
    server, other = mirror(one), mirror(one)
    wanted = source_of(one, server.url, other.url)
    limit = 1 << 17
    process = run_fetch(wanted, tmp_path, f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("error: ")
    assert "disk is full" in errors
    assert len(errors.splitlines()) == 1
    assert other.requests == []
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_the_server_declares_as_packed_is_kept_as_it_is(one, mirror, source_of, tmp_path):
    fetch(source_of(one, mirror(one, "packed").url), tmp_path)
    assert (tmp_path / NAME).read_bytes() == one[NAME]


def test_a_file_where_the_directory_should_be(one, mirror, source_of, tmp_path):
    (tmp_path / "raw").write_text("mine")
    with pytest.raises(UserError, match="raw cannot be written"):
        fetch(source_of(one, mirror(one).url), tmp_path / "raw")
    assert (tmp_path / "raw").read_text() == "mine"


def test_one_fetch_at_a_time(one, mirror, source_of, tmp_path):
    server = mirror(one)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="Another fetch"):
            fetch(source_of(one, server.url), tmp_path)
        assert server.requests == []
    finally:
        os.close(descriptor)
    fetch(source_of(one, server.url), tmp_path)


def test_digits_need_no_archives(archives, mirror, source_of, tmp_path):
    fetch(source_of(archives, mirror(archives).url), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert fetch(source("digits"), tmp_path) == {"dataset": "digits", "files": {}}
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, "notes.txt"]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != MANIFEST}


@pytest.fixture
def linked(archives, tmp_path) -> Path:
    """A link to a folder of the user's that holds the archives and other files."""
    folder = tmp_path / "mine"
    folder.mkdir()
    others = {"t99-ubyte.gz": b"a", f".{NAME}.1.tmp": b"b", f".{MANIFEST}.1.tmp": b"c"}
    for name, content in {**archives, **others}.items():
        (folder / name).write_bytes(content)
    (tmp_path / "raw").symlink_to(folder)
    return tmp_path / "raw"


def test_a_linked_folder_is_read_and_never_emptied(archives, source_of, linked):
    before = contents(linked)
    for wanted in (source_of(archives, refused()), source("digits"), source_of(archives, refused())):
        manifest = fetch(wanted, linked)
        assert json.loads((linked / MANIFEST).read_text()) == manifest
        assert contents(linked) == before
    assert linked.is_symlink()


def test_another_data_set_overwrites_nothing_in_a_linked_folder(archives, mirror, source_of, linked):
    fetch(source_of(archives, refused()), linked)
    before, manifest = contents(linked), (linked / MANIFEST).read_bytes()
    other = {name: content[:-8] + b"12345678" for name, content in archives.items()}
    with pytest.raises(UserError, match=r"raw/train-images.* not this project's to replace: let the link point to another folder"):
        fetch(source_of(other, mirror(other).url), linked)
    assert (contents(linked), (linked / MANIFEST).read_bytes()) == (before, manifest)


def test_a_linked_folder_gets_what_it_lacks(archives, mirror, source_of, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "raw").symlink_to("mine")
    fetch(source_of(archives, mirror(archives).url), tmp_path / "raw")
    assert contents(tmp_path / "mine") == archives


@pytest.mark.parametrize("content", ["{}", "[1]", "not JSON", '{"dataset": "x", "files": {"../a": {"md5": "", "size": 1}}}'])
def test_a_manifest_of_somebody_else(archives, source_of, linked, content):
    (linked / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json was not written by this project, so it stays"):
        fetch(source("digits"), linked)
    assert (linked / MANIFEST).read_text() == content
    # In a folder of our own it is a damaged file of ours.
    raw = linked.with_name("own")
    raw.mkdir()
    (raw / MANIFEST).write_text(content)
    assert fetch(source("digits"), raw) == json.loads((raw / MANIFEST).read_text())


def test_only_what_was_fetched_is_removed_or_replaced(archives, mirror, source_of, tmp_path):
    wanted = source_of(archives, mirror(archives).url)
    mine = tmp_path / NAME
    mine.write_bytes(b"another archive of that name")
    with pytest.raises(UserError, match="not this project's to replace: move it away, then run the command again"):
        fetch(wanted, tmp_path)
    assert contents(tmp_path) == {NAME: b"another archive of that name"}
    mine.unlink()
    (tmp_path / "t99-ubyte.gz").write_bytes(b"mine")
    fetch(wanted, tmp_path)
    mine.write_bytes(b"put here since")
    fetch(source("digits"), tmp_path)
    assert contents(tmp_path) == {NAME: b"put here since", "t99-ubyte.gz": b"mine"}


def test_after_a_fetch_that_failed_midway_another_data_set_replaces_the_archives(archives, mirror, source_of, tmp_path):
    first = dict(list(archives.items())[:2])
    with pytest.raises(UserError, match="HTTP 404"):
        fetch(source_of(archives, mirror(first).url), tmp_path)
    assert contents(tmp_path) == first
    other = {name: content[:-8] + b"12345678" for name, content in archives.items()}
    with pytest.raises(UserError, match="HTTP 404"):
        fetch(source_of(other, mirror(dict(list(other.items())[:1])).url), tmp_path)
    fetch(source_of(other, mirror(other).url), tmp_path)
    assert contents(tmp_path) == other


def test_a_certificate_that_nobody_signed_and_one_that_is_trusted(one, mirror, source_of, tmp_path, monkeypatch):
    certificate = self_signed(tmp_path)
    server = mirror(one)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    address = server.url.replace("http://", "https://")
    with pytest.raises(UserError, match=r"its certificate is not accepted \(self"):
        fetch(source_of(one, address), tmp_path / "raw")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    fetch(source_of(one, address), tmp_path / "raw")
    assert (tmp_path / "raw" / NAME).read_bytes() == one[NAME]


def self_signed(directory: Path) -> Path:
    """A key and a certificate for 127.0.0.1 in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = directory / "certificate.pem"
    path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize(("dataset", "published"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST")])
def test_sources_are_torchvisions(dataset, published, monkeypatch):
    from torchvision import datasets

    monkeypatch.delenv("MNIST_MIRROR", raising=False)
    found = source(dataset)
    assert found == Source(dataset, tuple(getattr(datasets, published).mirrors), tuple(getattr(datasets, published).resources))
    assert len(found.archives) == 4
    monkeypatch.setenv("MNIST_MIRROR", "/my/mnist")
    assert source(dataset).mirrors == ("/my/mnist", *found.mirrors)
    monkeypatch.setenv("MNIST_MIRROR", " ")
    assert source(dataset) == found
