"""Runs timings in processes of their own, interleaved, and repeats those that other processes disturbed."""

from __future__ import annotations

import importlib.metadata
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import load
from benchmarks.results import Row
from pipeline.errors import UserError

ROOT = Path(__file__).parent.parent
_SAMPLE_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """How to time.

    Attributes:
        threads: torch's threads, and our processes, on the CPU.
        threshold: share of the machine, in [0, 1], that other processes may use during a timing that counts.
        attempts: timings of one implementation in one round, until one counts.
        steps: replaces every implementation's own number of steps; None leaves them.
        full_epochs: time whole epochs instead.
    """

    device: str
    data: Path
    threads: int
    warmup: int
    threshold: float
    attempts: int
    steps: int | None
    full_epochs: bool


def measure(name: str, options: Options, steps: int | None, *arguments: str) -> tuple[dict[str, Any], int]:
    """One timing in a fresh process; `arguments` are further ones of `benchmarks.measure`.

    Returns:
        what the process printed; the peak of its tree's memory in bytes, sampled twice a second.

    Raises:
        UserError: it failed; its own words have been printed.
    """
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
    return result, peak


def run_rounds(
    steps: dict[str, int], options: Options, num_rounds: int, seed: int, say: Callable[[str], None]
) -> tuple[list[Row], list[float]]:
    """Times every implementation once a round, each round in a new random order.

    Args:
        steps: the implementations, each with the number of steps to time.
        seed: of the orders.

    Returns:
        all timings, those that do not count included; the machine's matrix rate in each round, operations a second.
    """
    generator = random.Random(seed)
    rows: list[Row] = []
    rates: list[float] = []
    for number in range(1, num_rounds + 1):
        order = ["matrix", *steps]
        generator.shuffle(order)
        for position, name in enumerate(order, start=1):
            wanted = None if options.full_epochs or name == "matrix" else (options.steps or steps[name])
            for _ in range(options.attempts):
                load.wait_until_quiet(options.threshold, patience=_PATIENCE_SECONDS)
                result, peak = measure(name, options, wanted)
                kept = result["foreign"] <= options.threshold
                place = f"round {number}/{num_rounds}  {position:2}/{len(order)}  {name:24}"
                disturbed = "" if kept else f"   not counted: other processes used {result['foreign']:.0%}"
                if name == "matrix":
                    say(f"{place} {result['flops_per_second'] / 1e9:8.0f} GFLOP/s{disturbed}")
                    if kept:
                        rates.append(result["flops_per_second"])
                else:
                    say(f"{place} {result['epoch_seconds']:8.3f} s/epoch{disturbed}")
                    rows.append(_row(number, position, name, result, peak, kept))
                if kept:
                    break
    return rows, rates


def _row(number: int, position: int, name: str, result: dict[str, Any], peak: int, kept: bool) -> Row:
    return Row(
        number,
        position,
        name,
        result["parameters"],
        result["seeds"],
        result["steps"],
        result["epoch_seconds"],
        result["warmup_seconds"],
        result["checkpoint_seconds"],
        result["device_memory"] or peak,
        result["foreign"],
        kept,
    )


def missing(distributions: Iterable[str | None]) -> set[str]:
    """Those that are not installed."""
    return {name for name in distributions if name is not None and version(name) is None}


def version(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
