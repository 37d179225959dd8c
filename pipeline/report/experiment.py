"""The page of one experiment: what was asked, how, what came out, what it means for the claims, what is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.params import ExperimentSettings, Params, TrainSettings
from pipeline.params.train import MAX_SEEDS
from pipeline.report import text
from pipeline.report.figures import Material, drawings
from pipeline.report.figures.positions import nearness_rows
from pipeline.report.text import at_least, counted, differs, interval, points
from pipeline.study import Training, statistics
from pipeline.study.claims import Judgement, adjusted_p, is_timed
from pipeline.study.statistics import LEVEL, Interval, Summary

Array = npt.NDArray[Any]
MIN_SEEDS = statistics.seeds_for_p(1 - LEVEL)  # the fewest with which a sign-flip p can fall below 0.05


@dataclass(frozen=True)
class Effect:
    """One measure of a variant.

    Attributes:
        summary: of its finite values; None where there is none. `left_out` values are not finite.
        difference: to the baseline on the seeds that both have. None for the baseline itself, and where one of these values is not
            finite: a pair less would be a choice.
        p: sign-flip p of the difference, adjusted over the experiment's variants; None with too few seeds for one.
    """

    summary: Summary | None = None
    left_out: int = 0
    difference: Summary | None = None
    p: float | None = None


@dataclass(frozen=True)
class Row:
    """A variant's row in the tables; accuracies are fractions. `hierarchical` is of the difference of accuracy."""

    variant: str
    label: str
    is_baseline: bool
    changes: str
    run: Training | None
    accuracy: Effect
    test_loss: Effect
    train_loss: Summary | None
    hierarchical: Interval | None
    measure: Effect

    @property
    def difference(self) -> Summary | None:
        """Of accuracy."""
        return self.accuracy.difference


def _finite_summary(values: FloatArray) -> Summary | None:
    finite = values[np.isfinite(values)]
    return statistics.summarize(finite) if finite.size else None


def _of_common_seeds(run: Training, baseline: Training, ours: Array, theirs: Array) -> tuple[Array, Array]:
    """The rows of each side, (seeds, ...), that belong to seeds which both have, in one order."""
    seeds = [seed for seed in run.seeds if seed in baseline.seeds]
    return ours[[run.seeds.index(seed) for seed in seeds]], theirs[[baseline.seeds.index(seed) for seed in seeds]]


def effects(experiment: ExperimentSettings, runs: Mapping[str, Training], measure: str) -> dict[str, Effect]:
    """Of each variant that was trained and has the measure."""
    values = {v: found for v in experiment.variants if v in runs and (found := MEASURES[measure].per_seed(runs[v])) is not None}
    pairs = {}
    if experiment.baseline in values:
        for variant in values.keys() - {experiment.baseline}:
            baseline = experiment.baseline
            pair = _of_common_seeds(runs[variant], runs[baseline], values[variant], values[baseline])
            if len(pair[0]) and np.isfinite(pair).all():
                pairs[variant] = pair
    raw = {v: statistics.sign_flip_p(*pairs[v]) for v in values if v in pairs and len(pairs[v][0]) >= MIN_SEEDS}
    adjusted = dict(zip(raw, statistics.holm(list(raw.values())), strict=True))
    return {
        v: Effect(
            _finite_summary(found),
            int((~np.isfinite(found)).sum()),
            statistics.paired_difference(*pairs[v]) if v in pairs else None,
            adjusted.get(v),
        )
        for v, found in values.items()
    }


def rows(params: Params, experiment: ExperimentSettings, runs: Mapping[str, Training]) -> list[Row]:
    accuracy, test_loss, measure = (effects(experiment, runs, name) for name in ("accuracy", "test loss", experiment.measure))
    table = []
    for variant in experiment.variants:
        run, nothing = runs.get(variant), Effect()
        difference = accuracy.get(variant, nothing).difference
        table.append(
            Row(
                variant,
                experiment.label(variant),
                variant == experiment.baseline,
                differs(params, variant, experiment.baseline),
                run,
                accuracy.get(variant, nothing),
                test_loss.get(variant, nothing),
                _finite_summary(run.train_loss[:, -1]) if run else None,
                _hierarchical(run, runs[experiment.baseline]) if run and difference else None,
                measure.get(variant, nothing),
            )
        )
    return table


def _hierarchical(run: Training, baseline: Training) -> Interval | None:
    ours, theirs = run.correct, baseline.correct
    if ours is None or theirs is None or ours.shape[1] != theirs.shape[1] or ours.shape[1] < 2:
        return None
    return statistics.hierarchical_bootstrap(*_of_common_seeds(run, baseline, ours, theirs))


def outcome(row: Row, baseline: str) -> str:
    """What the paired difference says, never without its bound."""
    if row.run is None:
        return "not run"
    difference = row.difference
    if difference is None:
        return f"has nothing to be compared with, as {baseline} was not run"
    lost = f"; {row.run.diverged} of its {counted(difference.n, 'seed')} diverged" if row.run.diverged else ""
    if difference.n == 1:
        return f"{points(difference.mean)} points against {baseline} with one seed, which says nothing of other seeds{lost}"
    assert difference.interval is not None
    if difference.sd == 0:
        apart = f"exactly {points(difference.mean)} points from" if difference.mean else "at the same accuracy as"
        return f"every seed ends {apart} {baseline}{lost}"
    spread = f"{points(difference.mean)} points, 95 % interval {interval(difference.interval, points)}"
    if difference.interval.excludes_zero:
        return f"{'higher' if difference.mean > 0 else 'lower'} than {baseline} ({spread}){lost}"
    return f"no detectable difference of {at_least(difference.interval.reach)} points or more from {baseline} ({spread}){lost}"


def _length(train: TrainSettings) -> tuple[int, int | None]:
    return train.epochs, train.epoch_images


def _is_open(difference: Summary) -> bool:
    """Whether the seeds leave it open if there is any difference. Equal values have no spread to tell it from."""
    return difference.interval is not None and difference.sd > 0 and not difference.interval.excludes_zero


def _unresolved(difference: Summary) -> str:
    """How many seeds would probably show a difference of this size to be none of zero, as the end of a sentence."""
    needed = statistics.seeds_to_decide(difference, (0.0, np.inf) if difference.mean >= 0 else (-np.inf, 0.0))
    if needed is None:
        return f"so small a difference would take more than {MAX_SEEDS:,} seeds"
    return f"if mean and spread stay as they are, about {max(needed, difference.n + 1):,} seeds would"


def render(
    params: Params,
    name: str,
    runs: Mapping[str, Training],
    judgements: Sequence[Judgement],
    *,
    train_images: int | None,
    timed: bool,
) -> dict[str, bytes]:
    """The page and its pictures, by their path inside `reports/`.

    Args:
        runs: of all variants that were trained.
        judgements: of the experiment's claims.
        timed: whether there is a timing page to point to.
    """
    experiment = params.experiments[name]
    material = Material(name, experiment, [runs[variant] for variant in experiment.variants if variant in runs], train_images)
    drawn = [drawing for kind in experiment.figures for drawing in drawings(kind, material)]
    files = {path: content for drawing in drawn for path, content in drawing.files("experiments/figures").items()}
    table = rows(params, experiment, runs)
    label: Callable[[str], str] = experiment.label
    present = [row for row in table if row.run is not None]
    compared = [row for row in present if row.difference is not None]
    pairs = sorted({row.difference.n for row in compared if row.difference is not None}) or [len(params.train.seeds)]
    n = pairs[-1]
    measure = MEASURES[experiment.measure]
    page = text.page(
        "experiment.md.j2",
        preview=params.preview,
        profile=params.profile,
        dataset=params.data.source.label,
        train=params.train,
        n=n,
        pairs=text.listed([str(number) for number in pairs]),
        experiment=experiment,
        baseline=label(experiment.baseline),
        rows=table,
        present=present,
        paired=compared,
        absent=[row.variant for row in table if row.run is None],
        outcome=outcome,
        images_shown=params.images_shown,
        short=[row.label for row in present if row.run is not None and row.run.images_shown < params.images_shown],
        other_seeds=text.other_seeds(params, [variant for variant in experiment.variants if variant in params.variants]),
        other_length=any(_length(params.resolve(v).train) != _length(params.train) for v in experiment.variants),
        lost_losses=[row.label for row in present if row.run is not None and not np.isfinite(row.run.test_loss[:, -1]).all()],
        permutation=n >= MIN_SEEDS,
        smallest_p=statistics.smallest_p(n),
        smallest_adjusted_p=min(1.0, len(compared) * statistics.smallest_p(n)),
        predicted=any(row.hierarchical for row in table),
        measured=experiment.measure != "accuracy" and any(row.measure.summary or row.measure.left_out for row in table),
        measure_note=measure.note,
        value=partial(text.value, measure),
        difference=partial(text.difference, measure),
        nearness=nearness_rows(material) if "position_similarity" in experiment.figures else [],
        correlation=lambda value: text.signed(value, 3),
        nats=lambda value: text.signed(value, 4),
        figures=drawn,
        judgements=judgements,
        adjusted=adjusted_p(judgements),
        undecided=[row for row in compared if row.difference and _is_open(row.difference)],
        unresolved=_unresolved,
        commits=sorted({str(row.run.record["git_commit"]) for row in present if row.run and row.run.record.get("git_commit")}),
        dirty=any(row.run.record.get("git_dirty") for row in present if row.run),
        timed=timed and any(is_timed(judgement.claim) for judgement in judgements),
        label=label,
    )
    return files | {f"experiments/{name}.md": page}
