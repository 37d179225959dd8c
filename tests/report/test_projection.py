"""Which trainings a projection starts from, and what it is checked against."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.params import ExperimentSettings
from pipeline.report import drawings
from pipeline.report.projection import project

EXPERIMENT = ExperimentSettings(
    title="Best", question="How far?", source="this project", baseline="base", variants=("base", "long", "short", "middle"),
    labels={"short": "a short one"}, projection=8000,
)  # fmt: skip


def run(name: str, epochs: int, errors: list[float], epoch_images: int | None = None) -> Any:
    settings = SimpleNamespace(train=SimpleNamespace(epochs=epochs, epoch_images=epoch_images))
    return SimpleNamespace(name=name, settings=settings, test_accuracy=np.array([[0.1, 1 - error] for error in errors]))


RUNS = {
    "base": run("base", 1, [0.9, 0.9]),
    "short": run("short", 1, [0.4, 0.8]),
    "middle": run("middle", 2, [0.2, 0.4], 2000),
    "long": run("long", 8, [0.125, 0.1]),
}


def test_it_starts_from_the_shorter_trainings_and_shows_the_one_of_that_length() -> None:
    projected = project(EXPERIMENT, RUNS, 1000)
    assert projected is not None
    assert [(length.label, length.images) for length in projected.lengths] == [("a short one", 1000), ("middle", 4000)]
    assert projected.values == pytest.approx(np.array([[0.6, 0.8], [0.2, 0.6]]))
    # The geometric mean of the errors is 0.4 √2 and 0.2 √2: halved from 1,000 to 4,000, so divided by √2 from there to 8,000.
    assert projected.accuracy == pytest.approx(1 - 0.2)
    assert projected.times == 2
    assert projected.reached is not None
    assert (projected.reached.label, projected.reached.accuracy.mean) == ("long", pytest.approx(0.8875))


def test_a_curve_that_flattens_is_told_by_its_exponents() -> None:
    longer = EXPERIMENT.model_copy(update={"projection": 64_000})
    runs = RUNS | {"short": run("short", 1, [0.8, 0.8]), "long": run("long", 16, [0.15, 0.3])}
    projected = project(longer, runs, 1000)
    assert projected is not None
    # From 1,000 to 4,000 images the errors fall to a quarter and to a half: 1 and 1/2; to 16,000 to 3/4 of that in both.
    fall = -np.log(0.75) / np.log(4)
    assert [step.mean for step in projected.steps] == pytest.approx([0.75, fall])
    assert projected.flattening is not None
    assert projected.flattening.mean == pytest.approx(0.75 - fall)
    shorter = project(EXPERIMENT, RUNS, 1000)
    assert shorter is not None
    assert shorter.flattening is None


def test_an_interval_of_accuracies_stays_above_zero() -> None:
    wild = RUNS | {"short": run("short", 1, [0.5, 0.01]), "middle": run("middle", 4, [0.01, 0.5])}
    projected = project(EXPERIMENT, wild, 1000)
    assert projected is not None
    assert projected.interval is not None
    assert projected.interval.low == 0
    assert 0.9 < projected.interval.high <= 1


@pytest.mark.parametrize(
    ("runs", "train_images"),
    [
        ({name: RUNS[name] for name in ("base", "short", "long")}, 1000),  # one shorter training makes no line
        ({}, 1000),
        (RUNS, None),  # nobody knows how many images an epoch has
        (RUNS | {"middle": run("middle", 4, [0.0, 0.1])}, 1000),  # no error, no logarithm
    ],
)
def test_without_two_shorter_trainings_that_err_there_is_none(runs: dict[str, Any], train_images: int | None) -> None:
    assert project(EXPERIMENT, runs, train_images) is None


def test_only_where_an_experiment_asks_for_it() -> None:
    assert project(EXPERIMENT.model_copy(update={"projection": None}), RUNS, 1000) is None


def test_a_projection_that_leaves_no_error_is_drawn() -> None:
    far = EXPERIMENT.model_copy(update={"projection": 10**12})
    projected = project(far, RUNS, 1000)
    assert projected is not None
    assert projected.accuracy > 0.9999
    assert drawings.projection(projected).draw("light").startswith(b"\x89PNG")
    steep = RUNS | {"short": run("short", 1, [0.9, 0.9]), "middle": run("middle", 2, [1e-4, 1e-4])}
    exact = project(far, {name: steep[name] for name in ("base", "short", "middle")}, 1000)
    assert exact is not None
    assert exact.accuracy == 1
    assert drawings.projection(exact).draw("dark").startswith(b"\x89PNG")
    wild = {"base": RUNS["base"], "short": run("short", 1, [0.9, 1e-4]), "middle": run("middle", 1, [1e-4, 0.9], 1001)}
    assert project(far, wild, 1000) is None
