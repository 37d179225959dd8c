"""The page on method says what params.yaml declares and what the table of simulated error rates holds."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from pipeline.params import Params
from pipeline.report import method
from pipeline.study.effects import look_level

RATES = Path(__file__).parents[2] / "pipeline/study/error_rates.csv"


def page(study: Params) -> str:
    return method.render(study).decode()


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
    assert f"(% of studies, at most {worst:.1f}, known to within 0.7 points; " in shown
    assert f"over {int(rates[0]['trials']):,} simulated studies per row" in shown


def test_it_states_looks_level_and_length(study: Params) -> None:
    shown = page(study)
    assert "looked at with 6, 10 and 20 seeds" in shown
    assert f"has a level of {100 * look_level(study.looks):.3g} %" in shown
    assert "(1,800,000 where it says nothing else)" in shown
    once = page(study.model_copy(update={"looks": (), "images_shown": 1234}))
    assert "This study has no looks: all seeds count, once, with intervals at 95 %." in once
    assert "(1,234 where" in once


def test_its_links_lead_to_pages(study: Params) -> None:
    assert set(re.findall(r"\]\(([^)#]+)", page(study))) == {"README.md", "glossary.md", "hardware.md"}
