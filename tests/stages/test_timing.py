"""The timing stage as `dvc repro` starts it, on scikit-learn's digits; and the report that reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import params
from pipeline.report import pages
from pipeline.system.paths import TIMINGS
from pipeline.timing import results
from tests.helpers import ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_params: dict[str, Any]) -> Path:
    raw = raw_params | {
        "data": {"dataset": "digits"},
        "train": raw_params["train"] | {"batch_size": 4},
        "base": raw_params["base"] | {"blocks": 1},
        "variants": {"base": {}, "lstm": {"architecture": "lstm", "widths": [4]}, "caption": raw_params["variants"]["caption"]},
        "experiments": {},
        "claims": {},
        "timing": {
            "rounds": 1,
            "steps": 1,
            "seconds": 30,
            "tokens": [49, 196],
            "subjects": {"base": {}} | {name: {"from": name} for name in ("lstm", "caption")},
        },
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_stage_leaves_results_that_the_report_reads(root: Path, arrays: Path) -> None:
    (root / "data").mkdir()
    (root / "data/arrays").symlink_to(arrays)
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.stages.timing"],
        env={**os.environ, "LAB_DEVICE": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert all(line.startswith("timing,") for line in lines)
    assert sum("others used" in line for line in lines) >= 1
    raw = json.loads((root / TIMINGS / "cpu.json").read_text())
    assert raw["dataset"]["name"] == "digits"
    settings = params.load()
    found = results.load(settings)["cpu"]
    assert not found.changed
    # Kept bytes are counted and not timed: the same on every machine, and as published near the square of the tokens.
    assert 1.5 < found.exponent("saved bytes", "attention")[0] < 2.1
    page = pages.render(settings, {})["timing.md"].decode()
    assert "| base | 50 |" in page
    assert "| lstm | - |" in page
    assert "\n| caption | " in page
