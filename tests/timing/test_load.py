"""The load meter sees the work of others, and this process tree's as its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pipeline.timing import load
from tests.helpers import wait_until


def _burn(seconds: float) -> list[str]:
    code = f"import time\nwhile time.process_time() < {seconds}: pass\ninput()"
    return [sys.executable, "-c", code]


def test_tree_counts_the_processor_time_of_children() -> None:
    before = sum(load.tree(os.getpid()).values())
    with subprocess.Popen(_burn(0.4), stdin=subprocess.PIPE) as child:
        try:
            wait_until(lambda: load.tree(child.pid).get(child.pid, 0.0) >= 0.3)
            assert child.pid in load.tree(os.getpid())
            assert sum(load.tree(os.getpid()).values()) - before >= 0.3
        finally:
            child.communicate(b"\n")
    assert child.pid not in load.tree(os.getpid())
    assert sum(load.tree(os.getpid()).values()) - before >= 0.3  # the kernel hands an ended child's time to its parent


def test_work_of_children_is_not_foreign_and_other_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = load.tree
    with monkeypatch.context() as patch:
        patch.setattr(load, "_busy", lambda: sum(tree(os.getpid()).values()))  # a machine on which nobody else works
        with load.LoadMeter() as meter, subprocess.Popen(_burn(0.5), stdin=subprocess.PIPE) as child:
            child.communicate(b"\n")
        assert meter.foreign < 0.02
    start = time.perf_counter()
    monkeypatch.setattr(load, "tree", lambda root: {root: tree(root)[root] - sum(os.times()[2:4])})  # children do not belong to it
    with load.LoadMeter() as meter, subprocess.Popen(_burn(0.5), stdin=subprocess.PIPE) as child:
        child.communicate(b"\n")
    assert meter.foreign * (time.perf_counter() - start) * (os.cpu_count() or 1) > 0.4  # seconds
