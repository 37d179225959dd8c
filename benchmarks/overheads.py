"""What a study costs besides training: MLflow's store, filled anew, and a `dvc repro` that has nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline import params
from pipeline.system.errors import UserError
from pipeline.timing.load import wait_until_quiet
from pipeline.timing.rounds import THRESHOLD, Say

ROOT = Path(__file__).parent.parent


def measure(say: Say, repeats: int) -> list[dict[str, Any]]:
    """What, the values of the repeats, and their unit, for the page. The study in this repository has to be up to date."""
    many = f"{len(params.load(ROOT / 'params.yaml').variants)} variants"
    found = {"MLflow's store filled anew": ["pipeline.stages.sync"], "`dvc repro` with nothing to do": ["dvc", "repro", "--dry"]}
    listed: list[dict[str, Any]] = [{"what": f"{what}, {many}", "values": [], "unit": "s"} for what in found]
    for _ in range(repeats):
        for command, entry in zip(found.values(), listed, strict=True):
            wait_until_quiet(THRESHOLD)
            seconds, output = _call(*command)
            if "--dry" in command and "up to date" not in output:
                raise UserError("`dvc repro` has something to do here, so its cost without work cannot be timed: run `make repro` first.")
            entry["values"].append(seconds)
            say(f"{entry['what']}: {seconds:.1f} s")
    return listed


def _call(module: str, *arguments: str) -> tuple[float, str]:
    """Seconds that `python -m module` takes, and what it printed; raises UserError with it when it failed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        start = time.perf_counter()
        command = [sys.executable, "-m", module, *arguments]
        result = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise UserError(f"`{module} {' '.join(arguments)}` failed: {result.stdout}", status=1)
    return time.perf_counter() - start, result.stdout
