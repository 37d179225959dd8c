"""One run of everything that the stage measures."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from pipeline.data.datasets import load
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.timing import measure as module
from pipeline.timing.measure import measure
from pipeline.timing.rounds import run_rounds
from pipeline.timing.subjects import entries
from tests.timing.conftest import SUBJECTS

CPU = torch.device("cpu")


@contextmanager
def watched(do: Callable[[multiprocessing.process.BaseProcess], None]) -> Iterator[None]:
    """Calls `do` with each process that this one starts meanwhile, again and again while it runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            for process in multiprocessing.active_children():
                do(process)
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def quick(small: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A network and the loops beside it; other tests run, and no round is repeated for them."""
    monkeypatch.setattr(module, "run_rounds", partial(run_rounds, threshold=1.0))
    subjects = {name: SUBJECTS[name] for name in ("base", "reference")}
    return small.model_copy(update={"timing": small.timing.model_copy(update={"seconds": 3600.0, "tokens": (4,), "subjects": subjects})})


@pytest.mark.slow
def test_measure_gives_json_with_every_number_of_rounds_in_processes_of_their_own(quick: Params, arrays: Path) -> None:
    lines: list[str] = []
    pids: set[int | None] = set()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # what torch takes by itself
    try:
        with watched(lambda process: pids.add(process.pid)):
            results = measure(quick, load(arrays), CPU, lines.append)
    finally:
        torch.set_num_threads(threads)
    assert len(pids) == len(results["rounds"]) == 2
    assert not multiprocessing.active_children()
    assert json.loads(json.dumps(results)) == results
    names = [entry.name for entry in entries(quick, 4)]
    assert [entry["name"] for entry in results["measurements"]] == names
    for entry in results["rounds"]:
        assert list(entry["seconds"]) == names
        assert all(seconds > 0 for seconds in entry["seconds"].values())
    for entry in results["measurements"]:
        assert (entry["steps"], entry["batch"]) == (2, 4)
        assert ("saved_bytes" in entry) == (entry["kind"] != "step")
    assert {name.split("/")[0] for name in results["profiles"]} == {"step", "growth"}
    assert results["machine"]["threads"] == 2
    assert any("round" in line for line in lines)


@pytest.mark.usefixtures("one_thread")
def test_a_round_gives_the_seconds_of_one_step_by_name(small: Params, arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make", lambda entry, params, dataset, device, steps, threads: lambda: 0.5 * steps)
    listed = {entry.name: (entry, steps) for entry, steps in zip(entries(small, 4)[:2], (3, 7), strict=True)}
    seconds, _ = module.time_round(small, load(arrays), CPU, listed, 1, list(reversed(listed)))
    assert list(seconds.items()) == [(name, 0.5) for name in listed]


@pytest.mark.slow
def test_a_round_whose_process_is_killed_is_one_sentence(quick: Params, arrays: Path) -> None:
    with watched(lambda process: process.kill()), pytest.raises(UserError, match=r"ended early \(out of memory\?\); run the same command"):
        measure(quick, load(arrays), CPU, lambda line: None)
    assert not multiprocessing.active_children()
