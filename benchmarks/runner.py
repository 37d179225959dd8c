"""Runs timings in processes of their own, in interleaved rounds."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import Row
from pipeline.errors import UserError
from pipeline.timing import load, rounds
from pipeline.timing.rounds import Say

ROOT = Path(__file__).parent.parent
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    """How to time.

    Attributes:
        threads: torch's threads, and our processes, on the CPU.
        threshold: share of the machine, in [0, 1], that other processes may use during a timing that counts.
        attempts: timings of one implementation in one round, until one counts.
        steps: replaces every implementation's own number of steps; None leaves them.
    """

    device: str
    data: Path
    threads: int
    warmup: int
    threshold: float
    attempts: int
    steps: int | None


def measure(name: str, options: Options, steps: int | None, *arguments: str) -> dict[str, Any]:
    """One timing in a fresh process, once the machine is quiet; `arguments` are further ones of `benchmarks.measure`.

    Returns:
        what the process printed, and `memory`: the peak bytes that it allocated on the GPU, else those of its tree, sampled twice a
        second.

    Raises:
        UserError: it failed; its own words have been printed.
    """
    load.wait_until_quiet(options.threshold)
    command = [sys.executable, "-m", "benchmarks.measure", name, "--device", options.device, "--data", str(options.data.resolve())]
    command += ["--threads", str(options.threads), "--warmup", str(options.warmup)]
    command += [*([] if steps is None else ["--steps", str(steps)]), *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        ended = threading.Event()

        def sample() -> None:
            nonlocal peak
            while not ended.wait(_SAMPLE_SECONDS):
                peak = max(peak, load.memory(process.pid))

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            output, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
        finally:
            ended.set()
            sampler.join()
    if process.returncode:
        raise UserError(f"Timing {name} failed with status {process.returncode}; the lines above say why.", status=1)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result | {"memory": result.get("device_memory") or peak}


def run_rounds(steps: dict[str, int], options: Options, num_rounds: int, say: Say) -> tuple[list[Row], list[float]]:
    """Times every implementation and the machine's matrix rate once a round; repeats a timing that was disturbed.

    Args:
        steps: the implementations, each with the number of steps to time.

    Returns:
        all timings, those that do not count included; the matrix rates that count, operations a second.
    """

    def time_one(names: Sequence[str]) -> tuple[dict[str, Any], float]:
        (name,) = names
        result = measure(name, options, None if name == "matrix" else (options.steps or steps[name]))
        return result, result["foreign"]

    timings = rounds.run_rounds(
        ["matrix", *steps],
        time_one,
        rounds=num_rounds,
        say=say,
        repeat="timing",
        show=_show,
        attempts=options.attempts,
        threshold=options.threshold,
    )
    rates = [timing.value["flops_per_second"] for timing in timings if timing.names == ("matrix",) and timing.kept]
    return [_row(timing) for timing in timings if timing.names != ("matrix",)], rates


def _show(result: dict[str, Any]) -> str:
    rate = result.get("flops_per_second")
    return f"{rate / 1e9:.0f} GFLOP/s" if rate else f"{result['epoch_seconds']:.3f} s/epoch"


def _row(timing: rounds.Timing[dict[str, Any]]) -> Row:
    same = ("parameters", "seeds", "steps", "epoch_seconds", "warmup_seconds", "checkpoint_seconds", "memory")
    own = {name: timing.value[name] for name in same}
    return Row(timing.round, timing.position, timing.names[0], **own, foreign=timing.foreign, kept=timing.kept)


def missing(distributions: Iterable[str | None]) -> set[str]:
    """Those that are not installed."""
    return {name for name in distributions if name is not None and version(name) is None}


def version(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
