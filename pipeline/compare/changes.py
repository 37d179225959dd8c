"""What differs between two sides, with intervals and p."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from pipeline.compare.predictions import Cache, with_predictions
from pipeline.compare.sides import Side
from pipeline.errors import UserError
from pipeline.study import Training, statistics
from pipeline.study.effects import contrast, of_shares
from pipeline.study.statistics import Interval, Summary
from pipeline.study.training import CAUSES

ALPHA = 0.05
_COMPUTED = ("train_loss", "test_loss", "test_accuracy", "gradient_norm")  # curves that a repeated training repeats


class Difference(NamedTuple):
    """One thing that is recorded on both sides, and differently."""

    key: str
    base: Any
    head: Any


@dataclass(frozen=True)
class Change:
    """A variant that both sides have trained.

    Attributes:
        retrained: whether the two are different trainings. Seeds alone that were added or removed make none.
        identical: whether every loss and accuracy that both record is the same to the last bit, seed by seed; one side may have
            seeds that the other lacks.
        settings: the settings that differ, without `train.seeds` and those that only one side records.
        causes: what else differs: code, data, versions.NAME, device, attention.
        unrecorded: settings that only one side records.
        accuracy: of base and head, over the seeds.
        paired: whether both have the same seeds, so that the difference is taken seed by seed; else the two sides are independent
            samples (Welch).
        difference: head - base, a fraction of the test images, with Student's t interval.
        p, adjusted: two-sided p of no difference, alone and Holm-adjusted over all variants that are not identical.
        images: interval of the difference from resampling seeds and test images; None without the predictions of both.
    """

    variant: str
    base: Training
    head: Training
    retrained: bool
    identical: bool
    settings: tuple[Difference, ...]
    causes: tuple[Difference, ...]
    unrecorded: tuple[str, ...]
    accuracy: tuple[Summary, Summary]
    paired: bool
    difference: float
    interval: Interval | None
    p: float | None
    adjusted: float | None = None
    images: Interval | None = None

    @property
    def seconds(self) -> tuple[float, float]:
        """Median seconds of an epoch as recorded, at base and head."""
        return float(np.median(self.base.curves["seconds"])), float(np.median(self.head.curves["seconds"]))

    @property
    def other_data(self) -> bool:
        return any(key == "data_digest" for key, _, _ in self.causes)

    @property
    def differs(self) -> bool:
        return self.adjusted is not None and self.adjusted < ALPHA


class Verdict(NamedTuple):
    """A claim's verdict at one side, and the effect that decides it in words; empty where there is none."""

    verdict: str
    comparison: str
    effect: str


class ClaimChange(NamedTuple):
    """A claim whose verdict differs; None where a side does not have the claim."""

    claim: str
    base: Verdict | None
    head: Verdict | None


@dataclass(frozen=True)
class Comparison:
    """All that a page says. Variants are in the order of params.yaml.

    Attributes:
        added, removed: trainings of variants that the other side has none of. What its MLflow store does not have whole is neither.
        claims: those whose verdict differs, in the order of params.yaml; None where a side's report has no table of them.
        num_claims: of both sides together.
    """

    base: Side
    head: Side
    added: tuple[Training, ...]
    removed: tuple[Training, ...]
    common: tuple[Change, ...]
    claims: tuple[ClaimChange, ...] | None = None
    num_claims: int = 0

    @property
    def compared(self) -> list[Change]:
        """Variants that are not identical: those that differ first, then by the size of the change."""
        changes = [change for change in self.common if not change.identical]
        return sorted(changes, key=lambda c: (not c.differs, -abs(c.difference)))

    @property
    def tested(self) -> list[Change]:
        """The family that Holm's adjustment is over."""
        return [change for change in self.common if change.p is not None]

    @property
    def smallest_adjusted_p(self) -> float | None:
        """The smallest adjusted p that is possible; None where a test is not a sign-flip test."""
        if not self.tested or not all(change.paired for change in self.tested):
            return None
        return min(1.0, len(self.tested) * min(statistics.smallest_p(len(change.base.seeds)) for change in self.tested))


def compare(base: Side, head: Side, cache: Cache | None = None) -> Comparison:
    """Compares two sides variant by variant.

    Args:
        cache: where to look for predictions, which are resampled; None leaves them out.
    """
    before, after = base.study.trainings, head.study.trainings
    changes = [_change(before[variant], now) for variant, now in after.items() if variant in before]
    if cache is not None and not all(change.identical for change in changes):
        before, after = (with_predictions(side.study, cache).trainings for side in (base, head))
        console = Console(stderr=True)
        shown = track(changes, "Resampling seeds and images", console=console, transient=True, disable=not console.is_terminal)
        changes = [replace(change, images=_over_images(change, before[change.variant], after[change.variant])) for change in shown]
    p_values = {change.variant: change.p for change in changes if change.p is not None}
    by_variant = dict(zip(p_values, statistics.holm(list(p_values.values())), strict=True))
    verdicts = [_verdicts(side) for side in (base, head)]
    ids = list(dict.fromkeys([*verdicts[1], *verdicts[0]]))
    judged = [ClaimChange(id, verdicts[0].get(id), verdicts[1].get(id)) for id in ids]
    return Comparison(
        base,
        head,
        added=tuple(training for variant, training in after.items() if variant not in {*before, *base.study.left_out}),
        removed=tuple(training for variant, training in before.items() if variant not in {*after, *head.study.left_out}),
        common=tuple(replace(change, adjusted=by_variant.get(change.variant)) for change in changes),
        claims=tuple(one for one in judged if (one.base and one.base.verdict) != (one.head and one.head.verdict))
        if all(verdicts)
        else None,
        num_claims=len(ids),
    )


def _verdicts(side: Side) -> dict[str, Verdict]:
    return {row["claim"]: Verdict(row["verdict"], row["comparison"], row["shown"]) for row in side.study.claims.to_dict("records")}


def _change(base: Training, head: Training) -> Change:
    settings, unrecorded = _settings(base.options, head.options)
    # Of the seeds of both, because what others were trained with is no reason for a change of these.
    common = {*base.seeds} & {*head.seeds}
    before, after = (side.origin_of(common or side.seeds) for side in (base, head))
    causes = tuple(
        Difference(key, before[key], after[key])
        for key in sorted(before.keys() & after.keys(), key=_cause_rank)
        if before[key] != after[key]
    )
    identical = _identical(base, head)
    paired = set(base.seeds) == set(head.seeds)
    known = base.id is not None and head.id is not None
    retrained = base.id != head.id if known else bool(settings or causes or not identical)
    if identical and not paired and not settings:
        retrained = False
    theirs, ours = base.accuracy, head.accuracy
    if paired:
        ours = ours[[head.seeds.index(seed) for seed in base.seeds]]
    difference, interval, p = _test(theirs, ours, paired=paired)
    return Change(
        variant=head.variant,
        base=base,
        head=head,
        retrained=retrained,
        identical=identical,
        settings=settings,
        causes=causes,
        unrecorded=unrecorded,
        accuracy=(statistics.summarize(theirs), statistics.summarize(ours)),
        paired=paired,
        difference=difference,
        interval=interval,
        # Two trainings that are the same to the last bit are no sample, so they are not tested.
        p=None if identical else p,
    )


def _settings(base: Mapping[str, Any], head: Mapping[str, Any]) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    common = [key for key in base if key in head and key != "train.seeds"]
    differences = [Difference(key, base[key], head[key]) for key in common if base[key] != head[key]]
    alone = [key for key in (*base, *head) if (key in base) != (key in head)]
    if any(key == "model.architecture" for key, _, _ in differences):
        # Another architecture has other options, which is a change. Settings outside of the model may still be unrecorded.
        swapped = [key for key in alone if key.startswith("model.")]
        differences += [Difference(key, base.get(key), head.get(key)) for key in swapped]
        alone = [key for key in alone if key not in swapped]
    return tuple(differences), tuple(alone)


def _cause_rank(key: str) -> tuple[int, str]:
    """The order of CAUSES, versions last."""
    return CAUSES.index(key) if key in CAUSES else len(CAUSES), key


def _identical(base: Training, head: Training) -> bool:
    common = [seed for seed in base.seeds if seed in head.seeds]
    if not common:
        return False
    before, after = ([side.seeds.index(seed) for seed in common] for side in (base, head))
    curves = [name for name in _COMPUTED if name in base.curves and name in head.curves]
    return all(np.array_equal(base.curves[name][before], head.curves[name][after], equal_nan=True) for name in curves)


def _test(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], *, paired: bool) -> tuple[float, Interval | None, float | None]:
    """Difference of the means, its interval, and p."""
    if not paired:
        estimate = of_shares(contrast(after, before), 2)
        # Values that do not differ say nothing of what other seeds would give.
        return estimate.mean, estimate.interval() if estimate.error else None, estimate.p
    summary = statistics.paired_difference(after, before)
    ends = summary.interval and replace(summary.interval, low=max(summary.interval.low, -1.0), high=min(summary.interval.high, 1.0))
    return summary.mean, ends, statistics.sign_flip_p(after, before) if summary.n > 1 else None


def _over_images(change: Change, base: Training, head: Training) -> Interval | None:
    """Where both sides predicted the same test images with the same seeds."""
    if change.identical or not change.paired or change.other_data:
        return None
    try:
        theirs, ours = base.correct, head.correct
    except UserError:  # damaged, or of another training: the comparison does without
        return None
    if theirs is None or ours is None or theirs.shape != ours.shape:
        return None
    return statistics.hierarchical_bootstrap(ours[[head.seeds.index(seed) for seed in base.seeds]], theirs)
