"""One run of everything that the stage measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pipeline.data.datasets import load
from pipeline.params import Params
from pipeline.timing.measure import measure
from pipeline.timing.subjects import entries

CPU = torch.device("cpu")


@pytest.mark.slow
def test_measure_gives_json_with_every_number(small: Params, arrays: Path) -> None:
    lines: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # which it changes
    try:
        results = measure(small, load(arrays), CPU, lines.append)
    finally:
        torch.set_num_threads(threads)
    assert json.loads(json.dumps(results)) == results
    names = [entry.name for entry in entries(small, 4)]
    assert [entry["name"] for entry in results["measurements"]] == names
    assert 1 <= len(results["rounds"]) <= 8
    for entry in results["rounds"]:
        assert list(entry["seconds"]) == names
        assert all(seconds > 0 for seconds in entry["seconds"].values())
    for entry in results["measurements"]:
        assert 1 <= entry["steps"] <= 2
        assert entry["batch"] == 4
        assert ("saved_bytes" in entry) == (entry["kind"] != "step")
    assert {name.split("/")[0] for name in results["profiles"]} == {"step", "growth"}
    assert len(results["profiles"]) == 2 * (3 + 1)  # three subjects and the most tokens, in both ways
    assert results["machine"]["threads"] == 1
    assert any("round" in line for line in lines)
