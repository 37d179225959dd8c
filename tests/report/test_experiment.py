"""The tables of an experiment where its variants have different seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.params import ExperimentSettings, Params
from pipeline.report import experiment
from pipeline.study import Training
from pipeline.study.statistics import sign_flip_p

EXPERIMENT = ExperimentSettings(
    title="One", question="Is it?", source="code", baseline="base", variants=("base", "relu", "mean"), measure="first-epoch loss"
)


def result(study: Params, name: str, seeds: tuple[int, ...]) -> Training:
    """A variant of two epochs, each seed with the same luck whatever seeds stand beside it."""
    luck = np.array([np.random.default_rng([seed, len(name)]).normal(0, 0.01, 2) for seed in seeds])
    levels = {"train_loss": 0.3, "test_loss": 0.3, "test_accuracy": 0.9, "gradient_norm": 1, "seconds": 2}
    record = {"config": study.resolve(name).model_dump(mode="json")}
    return Training(name, record, seeds, {curve: level + luck for curve, level in levels.items()}, 10, 10)


@pytest.mark.parametrize("change", [tuple(range(10)), (9, 2, 4, 0, 6, 8, 1), (20, 21, 3, 4, 5, 6, 7, 8)])
def test_pairs_are_of_the_seeds_that_both_have(study: Params, change: tuple[int, ...]) -> None:
    seeds: dict[str, tuple[int, ...]] = {"base": tuple(range(10)), "relu": change, "mean": tuple(range(6))}
    runs = {name: result(study, name, own) for name, own in seeds.items()}
    rows: dict[str, Any] = {row.variant: row for row in experiment.rows(study, EXPERIMENT, runs)}
    common = [seed for seed in change if seed < 10]
    ours = [runs["relu"].test_accuracy[change.index(seed), -1] for seed in common]
    theirs = [runs["base"].test_accuracy[seed, -1] for seed in common]
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    difference = rows["relu"].difference
    assert (difference.n, rows["relu"].accuracy.summary.n, rows["mean"].difference.n) == (len(common), len(change), 6)
    assert (difference.interval.low, difference.interval.high) == pytest.approx((low, high))
    assert rows["relu"].test_loss.difference.n == len(common)
    assert rows["relu"].measure.difference.n == len(common)
    assert rows["relu"].accuracy.p >= sign_flip_p(np.array(ours), np.array(theirs))
    few = runs | {"relu": result(study, "relu", (1, 2, 30)), "mean": result(study, "mean", (40, 41))}
    few_rows: dict[str, Any] = {row.variant: row for row in experiment.rows(study, EXPERIMENT, few)}
    assert (few_rows["relu"].difference.n, few_rows["relu"].accuracy.p) == (2, None)
    assert few_rows["mean"].difference is None  # no seed in common
