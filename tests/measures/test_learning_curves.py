"""Learning curves whose distance is known."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.measures import NotFormed
from pipeline.measures.learning_curves import data_for_equal_accuracy, images_ratio

SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 60_000)
BENT = dict(zip(SIZES, (0.3, 0.16, 0.08, 0.05, 0.03, 0.022, 0.02), strict=True))


def power(factor: float, exponent: float = -0.5) -> dict[int, float]:
    return {size: factor * size**exponent for size in SIZES}


def test_a_curve_that_is_shifted_by_a_factor_of_four() -> None:
    shifted = {4 * size: error for size, error in BENT.items()}
    assert images_ratio(shifted, BENT) == pytest.approx(4.0, rel=1e-12)
    assert images_ratio(BENT, shifted) == pytest.approx(0.25, rel=1e-12)
    assert images_ratio(power(2.0), power(1.0)) == pytest.approx(4.0, rel=1e-12)  # twice the error, at the same sizes
    assert images_ratio(power(1.0, -0.25), {size: 4**0.25 * error for size, error in power(1.0, -0.25).items()}) == pytest.approx(0.25)


def test_a_ratio_that_changes_by_hand() -> None:
    """Errors 1, 1/10, 1/100. One takes 1, 10 and 1000 images, the other 1, 100 and 10,000: ratios 1, 10 and 10.

    Over the first factor of ten in error the logarithm of the ratio rises from 0 to 1, over the second it stays: 0.75 in the mean.
    """
    one, other = {1: 1.0, 10: 0.1, 1000: 0.01}, {1: 1.0, 100: 0.1, 10_000: 0.01}
    assert images_ratio(other, one) == pytest.approx(10**0.75, rel=1e-12)
    assert images_ratio(one, {1: 0.1, 10: 0.001}) == pytest.approx(10 ** ((1 + (3 - 0.5)) / 2), rel=1e-12)  # where both are


def test_a_point_that_is_no_better_than_one_before_is_left_out() -> None:
    worse = BENT | {2000: 0.09, 3500: 0.05}
    assert images_ratio(worse, BENT) == 1.0


@pytest.mark.parametrize(("error", "why"), [(0.9, "no error in common"), (0.0, "has an error that is 0"), (math.nan, "no number")])
def test_curves_that_cannot_be_compared(error: float, why: str) -> None:
    with pytest.raises(NotFormed, match=why):
        images_ratio({100: error, 60_000: error}, BENT)


def test_seed_by_seed_from_the_last_tests_of_trainings() -> None:
    """The second seed of one network has errors that are twice as large; both list their seeds in another order."""

    def trained(size: int, error: list[float], seeds: tuple[int, ...]) -> Any:
        curve = np.repeat(np.array(error)[:, None], 30, axis=1)
        curve[:, :21] = curve[:, 27] = 1.0  # before the last ten tests, and one of them
        return SimpleNamespace(training_images=size, test_error=curve, seeds=seeds)

    curve = power(1.0)
    needs = [trained(size, [2 * error, error, 0.5], (1, 0, 9)) for size, error in curve.items()]
    than = [trained(size, [error, error], (0, 1)) for size, error in reversed(curve.items())]
    assert data_for_equal_accuracy(needs, than, (0, 1)) == pytest.approx([1.0, 4.0])
    assert data_for_equal_accuracy(than, needs, (1,)) == pytest.approx([0.25])
