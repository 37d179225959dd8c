"""The page of one experiment: its answer in a sentence, a figure, the verdicts and a table; the rest is folded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.measures import MEASURES
from pipeline.measures.definitions import FloatArray
from pipeline.params import ExperimentSettings, Params
from pipeline.report import text
from pipeline.report.figures import Material, drawings
from pipeline.report.figures.curves import EXCURSIONS, Line, excursions
from pipeline.report.figures.positions import similarity_rows
from pipeline.report.parallel import pictures
from pipeline.report.text import differs, percent, points
from pipeline.study import Training, statistics
from pipeline.study.claims import Judgement, is_timed
from pipeline.study.effects import contrast, look_level, share_contrast
from pipeline.study.statistics import Interval, Summary

SAME_SIZE = 1.1  # ratio of parameters or FLOPs up to which two networks count as equally large
_ALIKE = "cannot be told from it"
ENDS = {"late accuracy", "late test error"}  # measures of how well a training ends, which the headline tells


@dataclass(frozen=True)
class Difference:
    """A variant's difference to the baseline.

    Attributes:
        mean: the difference of the means over the seeds; for a measure whose effects are ratios, the ratio of the geometric means.
        interval: None where a side has one seed only.
        no_effect: 0, or 1 for a ratio.
    """

    mean: float
    interval: Interval | None
    no_effect: float

    @property
    def is_open(self) -> bool:
        """Whether the interval includes no effect. An interval without width does not count: it is of values that are all equal."""
        return self.interval is not None and self.interval.low < self.interval.high and not self.excludes_none

    @property
    def excludes_none(self) -> bool:
        return self.interval is not None and not self.interval.low <= self.no_effect <= self.interval.high


@dataclass(frozen=True)
class Effect:
    """One measure of a variant.

    Attributes:
        summary: of the finite values; None where there is none.
        left_out: number of values that are not finite.
        difference: to the baseline; None for the baseline itself, and where a value is not finite.
    """

    summary: Summary | None = None
    left_out: int = 0
    difference: Difference | None = None


@dataclass(frozen=True)
class Row:
    """A variant's row in the tables; accuracies are fractions.

    Attributes:
        reference: what it is set beside in the lead, with the differences to that; None for the baseline.
    """

    variant: str
    label: str
    is_baseline: bool
    changes: str
    run: Training | None
    accuracy: Effect
    error: Effect
    last: Effect
    test_loss: Effect
    train_loss: Summary | None
    measure: Effect
    reference: Reference | None = None


@dataclass(frozen=True)
class Reference:
    """The variant beside which another is set: the baseline, or one that differs from it in less.

    Attributes:
        measure: the difference of the experiment's measure.
        comparable: whether both were trained, and it saw as many images or more: a longer training is a part of what is compared.
    """

    variant: str
    label: str
    accuracy: Difference | None
    error: Difference | None
    measure: Difference | None
    comparable: bool


def finite_summary(values: FloatArray) -> Summary | None:
    finite = values[np.isfinite(values)]
    return statistics.summarize(finite) if finite.size else None


def effects(
    experiment: ExperimentSettings, runs: Mapping[str, Training], measure: str, level: float, reference: str | None = None
) -> dict[str, Effect]:
    """The effect of each variant; one that was not trained, or has no such measure, has an empty one.

    Args:
        level: of the differences' intervals.
        reference: the variant to which differences are; by default the experiment's baseline.
    """
    reference = reference or experiment.baseline
    values = {v: found for v in experiment.variants if v in runs and (found := MEASURES[measure].per_seed(runs[v])) is not None}
    theirs = values.get(reference)
    return dict.fromkeys(experiment.variants, Effect()) | {
        v: Effect(
            finite_summary(found),
            int((~np.isfinite(found)).sum()),
            None if theirs is None or v == reference else _difference(measure, found, theirs, level),
        )
        for v, found in values.items()
    }


def _difference(measure: str, values: FloatArray, baseline: FloatArray, level: float) -> Difference | None:
    ratio = MEASURES[measure].ratio
    sides = [values, baseline]
    if ratio:
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = [np.log(side) for side in sides]
    if not all(np.isfinite(side).all() for side in sides):
        return None
    show: Callable[[float], float] = math.exp if ratio else float
    estimate = (share_contrast if MEASURES[measure].share else contrast)(*sides)
    ends = estimate.interval(level)
    return Difference(show(estimate.mean), ends and Interval(show(ends.low), show(ends.high), level), float(ratio))


def rows(params: Params, experiment: ExperimentSettings, runs: Mapping[str, Training]) -> list[Row]:
    level = look_level(params.looks)
    names = ("late accuracy", "late test error", "accuracy", "test loss", experiment.measure)
    accuracy, error, last, test_loss, measure = (effects(experiment, runs, name, level) for name in names)
    references = _references(experiment, runs, level)
    table = []
    for variant in experiment.variants:
        run = runs.get(variant)
        table.append(
            Row(
                variant,
                experiment.label(variant),
                variant == experiment.baseline,
                differs(params, variant, experiment.baseline),
                run,
                accuracy[variant],
                error[variant],
                last[variant],
                test_loss[variant],
                finite_summary(run.train_loss[:, -1]) if run else None,
                measure[variant],
                references.get(variant),
            )
        )
    return table


def _references(experiment: ExperimentSettings, runs: Mapping[str, Training], level: float) -> dict[str, Reference]:
    """What each variant but the baseline is set beside."""
    beside = {variant: experiment.beside_of(variant) for variant in experiment.variants if variant != experiment.baseline}
    accuracy, error, measure = (
        {other: effects(experiment, runs, name, level, other) for other in {*beside.values()}}
        for name in ("late accuracy", "late test error", experiment.measure)
    )
    return {
        variant: Reference(
            other,
            experiment.label(other),
            accuracy[other][variant].difference,
            error[other][variant].difference,
            measure[other][variant].difference,
            {variant, other} <= {*runs} and runs[variant].images_shown >= runs[other].images_shown,
        )
        for variant, other in beside.items()
    }


def headline(table: Sequence[Row]) -> str:
    """The experiment's answer in sentences: where the baseline ends, and which variants differ from what they are set beside.

    Names are in italics, because one may be "none".
    """
    baseline = next(row for row in table if row.is_baseline)
    others = [row for row in table if not row.is_baseline and row.accuracy.summary]
    if baseline.accuracy.summary is None:
        return f"*{baseline.label}* was not run, so the others have nothing to be compared with." if others else ""
    start = f"*{baseline.label}* reaches {percent(baseline.accuracy.summary.mean)} %"
    if not others:
        return f"{start}; nothing else was run yet."
    if all(row.accuracy.difference is None or row.accuracy.difference.interval is None for row in others):
        return f"{start}; one seed per variant does not tell whether the others reach another accuracy."
    beside: dict[str, list[Row]] = {baseline.variant: []}
    for row in others:
        if row.reference:
            beside.setdefault(row.reference.variant, []).append(row)
    sentences: list[str] = []
    for reference in table:
        group = beside.get(reference.variant, [])
        compared = {row.label: row.reference.accuracy for row in group if row.reference and row.reference.comparable}
        alike = "cannot be told from it with these seeds" if reference is baseline else _ALIKE
        parts = _beside(compared, lambda mean: f"{points(mean)} points", ("reaches", "reach"), alike)
        if shorter := [f"*{row.label}*" for row in group if row.label not in compared and reference.run]:
            parts.append(f"{text.listed(shorter)} saw fewer images and cannot be set beside it")
        if reference is baseline:
            sentences.insert(0, f"{'; '.join([start, *parts])}.")
        elif parts and reference.accuracy.summary:
            own = f"*{reference.label}* ({percent(reference.accuracy.summary.mean)} %)"
            sentences.append(f"Beside {own}, {'; '.join(parts)}.")
    return " ".join(sentences)


def _beside(
    differences: Mapping[str, Difference | None], show: Callable[[float], str], verbs: tuple[str, str], alike: str = _ALIKE
) -> list[str]:
    """Which variants, by label, have more than what they are set beside, which have less, and of which neither is shown.

    Args:
        verbs: of one variant and of several, as in "has more" and "have more".
        alike: what is said of the last.

    Returns:
        A part of a sentence for each of the three that there is.
    """
    apart = {label: (d.mean - d.no_effect, show(d.mean)) for label, d in differences.items() if d and d.excludes_none}
    parts = []
    for word, sign in (("more", 1), ("less", -1)):
        found = sorted((label for label, (by, _) in apart.items() if sign * by > 0), key=lambda label: -abs(apart[label][0]))
        if found:
            shown = found if len(found) <= 4 else found[:3]
            named = [f"*{label}* ({apart[label][1]})" for label in shown]
            rest = [f"{len(found) - len(shown)} others"] if len(found) > len(shown) else []
            parts.append(f"{text.listed(named + rest)} {verbs[len(found) > 1]} {word}")
    left = [f"*{label}*" for label in differences if label not in apart]
    if left:
        whom = text.listed(left) if len(left) <= 4 else f"{len(left)} others"
        parts.append(f"{whom} {alike}")
    return parts


def measured_line(name: str, table: Sequence[Row]) -> str:
    """The experiment's own measure in sentences like the headline; empty where the baseline or all others have none."""
    measure = MEASURES[name]
    baseline = next(row for row in table if row.is_baseline)
    beside: dict[str, dict[str, Difference]] = {}
    for row in table:
        if row.reference and row.reference.comparable and row.reference.measure:
            beside.setdefault(row.reference.variant, {})[row.label] = row.reference.measure
    if baseline.measure.summary is None or not beside:
        return ""

    def show(mean: float) -> str:
        return f"{text.change(measure, mean)} {'times' if measure.ratio else measure.of_difference}".rstrip()

    phrase = measure.phrase or name
    sentences: list[str] = []
    for row in table:
        if row.measure.summary is None or not (row is baseline or row.variant in beside):
            continue
        own = f"{text.value(measure, row.measure.summary.mean)} {measure.of_value}".rstrip()
        parts = _beside(beside.get(row.variant, {}), show, ("has", "have"))
        if row is baseline:
            sentences.insert(0, f"{phrase[0].upper()}{phrase[1:]}: {'; '.join([f'*{row.label}* has {own}', *parts])}.")
        else:
            sentences.append(f"Beside *{row.label}* ({own}), {'; '.join(parts)}.")
    return " ".join(sentences)


def budgets(table: Sequence[Row]) -> str:
    """Which variants have another size or saw more images than the baseline, by more than `SAME_SIZE`; empty where none has.

    Those that saw fewer have a sentence of their own.
    """
    baseline = next(row for row in table if row.is_baseline)
    of_size: dict[str, list[str]] = {}
    for row in table:
        if row.run is None or baseline.run is None:
            continue
        pairs = ((row.run.parameters, baseline.run.parameters, "parameters"), (row.run.flops, baseline.run.flops, "FLOPs"))
        ratios = [(ours / theirs, what) for ours, theirs, what in pairs if ours and theirs]
        said = [f"{text.digits(ratio)} times the {what}" for ratio, what in ratios if not 1 / SAME_SIZE <= ratio <= SAME_SIZE]
        if (more := row.run.images_shown / baseline.run.images_shown) > SAME_SIZE:
            said.append(f"{text.digits(more)} times the training images shown")
        if said:
            of_size.setdefault(text.listed(said), []).append(f"*{row.label}*")
    parts = [f"{text.listed(names)} {'has' if len(names) == 1 else 'have'} {size}" for size, names in of_size.items()]
    return f"Sizes beside *{baseline.label}*: {'; '.join(parts)}." if parts else ""


def answered_by_claims(judgements: Sequence[Judgement]) -> bool:
    """Whether an experiment's claims are its answer: the first is not about how well a training ends."""
    return bool(judgements) and all(comparison.measure not in ENDS for comparison in judgements[0].claim.comparisons)


def answers(judgements: Sequence[Judgement], table: Sequence[Row], label: Callable[[str], str]) -> list[tuple[str, str]]:
    """Verdict and sentence of an experiment's claims: of all where they are its answer, else of those that the headline does not tell."""
    all_of_them = answered_by_claims(judgements)
    return [verdict_of(one, label) for one in judgements if one.deciding.effect is not None and (all_of_them or not _told(one, table))]


def verdict_of(judgement: Judgement, label: Callable[[str], str]) -> tuple[str, str]:
    """Verdict and sentence of a claim whose deciding comparison has an effect."""
    found, sentence = judgement.deciding, judgement.claim.sentence.removesuffix(".")
    effect = f"{'observed: ' if found.observed else ''}{text.compared(found.comparison, label)}: {text.effect(found)}"
    return judgement.verdict.capitalize(), f"{sentence} ({effect})."


def _told(judgement: Judgement, table: Sequence[Row]) -> bool:
    """Whether the headline has the comparison that decides a claim."""
    comparison = judgement.deciding.comparison
    if comparison.measure not in ENDS or comparison.minus is not None:
        return False
    sides = {comparison.variant, comparison.reference}
    return comparison.reference is None or any(
        row.reference is not None and row.reference.comparable and {row.variant, row.reference.variant} == sides for row in table
    )


def elsewhere(params: Params, experiment: ExperimentSettings, judgements: Sequence[Judgement]) -> dict[str, str]:
    """The variants of the study that claims about trainings compare and the page does not have, with their options."""
    trained = (judgement.claim for judgement in judgements if not is_timed(judgement.claim))
    named = dict.fromkeys(name for claim in trained for one in claim.comparisons for name in one.variants)
    return {name: text.differs(params, name) for name in named if name in params.variants and name not in experiment.variants}


def too_short(params: Params, run: Training) -> bool:
    """Whether a training was shown fewer images than each claim about it speaks of, or than the study's claims where there is none."""
    asked = [
        claim.images_shown or params.images_shown
        for claim in params.claims.values()
        if not is_timed(claim) and any(run.variant in one.variants for one in claim.comparisons)
    ]
    return run.images_shown < min(asked, default=params.images_shown)


def render(
    params: Params, name: str, runs: Mapping[str, Training], judgements: Sequence[Judgement], *, train_images: int | None, timed: bool
) -> dict[str, bytes]:
    """The page and its pictures, by their path inside `reports/`.

    Args:
        runs: of all variants that were trained.
        judgements: of the experiment's claims.
        train_images: size of the whole training set; None where it is not known.
        timed: whether there is a timing page to link to.
    """
    experiment = params.experiments[name]
    material = Material(name, experiment, [runs[variant] for variant in experiment.variants if variant in runs], train_images)
    compares = not all(map(material.is_baseline, material.runs))  # a baseline alone answers nothing
    drawn = [drawing for kind in experiment.figures if compares for drawing in drawings(kind, material)]
    files = pictures(drawn, "experiments/figures")
    table = rows(params, experiment, runs)
    present = [row for row in table if row.run is not None]
    brief = {f"*{material.label(run)}*": run for run in material.runs if run.images_shown < params.images_shown}
    lengths = {(train.epochs, train.epoch_images) for train in (params.train, *(params.resolve(v).train for v in experiment.variants))}
    measure = MEASURES[experiment.measure]
    # Where the curves are drawn their caption has them.
    far = [] if "curves" in experiment.figures else excursions([Line(material.label(run), run) for run in material.runs])

    def label(name: str) -> str:
        """Of a variant, or of something that is timed alone."""
        return experiment.label(name) if name in params.variants else params.timing.label(name)

    page = text.page(
        "experiment.md.j2",
        preview=params.preview,
        profile=params.profile,
        dataset=params.data.source.label,
        train=params.train,
        experiment=experiment,
        baseline=experiment.label(experiment.baseline),
        rows=table,
        present=present,
        differ=[row for row in present if row.accuracy.difference],
        absent=[row.variant for row in table if row.run is None],
        answers=answers(judgements, table, label),
        headline=headline(table),
        measured_line="" if experiment.measure == "accuracy" else measured_line(experiment.measure, table),
        answered_by_claims=answered_by_claims(judgements),
        elsewhere=elsewhere(params, experiment, judgements),
        budgets=budgets(table),
        excursions=f" {EXCURSIONS}: {'; '.join(far)}." if far else "",
        images_shown=params.images_shown,
        short=[label for label, run in brief.items() if too_short(params, run)],
        brief={label: run.images_shown for label, run in brief.items() if not too_short(params, run)},
        other_seeds=text.other_seeds(params, experiment.variants),
        on_gpu=text.on_gpu(material.runs),
        other_length=len(lengths) > 1,
        level=100 * look_level(params.looks),
        lost_losses=[material.label(run) for run in material.runs if not np.isfinite(run.test_loss[:, -1]).all()],
        measured=experiment.measure != "accuracy" and any(row.measure.summary or row.measure.left_out for row in table),
        measure=measure,
        value=partial(text.value, measure),
        difference=partial(text.change, measure),
        similarity=similarity_rows(material) if "position_similarity" in experiment.figures else [],
        correlation=lambda value: text.signed(value, 3),
        nats=lambda value: text.signed(value, 4),
        ratio=text.digits,
        figures=drawn,
        judgements=judgements,
        page=f"experiments/{name}.md",
        timed=timed and any(is_timed(judgement.claim) for judgement in judgements),
        label=label,
    )
    return files | {f"experiments/{name}.md": page}
