"""The tables of an experiment against scipy, where its variants have different seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pipeline.params import ExperimentSettings, Params
from pipeline.report.experiment import Tables
from pipeline.study import Training
from pipeline.study.effects import look_level, share_contrast

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
def test_differences_are_welchs_over_the_seeds_of_either_side(study: Params, change: tuple[int, ...]) -> None:
    seeds: dict[str, tuple[int, ...]] = {"base": tuple(range(10)), "relu": change, "mean": (40, 41)}
    tables = Tables(study, EXPERIMENT, {name: result(study, name, own) for name, own in seeds.items()})
    level = look_level(study.looks)
    ours, theirs = (tables.runs[name].test_accuracy[:, -1] for name in ("relu", "base"))  # two epochs: the last is the last fifth
    found = tables.difference("late accuracy", "relu", "base")
    assert found is not None
    mean, interval = found
    assert interval is not None
    low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(level)
    assert (mean, interval.low, interval.high) == pytest.approx((ours.mean() - theirs.mean(), low, high))
    ratio = tables.difference("late test error", "relu", "base")
    assert ratio is not None
    mean, interval = ratio
    assert interval is not None
    logs = stats.ttest_ind(np.log(1 - ours), np.log(1 - theirs), equal_var=False).confidence_interval(level)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.exp(logs)))
    assert mean == pytest.approx(stats.gmean(1 - ours) / stats.gmean(1 - theirs))
    assert tables.difference("late accuracy", "mean", "base") is not None  # the two sides need no seed in common
    assert tables.difference("late accuracy", "sinusoidal", "base") is None


def test_differences_of_shares_are_exact(study: Params) -> None:
    """All six of one side and none of the other have no spread, and still an interval."""
    runs = {name: result(study, name, tuple(range(6))) for name in ("base", "relu")}
    runs["relu"].curves["train_loss"][:] = 2.31
    found = Tables(study, EXPERIMENT, runs).difference("diverged", "relu", "base")
    assert found is not None
    assert found[1] == share_contrast([1.0] * 6, [0.0] * 6).interval(look_level(study.looks))


def test_a_lead_has_the_accuracy_and_the_errors_beside_both(study: Params) -> None:
    runs = {name: result(study, name, tuple(range(6))) for name in ("base", "relu", "mean")}
    lead = {"mean": "The mean", "concat": "What was not trained"}
    experiment = EXPERIMENT.model_copy(update={"lead": lead, "beside": {"mean": "relu"}})
    (said,) = Tables(study, experiment, runs).leads()
    accuracy, ours, relu, base = (
        runs["mean"].test_accuracy[:, -1],
        *(np.log(1 - runs[n].test_accuracy[:, -1]) for n in ("mean", "relu", "base")),
    )
    assert said.startswith(f"The mean gets {100 * accuracy.mean():.2f} % of the test images right; its errors are ")
    for reference, name in ((relu, "relu"), (base, "base")):
        assert f"{np.exp(ours.mean() - reference.mean()):#.3g} [" in said.partition(f"times those of {name}")[0]


def test_the_answer_has_the_least_the_most_and_the_baseline(study: Params) -> None:
    runs = {name: result(study, name, tuple(range(6))) for name in EXPERIMENT.variants}
    runs["relu"].curves["train_loss"][:] += 0.1
    runs["mean"].curves["train_loss"][:] -= 0.1
    means = {name: run.train_loss[:, 0].mean() for name, run in runs.items()}
    assert Tables(study, EXPERIMENT, runs).answer() == [(name, f"{means[name]:.4f} nats") for name in ("mean", "relu", "base")]
    del runs["mean"]
    assert [name for name, _ in Tables(study, EXPERIMENT, runs).answer()] == ["base (the baseline)", "relu"]
    assert [name for name, _ in Tables(study, EXPERIMENT, {"base": runs["base"]}).answer()] == ["base (the baseline)"]
    assert Tables(study, EXPERIMENT, {}).answer() == []
