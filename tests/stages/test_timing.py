"""The timing stage as DVC starts it, on scikit-learn's digits; and the report that reads what it left."""

import json

import pytest

from pipeline import params
from pipeline.report import pages
from pipeline.system.paths import TIMINGS
from pipeline.timing import results
from tests.conftest import Repository


@pytest.mark.slow
def test_the_stage_leaves_results_that_the_report_reads(trained: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.path)
    lines = [line for line in trained.output.splitlines() if line.startswith("timing,")]
    assert lines[-1].endswith("profiles taken")
    assert sum("others used" in line for line in lines) >= 1
    raw = json.loads((TIMINGS / "cpu.json").read_text())
    assert raw["dataset"]["name"] == "digits"
    settings = params.load()
    found = results.load(settings)["cpu"]
    assert not found.changed
    # Kept bytes are counted and not timed: the same on every machine, and as published near the square of the tokens.
    assert 1.5 < found.exponent("saved bytes", "attention")[0] < 2.1
    page = pages.render(settings, {})["timing.md"].decode()
    assert "| base | 5 |" in page
    assert "\n| attention | " in page
