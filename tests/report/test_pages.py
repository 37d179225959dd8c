"""The numbers of pages and tables against scipy, pandas and the files of the timing stage."""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from pipeline.params import ExperimentSettings, Params, parse
from pipeline.report import csvs, pages, text
from pipeline.report.experiment import Tables
from pipeline.report.text import NBSP
from pipeline.study.effects import ShareEstimate, look_level
from pipeline.study.results import summarized
from pipeline.system.paths import TIMINGS
from pipeline.timing import results
from tests.helpers import ROOT, ends
from tests.made_up import make_run, read, table

Make = Callable[..., results.Timings]
EXPERIMENT = ExperimentSettings(
    title="One", question="Is it?", source="code", baseline="base", variants=("base", "relu", "mean"), measure="first-epoch loss"
)


# --- words and csv files ---


@pytest.mark.parametrize(("number", "expected"), [(999, "999"), (999_499, "999 k"), (999_600, "1 M"), (1_234_567, "1.23 M")])
def test_a_large_count_never_has_four_digits_before_its_unit(number: int, expected: str) -> None:
    assert text.count(number) == expected


def test_curves_have_a_line_for_each_variant_and_epoch_and_end_where_a_seed_diverges(study: Params) -> None:
    runs = {name: make_run(study, name, epochs=epochs) for name, epochs in (("base", 3), ("sinusoidal", 5), ("mlp", 1))}
    runs["base"].curves["train_loss"][1, 2] = np.nan
    found = pd.read_csv(io.BytesIO(csvs.curves(runs)), keep_default_na=False)
    assert list(found.variant) == ["base"] * 3 + ["sinusoidal"] * 5 + ["mlp"]
    assert list(found.epoch) == [1, 2, 3, 1, 2, 3, 4, 5, 1]
    assert [found[f"train_loss{end}"][2] for end in ("", "_lowest", "_highest")] == ["nan"] * 3
    part = found[found.variant == "sinusoidal"]
    for column, values in (("test_error", 1 - runs["sinusoidal"].test_accuracy), ("train_loss", runs["sinusoidal"].train_loss)):
        for end, expected in (("", values.mean(0)), ("_lowest", values.min(0)), ("_highest", values.max(0))):
            np.testing.assert_allclose(part[column + end].astype(float), expected, rtol=1e-5)


def test_dvc_plots_draws_columns_and_templates_that_are_there() -> None:
    header = csvs.curves({}).decode().strip().split(",")
    plots = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["plots"]
    assert plots
    for plot in plots:
        ((_, settings),) = plot.items()
        ((file, column),) = settings["y"].items()
        assert file == "reports/curves.csv"
        assert {settings["x"], column, f"{column}_lowest", f"{column}_highest"} <= set(header)
        template = json.loads((ROOT / ".dvc" / "plots" / f"{settings['template']}.json").read_text(encoding="utf-8"))
        assert "<DVC_METRIC_DATA>" in json.dumps(template)


# --- an experiment ---


def test_differences_of_shares_are_exact(study: Params) -> None:
    """All six of one side and none of the other have no spread, and still an interval."""
    runs = {name: make_run(study, name, epochs=2) for name in ("base", "relu")}
    runs["relu"].curves["train_loss"][:] = 2.31
    found = Tables(study, EXPERIMENT, runs).difference("diverged", "relu", "base")
    assert found is not None
    assert found[1] == ShareEstimate((6, 0), (6, 6)).interval(look_level(study.looks))
    one = summarized(runs["relu"], "diverged")
    assert one is not None
    assert ends(one.interval) == pytest.approx((0.025 ** (1 / 6), 1))  # Clopper and Pearson's of six of six


def test_the_answer_has_the_least_the_most_and_the_baseline(study: Params) -> None:
    runs = {name: make_run(study, name, epochs=2) for name in EXPERIMENT.variants}
    runs["relu"].curves["train_loss"][:] += 0.5
    runs["mean"].curves["train_loss"][:] -= 0.5
    means = {name: run.train_loss[:, 0].mean() for name, run in runs.items()}
    said = [(name, f"{means[name]:.4f} nats".replace("-", "\N{MINUS SIGN}")) for name in ("mean", "relu", "base")]
    assert Tables(study, EXPERIMENT, runs).answer() == said
    del runs["mean"]
    assert [name for name, _ in Tables(study, EXPERIMENT, runs).answer()] == ["base (the baseline)", "relu"]
    assert Tables(study, EXPERIMENT, {}).answer() == []


# --- the thesis and the timings ---


def written(study: Params, claims: list[str], **timed: results.Timings) -> dict[str, str]:
    """The pages of the claims and of their experiments, of which nothing was trained."""
    own = {name: one for name, one in study.experiments.items() if {*claims} & {*one.claims}}
    some = {"claims": {id: study.claims[id] for id in claims}, "experiments": own, "ranking": {}}
    report = pages.Report(study.model_copy(update=some), {})
    report.__dict__["timed"] = timed
    return {name: page.decode().replace(NBSP, " ") for name, page in report.files().items() if isinstance(page, bytes)}


def test_a_claim_of_somebody_elses_thesis_is_not_on_the_page_beside_this_one(study: Params) -> None:
    another = study.claims["T3"].model_copy(update={"source": "my thesis, 5.1"})
    assert "thesis.md" not in written(study.model_copy(update={"claims": {"M1": another}}), ["M1"])


def test_numbers_of_the_timing_page_are_those_of_the_file(study: Params, make_timings: Make) -> None:
    found = make_timings(noise=1e-5)
    shown, raw = written(study, ["T4", "T6", "T7", "T9"], cpu=found)["timing.md"], found.raw
    cells = table(shown, "| network | tokens |")["cls-loop (class token by loop)"]
    for cell, way in ((cells[1], "published"), (cells[3], "fast")):
        times = np.array([1e3 * entry["seconds"][f"step/{way}/cls-loop"] for entry in raw["rounds"]])
        numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
        assert numbers == pytest.approx([np.median(times), times.min(), times.max()], rel=0.006)
    profile = raw["profiles"]["step/published/base"]
    part = profile["groups"]["attention"]
    assert f"{1e3 * part:.2f} ({100 * part / profile['seconds']:.0f} %)" in shown
    assert f"as published calls {sum(profile['operators'].values()):,} operators" in shown
    for claim, place in (("T4", "experiments/cls-token.md"), ("T9", "")):  # a claim of an experiment stands on its page
        assert (f"\n### {claim}: " in shown) == (not place)
        assert f"- [{claim}]({place or 'timing.md'}#" in shown


@pytest.mark.usefixtures("drawn_once")
def test_the_timing_page_stands_and_is_linked_while_there_are_timings(
    make_timings: Make, raw_params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiments = {"patch-size": raw_params["experiments"]["patch-size"] | {"figures": []}}
    params, reports = parse(raw_params | {"experiments": experiments, "ranking": {}}), tmp_path / "reports"
    for device in ("cpu", "cuda"):
        make_timings(device=device)
    pages.write(params, {})
    verdicts = {first: cells[1] for first, cells in table(read(tmp_path, "README.md"), "deciding comparison").items()}
    assert verdicts["[T6](experiments/patch-size.md#t6-contradicted)"] == "**contradicted**"
    assert verdicts["[T9](timing.md#t9-supported)"] == "**supported**"
    assert "[the timings](../timing.md)" in read(tmp_path, "experiments/patch-size.md")
    assert (reports / "timing/growth.png").exists()
    assert read(tmp_path, "timing.md").count("| network | tokens |") == 2
    shutil.rmtree(tmp_path / TIMINGS)
    pages.write(params, {})
    assert not list(reports.glob("timing*/*.png"))
    assert not (reports / "timing.md").exists()
    assert "timing.md" not in read(tmp_path, "README.md")
    assert table(read(tmp_path, "README.md"), "deciding comparison")["[T9](README.md#t9-not-run)"][1] == "**not run**"
