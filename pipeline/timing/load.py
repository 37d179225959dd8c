"""The load of the machine, from Linux's /proc: processor use by other processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

_TICK = os.sysconf("SC_CLK_TCK")  # ticks a second in /proc
_PROC = Path("/proc")


def tree(root: int) -> dict[int, float]:
    """The processes of the tree under `root`, including `root`, each with the processor seconds of itself and its ended children."""
    parents, seconds = {}, {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:  # ended meanwhile, or hidden from this user
            continue
        fields = text[text.rindex(")") + 2 :].split()  # skips the name, which may contain spaces and parentheses
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        seconds[pid] = sum(int(value) for value in fields[11:15]) / _TICK  # utime, stime, cutime, cstime
    members = {root}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return {pid: seconds[pid] for pid in members if pid in seconds}


def _busy() -> float:
    """Processor seconds since boot in which cores were not idle, including time stolen by the hypervisor."""
    fields = [int(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICK


class LoadMeter:
    """Measures, over a `with` block, the share of the machine that was used by processes outside this process's tree.

    Attributes:
        foreign: that share of all cores' time, 0 or more; set when the block ends.
    """

    foreign: float

    def __enter__(self) -> LoadMeter:
        self._start = (time.perf_counter(), _busy(), sum(tree(os.getpid()).values()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        wall, busy, own = (
            now - then for now, then in zip((time.perf_counter(), _busy(), sum(tree(os.getpid()).values())), self._start, strict=True)
        )
        self.foreign = max(0.0, busy - own) / (wall * (os.cpu_count() or 1))


def wait_until_quiet(threshold: float, *, patience: float = 30.0) -> None:
    """Waits, for at most `patience` seconds, until other processes use at most `threshold` of the machine for one second."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with LoadMeter() as meter:
            time.sleep(1)
        if meter.foreign <= threshold:
            return
