"""What a variant's results are held against, and what is said of all its seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.evaluation.evaluate import check_reproduced, summarize, summarize_votes
from pipeline.training.records import EpochRow


def make_row(loss: float, accuracy: float, seed: int = 0) -> EpochRow:
    return EpochRow(seed, 1, loss, loss, accuracy, loss, 1.0)


def test_a_diverged_loss_is_reproduced_by_one() -> None:
    check_reproduced("v", [make_row(math.nan, 0.1), make_row(math.inf, 0.1)], np.array([math.nan, math.inf]), np.array([0.1, 0.1]))
    for loss, accuracy in ((0.3, 0.1), (math.nan, 0.2)):
        with pytest.raises(UserError, match="variant v, seed 0, test at loss"):
            check_reproduced("v", [make_row(math.nan, 0.1)], np.array([loss]), np.array([accuracy]))


def test_a_loss_is_reproduced_to_five_digits_and_an_accuracy_exactly() -> None:
    last = [make_row(0.25, 0.9, seed=3), make_row(0.5, 0.8, seed=5)]
    check_reproduced("v", last, np.array([0.250002, 0.5]), np.array([0.9, 0.8]))
    for losses, accuracies in (([0.25, 0.50001], [0.9, 0.8]), ([0.25, 0.5], [0.9, 0.8001])):
        with pytest.raises(UserError, match=r"seed 5, test at .* its training ended at 0.500000 and 0.8000: .* train@v`") as caught:
            check_reproduced("v", last, np.array(losses), np.array(accuracies))
        assert caught.value.status == 1


def test_summary_by_hand() -> None:
    assert summarize(np.array([0.5, math.nan, 1.0]), np.array([0.5, 0.75, 1.0])) == {"test_accuracy": 0.75, "test_loss": 0.75}
    assert summarize(np.full(3, math.inf), np.ones(3))["test_loss"] is None


def test_summary_of_votes_by_hand() -> None:
    labels = np.array([0, 0, 1, 7], np.uint8)
    predictions = np.array([[0, 1, 1, 7], [0, 0, 1, 2], [0, 0, 2, 3]], np.uint8)
    # The vote: 0, 0, 1, and a tie of 7, 2 and 3, which the first seed decides.
    assert summarize_votes(predictions, labels) == {
        "ensemble_accuracy": 1.0,
        "per_class_accuracy": {"0": pytest.approx(5 / 6), "1": pytest.approx(2 / 3), "7": pytest.approx(1 / 3)},
    }
