"""What a user waits for besides training: DVC until the first step and when nothing changed, MLflow.

`python -m benchmarks.overheads tracked|silent` is one training in the working directory, with MLflow or without.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import images, load, nested, ours
from benchmarks.measure import THESIS
from benchmarks.runner import ROOT, Options
from pipeline import params
from pipeline.errors import UserError, run_command
from pipeline.training.records import EpochRow, read_epochs

_TRACKED_EPOCHS = 3
_UP_TO_DATE = "up to date"
_PATIENCE_SECONDS = 120.0


def measure(options: Options, say: Callable[[str], None], *, repeats: int) -> list[dict[str, Any]]:
    """All overheads, for the page: what, the values of the repeats, their unit and the bar."""
    study = params.load(ROOT / "params.yaml")
    return [
        *_first_step(options, say, repeats),
        *_mlflow(options, say, repeats),
        _noop(options, say, repeats, len(study.variants), "3 s"),
        _noop(options, say, repeats, 50, "6 s"),
    ]


def _first_step(options: Options, say: Callable[[str], None], repeats: int) -> list[dict[str, Any]]:
    """From the call of `dvc repro` to the first training step, on digits: in a fresh repository, then after a changed parameter."""
    fresh: list[float] = []
    changed: list[float] = []
    for _ in range(repeats):
        with nested.repository() as directory:
            for values, learning_rate in ((fresh, 0.005), (changed, 0.004)):
                nested.write_params(directory, {"base": {}}, seeds=1, epochs=1, learning_rate=learning_rate)
                load.wait_until_quiet(options.threshold, patience=_PATIENCE_SECONDS)
                values.append(_until_first_step(directory))
        say(f"first training step after {fresh[-1]:.1f} s, after a change {changed[-1]:.1f} s")
    what = "from `dvc repro` to the first training step"
    return [
        {"what": f"{what}, fresh repository on scikit-learn's digits (data are prepared first)", "values": fresh, "unit": "s"},
        {"what": f"{what}, data prepared, a training parameter changed", "values": changed, "unit": "s"},
    ]


def _until_first_step(directory: Path) -> float:
    """The first epoch's message, less the epoch's own seconds; its short test and checkpoint are still in it."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "dvc", "repro", "train@base"]
    output, arrived = [], None
    with subprocess.Popen(
        command, cwd=directory, env=nested.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if arrived is None and " epoch 1/1 " in line:
                arrived = time.perf_counter()
    if process.returncode or arrived is None:
        raise UserError(f"`dvc repro train@base` did not train in a nested repository: {''.join(output)}", status=1)
    return arrived - start - read_epochs(directory / "runs" / "base" / "epochs.csv")[0].seconds


def _mlflow(options: Options, say: Callable[[str], None], repeats: int) -> list[dict[str, Any]]:
    """The train stage on 60,000 images with MLflow and without, in turn: processor time of its coordinating process, wait at the end."""
    results: dict[str, list[Mapping[str, float]]] = {"silent": [], "tracked": []}
    with nested.repository() as directory:
        images.write(images.load(options.data), directory / "data" / "arrays")
        (directory / "configs").mkdir()
        settings = ours.variant(THESIS, options.threads if options.device == "cpu" else 10, _TRACKED_EPOCHS)
        (directory / "configs" / "base.json").write_text(settings.to_json(), encoding="utf-8")
        for _ in range(repeats):
            for way, values in results.items():
                load.wait_until_quiet(options.threshold, patience=_PATIENCE_SECONDS)
                values.append(json.loads(nested.call(directory, "benchmarks.overheads", way).splitlines()[-1]))
                say(f"training, {way}: {values[-1]['wall']:.1f} s")
    base = median(value["coordinator"] for value in results["silent"])
    training = median(value["coordinator"] + value["workers"] for value in results["silent"])
    cost = [(value["coordinator"] - base) / training for value in results["tracked"]]
    waits = [value["close"] / value["wall"] for value in results["tracked"]]
    extra = [tracked["wall"] / silent["wall"] - 1 for tracked, silent in zip(results["tracked"], results["silent"], strict=True)]
    training_kind = f"a training of {len(settings.train.seeds)} seeds and {_TRACKED_EPOCHS} epochs"
    kind = f"of {training_kind}, where its fixed cost weighs more than in the study"
    return [
        {"what": f"MLflow's share of the processor time {kind}", "values": cost, "unit": "share", "bar": "2 %"},
        {"what": f"waiting for MLflow at the end, share of the wall time {kind}", "values": waits, "unit": "share"},
        {"what": f"wall time with MLflow over without, less 1, {kind}", "values": extra, "unit": "share"},
    ]


def _noop(options: Options, say: Callable[[str], None], repeats: int, variants: int, bar: str) -> dict[str, Any]:
    values = noop_seconds(options, variants, repeats)
    say(f"no-op `dvc repro` with {variants} variants: {median(values):.1f} s")
    return {"what": f"`dvc repro` with nothing to do, {variants} variants", "values": values, "unit": "s", "bar": bar}


def noop_seconds(options: Options, variants: int, repeats: int) -> list[float]:
    """Seconds of `dvc repro` when all stages of so many variants are up to date."""
    values = []
    with nested.repository() as directory:
        settings = nested.write_params(directory, nested.many_variants(variants), seeds=1, epochs=1)
        nested.fabricate_outputs(directory, list(settings.variants))
        for _ in range(repeats):
            load.wait_until_quiet(options.threshold, patience=_PATIENCE_SECONDS)
            start = time.perf_counter()
            output = nested.dvc(directory, "repro")
            values.append(time.perf_counter() - start)
            if _UP_TO_DATE not in output:
                raise UserError(f"The no-op `dvc repro` ran a stage, so it was none: {output}", status=1)
    return values


class _SilentTracker:
    """Stands where the tracker stands and does nothing: the same training without MLflow."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        pass

    def epoch(self, row: EpochRow) -> None:
        pass

    def close(self, status: str, *, metrics: Mapping[str, Any] | None = None, artifacts: Sequence[Path] = ()) -> bool:
        return True


def main(argv: list[str]) -> None:
    if argv not in (["tracked"], ["silent"]):
        raise UserError("Usage: python -m benchmarks.overheads tracked|silent")
    from pipeline.stages import paths, train
    from pipeline.tracking import Tracker

    tracker = Tracker if argv == ["tracked"] else _SilentTracker
    waited = 0.0

    class Timed(tracker):  # type: ignore[misc, valid-type]
        def close(self, *arguments: Any, **options: Any) -> bool:
            nonlocal waited
            start = time.perf_counter()
            complete: bool = super().close(*arguments, **options)
            waited = time.perf_counter() - start
            return complete

    train.Tracker = Timed  # type: ignore[attr-defined]
    shutil.rmtree(paths.CHECKPOINTS, ignore_errors=True)  # of the training before, which would leave nothing to train
    start = time.perf_counter()
    train.main(["base"])
    wall = time.perf_counter() - start
    seconds = {
        name: usage.ru_utime + usage.ru_stime
        for name, usage in (
            ("coordinator", resource.getrusage(resource.RUSAGE_SELF)),
            ("workers", resource.getrusage(resource.RUSAGE_CHILDREN)),
        )
    }
    print(json.dumps({"wall": wall, "close": waited} | seconds), flush=True)


if __name__ == "__main__":
    run_command(main)
