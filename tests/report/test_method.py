"""The page on method says what params.yaml declares and what the table of simulated error rates holds."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.params import Params
from pipeline.report import method
from pipeline.runner.finished import IMAGES_APART, REPLAYED_STEPS, TEST_TOLERANCE
from pipeline.runner.replay import TOLERANCES
from pipeline.study import Training
from pipeline.study.effects import look_level
from tests.helpers import ROOT

RATES = Path(__file__).parents[2] / "pipeline/study/error_rates.csv"


def page(study: Params, runs: Mapping[str, Training] | None = None) -> str:
    return method.render(study, runs or {}).decode()


def rows(shown: str) -> dict[str, list[str]]:
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    return {first: cells for first, *cells in found}


def test_its_numbers_are_those_of_the_table(study: Params) -> None:
    shown = page(study)
    with RATES.open(newline="") as file:
        rates = list(csv.DictReader(file))
    cells = rows(shown)
    header = cells["errors over seeds"]
    errors = [row for row in rates if row["kind"] == "error"]
    for row in errors:
        claim, spread = row["scenario"].split(", ", 1)
        assert cells[spread][header.index(claim)] == f"{100 * float(row['false']):.1f}", row
    power = [row for row in rates if row["kind"] == "power"]
    for row in power:
        assert cells[row["scenario"]] == [f"{100 * float(row['first']):.1f}", f"{100 * float(row['decided']):.1f}"]
    spreads = {row["scenario"].split(", ", 1)[1] for row in errors}
    assert len(cells) == len(spreads) + len(power) + 3  # two headers, and the lines under them
    worst = max(100 * float(row["false"]) for row in errors)
    trials = int(rates[0]["trials"])
    chance = 1.96 * math.sqrt(worst * (100 - worst) / trials)
    assert f"(% of studies, at most {worst:.1f}, known to within {chance:.1f} points; " in shown
    assert f"over {trials:,} simulated studies per row" in shown


def test_it_states_looks_level_and_length(study: Params) -> None:
    shown = page(study)
    assert "looked at with 6, 10 and 20 seeds" in shown
    assert f"has a level of {100 * look_level(study.looks):.3g} %" in shown
    assert "looked at 5 times: 6 and 6, 6 and 10, 10 and 10, 10 and 20 and 20 and 20 seeds" in shown
    assert "(1,800,000 where it says nothing else)" in shown
    once = page(study.model_copy(update={"looks": (), "images_shown": 1234}))
    assert "This study has no looks: all seeds count, once, with intervals at 95 %." in once
    assert "(1,234 where" in once


def test_its_links_lead_to_pages(study: Params) -> None:
    assert set(re.findall(r"\]\(([^)#]+)", page(study))) == {"README.md", "glossary.md", "hardware.md"}


def test_it_says_how_skewed_the_study_is(study: Params) -> None:
    """Of the variants with enough seeds, beside pandas; one whose seeds all end alike has no skewness."""
    rng = np.random.default_rng(3)
    errors = {"base": rng.exponential(0.02, 8), "first": 0.02 * np.exp(rng.normal(0, 0.1, 6)), "mean": np.full(6, 0.02), "max": [0.01] * 5}
    runs = {}
    for name, error in errors.items():
        curves = {"test_accuracy": 1 - np.repeat(np.array(error)[:, None], 30, axis=1)}
        runs[name] = Training(name, {"config": study.resolve(name).model_dump(mode="json")}, tuple(range(len(error))), curves, 10, 10)
    found = method.skewness(runs, 6)
    assert found is not None
    expected = pd.Series([pd.Series(np.log(errors[name])).skew() for name in ("base", "first")])
    assert found.variants == 2
    assert (found.low, found.median, found.high) == pytest.approx(tuple(expected.quantile([0.25, 0.5, 0.75])))
    said = page(study, runs)
    assert "over its 2 variants with 6 seeds or more whose errors differ, " in said
    assert f"the skewness of their logarithms is {found.median:+.2f} in the median" in said
    assert method.skewness({}, 6) is None
    assert "skewness of their logarithms" not in page(study)


def test_the_bounds_of_a_replay_are_those_of_the_code(study: Params) -> None:
    numbers = {1: "one", 2: "two", 3: "three"}
    bounds = (
        f"may differ by {100 * TOLERANCES['loss']:g} %, a gradient norm by {100 * TOLERANCES['gradient_norm']:g} %, the loss of the test "
        f"by {100 * TEST_TOLERANCE:g} % and its accuracy by {numbers[IMAGES_APART]} images"
    )
    assert f"a loss {bounds}" in page(study)
    assert f"a loss of the first {REPLAYED_STEPS} steps {bounds}" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
