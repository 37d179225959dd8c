"""What else the machine was doing: processor use by other processes, and this process tree's memory. Linux's /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

_TICK = os.sysconf("SC_CLK_TCK")  # ticks a second in /proc
_PROC = Path("/proc")


def tree(root: int) -> dict[int, float]:
    """The processes under `root`, itself included, each with the processor seconds that it and its ended children used."""
    parents, seconds = {}, {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        seconds[pid] = sum(int(value) for value in fields[11:15]) / _TICK  # utime, stime, cutime, cstime
    members = {root}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return {pid: seconds[pid] for pid in members if pid in seconds}


def memory(root: int) -> int:
    """Bytes of memory that the processes under `root` hold, pages shared among them counted once (proportional set size)."""
    total = 0
    for pid in tree(root):
        try:
            text = (_PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:  # ended meanwhile
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    return total


def _busy() -> float:
    """Processor seconds since boot in which some core did not idle, the host's theft included."""
    fields = [int(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICK


class LoadMeter:
    """Measures, over a `with` block, the share of the machine that processes outside this one's tree used.

    Attributes:
        foreign: that share in [0, 1] of all cores' time, once the block has ended.
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
    """Waits until the other processes use no more than `threshold` of the machine for a second, at most `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with LoadMeter() as meter:
            time.sleep(1)
        if meter.foreign <= threshold:
            return
