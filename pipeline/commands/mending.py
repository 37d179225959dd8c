"""Mends what a kill leaves behind, so that the next `dvc repro` neither stops nor forgets what it has done.

DVC rewrites dvc.lock and .dvc/tmp/rwlock in place, so a kill can cut them short. A good copy of dvc.lock is kept. An entry says what a
stage read and wrote. DVC runs a stage again whose entry no longer fits, so old entries do no harm.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.params.reading import Loader
from pipeline.provenance import git

LOCK = "dvc.lock"
COPY = Path(".checkpoints/dvc-lock.yaml")
ASIDE = Path(".checkpoints/dvc-lock.damaged")

_HEAD = "schema: '2.0'\nstages:\n"
_OUTPUTS = ("runs", "reports", "tables", "predictions", "configs", "code-hashes", "timing", "data", ".checkpoints")
# Temporary files of files.replacing, which name its process; and of DVC, whose names end with 16 random bytes in base64.
_LEFTOVER = re.compile(r"\..*\.(?P<process>\d+)\.tmp|.*\.[\w-]{22}\.tmp")


def mend(directory: Path, stages: Iterable[str]) -> list[str]:
    """Mends a DVC repository before a run.

    Args:
        stages: names of the stages that dvc.yaml has now, `train@VARIANT` included.

    Returns:
        What was done, a line each.

    Raises:
        UserError: a DVC command is at work in the repository.
    """
    with _held(directory, "lock", seconds=3):
        lines = [_mend_rwlock(directory), _remove_leftovers(directory), _mend_lock(directory, set(stages))]
    return [line for line in lines if line]


def keep(directory: Path, stages: Iterable[str]) -> None:
    """Keeps dvc.lock as the good copy if it is whole. Safe at any time, because DVC holds its own lock while it writes the file."""
    saved = _read(directory / COPY)
    if _read(directory / LOCK) == saved:
        return
    try:
        with _held(directory, "lock", seconds=0):
            text = _read(directory / LOCK)
    except UserError:
        return
    if text is not None and not _lacks(text, _split(saved or ""), set(stages)):
        write_text(directory / COPY, text)


def _mend_lock(directory: Path, stages: set[str]) -> str | None:
    path, copy = directory / LOCK, directory / COPY
    text, saved = _read(path), _read(copy)
    if text is None:  # no kill removes it, so the user did
        copy.unlink(missing_ok=True)
        return None
    if text == saved:
        return None
    committed = _committed(directory)
    good = _split(saved or committed or "")
    # A lock that equals the commit's came from git, whatever the copy holds.
    if not _lacks(text, good, stages) or (text == committed and _entries(text) is not None):
        write_text(copy, text)
        return None
    sides, good = _sides(text), _whole([saved or committed or ""], {})
    own = _whole(sides, good)
    merged = own | {name: block for name, block in good.items() if name in stages and name not in own}
    if not good or not merged:
        (directory / ASIDE).parent.mkdir(exist_ok=True)
        path.rename(directory / ASIDE)
    if merged:
        whole = _HEAD + "".join(merged.values())
        write_text(path, whole)
        write_text(copy, whole)
    if len(sides) == 2:
        return f"{LOCK} held a merge conflict: the stages of both sides were put together, ours where they differ."
    if good and merged:
        source = "its last good copy" if saved else "the last commit"
        return f"{LOCK} was cut short: {len(merged) - len(own)} of its {len(merged)} stages were taken from {source}."
    left = f"{len(own)} of its stages could be read, the others run again"
    return f"{LOCK} was damaged and has no good copy: {left}; the damaged file is {ASIDE} now."


def _read(path: Path) -> str | None:
    try:
        # Bytes that are no text invalidate their own stage alone.
        return path.read_bytes().decode("utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None


def _entries(text: str) -> dict[str, Any] | None:
    """The stages of a lock; None if DVC refuses it."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        # DVC's own parser takes ten times as long.
        entries: dict[str, Any] = COMPILED_LOCKFILE_SCHEMA(yaml.load(text, Loader=Loader)).get("stages", {})
    except (yaml.YAMLError, Invalid, ValueError, RecursionError):
        return None
    return entries


def _split(text: str) -> dict[str, str]:
    """The text of each stage of a lock, unchecked. A stage's name is indented by two spaces, the rest of it by more."""
    _, _, body = text.partition("\nstages:\n")
    blocks = re.split(r"^(?=  \S)", body, flags=re.M)[1:]
    return {block.partition("\n")[0].strip().removesuffix(":"): block for block in blocks}


def _cut(block: str, name: str, good: dict[str, str]) -> bool:
    """Whether a stage's text visibly stops before its end."""
    return not block.endswith("\n") or (block != good.get(name) and good.get(name, "").startswith(block))


def _lacks(text: str, good: dict[str, str], stages: set[str]) -> bool:
    """Whether DVC refuses a lock, or it lacks a stage of the good one that is still in use."""
    entries = _entries(text)
    if entries is None or any(name in stages and name not in entries for name in good):
        return True
    return any(_cut(block, name, good) for name, block in list(_split(text).items())[-1:])


def _whole(texts: list[str], good: dict[str, str]) -> dict[str, str]:
    """The stages that are whole in the texts; the first of equal names."""
    found: dict[str, str] = {}
    for text in texts:
        for name, block in _split(text).items():
            if name not in found and not _cut(block, name, good) and (_entries(_HEAD + block) or {}).keys() == {name}:
                found[name] = block
    return found


def _sides(text: str) -> list[str]:
    """Both sides of a file with git's conflict markers, ours first; of any other file its text alone."""
    sides: dict[str, list[str]] = {"ours": [], "theirs": [], "ancestor": []}
    begins = {"<<<<<<<": "ours", "|||||||": "ancestor", "=======": "theirs"}
    part = None
    for line in text.splitlines(keepends=True):
        if line[:7] in begins or line[:7] == ">>>>>>>":
            part = begins.get(line[:7])
            continue
        for name in [part] if part else ["ours", "theirs"]:
            sides[name].append(line)
    ours, theirs = "".join(sides["ours"]), "".join(sides["theirs"])
    return [ours] if ours == theirs else [ours, theirs]


def _committed(directory: Path) -> str | None:
    """dvc.lock as the last commit has it; None without one, or without git."""
    try:
        shown = git("show", f"HEAD:./{LOCK}", cwd=directory)
    except OSError:
        return None
    return shown.stdout.decode("utf-8", errors="surrogateescape") if shown.returncode == 0 else None


def _mend_rwlock(directory: Path) -> str | None:
    """Removes what killed commands left in the file where DVC notes who reads and writes which path."""
    path = directory / ".dvc" / "tmp" / "rwlock"
    with _held(directory, "rwlock.lock", seconds=3):
        text = _read(path)
        if text is None:
            return None
        try:
            noted = json.loads(text)
            damaged = not isinstance(noted, dict)
        except (ValueError, RecursionError):
            damaged = True
        if not damaged and noted.keys() <= {"read", "write"} and not any(noted.values()):
            return None
        living = _dvc_processes(directory)
        if living and damaged:
            raise UserError(f"{path} is damaged, and DVC is at work here (process {living[0]}): wait until it ends, then run this again.")
        if living:
            return None
        path.unlink()
    return f"{path.relative_to(directory)}, left by a command that was killed, was removed."


def _remove_leftovers(directory: Path) -> str | None:
    """Removes half-written files of processes that are gone. Folders behind symbolic links are not looked into."""
    found = [directory / name for name in os.listdir(directory)]
    for place in _OUTPUTS:
        if not (directory / place).is_symlink():
            found += [Path(folder) / name for folder, _, names in os.walk(directory / place) for name in names]
    removed = 0
    for path in found:
        match = _LEFTOVER.fullmatch(path.name)
        if match and path.is_file() and not path.is_symlink():
            process = match["process"]
            if not (Path("/proc", process).exists() if process else _dvc_processes(directory)):
                path.unlink(missing_ok=True)
                removed += 1
    return f"{removed} half-written file{'s' * (removed != 1)} of commands that were killed removed." if removed else None


def _dvc_processes(directory: Path) -> list[int]:
    """The DVC commands that run in this repository, and not in one nested in it."""
    running = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            called = [os.path.basename(word) for word in (entry / "cmdline").read_bytes().split(b"\0")[:4]]
            place = Path(os.readlink(entry / "cwd"))
        except OSError:  # it has ended, or is another user's
            continue
        if b"dvc" in called and next((up for up in (place, *place.parents) if (up / ".dvc").is_dir()), None) == directory.resolve():
            running.append(int(entry.name))
    return running


@contextlib.contextmanager
def _held(directory: Path, name: str, seconds: float) -> Iterator[None]:
    """Holds one of DVC's own locks, which the kernel drops with the process that holds it.

    Raises:
        UserError: another process has held it for so many seconds.
    """
    path = directory / ".dvc" / "tmp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path, timeout=seconds).acquire()
    except Timeout:
        raise UserError("Another DVC command is at work here: wait until it ends, then run this one again.") from None
    with lock:
        yield
