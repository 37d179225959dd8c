"""Rounds, their order and repeats; the command; the nested repositories."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import growth, nested, overheads, results, runner
from benchmarks.results import Row
from benchmarks.runner import Options
from benchmarks.tracked import SilentLive
from pipeline.errors import UserError
from pipeline.provenance import device_name
from pipeline.timing import load
from tests.helpers import wait_until
from tests.tracking.trainings import make_rows, make_run

OPTIONS = Options(device="cpu", data=Path("none"), threads=1, warmup=1, threshold=0.05, attempts=3, steps=2)
AT_ONCE = dataclasses.replace(OPTIONS, threshold=1.0)  # does not wait for a quiet machine, which the tests beside it keep busy


class _Machine:
    """Answers instead of the timing processes; `foreign` gives each implementation's load, attempt by attempt."""

    def __init__(self, foreign: dict[str, list[float]]) -> None:
        self.foreign = foreign
        self.asked: list[tuple[str, int | None]] = []

    def measure(self, name: str, options: Options, steps: int | None) -> dict[str, Any]:
        self.asked.append((name, steps))
        loads = self.foreign.get(name, [])
        foreign = loads.pop(0) if loads else 0.0
        if name == "matrix":
            return {"flops_per_second": 1e11, "foreign": foreign}
        timing = {"parameters": 10, "seeds": 1, "steps": steps or 469, "epoch_seconds": 3.0, "warmup_seconds": 1.0}
        return timing | {"checkpoint_seconds": 0.0, "memory": 123, "foreign": foreign}


def _run(monkeypatch: pytest.MonkeyPatch, machine: _Machine, options: Options) -> tuple[list[Row], list[float]]:
    monkeypatch.setattr(runner, "measure", machine.measure)
    return runner.run_rounds({"a": 8, "b": 60, "c": 60}, options, 1, lambda line: None)


def test_disturbed_timings_are_kept_aside_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _Machine({"a": [0.5, 0.06, 0.04], "b": [0.9] * 9, "matrix": [0.2, 0.0]})
    rows, rates = _run(monkeypatch, machine, OPTIONS)
    loads = {name: [(row.foreign, row.kept) for row in rows if row.implementation == name] for name in "abc"}
    assert loads == {"a": [(0.5, False), (0.06, False), (0.04, True)], "b": [(0.9, False)] * 3, "c": [(0.0, True)]}
    assert len(rates) == 1
    assert all(row.memory == 123 for row in rows)
    assert "b" not in results.summarize(rows)


def test_growth_takes_the_median_of_what_counts_or_the_least_disturbed() -> None:
    measured = {1: [(9.0, 0.5), (3.0, 0.0), (4.0, 0.0)], 2: [(9.0, 0.5), (7.0, 0.3), (8.0, 0.4)] * 2}
    series = growth._series("seeds", [1, 2], "an epoch", lambda x: measured[x].pop(0), 2, OPTIONS, lambda line: None)
    assert series["y"] == [3.5, 7.0]


def test_steps_come_from_the_option_or_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, expected in ((OPTIONS, 2), (dataclasses.replace(OPTIONS, steps=None), 8)):
        machine = _Machine({})
        _run(monkeypatch, machine, options)
        assert dict(machine.asked)["a"] == expected


def test_a_failed_timing_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real process fails, one that does not import torch before."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "measure.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match="Timing ours failed with status 3"):
        runner.measure("ours", AT_ONCE, 2)


@pytest.mark.slow
def test_a_timing_in_its_own_process() -> None:
    result = runner.measure("ours-thread", AT_ONCE, 2)
    assert (result["parameters"], result["steps"]) == (10_666, 2)
    assert result["epoch_seconds"] == pytest.approx(result["seconds"] / 2 * 469)
    assert 100 * 2**20 < result["memory"] < 4 * 2**30


@pytest.mark.slow
def test_a_benchmark_that_is_ended_ends_its_timing(tmp_path: Path) -> None:
    command_line = [sys.executable, "-m", "benchmarks", "--only", "ours-thread", "--threshold", "1", "--out", str(tmp_path)]
    environment = os.environ | {"LAB_DEVICE": "cpu"}
    with subprocess.Popen(command_line, cwd=runner.ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: _timed(process.pid))
        timed = _timed(process.pid)
        process.terminate()
        assert process.communicate(timeout=60)[1] == "interrupted\n"
    assert len(timed) == 1
    assert "benchmarks.measure" not in _command_of(*timed)


def _timed(pid: int) -> list[int]:
    """The timings that a benchmark runs at the moment."""
    return [one for one in load.tree(pid) if "benchmarks.measure" in _command_of(one)]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


def test_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    with pytest.raises(UserError, match="--only names 'tim-loader'"):
        command.main(["--only", "tim-loader", "--out", str(tmp_path)])


def test_page_is_written_again_from_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    base = tmp_path / command._slug(device_name("cpu"))
    with pytest.raises(UserError, match="missing"):
        command.main(["--page", "--out", str(tmp_path)])
    results.write(base.with_suffix(".csv"), [Row(1, 1, "ours-10", 10_666, 10, 120, 6.5, 2.0, 0.01, 2**20, 0.0, True)])
    facts = {
        "machine": "Some CPU", "device": "cpu", "threads": 2, "versions": {}, "data": "mnist", "commit": None, "dirty": None,
        "date": "2026-01-02", "attention": "sdpa", "seed": 0, "threshold": 0.05, "quick": False, "rounds": 1,
        "matrix_rates": [],
    }  # fmt: skip
    base.with_suffix(".json").write_text(json.dumps(facts))
    command.main(["--page", "--out", str(tmp_path)])
    assert "6.50 [6.50 .. 6.50] *" in base.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("device", "slug"),
    [("AMD EPYC (2 cores)", "amd-epyc-2-cores"), ("NVIDIA H200", "nvidia-h200"), ("Intel(R) i7 @ 2.6", "intel-r-i7-2-6")],
)
def test_file_names_of_machines(device: str, slug: str) -> None:
    assert command._slug(device) == slug


@pytest.mark.long
def test_fabricated_outputs_leave_dvc_nothing_to_do() -> None:
    ((seconds, _),) = overheads.noop_seconds(AT_ONCE, 2, 1)  # raises when a stage runs
    assert seconds > 0


def test_the_silent_log_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    live = SilentLive(make_run(), start_after=0.0)
    for row in make_rows():
        live.epoch(row)
    live.close("SCHEDULED")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_timed_training_trains_each_time() -> None:
    """Though a finished seed is kept: by its checkpoint, and by what the run before left in runs/."""
    with nested.repository() as directory:
        nested.write_params(directory, {"base": {}}, seeds=1, epochs=2)
        nested.dvc(directory, "repro", "--quiet", "prepare", "scenes", "resolve", "code")
        for way in ("silent", "tracked", "silent"):
            timed = json.loads(nested.call(directory, "benchmarks.tracked", way).splitlines()[-1])
            assert timed["epochs"] == 2
            if way == "silent":
                nested.call(directory, "pipeline.stages.sync")
