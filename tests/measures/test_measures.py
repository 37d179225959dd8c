"""Measures of a training's curves, worked out by hand; each in a case that has to come out zero, too."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.measures import MEASURES, NotMeasured, late, unsteadiness
from pipeline.measures.definitions import SIZES


def values_of(measure: str, **training: Any) -> list[float]:
    form = MEASURES[measure].values
    assert form is not None
    if "train_loss" in training:
        training = {"supervised_epochs": training["train_loss"].shape[1], **training}
    return form(SimpleNamespace(**training)).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(("epochs", "length"), [(1, 1), (4, 1), (5, 1), (9, 1), (10, 2), (12, 2), (24, 4), (25, 5), (30, 5), (60, 5)])
def test_late_epochs_are_the_last_five_or_the_last_fifth(epochs: int, length: int) -> None:
    curve = np.stack([np.arange(1.0, epochs + 1), np.full(epochs, 7.0)])
    assert late(curve) == pytest.approx([epochs - (length - 1) / 2, 7.0])


def test_gain_and_price_by_hand() -> None:
    """Of five epochs the last one is the last fifth."""
    accuracy = np.array([[0.5, 0.6, 0.8, 0.9, 1.0]])
    assert values_of("accuracy gained", test_accuracy=accuracy) == pytest.approx([0.5])
    assert values_of("error times arithmetic", test_error=np.full((1, 5), 0.1), flops=1000) == pytest.approx([100])


def test_what_the_evaluation_found_is_taken_from_its_columns() -> None:
    columns = {
        "positions_1d": 1, "positions_2d": 2, "position_changes_1d": 3, "position_changes_2d": 6, "state_gradient": -4,
        "state_gradient_start": 5, "greedy_scene_accuracy": 0.9, **{f"size_{size}": size / 100 for size in SIZES},
    }  # fmt: skip
    expected = {
        "similarity to the 1-D table": 1, "similarity to the 2-D table": 2, "learned similarity to the 1-D table": 3,
        "gradient at the first row at the start": 5, "scene error": 0.1, "accuracy at another size": 0.304,
    }  # fmt: skip
    evaluation = {name: np.array([float(value)]) for name, value in columns.items()}
    assert {name: values_of(name, evaluation=evaluation)[0] for name in expected} == pytest.approx(expected)


def test_tests_that_collapse_do_not_count_in_the_median() -> None:
    """Of thirty tests the last ten: four collapse."""
    error = np.array([[0.5] * 20 + [0.9, 0.02, 0.9, 0.04, 0.9, 0.03, 0.9, 0.01, 0.02, 0.03]])
    assert values_of("median test error", test_error=error) == pytest.approx([(0.03 + 0.04) / 2])
    assert values_of("median test error", test_error=error[:, 18:21]) == [0.9]  # a third of three


def test_the_epoch_that_first_reaches_an_accuracy() -> None:
    accuracy = np.array([[0.9, 0.96, 0.95, 0.97], [0.9, 0.9, 0.9, 0.959]])
    assert values_of("time to an accuracy", test_accuracy=accuracy) == [2, 5]


def test_unsteadiness_by_hand() -> None:
    """+1 and -1 in turns over the epochs -4.5 to 4.5: slope -5 / 82.5, and sum of squares 10 - 25 / 82.5 around the line."""
    waves = np.tile([1.0, -1.0], 5)
    accuracy = np.concatenate([np.array([9.0, -9.0]), waves])  # what came before the last ten does not count
    expected = math.sqrt((10 - 25 / 82.5) / 8)
    rising = accuracy + 0.3 * np.arange(12)
    assert unsteadiness(np.stack([accuracy, rising])) == pytest.approx([expected, expected])


def test_diverged_seeds_count_one_each() -> None:
    last = np.array([math.nan, math.inf, math.log(10), 0.05, 2.2])
    curves = np.stack([np.zeros(5), last], axis=1)
    assert values_of("diverged", train_loss=curves, num_outputs=10) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert values_of("diverged", train_loss=np.zeros((3, 2)), num_outputs=10) == [0.0, 0.0, 0.0]
    # What a self-critical epoch minimises is no cross-entropy, and 0 where all its captions are worth the same.
    curves = np.stack([last, np.zeros(5)], axis=1)
    assert values_of("diverged", train_loss=curves, supervised_epochs=1, num_outputs=10) == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_network_that_knows_only_how_often_each_class_occurs_has_diverged() -> None:
    """The entropy of MNIST's 60,000 labels, which a network reaches that sees nothing of the images, lies below ln 10."""
    share = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]) / 60_000
    guess = float(-(share * np.log(share)).sum())
    assert guess < math.log(10)
    assert values_of("diverged", train_loss=np.array([[guess]]), num_outputs=10) == [1.0]


def test_unstable_trainings_diverge_or_have_a_spike() -> None:
    curves = np.array([[2.3, 2.302], [2.3, 0.1], [2.3, 0.1], [2.3, math.nan]])
    spikes = {"loss_spikes": np.array([0.0, 3.0, 0.0, 40.0])}
    assert values_of("unstable", train_loss=curves, num_outputs=10, evaluation=spikes) == [1.0, 1.0, 0.0, 1.0]
    with pytest.raises(NotMeasured, match="its trace was not evaluated"):
        values_of("unstable", train_loss=curves, num_outputs=10, evaluation=None)
