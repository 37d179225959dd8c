"""The page of one experiment. Its tables are columns, a set for each kind of task; the template has all words."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.captioning.grammar import PHRASINGS
from pipeline.measures import MEASURES
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.params import ExperimentSettings, ModelSettings, Params
from pipeline.report import text
from pipeline.report.figures import Material, captions, pictures
from pipeline.report.figures.base import named
from pipeline.report.text import MINUS
from pipeline.study import Training
from pipeline.study.effects import effect, look_level, mapped
from pipeline.study.results import summarized
from pipeline.study.statistics import Interval, Summary

Column = tuple[str, Callable[[str], str]]  # the head, and the cell of a variant
ENDS = {"classification": "late accuracy", "captioning": "scene accuracy"}  # the measures of how well a training ends
_CONTENTS = ("1_digit", "2_digits", "3_digits", "4_digits", "no_repeats", "repeats")  # of scenes


class Table(NamedTuple):
    """A table of a page: `title` is its caption, `fold` the summary under which it is folded, empty for one that is not."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    fold: str = ""


class Tables:
    """The tables of an experiment.

    Attributes:
        end: the measure of how well a training ends; `own`: the experiment's.
    """

    def __init__(self, params: Params, experiment: ExperimentSettings, runs: Mapping[str, Training]) -> None:
        """`runs`: of all variants that were trained."""
        self.params, self.experiment, self.runs, self.baseline = params, experiment, runs, experiment.baseline
        self.task = params.resolve(self.baseline).task
        self.end = ENDS[self.task]
        self.own = self.end if experiment.measure == "accuracy" else experiment.measure

    def difference(self, measure: str, variant: str, reference: str) -> tuple[float, Interval | None] | None:
        """Of two sides, with its interval where each has two seeds; of a measure whose effects are ratios, the ratio of the geometric
        means. None where a side or a finite value is missing, or one has no logarithm and the effect is a ratio."""
        runs = [self.runs[name] for name in (variant, reference) if name in self.runs]
        sides = [values for run in runs if (values := MEASURES[measure].per_seed(run)) is not None]
        try:
            ours, theirs = sides
            estimate = effect(MEASURES[measure], ours, theirs)
        except ValueError:
            return None
        show, ends = math.exp if MEASURES[measure].ratio else float, estimate.interval(look_level(self.params.looks))
        # Without a spread nothing is known of other seeds.
        return show(estimate.mean), mapped(ends, show) if ends and ends.low < ends.high else None

    # --- columns ---

    def _of_run(self, head: str, show: Callable[[Training], object]) -> Column:
        """What a training has to show; a dash for nothing."""
        return head, lambda variant: str((variant in self.runs and show(self.runs[variant])) or "-")

    def _n(self, measure: str) -> Column:
        def cell(variant: str) -> str:
            if (run := self.runs.get(variant)) is None or (values := MEASURES[measure].per_seed(run)) is None:
                return "not run" if run is None else "not measured"
            lost = len(values) - int(np.isfinite(values).sum())
            return f"{len(values)}{f', {run.diverged} diverged' * bool(run.diverged)}{f', {lost} not finite' * bool(lost)}"

        return "n", cell

    def _values(self, measure: str, head: str, *, interval: bool = False) -> list[Column]:
        """n, mean, and standard deviation or interval."""
        show = partial(text.value, MEASURES[measure])

        def column(head: str, cell: Callable[[Summary], object]) -> Column:
            return self._of_run(head, lambda run: (found := summarized(run, measure)) and cell(found))

        if interval:
            return [self._n(measure), column(head, lambda found: text.estimate(found.mean, found.interval, show))]
        return [self._n(measure), column(head, lambda found: show(found.mean)), column("sd", lambda found: found.n > 1 and show(found.sd))]

    def _versus(self, measure: str, head: str, *, beside: bool = False) -> Column:
        """The difference to the baseline, or to what the variant is set beside."""

        def cell(variant: str) -> str:
            reference = self.experiment.beside_of(variant) if beside else self.baseline
            found = self.difference(measure, variant, reference)
            said = "-" if found is None else text.estimate(*found, partial(text.change, MEASURES[measure]))
            return said if variant != reference else ""

        return head, cell

    def _evaluated(self, head: str, column: str, show: Callable[[float], str] = text.percent) -> Column:
        return self._of_run(head, lambda run: run.evaluation and show(float(run.evaluation[f"greedy_{column}"].mean())))

    # --- tables ---

    def _table(self, title: str, columns: Sequence[Column], variants: Sequence[str] = (), fold: str = "") -> Table:
        rows = [
            [f"{named(v, self.experiment.label(v))}{', baseline' * (v == self.baseline)}", *(cell(v) for _, cell in columns)]
            for v in variants or self.experiment.variants
        ]
        return Table(title, ["variant", *(head for head, _ in columns)], rows, fold)

    def made(self) -> list[Table]:
        baseline, own, is_captioner = self.baseline, MEASURES[self.own], self.task == "captioning"
        error = "scene error" if is_captioner else "late test error"
        points = self._versus(self.end, f"{MINUS} {baseline} (points)")
        if is_captioner:
            beam = self._values("scene accuracy by beam search", "beam (%)", interval=True)[1:]
            columns = [*self._values(self.end, "greedy (%)", interval=True), points, *beam]
            title = f"Share of the test scenes that are described truly and completely, greedily and by a beam of {BEAM_WIDTH}"
        else:
            columns = [*self._values(self.end, "accuracy (%)"), points, self._versus(error, f"error / {baseline}")]
            title = "Test accuracy and test error"
        found = [self._table(title, columns)]
        if besides := [v for v in self.experiment.variants if self.experiment.beside_of(v) not in (v, baseline)]:
            columns = [
                ("beside", self.experiment.beside_of),
                self._versus(self.end, f"{MINUS} it (points)", beside=True),
                self._versus(error, "error / it", beside=True),
            ]
            found.append(self._table("Differences to another variant than the baseline: to one that differs in less", columns, besides))
        if self.own != self.end and (is_captioner or self.own != error):
            head = f"{self.own} ({own.of_value})" if own.of_value else self.own
            versus = self._versus(self.own, f"{'/' if own.ratio else MINUS} {baseline}")
            found.append(self._table(own.note.rstrip("."), [*self._values(self.own, head), versus]))
        return [*found, *(self._of_captions() if is_captioner else ()), self._settings()]

    def _of_captions(self) -> list[Table]:
        contents = [self._evaluated(name.replace("_", " "), f"scene_accuracy_{name}") for name in _CONTENTS]
        compared = [
            self._evaluated("exact match (%)", "exact_match"),
            self._evaluated("cells (%)", "cell_accuracy"),
            self._evaluated("edit distance", "edit_distance", "{:.3f}".format),
            self._evaluated("BLEU-4", "bleu_4", "{:.4f}".format),
            self._evaluated("CIDEr-D", "cider_d", "{:.3f}".format),
        ]
        phrasings = [self._evaluated(name, f"share_{name.replace(' ', '_')}") for name in (*PHRASINGS, "no phrasing")]
        material = Material("", self.experiment, [self.runs[v] for v in self.experiment.variants if v in self.runs])
        first = "Captions of the first test scenes"
        return [
            self._table("Scene accuracy (%) of greedy captions by what a scene holds", contents),
            self._table("Greedy captions beside their five references", compared),
            Table(first, ("scene", "variant", "", "greedy caption"), captions.caption_rows(material), first),
            self._table("Share (%) of the greedy captions in each phrasing", phrasings, fold="Phrasings"),
        ]

    def _settings(self) -> Table:
        shown = "scenes" if self.task == "captioning" else "images"
        columns = [
            ("differs by", lambda variant: text.differs(self.params, variant, self.baseline)),
            self._of_run(f"{shown} shown", lambda run: f"{run.settings.images_shown:,}"),
            self._of_run("tokens", lambda run: isinstance(run.settings.model, ModelSettings) and run.settings.model.num_tokens),
            self._of_run("parameters", lambda run: run.parameters and f"{run.parameters:,}"),
            self._of_run("FLOPs", lambda run: run.flops and text.count(run.flops)),
        ]
        return self._table("The variants", columns, fold=f"The variants: options, {shown} shown, tokens, parameters, FLOPs")

    def answer(self) -> list[tuple[str, str]]:
        """(variant, mean) of the experiment's measure: of those with the least and with the most, and of the baseline if it is neither."""
        trained = [self.runs[variant] for variant in self.experiment.variants if variant in self.runs]
        found = [(run, summarized(run, self.own)) for run in trained]
        means = {run.variant: of.mean for run, of in found if of is not None and of.n == len(run.seeds)}  # all seeds, not survivors alone
        ends = [pick(means, key=means.__getitem__) for pick in (min, max)] if means else []
        said = dict.fromkeys([*ends, *means.keys() & {self.baseline}])
        note, measure = " (the baseline)" * (self.baseline in ends), MEASURES[self.own]
        return [(v + note * (v == self.baseline), f"{text.value(measure, means[v])} {measure.of_value}".rstrip()) for v in said]

    def leads(self) -> list[str]:
        """A sentence of each variant that the experiment names and that was trained: its accuracy, and its errors beside others'."""
        said = []
        for variant, subject in self.experiment.lead.items():
            found = summarized(self.runs[variant], "late accuracy") if variant in self.runs else None
            references = dict.fromkeys((self.experiment.beside_of(variant), self.baseline))
            ratios = {one: self.difference("late test error", variant, one) for one in references if one != variant}
            beside = [f"{text.estimate(*ratio, text.digits)} times those of {one}" for one, ratio in ratios.items() if ratio]
            if found and beside:
                said.append(f"{subject} gets {text.percent(found.mean)} % of the test images right; its errors are {text.listed(beside)}.")
        return said


def values(params: Params, material: Material, runs: Mapping[str, Training]) -> dict[str, Any]:
    """What the page's template takes. `runs`: of all variants that were trained."""
    experiment, present = material.experiment, material.runs
    tables = Tables(params, experiment, runs)
    return {
        "experiment": experiment,
        "measure": MEASURES[tables.own],
        "answer": tables.answer(),
        "leads": tables.leads(),
        "brief": [run.variant for run in present if run.settings.images_shown < params.images_shown and tables.task == "classification"],
        "tables": tables.made() if present else [],
        "figures": [picture for kind in experiment.figures for picture in pictures(kind, material)],
        "examples": "train scenes" if tables.task == "captioning" else "training images",
    }
