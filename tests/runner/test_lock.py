"""The lock of a variant: one trainer at a time, and no lock outlives its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.runner.lock import variant_lock

HOLD = """
import sys, time
from pathlib import Path
from pipeline.runner.lock import variant_lock
with variant_lock(Path(sys.argv[1]), "base"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_told_who_holds_it_until_that_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "base.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=f"Another trainer \\(process {holder.pid}\\) is working on variant base"),
            variant_lock(path, "base"),
        ):
            pass
        with variant_lock(tmp_path / "other.lock", "other"):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with variant_lock(path, "base"):
        assert path.read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOLCK, None),
        (errno.ENOSYS, None),
        (errno.ENOTSUP, None),
        (errno.EACCES, UserError),
        (errno.EIO, OSError),
    ],
)
def test_a_file_system_without_locks_has_no_other_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception] | None
) -> None:
    """The kernel's answer is made up: no file system of this machine gives it."""

    def answer(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", answer)
    if expected is None:
        with variant_lock(tmp_path / "base.lock", "base"):
            assert (tmp_path / "base.lock").read_text() == str(os.getpid())
    else:
        with pytest.raises(expected), variant_lock(tmp_path / "base.lock", "base"):
            pass
