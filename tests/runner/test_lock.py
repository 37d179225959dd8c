"""The lock of a variant: one trainer at a time, and no lock outlives its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
