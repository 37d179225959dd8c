"""A round of what the stage measures; `tests/stages` has it run whole."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest
import torch

from pipeline.data.datasets import load
from pipeline.params import Params
from pipeline.system.errors import UserError
from pipeline.timing import measure as module
from pipeline.timing.measure import measure
from pipeline.timing.subjects import entries
from tests.timing.conftest import SUBJECTS

CPU = torch.device("cpu")


@pytest.mark.usefixtures("one_thread")
def test_a_round_gives_the_seconds_of_one_step_by_name(small: Params, arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make", lambda entry, params, dataset, device, steps, threads: lambda: 0.5 * steps)
    listed = {entry.name: (entry, steps) for entry, steps in zip(entries(small, 4)[:2], (3, 7), strict=True)}
    seconds, _ = module.time_round(small, load(arrays), CPU, listed, 1, list(reversed(listed)))
    assert list(seconds.items()) == [(name, 0.5) for name in listed]


@pytest.mark.slow
def test_a_round_whose_process_is_killed_is_one_sentence(small: Params, arrays: Path) -> None:
    """Each has a process of its own."""
    subjects = {name: SUBJECTS[name] for name in ("base", "reference")}
    quick = small.model_copy(update={"timing": small.timing.model_copy(update={"seconds": 3600.0, "tokens": (4,), "subjects": subjects})})
    killed = threading.Event()

    def kill() -> None:
        while not killed.wait(0.05):
            for process in multiprocessing.active_children():
                process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(UserError, match=r"ended early \(out of memory\?\); run the same command"):
            measure(quick, load(arrays), CPU, lambda line: None)
    finally:
        killed.set()
        thread.join()
    assert not multiprocessing.active_children()
