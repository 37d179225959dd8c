"""All pages of `reports/`."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.params import Params
from pipeline.report import csvs, experiment, one_run, text, timing
from pipeline.report.experiment import Table
from pipeline.report.figures import Material, Picture
from pipeline.report.figures.measure import ranking as ranked
from pipeline.report.figures.verdicts import forest
from pipeline.study import Training
from pipeline.study.claims import DECIDED, Judgement, Verdict, Why, is_timed, judge
from pipeline.study.effects import look_level
from pipeline.study.fixed import fixed
from pipeline.study.ranking import ranking, select
from pipeline.study.results import load_dataset, summarized
from pipeline.study.statistics import LEVEL
from pipeline.system.files import write_bytes
from pipeline.system.paths import ARRAYS
from pipeline.system.provenance import ROOT
from pipeline.timing.results import Timings, main_device
from pipeline.timing.results import load as load_timings

REPORTS = Path("reports")
SAMPLES = Path("data/samples.png")  # inside reports/, written by the prepare stage
# Removed where they are no longer written.
OWN = (timing.PAGE, "thesis.md", one_run.PAGE, "figures/*.png", "experiments/*.md", "experiments/figures/*.png", "timing/*.png")
PUBLISHED_ACCURACY = 0.977  # of the thesis's configuration, which is the base; its author reports it, the thesis shows curves only
_NETWORKS = 6  # the fewest of which a page says what selection would have reported
_VERDICTS: tuple[Verdict, ...] = (*DECIDED, "not decided", "not settled", "learned nothing", "short run", "not run")

Files = dict[str, bytes | Picture]  # by their path inside `reports/`; pictures that are not drawn yet


def write(params: Params, runs: Mapping[str, Training]) -> None:
    """Writes all pages, their figures, claims.csv and curves.csv; removes those of experiments and timings that are gone.

    Everything is computed before the first file changes; what is the same is neither drawn nor written again.

    Raises:
        UserError: as `render`.
    """
    made = Report(params, runs).files()
    files = {REPORTS / name: one.png(REPORTS / name) if isinstance(one, Picture) else one for name, one in made.items()}
    changed = [path for path, content in files.items() if not path.is_file() or path.read_bytes() != content]
    for path in changed:
        write_bytes(path, files[path])
    for pattern in OWN:
        for old in set(REPORTS.glob(pattern)) - files.keys():
            old.unlink()
    for folder in ("experiments", "figures"):  # dvc.yaml names them, so they exist even when they are empty
        (REPORTS / folder).mkdir(exist_ok=True)
    print(f"{len(changed)} of {len(files)} files of {REPORTS}/ are new or differ")


def render(params: Params, runs: Mapping[str, Training]) -> dict[str, bytes]:
    """The contents of all report files, by their path inside `reports/`, with every picture drawn. Equal inputs give equal bytes.

    Args:
        runs: the variants that were trained, by name.

    Raises:
        UserError: predictions, timings or `dataset.json` are damaged.
    """
    return {name: made.png() if isinstance(made, Picture) else made for name, made in Report(params, runs).files().items()}


@dataclass(frozen=True)
class Report:
    """What the pages are made of, and the pages."""

    params: Params
    runs: Mapping[str, Training]

    @cached_property
    def timed(self) -> dict[str, Timings]:
        return load_timings(self.params)

    @cached_property
    def judgements(self) -> dict[str, Judgement]:
        shown, looks = self.params.images_shown, self.params.looks
        ended = [variant for variant in self.params.variants if self.params.resolve(variant).train.ends_at_zero]
        judged = {
            id: judge(id, claim, self.runs, self.timed, images_shown=shown, looks=looks, ended=ended)
            for id, claim in self.params.claims.items()
        }
        return {id: replace(one, fixed=fixed(one.claim.digest, one.seeds, self.runs)) for id, one in judged.items()}

    @cached_property
    def places(self) -> dict[str, str]:
        """The link to each claim's section: on the page of its first experiment, else on the timing page, else on the first page."""
        pages = {id: timing.PAGE for id, claim in self.params.claims.items() if self.timed and is_timed(claim)}
        for name, settings in reversed(self.params.experiments.items()):
            pages |= dict.fromkeys(settings.claims, f"experiments/{name}.md")
        return {id: f"{pages.get(id, 'README.md')}#{text.anchor(judgement)}" for id, judgement in self.judgements.items()}

    def page(self, template: str, up: str = "", **values: Any) -> bytes:
        """`up`: from the page to reports/."""
        docs = f"{up}{'../' * (3 if self.params.profile else 1)}docs"  # a profile's pages lie in build/NAME/reports
        level = look_level(self.params.looks)
        return text.page(template, params=self.params, runs=self.runs, timed=self.timed, look_level=level, up=up, docs=docs, **values)

    def files(self) -> Files:
        """All pages, tables and pictures."""
        params, judgements, files = self.params, list(self.judgements.values()), Files()
        if self.timed:
            own = [one for one in judgements if is_timed(one.claim)]
            values = timing.values(params, self.timed, self.runs["base"].flops if "base" in self.runs else None)
            here = [one for one in own if self.places[one.id].startswith(timing.PAGE)]  # others stand on an experiment's page
            files |= {timing.PAGE: self.page("timing.md.j2", timed_judgements=own, judgements=here, places=self.places, **values)}
            files |= {"timing/growth.png": values["growth"]}
        for name in params.experiments:
            page, pictures, _ = self.experiment(name)
            files |= {f"experiments/{name}.md": page, **{f"experiments/figures/{one.name}.png": one for one in pictures}}
        selected = found if len(found := select(self.runs)) >= _NETWORKS else []
        files |= self._first(bool(selected)) | self._thesis()
        if selected:
            values = one_run.values(params, self.runs, selected)
            files |= {one_run.PAGE: self.page("one-run.md.j2", **values), "figures/one-run.png": values["picture"]}
        files["hardware.md"] = self.page("hardware.md.j2", versions=self._versions())
        return files | {"claims.csv": csvs.claims(judgements), "curves.csv": csvs.curves(self.runs)}

    def experiment(self, name: str, *, alone: bool = False) -> tuple[bytes, list[Picture], list[Table]]:
        """An experiment's page, its pictures and its tables; `alone`: without links to other pages. Raises UserError as `render`."""
        settings = self.params.experiments[name]
        data = load_dataset()
        train_images = int(data["arrays"]["train_images"]["shape"][0]) if data else None
        images = np.load(path, mmap_mode="r") if (path := ARRAYS / "test_images.npy").exists() else None
        present = [self.runs[variant] for variant in settings.variants if variant in self.runs]
        own = [self.judgements[id] for id in self.params.claims if id in settings.claims]
        values = experiment.values(self.params, Material(name, settings, present, train_images, images), self.runs)
        if alone:  # the section of the method page that a page alone cannot link
            method = (ROOT / "docs/method.md").read_text(encoding="utf-8")
            values["reading"] = method.partition("## The pages\n")[2].partition("\n## ")[0].strip()
        return self.page("experiment.md.j2", "../", judgements=own, alone=alone, **values), values["figures"], values["tables"]

    def _first(self, one_run: bool) -> Files:
        """The first page and its figures. `one_run`: whether there is the page of one run."""
        params, judgements = self.params, list(self.judgements.values())
        overview = forest(judgements)
        parts = ranking(params.ranking, self.runs, look_level(params.looks))
        ranks = ranked(parts)
        verdicts = Counter(judgement.verdict for judgement in judgements)
        judged = [one for one in judgements if one.verdict in DECIDED]
        undecided = [one for one in judgements if one.verdict == "not decided"]
        tried = [*judged, *(one for one in undecided if all(finding.why is not Why.FEW_SEEDS for finding in one.findings))]
        page = self.page(
            "README.md.j2",
            numbers=[len(run.seeds) for run in self.runs.values()] or [0],
            places=self.places,
            all_judgements=judgements,
            judgements=[one for one in judgements if self.places[one.id].startswith("README.md")],
            tally=[f"{verdicts[verdict]} {verdict}" for verdict in _VERDICTS if verdicts[verdict]],
            judged=judged,
            tried=len(tried),
            false_expected=f"{(1 - LEVEL) * len(tried):.2g}",
            rate_of_one=f"{100 * (1 - LEVEL ** len(tried)):.0f}",
            sharing=sum(any("base" in found.comparison.variants for found in one.findings) for one in tried if not is_timed(one.claim)),
            fixed=Counter(one.fixed.word for one in judged if one.fixed),
            variant_tables=self._variants(),
            data=load_dataset(),
            samples=SAMPLES if (REPORTS / SAMPLES).exists() else None,
            recorded={
                ("scenes of " * (run.settings.task == "captioning") + run.settings.data.label, run.record.get("data_digest"))
                for run in self.runs.values()
            },
            verdicts=overview,
            ranking=ranks,
            parts=parts,
            of_thesis=any(map(_section, judgements)),
            one_run=one_run,
        )
        return Files({"README.md": page}) | {f"figures/{made.name}.png": made for made in (ranks, overview) if made}

    def _thesis(self) -> Files:
        """The page beside V. Kovinić's thesis (Računarski fakultet, Belgrade, 2024)."""
        own, timings = [judgement for judgement in self.judgements.values() if _section(judgement)], main_device(self.timed)
        if not own:
            return {}
        # `thesis, 4.2, with ...` is judged on another network than the thesis's.
        fourth = [one for one in own if _section(one).startswith("4") and one.claim.quote and ", with " not in one.claim.source]
        page = self.page(
            "thesis.md.j2",
            claims=own,
            chapter4=fourth,
            places=self.places,
            timings=timings,
            base=self.runs["base"].accuracy if "base" in self.runs else None,
            published=PUBLISHED_ACCURACY,
        )
        return Files({"thesis.md": page})

    def _variants(self) -> list[tuple[str, list[list[str]]]]:
        """Of classifiers, then of captioners, the measure of how well they end and their rows, the best mean first."""
        params, found = self.params, {name: summarized(run, experiment.ENDS[run.settings.task]) for name, run in self.runs.items()}

        def row(variant: str) -> list[str]:
            start, ends = [variant, text.differs(params, variant)], found.get(variant)
            if ends is None:
                return [*start, "not evaluated" if variant in found else "not run", "-", "-", "-"]
            run = self.runs[variant]
            sizes = [f"{run.parameters:,}" if run.parameters else "-", text.count(run.flops) if run.flops else "-"]
            diverged = f", {run.diverged} diverged" * bool(run.diverged)
            return [*start, f"{ends.n}{diverged}", text.estimate(ends.mean, ends.interval, text.percent), *sizes]

        ordered = sorted(params.variants, key=lambda name: -ends.mean if (ends := found.get(name)) else math.inf)
        tables = [(end, [row(name) for name in ordered if params.resolve(name).task == task]) for task, end in experiment.ENDS.items()]
        return [(end, rows) for end, rows in tables if rows]

    def _versions(self) -> list[tuple[str, int]]:
        """The versions that trained seeds, and the number of seeds that each trained, the most first."""
        found: Counter[str] = Counter()
        for group in itertools.chain.from_iterable(run.trainings for run in self.runs.values()):
            found[", ".join(f"{name} {version}" for name, version in (group.get("versions") or {}).items())] += len(group["seeds"])
        return found.most_common()


def _section(judgement: Judgement) -> str:
    """The (first) section of the thesis that a claim is from; empty for a claim of another source, such as somebody's own thesis."""
    found = re.match(r"(?:this project, of )?thesis, (\d+(?:\.\d+)*)", judgement.claim.source)
    return found[1] if found else ""
