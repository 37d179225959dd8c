"""Measures of curves, traces, position vectors and learning curves, worked out by hand or by scipy."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial import distance
from scipy.stats import spearmanr

from pipeline.measures import MEASURES, NotFormed, NotMeasured, data_for_equal_accuracy, images_ratio, late, unsteadiness
from pipeline.measures.definitions import SIZES
from pipeline.measures.positions import cosine_similarity, similarity_mosaic, table_correlation
from pipeline.measures.traces import loss_spikes, steps_to_loss
from pipeline.models.positions import sinusoidal_table


def values_of(measure: str, **training: Any) -> list[float]:
    """Curves may be lists."""
    training = {name: np.array(value, dtype=float) if isinstance(value, list) else value for name, value in training.items()}
    if "train_loss" in training:
        training = {"supervised_epochs": training["train_loss"].shape[1], "settings": SimpleNamespace(num_outputs=10), **training}
    return MEASURES[measure].values(SimpleNamespace(**{"is_captioner": False, **training})).tolist()


@pytest.mark.parametrize(("epochs", "length"), [(1, 1), (9, 1), (10, 2), (24, 4), (25, 5), (60, 5)])
def test_late_epochs_are_the_last_five_or_the_last_fifth(epochs: int, length: int) -> None:
    curve = np.stack([np.arange(1.0, epochs + 1), np.full(epochs, 7.0)])
    assert late(curve) == pytest.approx([epochs - (length - 1) / 2, 7.0])


def test_what_the_evaluation_found_is_taken_from_its_columns() -> None:
    columns = {
        "positions_1d": 1, "position_changes_1d": 3, "state_gradient": -4, "state_gradient_start": 5,
        "greedy_scene_accuracy": 0.9, "beam_scene_accuracy": 0.93, **{f"size_{size}": size / 100 for size in SIZES},
    }  # fmt: skip
    expected = {
        "similarity to the 1-D table": 1, "learned similarity to the 1-D table": 3,
        "gradient at the first row at the start": 5, "scene error": 0.1, "gain of beam search": 0.03, "accuracy at another size": 0.3,
    }  # fmt: skip
    evaluation = {name: np.array([float(value)]) for name, value in columns.items()}
    settings = SimpleNamespace(model=SimpleNamespace(shape=SimpleNamespace(size=32)))  # which is no other size
    assert {name: values_of(name, evaluation=evaluation, settings=settings)[0] for name in expected} == pytest.approx(expected)


LAST = [math.nan, math.inf, math.log(10), 0.05, 2.2]  # of a seed's losses
COLLAPSING = [*[0.5] * 20, 0.9, 0.02, 0.9, 0.04, 0.9, 0.03, 0.9, 0.01, 0.02, 0.03]  # four of the last ten of thirty tests


@pytest.mark.parametrize(
    ("measure", "training", "expected"),
    [
        ("accuracy gained", {"test_accuracy": [[0.5, 0.6, 0.8, 0.9, 1.0]]}, [0.5]),  # of five epochs the last one is the last fifth
        ("error times arithmetic", {"test_error": [[0.1] * 5], "flops": 1000, "seeds": (0,)}, [100]),
        ("median test error", {"test_error": [COLLAPSING]}, [(0.03 + 0.04) / 2]),
        ("median test error", {"test_error": [COLLAPSING[18:21]]}, [0.9]),  # a third of three
        ("time to an accuracy", {"test_accuracy": [[0.9, 0.96, 0.95, 0.97], [0.9, 0.9, 0.9, 0.959]]}, [2, 5]),
        ("diverged", {"train_loss": [[0, last] for last in LAST]}, [1, 1, 1, 0, 0]),
        ("diverged", {"train_loss": [[0, 0]] * 3}, [0, 0, 0]),
        # What a self-critical epoch minimises is no cross-entropy, and 0 where all its captions are worth the same.
        ("diverged", {"train_loss": [[last, 0] for last in LAST], "supervised_epochs": 1}, [1, 1, 1, 0, 0]),
    ],
)
def test_measures_of_curves_by_hand(measure: str, training: dict[str, Any], expected: list[float]) -> None:
    assert values_of(measure, **training) == pytest.approx(expected)


@pytest.mark.parametrize("measure", [name for name, one in MEASURES.items() if one.by_epoch and "train loss" not in name])
def test_a_captioners_curves_measure_no_test_scenes(measure: str) -> None:
    with pytest.raises(NotFormed, match="no test scenes"):
        values_of(measure, is_captioner=True, flops=1, seeds=(0,))


def test_unsteadiness_by_hand() -> None:
    """+1 and -1 in turns over the epochs -4.5 to 4.5: slope -5 / 82.5, and sum of squares 10 - 25 / 82.5 around the line."""
    waves = np.tile([1.0, -1.0], 5)
    accuracy = np.concatenate([np.array([9.0, -9.0]), waves])  # what came before the last ten does not count
    expected = math.sqrt((10 - 25 / 82.5) / 8)
    rising = accuracy + 0.3 * np.arange(12)
    assert unsteadiness(np.stack([accuracy, rising])) == pytest.approx([expected, expected])


def test_unstable_trainings_diverge_or_have_a_spike() -> None:
    curves = [[2.3, 2.302], [2.3, 0.1], [2.3, 0.1], [2.3, math.nan]]
    spikes = {"loss_spikes": np.array([0.0, 3.0, 0.0, 40.0])}
    assert values_of("unstable", train_loss=curves, evaluation=spikes) == [1.0, 1.0, 0.0, 1.0]
    with pytest.raises(NotMeasured, match="not evaluated"):
        values_of("unstable", train_loss=curves, evaluation=None)


def test_spikes_are_counted_above_the_median_before_them() -> None:
    loss = np.ones(300)
    loss[[50, 120, 121, 250]] = [2.5, 2.01, 1.99, 9.0]
    assert loss_spikes(loss) == 3
    loss[49] = 9.0  # of the first 50 steps none has 50 before it
    assert loss_spikes(loss) == 3
    assert loss_spikes(np.array([1.0] * 100 + [3.0] * 100)) == 25  # a higher level, until it is half of the window
    assert loss_spikes(np.array([1.0, math.inf, 1.0, *[math.nan] * 60])) == 61


def test_steps_to_a_loss_by_hand() -> None:
    """From 2 to 0 at step 100: the mean of 20 falls to 0.5 once 15 of them are 0, at step 114."""
    step, loss = np.arange(1, 301), np.where(np.arange(1, 301) < 100, 2.0, 0.0)
    assert steps_to_loss(step, loss, 300) == 114
    # Thinned to each tenth step from the 100th on, the fifteenth recorded zero is that of step 240.
    kept = (step <= 100) | (step % 10 == 0)
    assert steps_to_loss(step[kept], loss[kept], 300) == 240
    assert steps_to_loss(step, np.full(300, 0.5), 300) == 20  # the first full window


@pytest.mark.parametrize("loss", [np.full(300, 0.51), np.full(300, math.nan), np.zeros(19)])
def test_a_loss_that_is_never_reached_is_censored_after_the_last_step(loss: np.ndarray) -> None:
    assert steps_to_loss(np.arange(1, len(loss) + 1), loss, 300) == 301


def test_similarity_is_scipys() -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 5))
    assert cosine_similarity(vectors) == pytest.approx(1 - distance.cdist(vectors, vectors, "cosine"))
    assert cosine_similarity(np.stack([vectors, 2 * vectors]))[1] == pytest.approx(cosine_similarity(vectors))


def test_mosaic_has_each_patchs_map_at_the_patchs_place() -> None:
    similarity = np.arange(81.0).reshape(9, 9)
    mosaic = similarity_mosaic(similarity, 3)
    assert mosaic.shape == (11, 11)
    assert mosaic[4:7, 8:11].ravel().tolist() == similarity[5].tolist()  # patch 5 is in row 1, column 2
    assert np.isnan(mosaic[[3, 7]]).all() & np.isnan(mosaic[:, [3, 7]]).all() & (np.isfinite(mosaic).sum() == 81)


def test_pairs_that_are_equally_far_apart_tie() -> None:
    """Rows of the 1-D table are as alike as their distance says; its float32 numbers must not break these ties."""
    vectors = np.random.default_rng(8).normal(size=(49, 32))
    frequency = 10000 ** -(np.arange(0, 32, 2) / 32)  # Vaswani et al. (2017), section 3.5: sin and cos of position times frequency
    cosine = cosine_similarity(vectors)
    pairs = [(i, j) for i in range(49) for j in range(i)]
    by_distance = [float(np.cos((i - j) * frequency).mean()) for i, j in pairs]
    assert len({round(one, 12) for one in by_distance}) == 48
    expected = spearmanr([cosine[i, j] for i, j in pairs], np.round(by_distance, 12)).statistic
    assert table_correlation(vectors, sinusoidal_table(49, 32).double().numpy()) == pytest.approx(expected, abs=1e-6)


TRAINED = (100, 300, 1000, 3000, 10_000, 30_000, 60_000)
BENT = dict(zip(TRAINED, (0.3, 0.16, 0.08, 0.05, 0.03, 0.022, 0.02), strict=True))


def power(factor: float, exponent: float = -0.5) -> dict[int, float]:
    return {size: factor * size**exponent for size in TRAINED}


def test_a_curve_that_is_shifted_by_a_factor_of_four() -> None:
    shifted = {4 * size: error for size, error in BENT.items()}
    assert (images_ratio(shifted, BENT), images_ratio(BENT, shifted)) == pytest.approx((4.0, 0.25), rel=1e-12)
    assert images_ratio(power(2.0), power(1.0)) == pytest.approx(4.0, rel=1e-12)  # twice the error, at the same sizes
    assert images_ratio(BENT | {2000: 0.09, 3500: 0.05}, BENT) == 1.0  # points that are no better than one before


def test_a_ratio_that_changes_by_hand() -> None:
    """Errors 1, 1/10, 1/100. One takes 1, 10 and 1000 images, the other 1, 100 and 10,000: ratios 1, 10 and 10.

    Over the first factor of ten in error the logarithm of the ratio rises from 0 to 1, over the second it stays: 0.75 in the mean.
    """
    one, other = {1: 1.0, 10: 0.1, 1000: 0.01}, {1: 1.0, 100: 0.1, 10_000: 0.01}
    assert images_ratio(other, one) == pytest.approx(10**0.75, rel=1e-12)
    assert images_ratio(one, {1: 0.1, 10: 0.001}) == pytest.approx(10 ** ((1 + (3 - 0.5)) / 2), rel=1e-12)  # where both are


@pytest.mark.parametrize(("error", "why"), [(0.9, "no error in common"), (0.0, "has an error that is 0"), (math.nan, "no number")])
def test_curves_that_cannot_be_compared(error: float, why: str) -> None:
    with pytest.raises(NotFormed, match=why):
        images_ratio({100: error, 60_000: error}, BENT)


def test_seed_by_seed_from_the_last_tests_of_trainings() -> None:
    """The second seed of one network has errors that are twice as large; both list their seeds in another order."""

    def trained(size: int, error: list[float], seeds: tuple[int, ...]) -> Any:
        curve = np.repeat(np.array(error)[:, None], 30, axis=1)
        curve[:, :21] = curve[:, 27] = 1.0  # before the last ten tests, and one of them
        return SimpleNamespace(settings=SimpleNamespace(training_images=size), test_error=curve, seeds=seeds, is_captioner=False)

    curve = power(1.0)
    needs = [trained(size, [2 * error, error, 0.5], (1, 0, 9)) for size, error in curve.items()]
    than = [trained(size, [error, error], (0, 1)) for size, error in reversed(curve.items())]
    assert data_for_equal_accuracy(needs, than, (0, 1)) == pytest.approx([1.0, 4.0])
    assert data_for_equal_accuracy(than, needs, (1,)) == pytest.approx([0.25])
