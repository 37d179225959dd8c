"""reports/curves.csv: the learning curves that `dvc plots` draws."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import yaml

from pipeline.params import Params
from pipeline.report import curves
from pipeline.study import Training
from tests.helpers import ROOT


def make_run(study: Params, name: str, *, epochs: int, seeds: int = 3) -> Training:
    rng = np.random.default_rng(len(name))
    arrays = {
        field: rng.uniform(0.1, 0.9, size=(seeds, epochs))
        for field in ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "seconds")
    }
    return Training(name, {"config": study.resolve(name).model_dump(mode="json")}, tuple(range(seeds)), arrays, 10, 10)


def test_a_line_for_each_variant_and_epoch(study: Params) -> None:
    runs = {name: make_run(study, name, epochs=epochs) for name, epochs in (("base", 3), ("sinusoidal", 5), ("mlp", 1))}
    table = pd.read_csv(io.BytesIO(curves.table(runs)))
    assert list(zip(table.variant, table.epoch, strict=True)) == [
        (name, epoch) for name, epochs in (("base", 3), ("sinusoidal", 5), ("mlp", 1)) for epoch in range(1, epochs + 1)
    ]
    for name, run in runs.items():
        seeds = pd.DataFrame(100 * (1 - run.test_accuracy)), pd.DataFrame(100 * run.train_loss)
        part = table[table.variant == name]
        for column, values in zip(("test_error", "train_loss"), seeds, strict=True):
            for end, expected in (("", values.mean()), ("_lowest", values.min()), ("_highest", values.max())):
                np.testing.assert_allclose(100 * part[column + end], expected, rtol=1e-5)


def test_a_curve_ends_where_a_seed_diverges(study: Params) -> None:
    run = make_run(study, "no-norm", epochs=4)
    run.curves["train_loss"][1, 2:] = np.nan
    run.curves["train_loss"][2, 3] = np.inf
    table = pd.read_csv(io.BytesIO(curves.table({"no-norm": run})), keep_default_na=False)
    assert list(table.train_loss[2:]) == list(table.train_loss_highest[2:]) == ["nan", "nan"]
    assert not table.test_error.astype(str).eq("nan").any()


def test_dvc_plots_draws_columns_and_templates_that_are_there(study: Params) -> None:
    header = curves.table({}).decode().strip().split(",")
    plots = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["plots"]
    assert plots
    for plot in plots:
        ((_, settings),) = plot.items()
        ((file, column),) = settings["y"].items()
        assert file == "reports/curves.csv"
        assert {settings["x"], column, f"{column}_lowest", f"{column}_highest"} <= set(header)
        template = json.loads((ROOT / ".dvc" / "plots" / f"{settings['template']}.json").read_text(encoding="utf-8"))
        assert "<DVC_METRIC_DATA>" in json.dumps(template)
