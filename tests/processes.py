"""The worker processes of a command under test."""

from __future__ import annotations

import subprocess
from pathlib import Path


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the workers that a command has started."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in children if is_worker(int(child))]


def is_worker(pid: int) -> bool:
    """Whether a process runs and was started by multiprocessing as a worker."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()  # empty once it has ended
    except (FileNotFoundError, ProcessLookupError):
        return False
