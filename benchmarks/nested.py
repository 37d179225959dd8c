"""Throw-away DVC repositories under build/ with the project's own stages, for what DVC, MLflow and the report cost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runner import ROOT
from pipeline import params
from pipeline.commands import profiles
from pipeline.environment import clean
from pipeline.errors import UserError
from pipeline.evaluation.records import Records
from pipeline.runner import seeds
from pipeline.study.files import ARRAYS, PREDICTIONS, RUNS, TABLES

_WEIGHT_BYTES = 430_000  # ten seeds of the thesis's model


@contextlib.contextmanager
def repository() -> Iterator[Path]:
    """A fresh nested repository with the root's dvc.yaml and no params.yaml; removed afterwards."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="benchmark-", ignore_cleanup_errors=True) as name:
        profiles.lay_out_stages(Path(name))
        yield Path(name)


def write_params(
    directory: Path, variants: dict[str, dict[str, Any]], *, seeds: int, epochs: int, learning_rate: float = 0.005
) -> params.Params:
    """params.yaml of the root's base with the demo's data and scenes, and other variants, in experiments of up to five."""
    raw = params.read(ROOT / "params.yaml") | {"preview": "A benchmark.", "data": {"dataset": "digits"}, "claims": {}, "variants": variants}
    raw["scenes"] |= {"train": 600, "validation": 60, "test": 100}  # the demo's: digits are few
    raw["train"] |= {"seeds": list(range(seeds)), "epochs": epochs, "batch_size": 64, "learning_rate": learning_rate}
    raw["timing"] |= {"rounds": 3, "steps": 5, "seconds": 4, "tokens": [4, 16, 49]}
    baseline, *others = variants
    raw["experiments"] = {
        f"group-{i}": {
            "title": f"Group {i}", "question": "How long does it take?", "source": "benchmark", "baseline": baseline,
            "variants": [baseline, *others[i : i + 4]],
        }
        for i in range(0, len(others), 4)
    }  # fmt: skip
    profiles.write_settings(directory, raw)
    return params.parse(raw)


def many_variants(count: int) -> dict[str, dict[str, Any]]:
    """The base and `count - 1` that differ from it and each other."""
    return {"base": {}} | {f"variant-{i:02}": {"dropout": i / 1000} for i in range(1, count)}


def fabricate_outputs(directory: Path, variants: list[str]) -> None:
    """Makes every stage look done: runs resolve and code, fills the other stages' outputs with noise, and has DVC record them.

    DVC compares digests and never reads the files' meaning, so its no-op costs the same as after a training.
    """
    dvc(directory, "repro", "--quiet", "resolve", "code")
    stages = yaml.safe_load((directory / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    for name, stage in stages.items():
        if name in ("resolve", "code"):
            continue
        body = stage.get("do", stage)
        for key in variants if "foreach" in stage else [""]:
            for entry in [*body.get("outs", []), *body.get("metrics", [])]:
                path = directory / (entry if isinstance(entry, str) else next(iter(entry))).replace("${key}", key)
                file = path if path.suffix else path / "content.bin"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(
                    b"{}\n" if path.suffix == ".json" else os.urandom(_WEIGHT_BYTES if path.suffix == ".safetensors" else 2_000)
                )
    dvc(directory, "commit", "--force", "--quiet")


def copy_results(directory: Path, settings: params.Params) -> None:
    """Gives every variant the trained base's results under its own settings, for the report to read."""
    for variant in list(settings.variants)[1:]:
        target = directory / "runs" / variant
        shutil.copytree(directory / "runs" / "base", target, dirs_exist_ok=True)
        shutil.copyfile(directory / "predictions" / "base.npz", directory / "predictions" / f"{variant}.npz")
        run = json.loads((target / "run.json").read_text(encoding="utf-8"))
        run |= {"variant": variant, "stage": f"train@{variant}", "config": settings.resolve(variant).model_dump(mode="json")}
        seeds.write_run(target, run)
    records = Records(directory / ARRAYS, directory / RUNS, directory / PREDICTIONS, directory / TABLES)
    weights = {"weights": seeds.read_run(directory / "runs" / "base")["outputs"][seeds.WEIGHTS]}
    records.write_tables(dict.fromkeys(settings.variants, weights))


def environment() -> dict[str, str]:
    """For commands that run in a nested repository: this package is importable there, output is not held back, bytecode is kept."""
    clean()
    # DVC's stages call `python`, which has to be this one.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"} | {
        "PATH": programs,
        "PYTHONUNBUFFERED": "1",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def dvc(directory: Path, *arguments: str) -> str:
    """Runs DVC. Returns what it printed; raises UserError with it when it failed."""
    return call(directory, "dvc", *arguments)


def call(directory: Path, module: str, *arguments: str) -> str:
    """Runs `python -m module` in a nested repository. Returns what it printed; raises UserError with it when it failed."""
    command = [sys.executable, "-m", module, *arguments]
    result = subprocess.run(command, cwd=directory, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise UserError(f"`{module} {' '.join(arguments)}` failed in a nested repository: {result.stdout}", status=1)
    return result.stdout
