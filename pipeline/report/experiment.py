"""The page of one experiment: what was asked, how, what came out, what it means for the claims, what is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jinja2
import numpy as np

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.params import ExperimentSettings, Params, TrainSettings
from pipeline.report import text
from pipeline.report.figures import Material, drawings
from pipeline.report.figures.positions import nearness_rows
from pipeline.report.text import at_least, counted, differs, interval, points
from pipeline.study import Training, statistics
from pipeline.study.claims import Judgement, adjusted_p, is_timed
from pipeline.study.statistics import LEVEL, MAX_SEEDS, Interval, Summary

MIN_SEEDS = statistics.seeds_for_p(1 - LEVEL)  # the fewest with which a sign-flip p can fall below 0.05


@dataclass(frozen=True)
class Row:
    """A variant's row in the tables; accuracies are fractions. What needs runs that are not there is None.

    Attributes:
        difference, loss_difference: paired with the baseline; None for the baseline itself, too.
        hierarchical: of the difference of accuracy.
        p: of it, adjusted over the comparisons of the table.
    """

    variant: str
    label: str
    is_baseline: bool
    changes: str
    run: Training | None
    accuracy: Summary | None = None
    train_loss: Summary | None = None
    test_loss: Summary | None = None
    difference: Summary | None = None
    loss_difference: Summary | None = None
    hierarchical: Interval | None = None
    p: float | None = None


_Pair = tuple[FloatArray, FloatArray]  # of a variant and of its baseline, (seeds,) each, the same seeds


@dataclass(frozen=True)
class MeasureRow:
    """A variant's row in the table of the experiment's own measure; `left_out` seeds have no finite value."""

    label: str
    is_baseline: bool
    summary: Summary | None
    left_out: int
    difference: Summary | None
    p: float | None


def finite_summary(values: FloatArray) -> Summary | None:
    """Of those values that are finite."""
    finite = values[np.isfinite(values)]
    return statistics.summarize(finite) if finite.size else None


def _pair(values: FloatArray | None, run: Training, base: FloatArray | None, baseline: Training) -> _Pair | None:
    """(seeds,) of each side, of the seeds that both have; None where a side is not there, or holds a value that is not finite: a
    pair less would be a choice."""
    seeds = [seed for seed in run.seeds if seed in baseline.seeds]
    if values is None or base is None or not seeds:
        return None
    ours, theirs = (side[[of.seeds.index(seed) for seed in seeds]] for side, of in ((values, run), (base, baseline)))
    return (ours, theirs) if np.isfinite(ours).all() and np.isfinite(theirs).all() else None


def _adjusted(pairs: Mapping[str, _Pair]) -> dict[str, float]:
    """Holm-adjusted sign-flip p of each variant against the baseline, of those with seeds enough for one."""
    raw = {name: statistics.sign_flip_p(*pair) for name, pair in pairs.items() if len(pair[0]) >= MIN_SEEDS}
    return dict(zip(raw, statistics.holm(list(raw.values())), strict=True))


def rows(params: Params, experiment: ExperimentSettings, runs: Mapping[str, Training]) -> list[Row]:
    baseline = runs.get(experiment.baseline)
    pairs = _pairs(experiment, runs, {v: run.test_accuracy[:, -1] for v, run in runs.items()})
    losses = _pairs(experiment, runs, {v: run.test_loss[:, -1] for v, run in runs.items()})
    adjusted = _adjusted(pairs)
    table = []
    for variant in experiment.variants:
        run, own = runs.get(variant), variant == experiment.baseline
        row = Row(variant, experiment.label(variant), own, differs(params, variant, experiment.baseline), run)
        if run is None:
            table.append(row)
            continue
        accuracy = run.test_accuracy[:, -1]
        paired: dict[str, Any] = {}
        if baseline is not None and variant in pairs:
            paired = {
                "difference": statistics.paired_difference(*pairs[variant]),
                "loss_difference": statistics.paired_difference(*losses[variant]) if variant in losses else None,
                "hierarchical": _hierarchical(run, baseline),
                "p": adjusted.get(variant),
            }
        table.append(
            Row(
                row.variant, row.label, own, row.changes, run,
                accuracy=statistics.summarize(accuracy),
                train_loss=finite_summary(run.train_loss[:, -1]),
                test_loss=finite_summary(run.test_loss[:, -1]),
                **paired,
            )
        )  # fmt: skip
    return table


def _pairs(experiment: ExperimentSettings, runs: Mapping[str, Training], values: Mapping[str, FloatArray | None]) -> dict[str, _Pair]:
    """The variants that can be compared with the baseline, without that one itself."""
    baseline = runs.get(experiment.baseline)
    if baseline is None:
        return {}
    base = values.get(experiment.baseline)
    others = [v for v in experiment.variants if v != experiment.baseline and v in runs]
    found = {v: _pair(values.get(v), runs[v], base, baseline) for v in others}
    return {v: pair for v, pair in found.items() if pair is not None}


def _hierarchical(run: Training, baseline: Training) -> Interval | None:
    right, wrong = run.correct, baseline.correct
    seeds = [seed for seed in run.seeds if seed in baseline.seeds]
    if right is None or wrong is None or right.shape[1] != wrong.shape[1] or right.shape[1] < 2:
        return None
    right, wrong = (side[[of.seeds.index(seed) for seed in seeds]] for side, of in ((right, run), (wrong, baseline)))
    return statistics.hierarchical_bootstrap(right, wrong)


def measure_rows(experiment: ExperimentSettings, runs: Mapping[str, Training]) -> list[MeasureRow]:
    """Of an experiment whose measure is not accuracy; empty where no variant has it."""
    measure = MEASURES[experiment.measure]
    values = {v: measure.per_seed(runs[v]) if v in runs else None for v in experiment.variants}
    if experiment.measure == "accuracy" or all(found is None for found in values.values()):
        return []
    pairs = _pairs(experiment, runs, values)
    adjusted = _adjusted(pairs)
    return [
        MeasureRow(
            experiment.label(v),
            v == experiment.baseline,
            None if found is None else finite_summary(found),
            0 if found is None else int((~np.isfinite(found)).sum()),
            statistics.paired_difference(*pairs[v]) if v in pairs else None,
            adjusted.get(v),
        )
        for v, found in values.items()
    ]


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


def _unresolved(row: Row) -> str:
    """How many seeds would resolve a difference that these do not, as the end of a sentence."""
    assert row.difference is not None
    needed = _seeds_to_resolve(row.difference)
    if needed is None:
        return f"so small a difference would take more than {MAX_SEEDS:,} seeds"
    return f"if mean and spread stay as they are, about {needed:,} seeds would"


def _seeds_to_resolve(difference: Summary) -> int | None:
    """How many seeds would probably show a difference of this size to be none of zero."""
    sign = 1 if difference.mean >= 0 else -1
    region = (0.0, np.inf) if sign > 0 else (-np.inf, 0.0)
    needed = statistics.seeds_to_decide(difference, region)
    return None if needed is None else max(needed, difference.n + 1)


def render(
    params: Params,
    name: str,
    runs: Mapping[str, Training],
    judgements: Sequence[Judgement],
    environment: jinja2.Environment,
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
        environment,
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
        measured=measure_rows(experiment, runs),
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
