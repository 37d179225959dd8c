"""What a user waits for besides training: DVC until the first step and when nothing changed, MLflow."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import images, nested, ours
from benchmarks.measure import THESIS
from benchmarks.runner import ROOT, Options
from pipeline import params
from pipeline.errors import UserError
from pipeline.runner import seeds
from pipeline.timing.load import LoadMeter, wait_until_quiet
from pipeline.timing.rounds import Say

# Long enough that the tracker logs during the training. Its fixed cost weighs more here than in the study.
_TRACKED_EPOCHS = {"cpu": 16, "cuda": 300}
THESIS_VARIANTS = 13  # of the thesis's own three experiments and the question of its heads
_UP_TO_DATE = "up to date"


def measure(options: Options, say: Say, *, repeats: int) -> list[dict[str, Any]]:
    """All overheads, for the page: what, the values of the repeats, their unit and the bar."""
    study = params.load(ROOT / "params.yaml")
    return [
        *_first_step(options, say, repeats),
        *_mlflow(options, say, min(repeats, 3)),
        _noop(options, say, repeats, THESIS_VARIANTS, "3 s"),
        _noop(options, say, repeats, 50, "6 s"),
        _noop(options, say, repeats, len(study.variants), "8 s"),
    ]


def _first_step(options: Options, say: Say, repeats: int) -> list[dict[str, Any]]:
    """From the call of `dvc repro` to the first training step, on digits: in a fresh repository, then after a changed parameter."""
    fresh: list[float] = []
    changed: list[float] = []
    for _ in range(repeats):
        with nested.repository() as directory:
            for values, learning_rate in ((fresh, 0.005), (changed, 0.004)):
                nested.write_params(directory, {"base": {}}, seeds=1, epochs=1, learning_rate=learning_rate)
                wait_until_quiet(options.threshold)
                values.append(_until_first_step(directory))
        say(f"first training step after {fresh[-1]:.1f} s, after a change {changed[-1]:.1f} s")
    what = "from `dvc repro` to the first training step"
    return [
        {"what": f"{what}, fresh repository on scikit-learn's digits (data are prepared first)", "values": fresh, "unit": "s"},
        {"what": f"{what}, data prepared, a training parameter changed", "values": changed, "unit": "s"},
    ]


def _until_first_step(directory: Path) -> float:
    """Seconds until the first epoch's message, without the epoch's own; its short test and checkpoint are included."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "dvc", "repro", "train@base"]
    output, arrived = [], None
    with subprocess.Popen(
        command, cwd=directory, env=nested.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.append(line)
                if arrived is None and " epoch 1/1 " in line:
                    arrived = time.perf_counter()
        except BaseException:
            process.terminate()
            raise
    if process.returncode or arrived is None:
        raise UserError(f"`dvc repro train@base` did not train in a nested repository: {''.join(output)}", status=1)
    return arrived - start - seeds.epoch_rows(seeds.read_run(directory / "runs" / "base"))[0].seconds


def _mlflow(options: Options, say: Say, repeats: int) -> list[dict[str, Any]]:
    """The train stage on 60,000 images with MLflow and without, in turn."""
    timed: dict[str, list[dict[str, Any]]] = {"silent": [], "tracked": []}
    syncs = []
    epochs = _TRACKED_EPOCHS[options.device]
    with nested.repository() as directory:
        images.write(images.load(options.data), directory / "data" / "arrays")
        (directory / "configs").mkdir()
        settings = ours.variant(THESIS, options.threads if options.device == "cpu" else 10, epochs)
        (directory / "configs" / "base.json").write_text(settings.to_json(), encoding="utf-8")
        nested.write_params(directory, {"base": {}}, seeds=1, epochs=1)
        for _ in range(repeats):
            for way, values in timed.items():
                wait_until_quiet(options.threshold)
                values.append(json.loads(nested.call(directory, "benchmarks.tracked", way).splitlines()[-1]))
                say(f"training, {way}: {values[-1]['wall']:.1f} s")
                if values[-1]["epochs"] != epochs * len(settings.train.seeds):
                    raise UserError(f"A training that was to be timed found results and trained {values[-1]['epochs']} epochs.", status=1)
                if way == "silent":
                    start = time.perf_counter()
                    nested.call(directory, "pipeline.stages.sync")
                    syncs.append(time.perf_counter() - start)
    silent, tracked = timed["silent"], timed["tracked"]
    base = median(value["coordinator"] for value in silent)
    training = median(value["coordinator"] + value["workers"] for value in silent)
    kind = f"of a training of {len(settings.train.seeds)} seeds and {epochs} epochs"
    return [
        {
            "what": f"MLflow's share of the processor time {kind}",
            "values": [(value["coordinator"] - base) / training for value in tracked],
            "unit": "share",
            "bar": "2 %",
        },
        {
            "what": f"waiting for MLflow at the end, share of the wall time {kind}",
            "values": [value["wait"] / value["wall"] for value in tracked],
            "unit": "share",
        },
        {
            "what": f"wall time with MLflow over that without, less 1, {kind}",
            "values": [one["wall"] / other["wall"] - 1 for one, other in zip(tracked, silent, strict=True)],
            "unit": "share",
        },
        {"what": "`sync`: one training that MLflow does not have, brought into the store", "values": syncs, "unit": "s"},
    ]


def _noop(options: Options, say: Say, repeats: int, variants: int, bar: str) -> dict[str, Any]:
    values = [seconds for seconds, _ in noop_seconds(options, variants, repeats)]
    say(f"no-op `dvc repro` with {variants} variants: {median(values):.1f} s")
    return {"what": f"`dvc repro` with nothing to do, {variants} variants", "values": values, "unit": "s", "bar": bar}


def noop_seconds(options: Options, variants: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds of `dvc repro` when all stages of so many variants are up to date, and the share of the machine that others used."""
    values = []
    with nested.repository() as directory:
        settings = nested.write_params(directory, nested.many_variants(variants), seeds=1, epochs=1)
        nested.fabricate_outputs(directory, list(settings.variants))
        for _ in range(repeats):
            wait_until_quiet(options.threshold)
            with LoadMeter() as load:
                start = time.perf_counter()
                output = nested.dvc(directory, "repro")
                seconds = time.perf_counter() - start
            values.append((seconds, load.foreign))
            if _UP_TO_DATE not in output:
                raise UserError(f"The no-op `dvc repro` ran a stage, so it was none: {output}", status=1)
    return values
