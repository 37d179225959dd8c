"""What a kill leaves is mended: dvc.lock stage by stage, DVC's rwlock, half-written files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.commands import mending
from pipeline.errors import UserError
from tests.helpers import ROOT, git

# Stages of a lock that DVC wrote. Short ones, as DVC's parser is slow; one of them also under the names of variants.
LOCK = (ROOT / "dvc.lock").read_text()
BLOCKS = {name: mending._split(LOCK)[name] for name in ("fetch", "prepare")}
BLOCKS |= {name: BLOCKS["prepare"].replace("  prepare:", f"  {name}:") for name in ("train@base", "train@wide", "train@two-heads")}
SMALL = mending._HEAD + "".join(BLOCKS.values())
NAMES = list(BLOCKS)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    return tmp_path


def lock(repository: Path, text: str, copy: str | None = None) -> None:
    (repository / "dvc.lock").write_text(text)
    if copy is not None:
        (repository / mending.COPY).parent.mkdir(exist_ok=True)
        (repository / mending.COPY).write_text(copy)


def entries(repository: Path) -> dict[str, object]:
    return parsed((repository / "dvc.lock").read_text())


@functools.cache
def parsed(text: str) -> dict[str, object]:
    """The stages of a lock, as DVC itself reads it."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import parse_yaml

    return COMPILED_LOCKFILE_SCHEMA(parse_yaml(text, "dvc.lock"))["stages"]


def only(*names: str) -> str:
    return mending._HEAD + "".join(BLOCKS[name] for name in names)


def newer(text: str) -> str:
    """The same lock after other code was run."""
    return text.replace("md5: ", "md5: f")


def test_blocks_are_the_stages() -> None:
    assert list(mending._split(LOCK)) == list(yaml.safe_load(LOCK)["stages"])
    assert mending._HEAD + "".join(mending._split(LOCK).values()) == LOCK
    assert len(NAMES) == 5


def test_a_whole_lock_is_copied_and_left_alone(repository: Path) -> None:
    lock(repository, SMALL)
    stamp = (repository / "dvc.lock").stat().st_mtime_ns
    assert mending.mend(repository, NAMES) == []
    assert (repository / mending.COPY).read_text() == SMALL
    assert (repository / "dvc.lock").stat().st_mtime_ns == stamp
    lock(repository, newer(SMALL))
    assert mending.mend(repository, NAMES) == []
    assert (repository / mending.COPY).read_text() == newer(SMALL)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, len(SMALL) - 1), changed=st.booleans())
def test_any_prefix_is_mended(repository: Path, length: int, changed: bool) -> None:
    """Of an old and of a newer lock: no stage is lost; those before the cut are the new ones, those behind it the old."""
    written = newer(SMALL) if changed else SMALL
    lock(repository, written[:length], SMALL)
    mending.mend(repository, NAMES)
    old, new, found = parsed(SMALL), parsed(written), entries(repository)
    assert found.keys() == old.keys()
    position = len(mending._HEAD)
    for name, block in mending._split(written).items():
        position += len(block)
        if position + 2 < length:  # behind it more than a beginning of the next stage's indentation
            assert found[name] == new[name]
        elif position - len(block) >= length:
            assert found[name] == old[name]
    if not changed:  # else the stage that was cut may be what a reader cannot tell from a whole new one
        assert found == old
    assert (repository / mending.COPY).read_text() == (repository / "dvc.lock").read_text()
    assert mending.mend(repository, NAMES) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, len(SMALL) - 1), length=st.integers(1, 3000), byte=st.sampled_from([b"\0", b"\xff", b"<", b"\n", b": "]))
def test_any_damage_is_mended(repository: Path, start: int, length: int, byte: bytes) -> None:
    content = SMALL.encode()
    lock(repository, "", SMALL)
    (repository / "dvc.lock").write_bytes((content[:start] + byte * length + content[start + length :])[: len(content)])
    mending.mend(repository, NAMES)
    assert entries(repository).keys() >= set(NAMES)


def test_a_shorter_lock_gets_back_what_is_still_in_use(repository: Path) -> None:
    *used, gone = NAMES
    lock(repository, newer(only(*NAMES[:2])), SMALL)
    (line,) = mending.mend(repository, used)
    assert line == f"dvc.lock was cut short: {len(used) - 2} of its {len(used)} stages were taken from its last good copy."
    found = entries(repository)
    assert list(found) == used
    assert found[NAMES[0]] == parsed(newer(SMALL))[NAMES[0]]
    assert gone not in found


def test_a_damaged_copy_does_no_harm(repository: Path) -> None:
    lock(repository, newer(only(*NAMES[:2])), SMALL.replace("train@base:", "train@base").replace("    outs:", "    ou\0ts:", 1))
    mending.mend(repository, NAMES)
    assert entries(repository).keys() == {*NAMES} - {"train@base"}


def test_a_variant_that_is_gone_neither_comes_back_nor_goes(repository: Path) -> None:
    used = NAMES[:-1]
    lock(repository, only(*used), SMALL)  # its entry was removed: it stays out
    assert mending.mend(repository, used) == []
    assert (repository / "dvc.lock").read_text() == only(*used)
    lock(repository, SMALL, only(*used))  # it is still there, as DVC leaves it
    assert mending.mend(repository, used) == []
    assert (repository / "dvc.lock").read_text() == SMALL


def test_a_lock_that_the_user_removed_stays_away(repository: Path) -> None:
    lock(repository, SMALL, SMALL)
    (repository / "dvc.lock").unlink()
    assert mending.mend(repository, NAMES) == []
    assert not (repository / "dvc.lock").exists()
    lock(repository, only(NAMES[0]))
    assert mending.mend(repository, NAMES) == []
    assert list(entries(repository)) == NAMES[:1]


def test_without_a_copy_the_last_commit_serves(repository: Path) -> None:
    git(repository, "init")
    lock(repository, SMALL)
    git(repository, "add", "dvc.lock")
    git(repository, "commit", "-m", "a")
    lock(repository, SMALL[:-500])
    assert mending.mend(repository, NAMES) == ["dvc.lock was cut short: 1 of its 5 stages were taken from the last commit."]
    assert (repository / "dvc.lock").read_text() == SMALL


def test_a_lock_that_git_put_there_is_whole(repository: Path) -> None:
    git(repository, "init")
    lock(repository, only(*NAMES[:2]))
    git(repository, "add", "dvc.lock")
    git(repository, "commit", "-m", "a")
    lock(repository, only(*NAMES[:2]), SMALL)
    assert mending.mend(repository, NAMES) == []
    assert list(entries(repository)) == NAMES[:2]


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"- 1\n", b"schema: '1.0'\n", b"\xff\xfe", b"? {a: b}\n: 2020-99-99\n"])
def test_without_anything_good_it_is_set_aside(repository: Path, content: bytes) -> None:
    lock(repository, "")
    (repository / "dvc.lock").write_bytes(content)
    (line,) = mending.mend(repository, NAMES)
    assert line == (
        "dvc.lock was damaged and has no good copy: 0 of its stages could be read, the others run again; "
        "the damaged file is .checkpoints/dvc-lock.damaged now."
    )
    assert not (repository / "dvc.lock").exists()
    assert (repository / mending.ASIDE).read_bytes() == content
    assert mending.mend(repository, NAMES) == []


def test_a_copy_of_stages_that_are_all_gone_is_none(repository: Path) -> None:
    lock(repository, "", SMALL)
    (line,) = mending.mend(repository, ["another"])
    assert "was damaged and has no good copy" in line
    assert not (repository / "dvc.lock").exists()


def test_without_a_copy_the_whole_stages_stay(repository: Path) -> None:
    lock(repository, SMALL[:-505])
    (line,) = mending.mend(repository, NAMES)
    assert "4 of its stages could be read" in line
    assert list(entries(repository)) == NAMES[:4]


@pytest.mark.parametrize("style", ["merge", "diff3"])
def test_a_merge_conflict(repository: Path, style: str) -> None:
    """Made by git itself: both sides ran a stage anew and added one."""
    git(repository, "init", "-b", "main")
    lock(repository, only(*NAMES[:3]))
    git(repository, "add", "dvc.lock")
    git(repository, "commit", "-m", "a")
    git(repository, "checkout", "-b", "other")
    lock(repository, only(NAMES[0]) + BLOCKS[NAMES[1]].replace("md5: ", "md5: e") + BLOCKS[NAMES[2]] + BLOCKS[NAMES[3]])
    git(repository, "commit", "-am", "b")
    git(repository, "checkout", "main")
    lock(repository, only(NAMES[0]) + BLOCKS[NAMES[1]].replace("md5: ", "md5: f") + BLOCKS[NAMES[2]] + BLOCKS[NAMES[4]])
    git(repository, "commit", "-am", "c")
    with contextlib.suppress(subprocess.CalledProcessError):
        git(repository, "-c", f"merge.conflictStyle={style}", "merge", "other")
    assert "<<<<<<<" in (repository / "dvc.lock").read_text()
    assert mending.mend(repository, NAMES) == [
        "dvc.lock held a merge conflict: the stages of both sides were put together, ours where they differ."
    ]
    found = entries(repository)
    assert found.keys() == set(NAMES)
    assert found[NAMES[1]] == parsed(newer(SMALL))[NAMES[1]]


@pytest.fixture
def dvc_at_work(repository: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that looks like a DVC command in the repository."""
    program = repository / "dvc"
    program.write_text("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(program), "repro"], cwd=repository, text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        yield process
        process.kill()


DEAD = '{"write": {"/a/runs/base": {"pid": 4194999, "cmd": "dvc repro"}}, "read": {}}'


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"write": 3}', '{"a": {}}', DEAD])
def test_an_rwlock_of_killed_commands_is_removed(repository: Path, content: str) -> None:
    path = repository / ".dvc" / "tmp" / "rwlock"
    path.write_text(content)
    assert mending.mend(repository, NAMES) == [".dvc/tmp/rwlock, left by a command that was killed, was removed."]
    assert not path.exists()
    assert mending.mend(repository, NAMES) == []


@pytest.mark.parametrize("content", ["{}", '{"write": {}, "read": {}}'])
def test_an_rwlock_that_holds_nothing_stays(repository: Path, content: str) -> None:
    path = repository / ".dvc" / "tmp" / "rwlock"
    path.write_text(content)
    assert mending.mend(repository, NAMES) == []
    assert path.read_text() == content


def test_an_rwlock_in_use_stays(repository: Path, dvc_at_work: subprocess.Popen[str]) -> None:
    path = repository / ".dvc" / "tmp" / "rwlock"
    path.write_text(DEAD)
    written = repository / "runs" / f"steps.npz.{'A' * 22}.tmp"  # by DVC, which puts no process id into the name
    written.parent.mkdir()
    written.touch()
    assert mending.mend(repository, NAMES) == []
    assert written.exists()
    path.write_text("")
    with pytest.raises(UserError, match=rf"rwlock is damaged, and DVC is at work here \(process {dvc_at_work.pid}\): wait until it ends"):
        mending.mend(repository, NAMES)
    assert path.read_text() == ""
    # A command in a repository nested in this one has an rwlock of its own.
    assert mending._dvc_processes(repository.parent) == []


def test_a_file_system_without_locks_is_mended_too(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", answer)
    lock(repository, SMALL[:-500], SMALL)
    assert len(mending.mend(repository, NAMES)) == 1
    assert (repository / "dvc.lock").read_text() == SMALL


def test_while_dvc_holds_its_lock_nothing_is_touched(repository: Path) -> None:
    lock(repository, SMALL[:-500], SMALL)
    with (repository / ".dvc" / "tmp" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        mending.keep(repository, NAMES)
        with pytest.raises(UserError, match=r"^Another DVC command is at work here: wait until it ends"):
            mending.mend(repository, NAMES)
    assert (repository / "dvc.lock").read_text() == SMALL[:-500]
    assert (repository / mending.COPY).read_text() == SMALL


def test_a_copy_is_kept_of_a_whole_lock_alone(repository: Path) -> None:
    mending.keep(repository, NAMES)
    assert not (repository / mending.COPY).exists()
    lock(repository, only(*NAMES[:2]))
    mending.keep(repository, NAMES)
    lock(repository, SMALL)
    mending.keep(repository, NAMES)
    assert (repository / mending.COPY).read_text() == SMALL
    for cut in (SMALL[:-500], only(*NAMES[:2]), ""):
        lock(repository, cut)
        mending.keep(repository, NAMES)
        assert (repository / mending.COPY).read_text() == SMALL


def test_half_written_files_of_the_dead_are_removed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    dead, token = 4_194_999, "Ab3-_fGhIjKlMnOpQrStUv"  # a number that Linux gives to no process; a name as DVC makes them
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    gone = [f".dvc.lock.{dead}.tmp", f"runs/base/.run.json.{dead}.tmp", f"runs/base/.{token}.tmp", f"runs/base/steps.npz.{token}.tmp"]
    kept = [
        "runs/base/run.json",
        f"runs/base/.run.json.{os.getpid()}.tmp",
        f"runs/base/run.json.{dead}.tmp",
        "runs/.tmp",
        f"docs/.a.{dead}.tmp",
    ]
    for name in (*gone, *kept, *(elsewhere / path for path in gone)):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).touch()
    (repository / "data").mkdir()
    (repository / "data" / "raw").symlink_to(elsewhere)
    (repository / "reports").symlink_to(elsewhere)
    assert mending.mend(repository, NAMES) == ["4 half-written files of commands that were killed removed."]
    assert not any((repository / name).exists() for name in gone)
    assert all((repository / name).exists() for name in (*kept, *(elsewhere / path for path in gone)))


def test_half_written_files_are_ignored_by_git_and_dvc() -> None:
    for name in (".gitignore", ".dvcignore"):
        assert "*.tmp" in (ROOT / name).read_text().splitlines()
