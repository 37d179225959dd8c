"""The page of an experiment whose variants are captioners: the quality of their captions of the test scenes, and the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.captioning.grammar import PHRASINGS
from pipeline.measures import MEASURES
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.params import ExperimentSettings, Params
from pipeline.report import text
from pipeline.report.experiment import Difference, Effect, effects, finite_summary, verdict_of
from pipeline.report.figures import Material, drawings
from pipeline.report.figures.drawing import pictures
from pipeline.report.text import interval, percent, points
from pipeline.study import Training
from pipeline.study.claims import Judgement
from pipeline.study.effects import look_level

_OPEN = ("captions", "budget")  # figures that are not folded, like the first of a page
# Names of the others in the summary line of the fold.
_FOLDED = {"curves": "learning curves", "gaze": "where the decoder looks", "measure": "seed by seed"}


@dataclass(frozen=True)
class Row:
    """A variant's row in the tables.

    Attributes:
        greedy, beam: its scene accuracies (fractions), with the differences to the baseline.
        measure: the experiment's measure.
        beside: the label of the variant beside which the lead sets it.
        lead: the difference of `greedy` to that one.
    """

    variant: str
    label: str
    is_baseline: bool
    changes: str
    run: Training | None
    greedy: Effect
    beam: Effect
    measure: Effect
    beside: str
    lead: Difference | None

    def mean(self, column: str) -> float | None:
        """The mean of a column of the evaluation over the seeds whose value is finite; None where no seed has one."""
        if self.run is None or self.run.evaluation is None or column not in self.run.evaluation:
            return None
        summary = finite_summary(self.run.evaluation[column])
        return summary.mean if summary else None

    def last(self, curve: str) -> float | None:
        """The mean of a curve's last epoch over the seeds; None where one is not finite."""
        values = self.run.curves[curve][:, -1] if self.run else np.array([np.nan])
        return float(values.mean()) if np.isfinite(values).all() else None


def rows(params: Params, experiment: ExperimentSettings, runs: Mapping[str, Training]) -> list[Row]:
    level = look_level(params.looks)
    greedy, beam, measure = (
        effects(experiment, runs, name, level) for name in ("scene accuracy", "scene accuracy by beam search", experiment.measure)
    )
    beside = {variant: experiment.beside_of(variant) for variant in experiment.variants}
    leads = {other: effects(experiment, runs, "scene accuracy", level, other) for other in {*beside.values()}}
    return [
        Row(
            variant,
            experiment.label(variant),
            variant == experiment.baseline,
            _changes(params, variant, experiment),
            runs.get(variant),
            greedy[variant],
            beam[variant],
            measure[variant],
            experiment.label(beside[variant]),
            leads[beside[variant]][variant].difference,
        )
        for variant in experiment.variants
    ]


def _changes(params: Params, variant: str, experiment: ExperimentSettings) -> str:
    """How a variant differs from the baseline; of another architecture, from the first variant of that architecture."""
    architecture = {name: params.resolve(name).model.architecture for name in experiment.variants}
    alike = next(name for name in (experiment.baseline, *experiment.variants) if architecture[name] == architecture[variant])
    if alike in (variant, experiment.baseline):
        return text.changes(params, variant, experiment.baseline)
    return f"as {experiment.label(alike)}, but {text.changes(params, variant, alike)}"


def answer(row: Row, baseline: Row, name: str) -> str:
    """A variant's line in the list of answers: its scene accuracy and the difference to what it is set beside, with its interval.

    Args:
        name: the experiment's measure. Where it is not the scene accuracy, its value and difference follow.
    """
    line, measure = _scene_accuracy(row, baseline), MEASURES[name]
    own, difference = row.measure.summary, row.measure.difference
    if name == "scene accuracy" or own is None:
        return line
    line += f"; {name} {text.value(measure, own.mean)} {measure.of_value}".rstrip()
    if difference is None:
        return line
    return f"{line}, {text.estimate(difference.mean, difference.interval, partial(text.change, measure))}"


def _is_untold(judgement: Judgement, experiment: ExperimentSettings) -> bool:
    """Whether a claim that has an effect is about something else than the list of answers has."""
    told = {"scene accuracy", "scene error", experiment.measure}
    return judgement.deciding.effect is not None and any(finding.comparison.measure not in told for finding in judgement.findings)


def _scene_accuracy(row: Row, baseline: Row) -> str:
    summary, difference = row.greedy.summary, row.lead
    if summary is None:
        return f"**{row.label}**: {'not evaluated' if row.run else 'not run'}"
    line = f"**{row.label}**: {percent(summary.mean)} %"
    if difference is None:
        return f"{line}, with nothing to compare it with, as {row.beside} was not run"
    line += f", {points(difference.mean)} points" + (f" against {row.beside}" if row.beside != baseline.label else "")
    if difference.interval is None:
        return f"{line}; one seed says nothing of other seeds"
    if difference.interval.low == difference.interval.high:
        return f"{line} with every seed"
    line += f" [{interval(difference.interval, points)}]"
    return f"{line}, which leaves open whether there is a difference" if difference.is_open else line


def render(
    params: Params, name: str, runs: Mapping[str, Training], judgements: Sequence[Judgement], *, train_images: int | None, timed: bool
) -> dict[str, bytes]:
    """The page and its pictures, by their path inside `reports/`. The arguments are those of `pipeline.report.experiment.render`."""
    experiment = params.experiments[name]
    material = Material(name, experiment, [runs[variant] for variant in experiment.variants if variant in runs], train_images)
    drawn = [(kind, drawing) for kind in experiment.figures for drawing in drawings(kind, material)]
    folded = [(kind, drawing) for kind, drawing in drawn[1:] if kind not in _OPEN]
    files = pictures([drawing for _, drawing in drawn], "experiments/figures")
    table = rows(params, experiment, runs)
    present = [row for row in table if row.run is not None]
    baseline = next(row for row in table if row.is_baseline)
    measure = MEASURES[experiment.measure]
    page = text.page(
        "captioning.md.j2",
        preview=params.preview,
        profile=params.profile,
        dataset=params.data.source.label,
        scenes=params.scenes,
        train=params.train,
        other_seeds=text.other_seeds(params, experiment.variants),
        on_gpu=text.on_gpu(material.runs),
        experiment=experiment,
        baseline=baseline,
        settings=text.differs(params, experiment.baseline),
        rows=table,
        present=present,
        absent=[row.variant for row in table if row.run is None],
        differ=any(row.measure.difference for row in table),
        answers=[answer(row, baseline, experiment.measure) for row in table if not row.is_baseline and row.run],
        untold=[verdict_of(one, experiment.label) for one in judgements if _is_untold(one, experiment)],
        short=any(judgement.verdict == "short run" for judgement in judgements),
        beam_width=BEAM_WIDTH,
        phrasings=PHRASINGS,
        ceiling=next((found.cider_d_ceiling for run in material.runs if (found := run.captions) is not None), None),
        measured=experiment.measure != "scene accuracy",
        measure=measure,
        value=partial(text.value, measure),
        difference=partial(text.change, measure),
        level=100 * look_level(params.looks),
        shown=[drawing for place, (kind, drawing) in enumerate(drawn) if not place or kind in _OPEN],
        folded=[drawing for _, drawing in folded],
        folded_kinds=list(dict.fromkeys(_FOLDED.get(kind, kind) for kind, _ in folded)),
        judgements=judgements,
        examples="train scenes",
        page=f"experiments/{name}.md",
        label=experiment.label,
    )
    return files | {f"experiments/{name}.md": page}
