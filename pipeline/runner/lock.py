"""One trainer per variant."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pipeline.errors import UserError


@contextlib.contextmanager
def variant_lock(path: Path, variant: str) -> Iterator[None]:
    """Holds a variant's lock. The kernel drops it when the process ends, however it ends, so no lock is left behind.

    Raises:
        UserError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not try_lock(file):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                f"Another trainer (process {holder}) is working on variant {variant}:"
                " wait until it ends or end it, then run the command again."
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def try_lock(file: IO[str]) -> bool:
    """Locks an open file until it is closed, and says whether no other process holds it.

    Some cluster file systems have no locks. There every file counts as free: every file that is written is whole at any time, so two
    processes that do the same waste time and no more.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
    return True
