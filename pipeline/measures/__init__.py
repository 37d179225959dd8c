"""What the laboratory measures. An entry of `MEASURES` has the words of a measure, and how it is computed from a training.

A new measure is one entry. params.yaml, claims, tables and figures find it here by its name.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal, get_args

import numpy as np

from pipeline.measures.definitions import EMPTY_ROWS, FIRST_STEPS, SHIFTS, SIZES, FloatArray, is_diverged
from pipeline.measures.traces import REACHED_LOSS, REACHED_STEPS, SPIKE_HEIGHT, SPIKE_STEPS

Probe = Literal["shifts", "sizes", "attention", "saturation", "positions", "recurrence", "trace", "first_steps"]
PROBES: tuple[Probe, ...] = get_args(Probe)

LATE_EPOCHS = 5
STEADY_EPOCHS = 10  # the first epochs are left out: their climb is learning and not unsteadiness
MIN_STEADY_EPOCHS = 12
MEDIAN_TESTS = 10
REACHED_ACCURACY = 0.96
_REACHED = f"{100 * REACHED_ACCURACY:.0f} %"


class NotFormed(ValueError):
    """The measure cannot be computed from these runs; the message gives the reason as a clause."""


class NotMeasured(NotFormed):
    """The data of the measure are not there: a stage has to run first."""


Trained = Any  # a pipeline.study.training.Training, which this room may not import


@dataclass(frozen=True)
class Measure:
    """A measure in words and numbers.

    Attributes:
        note: its definition, as a sentence.
        of_value, of_difference: unit of a value and of a difference of two.
        factor: from the measure's own unit to the printed one.
        digits: decimals; None where they depend on the value's size.
        values: (seeds,) of a training, which may hold values that are not finite; None where the measure is not one of each seed.
            Raises NotFormed.
        by_epoch: (seeds, epochs), of which it is the last value or the late mean; None where it has no value after every epoch.
        probe: what the evaluation has to do for it, besides testing.
        rule: the only rule of claims that judges it; None where any rule for differences does.
        ratio: whether its effects are ratios of geometric means, and not differences.
        share: whether a seed counts 0 or 1, so that its effects are shares of seeds.
        series: (seeds,) of two curves, each of several trainings, in place of `values`; gets both and the seeds. Raises NotFormed.
        exact: whether it is a count that is the same for all seeds, and so has no interval.
        per_step: whether its effects are times: ratios of numbers of steps, times the ratio of the times of a step.
        median: whether epochs are summed up by their median, so that single ones that are far off do not count.
        unreached: the value of a seed that never reached what is measured, which is the least that it can be; None where all do.
        phrase: its name in comparisons, where that is another than its name here.
        title: what a page and a figure's axis call it, where that is not the beginning of the note.
        better: which of two values is the better one; "" where nobody says, so that `make judge` answers "larger" or "smaller".
    """

    note: str = ""
    of_value: str = ""
    of_difference: str = ""
    factor: float = 1.0
    digits: int | None = 3
    values: Callable[[Trained], FloatArray] | None = None
    by_epoch: Callable[[Trained], FloatArray] | None = None
    probe: Probe | None = None
    rule: str | None = None
    phrase: str = ""
    ratio: bool = False
    share: bool = False
    exact: bool = False
    per_step: bool = False
    median: bool = False
    series: Callable[[Sequence[Trained], Sequence[Trained], Sequence[int]], FloatArray] | None = None
    unreached: Callable[[Trained], float] | None = None
    title: str = ""
    better: Literal["less", "more", ""] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or re.split("[,.:]", self.note)[0])

    @property
    def limits(self) -> tuple[float, float]:
        """What no value goes beyond, in the measure's own unit: 0 and 100 %."""
        return (0, 100 / self.factor) if self.of_value == "%" else (-math.inf, math.inf)

    def per_seed(self, training: Trained) -> FloatArray | None:
        """(seeds,), which may hold values that are not finite; None where the training does not give the measure."""
        try:
            return None if self.values is None else self.values(training)
        except NotFormed:
            return None


def _evaluated(*columns: str) -> Callable[[Trained], FloatArray]:
    """Of a training what the evaluation found, of several columns their mean."""

    def values(training: Trained) -> FloatArray:
        found = training.evaluation or {}
        if not {*columns} <= found.keys():
            raise NotMeasured("it was not evaluated, or has no such value")
        return np.stack([found[column] for column in columns], axis=1).mean(axis=1) if columns[1:] else found[columns[0]]

    return values


def _side_by_side(columns: Sequence[str], training: Trained) -> FloatArray | None:
    found = training.evaluation or {}
    return np.stack([found[column] for column in columns], axis=1) if {*columns} <= found.keys() else None


_SHIFTED = tuple(f"shift_{pixels}" for pixels in SHIFTS)
_SCALED = tuple(f"size_{pixels}" for pixels in SIZES)
_LONGER = tuple(f"rows_{rows}" for rows in EMPTY_ROWS)
# (seeds, places) of a training: accuracy under shifts, on images of each size, and with each number of empty rows; root mean square change
# of a weight in each of the first steps. None where that was not evaluated.
shift_accuracy, size_accuracy, longer_accuracy, first_changes = (
    partial(_side_by_side, columns) for columns in (_SHIFTED, _SCALED, _LONGER, [f"change_{step}" for step in range(1, FIRST_STEPS + 1)])
)


def _tests(curve: str) -> Callable[[Trained], FloatArray]:
    """Of a training a curve of its tests, (seeds, epochs). A captioner's are of validation scenes: they are no measure of test scenes."""

    def values(training: Trained) -> FloatArray:
        if training.is_captioner:
            raise NotFormed("after an epoch a captioner describes validation scenes and no test scenes")
        return np.asarray(getattr(training, curve))

    return values


_accuracy, _error, _loss = (_tests(f"test_{what}") for what in ("accuracy", "error", "loss"))


def _epochs_to(training: Trained) -> FloatArray:
    reached = _accuracy(training) >= REACHED_ACCURACY
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, reached.shape[1] + 1.0)


def _counts(count: str) -> Callable[[Trained], FloatArray]:
    def values(training: Trained) -> FloatArray:
        number = getattr(training, count)
        if number is None:
            raise NotFormed(f"its {count} are not recorded")
        return np.full(len(training.seeds), float(number))

    return values


def _diverged(training: Trained) -> FloatArray:
    return is_diverged(training.train_loss[:, training.supervised_epochs - 1], training.settings.num_outputs).astype(np.float64)


def _unstable(training: Trained) -> FloatArray:
    """A network that learns nothing has no spikes either, so spikes alone would call it the most stable of all."""
    spikes = _evaluated("loss_spikes")(training)
    return np.maximum(_diverged(training), spikes > 0)


def late(curve: FloatArray) -> FloatArray:
    """The mean over the late epochs, per seed: the last `LATE_EPOCHS`, of runs too short for that the last fifth, at least one epoch.

    At a constant learning rate a single epoch's value is noise of the moment at which training stopped.

    Args:
        curve: (seeds, epochs).

    Returns:
        (seeds,).
    """
    return curve[:, -min(LATE_EPOCHS, max(1, curve.shape[1] // 5)) :].mean(axis=1)


def median_error(curve: FloatArray) -> FloatArray:
    """The median of the last `MEDIAN_TESTS` tests of a curve (seeds, epochs), of fewer than thirty epochs the last third, per seed."""
    return np.median(curve[:, -min(MEDIAN_TESTS, max(1, curve.shape[1] // 3)) :], axis=1)


def unsteadiness(accuracy: FloatArray) -> FloatArray:
    """Standard deviation of the accuracy around its own straight line over the last `STEADY_EPOCHS` epochs, per seed.

    The line, fitted by least squares, removes the rise of accuracy. It takes two degrees of freedom, so the sum of the squared
    residuals is divided by the number of epochs minus 2. For epochs that scatter independently its mean is then their variance.

    Args:
        accuracy: (seeds, epochs).

    Returns:
        (seeds,), in the unit of `accuracy`.

    Raises:
        NotFormed: fewer than `MIN_STEADY_EPOCHS` epochs, in which the climb of the first ones is no straight line.
    """
    if accuracy.shape[1] < MIN_STEADY_EPOCHS:
        raise NotFormed(f"it was trained for fewer than the {MIN_STEADY_EPOCHS} epochs that unsteadiness takes")
    window = accuracy[:, -STEADY_EPOCHS:] - accuracy[:, -STEADY_EPOCHS:].mean(axis=1, keepdims=True)
    epoch = np.arange(STEADY_EPOCHS) - (STEADY_EPOCHS - 1) / 2
    slope = window @ epoch / (epoch @ epoch)
    return np.sqrt(((window - slope[:, None] * epoch) ** 2).sum(axis=1) / (STEADY_EPOCHS - 2))


def _late(note: str, of_value: str, of_difference: str, factor: float, digits: int | None, curve: Any, **more: Any) -> Measure:
    """The late mean of a curve, a ratio unless `more` says otherwise."""
    values = {"values": lambda training: late(curve(training)), "by_epoch": curve, "ratio": True}
    return Measure(note, of_value, of_difference, factor, digits, **values | more)


def _of_positions(column: str, what: str, phrase: str = "") -> Measure:
    return Measure(
        f"Spearman's rank correlation, over all pairs of patches, of the cosine similarity of the {what} with that of the one-dimensional "
        "sinusoidal table's.",
        values=_evaluated(column), probe="positions", phrase=phrase, title=f"Similarity of {what} to the one-dimensional table",
    )  # fmt: skip


def images_ratio(needs: Mapping[int, float], than: Mapping[int, float]) -> float:
    """The ratio of training images at which two learning curves reach equal error.

    A curve is linear between its points, the logarithm of the images against that of the error. A point that is no better than one
    with fewer images is left out, so a curve gives the fewest images that reach an error. The ratio is the geometric mean over the
    errors that both curves reach, uniform on the logarithm of the error.

    Args:
        needs, than: errors by number of training images, two or more each, as fractions above 0.

    Returns:
        Above 1 where `needs` takes more images.

    Raises:
        NotFormed: a curve has an error that is 0 or no number, or there is no error that both reach.
    """
    (errors, images), (others, other_images) = (_inverse(curve) for curve in (needs, than))
    low, high = max(errors[0], others[0]), min(errors[-1], others[-1])
    if low > high:
        raise NotFormed("the two learning curves reach no error in common")
    inner = [error for error in (*errors, *others) if low < error < high]
    at = np.array(sorted({low, high, *inner}))
    apart = np.interp(at, errors, images) - np.interp(at, others, other_images)  # straight between these errors
    return float(np.exp(apart[0] if low == high else np.trapezoid(apart, at) / (high - low)))


def _inverse(curve: Mapping[int, float]) -> tuple[FloatArray, FloatArray]:
    """Logarithms of a curve's errors, in rising order, and of the fewest images that reach each."""
    sizes = sorted(curve)
    values = np.array([curve[size] for size in sizes], dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise NotFormed("a learning curve has an error that is 0 or no number, which has no logarithm")
    best = np.concatenate([[True], values[1:] < np.minimum.accumulate(values)[:-1]])
    return np.log(values[best])[::-1], np.log(np.array(sizes, dtype=np.float64)[best])[::-1]


def data_for_equal_accuracy(needs: Sequence[Trained], than: Sequence[Trained], seeds: Sequence[int]) -> FloatArray:
    """The ratio of training images at which two networks reach equal accuracy, seed by seed; see `images_ratio`.

    Args:
        needs, than: the trainings of either network, one for each number of training images; errors are medians of the last tests.
        seeds: those wanted, which every training has.

    Returns:
        (seeds,), above 1 where `needs` takes more images. On logarithms the ratio and its inverse are one.

    Raises:
        NotFormed: see `images_ratio`.
    """

    def curves(side: Sequence[Trained]) -> list[dict[int, float]]:
        errors = {one.settings.training_images: median_error(_error(one))[[one.seeds.index(seed) for seed in seeds]] for one in side}
        return [{size: float(error[i]) for size, error in errors.items()} for i in range(len(seeds))]

    return np.array([images_ratio(*both) for both in zip(curves(needs), curves(than), strict=True)])


def or_half(error: FloatArray, tests: Callable[[], int]) -> FloatArray:
    """Shares of errors among a number of tests, which is asked for where some are 0: there half an error is counted."""
    return np.where(error == 0, 0.5 / tests(), error) if (error == 0).any() else error


_LATE = f"mean over the last {LATE_EPOCHS} epochs (the last fifth of fewer than {5 * LATE_EPOCHS})"
_ROLLOUT = "Accuracy lost when the fifth of an image's patches with the largest attention rollout is blanked, minus that lost when"
_SHARE, _NATS = ("%", "points", 100, 2), ("nats", "nats", 1, 4)
MEASURES: dict[str, Measure] = {
    "accuracy": Measure(
        "Test accuracy after the last epoch, in %.", *_SHARE, lambda training: _accuracy(training)[:, -1],
        by_epoch=_accuracy, better="more",
    ),
    "test loss": Measure(
        "Mean cross-entropy on the test images after the last epoch, in nats.", *_NATS, lambda training: _loss(training)[:, -1],
        by_epoch=_loss, better="less",
    ),
    "late accuracy": _late(
        f"Test accuracy, {_LATE}, in %.", *_SHARE, _accuracy, phrase="accuracy", ratio=False,
        title="Test accuracy over the last epochs", better="more",
    ),
    "late test error": _late(
        f"Share of the test images that are classified wrongly, {_LATE}, in %.", *_SHARE, _error, phrase="test error",
        title="Test error over the last epochs", better="less",
    ),
    "validation accuracy": Measure(
        "Accuracy after the last epoch on the images that `validation` holds out, in %.", *_SHARE, _evaluated("validation_accuracy"),
        better="more",
    ),
    "median test error": Measure(
        f"Share of the test images that are classified wrongly, median of the last {MEDIAN_TESTS} tests (of fewer than "
        f"{3 * MEDIAN_TESTS} the last third), in %: single tests that collapse do not count.",
        *_SHARE, lambda training: median_error(_error(training)), by_epoch=_error,
        ratio=True, median=True, title="Median test error of the last tests", better="less",
    ),
    "parameters": Measure("Number of a network's weights.", digits=None, values=_counts("parameters"), ratio=True, exact=True),
    "arithmetic": Measure(
        "Floating-point operations of an image's forward pass.", digits=None, values=_counts("flops"), ratio=True, exact=True,
    ),
    "time to an accuracy": Measure(
        f"The first epoch after which the test accuracy is {_REACHED} or more; one more than all epochs where it never is, "
        "which is the least that it can be. Its ratio times that of the times of a step, as published, is a ratio of times.",
        "epochs", "epochs", 1, 1, _epochs_to, ratio=True, per_step=True, title=f"Epochs to a test accuracy of {_REACHED}",
        unreached=lambda training: training.test_accuracy.shape[1] + 1.0, phrase=f"time to {_REACHED}", better="less",
    ),
    "late train loss": _late(
        f"Mean cross-entropy on an epoch's training images as they are learned, {_LATE}, in nats.", *_NATS, attrgetter("train_loss"),
        phrase="train loss", better="less",
    ),
    "late train loss in nats": _late(
        f"As the late train loss ({_LATE}), compared by differences.", *_NATS, attrgetter("train_loss"), phrase="train loss", ratio=False,
        title="Train loss over the last epochs", better="less",
    ),
    "accuracy gained": _late(
        f"Test accuracy, {_LATE}, minus that after the first epoch, in points.", "points", "points", 100, 2,
        lambda training: _accuracy(training) - _accuracy(training)[:, :1],
        title="Test accuracy gained since the first epoch", better="more",
    ),
    "error times arithmetic": _late(
        f"Share of the test images that are classified wrongly, {_LATE}, times the floating-point operations of an image's forward pass.",
        "", "", 1.0, None, lambda training: _error(training) * _counts("flops")(training)[:, None],
        title="Test error times the arithmetic of a forward pass", better="less",
    ),
    "data for equal accuracy": Measure(
        "By what factor more training images one network needs to be as accurate as the other, mean of its logarithm over all accuracies "
        "that both reach.",
        "times", "times", 1, 2, ratio=True, series=data_for_equal_accuracy, rule="at least",
    ),
    "unsteadiness": Measure(
        "Unsteadiness: standard deviation of test accuracy around the straight line that fits its last "
        f"{STEADY_EPOCHS} epochs best, in points; of trainings of at least {MIN_STEADY_EPOCHS} epochs.",
        "points", "points", 100, 3, lambda training: unsteadiness(_accuracy(training)), phrase="unsteadiness of accuracy", ratio=True,
        title="Unsteadiness of test accuracy over the last epochs", better="less",
    ),
    "diverged": Measure(
        "Share of the seeds whose train loss in the last epoch is not finite, or no better than that of a guess; a seed counts 0 or 100 %.",
        "%", "points", 100, 0, _diverged, share=True, title="Diverged seeds", better="less",
    ),
    "unstable": Measure(
        "Share of the seeds that diverge (last train loss not finite, or no better than that of a guess) or have a loss spike: a recorded "
        f"step (all to the 500th, then each tenth) whose training loss exceeds the median of the {SPIKE_STEPS} recorded steps before by "
        f"more than {SPIKE_HEIGHT:g} nat, or is not finite. A seed counts 0 or 100 %.",
        "%", "points", 100, 0, _unstable, probe="trace", title="Unstable trainings", phrase="unstable trainings", share=True, better="less",
    ),
    "steps to a train loss of 0.5": Measure(
        f"The first step at which the mean training loss of the last {REACHED_STEPS} recorded steps (all to the 500th, then each tenth) is "
        f"{REACHED_LOSS} nats or less; one more than all steps where it never is, which is the least that it can be.",
        "steps", "steps", 1, 0, _evaluated("steps_to_loss"), None, "trace", ratio=True,
        unreached=lambda training: training.settings.num_steps + 1, title=f"Steps to a train loss of {REACHED_LOSS}", better="less",
    ),
    "first-epoch loss": Measure(
        "Mean cross-entropy on the training images in the first epoch, in nats.", *_NATS, lambda training: training.train_loss[:, 0],
        ratio=True, title="Train loss of the first epoch", better="less",
    ),
    "gradient norm": Measure(
        "L2 norm of a seed's gradient before clipping, mean over the first epoch's steps.",
        digits=None, values=lambda training: training.curves["gradient_norm"][:, 0], ratio=True,
        title="Gradient norm, mean over the first epoch's steps",
    ),
    "accuracy lost to shifts": Measure(
        f"Test accuracy minus its mean over shifts of {SHIFTS[0]} to {SHIFTS[-1]} pixels up, down, left and right, in points.",
        "points", "points", 100, 2, lambda training: training.test_accuracy[:, -1] - _evaluated(*_SHIFTED)(training), probe="shifts",
        ratio=True, title=f"Accuracy lost to shifts of {SHIFTS[0]} to {SHIFTS[-1]} pixels", better="less",
    ),
    "accuracy at another size": Measure(
        f"Test accuracy when the test images are scaled to sides of {', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]} pixels, mean over "
        "those that are not the training's own, in %. Position vectors, fixed and learned, are interpolated by the places of the patches.",
        *_SHARE, lambda training: _evaluated(*(f"size_{size}" for size in SIZES if size != training.settings.model.shape.size))(training),
        probe="sizes", title="Test accuracy at other sizes of the image", better="more",
    ),
    "accuracy on longer sequences": Measure(
        f"Test accuracy with {', '.join(map(str, EMPTY_ROWS[:-1]))} and {EMPTY_ROWS[-1]} rows of empty patches added below the image, mean "
        "over these lengths, in %. Fixed tables are continued by their formula; of learned vectors those of the last row are repeated.",
        *_SHARE, _evaluated(*_LONGER), probe="sizes", title="Test accuracy on longer sequences", better="more",
    ),
    "attention entropy": Measure(
        "Entropy of the trained model's attention weights, mean over tokens, heads, blocks and the first 1,000 test images, in nats.",
        "nats", "nats", values=_evaluated("attention_entropy"), probe="attention", title="Entropy of attention",
    ),
    "own-image ink correlation": Measure(
        "Spearman's rank correlation of the attention rollout with the ink of its own image, over the patches, minus the mean of those "
        "with the ink of the other images; mean over the first 1,000 test images. A map that is the same for all images has 0.",
        values=_evaluated("own_ink_correlation"), probe="attention", title="Correlation of the attention rollout with its own image's ink",
    ),
    "deletion": Measure(
        f"{_ROLLOUT} as many random patches are, in points, on the first 1,000 test images. A map that is the same for all patches has 0.",
        "points", "points", 100, 2, _evaluated("deletion"), probe="attention",
    ),
    "own-image deletion": Measure(
        f"{_ROLLOUT} the patches that another image's rollout names are, in points, on the first 1,000 test images. A map that is the same "
        "for all images has 0.",
        "points", "points", 100, 2, _evaluated("own_deletion"), probe="attention",
        title="Accuracy lost by deletion, by the image's own attention rollout rather than another image's",
    ),
    "saturated attention": Measure(
        "Share of the rows of attention weights, over the first 256 test images, blocks, heads and tokens, whose largest weight exceeds "
        "0.9, in %, after training.",
        *_SHARE, _evaluated("saturated_attention"), probe="saturation", title="Rows of attention weights with one above 0.9",
    ),
    "gradient at scores over values at the start": Measure(
        "L2 norm of the test loss's gradient at the attention scores, which softmax takes, over that at the values; over the first 256 "
        "test images and all blocks, in float64, before training.",
        values=_evaluated("score_gradient_start"), probe="saturation", ratio=True,
    ),
    "similarity to the 1-D table": _of_positions("positions_1d", "position vectors"),
    "learned similarity to the 1-D table": _of_positions(
        "position_changes_1d", "position vectors' changes in training", "similarity of its changes in training to the 1-D table",
    ),
    "gradient at the first row at the start": Measure(
        "Base-10 logarithm of the L2 norm of the test loss's gradient at what a recurrent network carries on after an image's first row "
        "over that after its last (the hidden state, and an LSTM's cell state), on the first 256 test images, in float64, before training.",
        of_difference="powers of ten", digits=2, values=_evaluated("state_gradient_start"), probe="recurrence",
        title="Gradient at the state after the first row over that after the last, as a power of ten",
    ),
    "scene accuracy": Measure(
        "Share of the test scenes whose greedy caption is true and complete, in %.", *_SHARE, _evaluated("greedy_scene_accuracy"),
        title="Scene accuracy", better="more",
    ),
    "scene error": Measure(
        "Share of the test scenes whose greedy caption is not true and complete, in %.", *_SHARE,
        lambda training: or_half(1 - _evaluated("greedy_scene_accuracy")(training), lambda: training.settings.scenes.test),
        ratio=True, better="less",
    ),
    "scene accuracy by beam search": Measure(
        "Share of the test scenes whose caption by beam search is true and complete, in %.", *_SHARE, _evaluated("beam_scene_accuracy"),
        better="more",
    ),
    "commonest phrasing": Measure(
        "Share of the greedy captions that are of the commonest of the five phrasings, in %.", *_SHARE,
        _evaluated("greedy_share_commonest"),
    ),
    "gain of beam search": Measure(
        "Scene accuracy of beam search minus that of greedy captions, in points.", "points", "points", 100, 2,
        lambda training: np.subtract(*(_evaluated(f"{by}_scene_accuracy")(training) for by in ("beam", "greedy"))),
        title="Scene accuracy gained by beam search",
    ),
    "CIDEr-D": Measure(
        "CIDEr-D of the greedy captions of the test scenes, mean over the scenes.", values=_evaluated("greedy_cider_d"), better="more",
    ),
    "ensemble accuracy": Measure("Accuracy of the vote of all seeds, in %.", *_SHARE, rule="at least"),
    "step time": Measure(digits=None, of_value="times", of_difference="times", rule="ratio"),
    "attention time": Measure(digits=2, rule="exponent", phrase="exponent of its time"),
    "decoding time": Measure(digits=2, rule="exponent", phrase="exponent of the time of writing"),
    "saved bytes": Measure(exact=True, digits=2, rule="exponent", phrase="exponent of the bytes it keeps"),
}  # fmt: skip
TIMING_RULES = ("ratio", "exponent")
