"""What a variant's results are held against, and what is said of all its seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.evaluation.evaluate import check_reproduced, elsewhere, summarize_votes
from pipeline.training.records import EpochRow


def make_row(loss: float, accuracy: float, seed: int = 0) -> EpochRow:
    return EpochRow(seed, 1, loss, loss, accuracy, loss, 1.0)


def check(last: list[EpochRow], losses: list[float], accuracies: list[float], elsewhere: str | None = None) -> str | None:
    return check_reproduced("v", last, np.array(losses), np.array(accuracies), num_tests=10_000, elsewhere=elsewhere)


def test_a_diverged_loss_is_reproduced_by_one() -> None:
    check([make_row(math.nan, 0.1), make_row(math.inf, 0.1)], [math.nan, math.inf], [0.1, 0.1])
    for loss, accuracy in ((0.3, 0.1), (math.nan, 0.2)):
        with pytest.raises(UserError, match="variant v, seed 0, test at loss"):
            check([make_row(math.nan, 0.1)], [loss], [accuracy])


def test_a_loss_is_reproduced_to_five_digits_and_an_accuracy_exactly() -> None:
    last = [make_row(0.25, 0.9, seed=3), make_row(0.5, 0.8, seed=5)]
    assert check(last, [0.250002, 0.5], [0.9, 0.8]) is None
    for losses, accuracies in (([0.25, 0.50001], [0.9, 0.8]), ([0.25, 0.5], [0.9, 0.8001])):
        with pytest.raises(UserError, match=r"seed 5, test at .* ended at 0.500000 and 0.8000: .* train@v`.* persistent=False") as caught:
            check(last, losses, accuracies)
        assert caught.value.status == 1


def test_where_something_else_computed_two_images_may_be_apart() -> None:
    last = [make_row(0.25, 0.9), make_row(0.5, 0.8, seed=1)]
    said = "up to 2 of 10000 tests apart from its training, which is rounding: trained with attention fused-cuda."
    assert check(last, [0.2501, 0.5], [0.9001, 0.7998], "trained with attention fused-cuda") == said
    assert check(last, [0.2501, 0.5], [0.9, 0.8], "trained with attention fused-cuda") is None
    for losses, accuracies in (([0.25, 0.5], [0.9003, 0.8]), ([0.2504, 0.5], [0.9, 0.8])):
        with pytest.raises(UserError, match="train it again"):
            check(last, losses, accuracies, "trained with attention fused-cuda")


def test_what_else_computed_is_named() -> None:
    here = {"device": "AMD EPYC (2 cores)", "attention": "fused-cpu", "torch": "2.15.0"}
    same = {"device_name": "AMD EPYC (64 cores)", "attention": "fused-cpu", "versions": {"torch": "2.15.0"}}
    gpu = {"device_name": "NVIDIA H200", "attention": "fused-cuda", "versions": {"torch": "2.14.1"}}
    assert elsewhere({"trainings": [same]}, here) is None
    assert elsewhere({"trainings": [same, gpu, gpu]}, here) == "trained with device NVIDIA H200, attention fused-cuda, torch 2.14.1"
    assert elsewhere({"trainings": [{**same, "attention": "sdpa"}]}, here) == "trained with attention sdpa"


def test_summary_of_votes_by_hand() -> None:
    labels = np.array([0, 0, 1, 7], np.uint8)
    predictions = np.array([[0, 1, 1, 7], [0, 0, 1, 2], [0, 0, 2, 3]], np.uint8)
    # The vote: 0, 0, 1, and a tie of 7, 2 and 3, which the first seed decides.
    assert summarize_votes(predictions, labels) == {
        "ensemble_accuracy": 1.0,
        "per_class_accuracy": {"0": pytest.approx(5 / 6), "1": pytest.approx(2 / 3), "7": pytest.approx(1 / 3)},
    }
