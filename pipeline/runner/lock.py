"""One trainer per variant."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import UserError


@contextlib.contextmanager
def variant_lock(path: Path, variant: str) -> Iterator[None]:
    """Holds a variant's lock. The kernel drops it when the process ends, however it ends, so no lock is left behind.

    Raises:
        UserError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                f"Another trainer (process {holder}) is working on variant {variant}:"
                " wait until it ends or end it, then run the command again."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
