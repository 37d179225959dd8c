"""The timing page: its numbers against the results file, its sentences against what they say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.params import Params, parse
from pipeline.report import pages, timing
from pipeline.study.claims import judge
from pipeline.study.files import TIMINGS
from pipeline.study.results import load_current
from pipeline.timing import results
from tests.made_up import write_study

pytestmark = pytest.mark.usefixtures("drawn_once")

TIMED = ("T4", "T6", "T7", "T9")

Make = Callable[..., results.Timings]


def page(study: Params, found: results.Timings) -> tuple[str, dict[str, Any]]:
    timed = {"cpu": found, "cuda": found}
    judgements = [judge(id, study.claims[id], {}, timed, images_shown=study.images_shown) for id in TIMED]
    files = timing.render(
        study, {"cpu": found}, judgements, dict.fromkeys(TIMED, "timing.md#here") | {"T6": "experiments/patch-size.md#t6"}
    )
    return files["timing.md"].decode().replace("\N{NO-BREAK SPACE}", " "), files


def test_disturbed_rounds_are_told(study: Params, make_timings: Make) -> None:
    shown, _ = page(study, make_timings(disturbed=3))
    assert "12 rounds count; 3 more were discarded, because other processes used more than 5 % of the machine (up to 40 %)" in shown
    assert "none had to be discarded" in page(study, make_timings())[0]
    assert "No round counts" in page(study, make_timings(rounds=0, disturbed=6))[0]
    for rounds in (1, 5):
        assert "Fewer than 6 rounds count" in page(study, make_timings(rounds=rounds))[0]


def test_numbers_of_the_page_are_those_of_the_file(study: Params, make_timings: Make) -> None:
    found = make_timings()
    (shown, _), raw = page(study, found), found.raw
    (line,) = (line for line in shown.splitlines() if line.startswith("| cls-loop (class token by loop) | 50 |"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    for cell, way in ((cells[2], "published"), (cells[4], "fast")):
        times = np.array([1e3 * entry["seconds"][f"step/{way}/cls-loop"] for entry in raw["rounds"]])
        numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
        assert numbers == pytest.approx([np.median(times), times.min(), times.max()], rel=0.006)
    profile = raw["profiles"]["step/published/base"]
    part = profile["groups"]["attention"]
    assert f"{1e3 * part:.2f} ({100 * part / profile['seconds']:.0f} %)" in shown
    assert "| T4 | cls-loop | first | 1.3" in shown
    (line,) = (
        line for line in page(study, make_timings(exponent=1.5, noise=1e-5))[0].splitlines() if line.startswith("| time of attention")
    )
    assert re.findall(r"\d\.\d\d", line) == ["1.50"] * 6
    for tokens in study.timing.tokens:
        assert any(line.startswith(f"| {tokens} |") for line in shown.splitlines())
    for claim in TIMED:
        assert (f"### {claim}: " in shown) == (claim != "T6")  # an experiment's page has that
        assert study.claims[claim].sentence in shown
    assert "- [T6](experiments/patch-size.md#t6), " in shown


def test_tables_are_numbered_in_their_order(study: Params, make_timings: Make) -> None:
    for rounds, tables in ((12, 6), (1, 6)):
        shown, _ = page(study, make_timings(rounds=rounds, loop=1.3))
        assert re.findall(r"^\*Table (\d+)\. ", shown, re.MULTILINE) == [str(number) for number in range(1, tables + 1)]


def test_the_report_has_the_page_links_it_and_removes_it_with_its_results(
    make_timings: Make, raw_params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiments = {name: raw_params["experiments"][name] | {"figures": []} for name in ("positions", "cls-token", "patch-size")}
    named = {variant for experiment in experiments.values() for variant in experiment["variants"]}
    variants = {name: change for name, change in raw_params["variants"].items() if name in named}
    raw = write_study(tmp_path, seeds=2, epochs=4, experiments=experiments, variants=variants)
    params = parse(raw)
    make_timings()
    make_timings(device="cuda")
    runs = load_current(params).trainings
    pages.write(params, runs)
    readme = (tmp_path / "reports/README.md").read_text()
    for claim, place, verdict in (
        ("T4", "experiments/cls-token.md#t4-supported", "supported"), ("T6", "experiments/patch-size.md#t6-contradicted", "contradicted"),
        ("T7", "experiments/patch-size.md#t7-supported", "supported"), ("T9", "timing.md#t9-supported", "supported"),
    ):  # fmt: skip
        (line,) = (line for line in readme.splitlines() if line.startswith(f"| [{claim}]"))
        assert f"]({place})" in line
        assert f"**{verdict}**" in line
    assert "[Where the time goes](timing.md)" in readme
    assert "[the timings](../timing.md)" in (tmp_path / "reports/experiments/patch-size.md").read_text()
    assert "../timing.md" not in (tmp_path / "reports/experiments/positions.md").read_text()
    assert "Some Processor (2 cores) (cuda), with python 3.11.2, torch 2.15.0" in (tmp_path / "reports/hardware.md").read_text()
    assert (tmp_path / "reports/timing/growth.png").exists()

    page = (tmp_path / "reports/timing.md").read_text()
    assert "| network | cpu, as published (ms) | cpu, fast path (ms) | cuda, as published (ms) | cuda, fast path (ms) |" in page
    operators = json.loads((tmp_path / TIMINGS / "cuda.json").read_text())["profiles"]["step/published/base"]["operators"]
    assert f"as published calls {sum(operators.values()):,} operators" in page

    shutil.rmtree(tmp_path / TIMINGS)
    pages.write(params, runs)
    assert not list((tmp_path / "reports").glob("timing*/*.png"))
    assert not (tmp_path / "reports/timing.md").exists()
    readme = (tmp_path / "reports/README.md").read_text()
    assert "timing.md" not in readme
    (line,) = (line for line in readme.splitlines() if line.startswith("| [T9]"))
    assert "](#t9-not-run)" in line
    assert "### T9: not run" in readme
    assert "**not run**" in line
    assert "the timing stage has not run" in line
