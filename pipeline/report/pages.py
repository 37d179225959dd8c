"""All pages of `reports/`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.files import replacing
from pipeline.measures import MEASURES
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.params import DATASETS, Params
from pipeline.report import claims, curves, experiment, one_run, text, timing
from pipeline.report.experiment import Table
from pipeline.report.figures import Material, Picture
from pipeline.report.figures.measure import ranking as ranked
from pipeline.report.figures.verdicts import forest
from pipeline.study import Training
from pipeline.study.claims import DECIDED, Judgement, Verdict, is_timed, judge
from pipeline.study.effects import look_level
from pipeline.study.files import ARRAYS
from pipeline.study.fixed import fixed
from pipeline.study.ranking import Part, ranking
from pipeline.study.results import load_dataset, summarized
from pipeline.study.statistics import LEVEL, summarize
from pipeline.timing.results import Timings, main_device
from pipeline.timing.results import load as load_timings

REPORTS = Path("reports")
SAMPLES = Path("data/samples.png")  # inside reports/, written by the prepare stage
# Removed where they are no longer written.
OWN = ("timing.md", "thesis.md", one_run.PAGE, "figures/*.png", "experiments/*.md", "experiments/figures/*.png", "timing/*.png")
PUBLISHED_ACCURACY = 0.977  # of the thesis's configuration, which is the base; its author reports it, the thesis shows curves only
_VERDICTS: tuple[Verdict, ...] = (*DECIDED, "not decided", "not settled", "learned nothing", "short run", "not run")
_SHORT = 12  # characters of a commit or hash that a page shows
# Whose steps' times answer the two questions that the thesis leaves open.
_ASKED = (
    ("cls-loop", "first"), ("base", "first"), ("cls-loop", "base"), ("patch-14", "patch-7"), ("patch-14", "base"), ("patch-14", "patch-2"),
)  # fmt: skip


def write(params: Params, runs: Mapping[str, Training]) -> None:
    """Writes all pages, their figures, claims.csv and curves.csv; removes those of experiments and timings that are gone.

    Everything is computed before the first file changes. Pictures whose data and code are the same are not drawn again, and files
    whose content is the same are not written.

    Raises:
        UserError: as `render`.
    """
    made = {REPORTS / name: content for name, content in _Report(params, runs).files().items()}
    files = {path: content.png(path) if isinstance(content, Picture) else content for path, content in made.items()}
    changed = [path for path, content in files.items() if not path.is_file() or path.read_bytes() != content]
    for path in changed:
        with replacing(path) as temporary:
            temporary.write_bytes(files[path])
    for pattern in OWN:
        for old in set(REPORTS.glob(pattern)) - files.keys():
            old.unlink()
    for folder in ("experiments", "figures", "timing"):  # dvc.yaml names them, so they exist even when they are empty
        (REPORTS / folder).mkdir(exist_ok=True)
    print(f"{len(changed)} of {len(files)} files of {REPORTS}/ are new or differ", flush=True)


def render(params: Params, runs: Mapping[str, Training]) -> dict[str, bytes]:
    """The contents of all report files, by their path inside `reports/`, with every picture drawn. Equal inputs give equal bytes.

    Args:
        runs: the variants that were trained, by name.

    Raises:
        UserError: predictions, timings or `dataset.json` are damaged.
    """
    return {name: made.png() if isinstance(made, Picture) else made for name, made in _Report(params, runs).files().items()}


def export(params: Params, runs: Mapping[str, Training], name: str) -> tuple[str, list[Picture], list[Table]]:
    """An experiment's page without links to others, its pictures and its tables. Raises UserError as `render`."""
    return _Report(params, runs).experiment(name, alone=True)


@dataclass(frozen=True)
class _Report:
    """What the pages share."""

    params: Params
    runs: Mapping[str, Training]

    @cached_property
    def timed(self) -> dict[str, Timings]:
        return load_timings(self.params)

    @cached_property
    def data(self) -> dict[str, Any] | None:
        return load_dataset()

    @cached_property
    def judgements(self) -> dict[str, Judgement]:
        shown, looks = self.params.images_shown, self.params.looks
        ended = [variant for variant in self.params.variants if self.params.resolve(variant).train.ends_at_zero]
        judged = {
            id: judge(id, claim, self.runs, self.timed, images_shown=shown, looks=looks, ended=ended)
            for id, claim in self.params.claims.items()
        }
        return {id: replace(one, fixed=fixed(one.claim.digest, one.seeds, self.runs)) for id, one in judged.items()}

    def experiment(self, name: str, *, alone: bool = False) -> tuple[str, list[Picture], list[Table]]:
        """An experiment's page, its pictures and its tables; `alone`: without links to other pages."""
        settings = self.params.experiments[name]
        images = np.load(path, mmap_mode="r") if (path := ARRAYS / "test_images.npy").exists() else None
        train_images = int(self.data["arrays"]["train_images"]["shape"][0]) if self.data else None
        present = [self.runs[variant] for variant in settings.variants if variant in self.runs]
        material = Material(name, settings, present, train_images, images)
        own = [self.judgements[id] for id in self.params.claims if id in settings.claims]
        return experiment.render(self.params, material, self.runs, own, timed=bool(self.timed), alone=alone)

    def files(self) -> dict[str, bytes | Picture]:
        """Pages and tables, and pictures that are not drawn yet, by their path inside `reports/`."""
        params, runs, timings, judgements = self.params, self.runs, main_device(self.timed), self.judgements
        places = _places(params, judgements, timed=timings is not None)
        files: dict[str, bytes | Picture] = {}
        if timings is not None:
            files |= timing.render(params, self.timed, [one for one in judgements.values() if is_timed(one.claim)], places)
        for name in params.experiments:
            page, pictures, _ = self.experiment(name)
            files |= {f"experiments/{name}.md": page.encode(), **{f"experiments/figures/{one.name}.png": one for one in pictures}}
        files |= _first(params, runs, judgements, places, self.data, timed=timings is not None)
        files |= _thesis(params, runs, list(judgements.values()), places, timings)
        files |= one_run.render(params, runs)
        looks = {"looks": params.looks, "level": LEVEL, "look_level": look_level(params.looks), "preview": params.preview}
        tried = [one for one in judgements.values() if one.verdict in (*DECIDED, "not decided")]
        files["method.md"] = text.page(
            "method.md.j2",
            images_shown=params.images_shown,
            rate_of_one=f"{100 * (1 - LEVEL ** len(tried)):.0f}" if tried else "",
            sharing=sum(any("base" in found.comparison.variants for found in one.findings) for one in tried if not is_timed(one.claim)),
            has_best="best" in params.variants,
            **looks,
        )
        files["glossary.md"] = text.page("glossary.md.j2", beam_width=BEAM_WIDTH, measures=MEASURES, **looks)
        files["hardware.md"] = text.page(
            "hardware.md.j2",
            preview=params.preview,
            versions=_versions(runs),
            origins=_origins(runs),
            times=[(run, float(np.median(run.seconds)), float(run.seconds.sum())) for run in runs.values()],
            timings=[one.raw for one in self.timed.values()],
        )
        files["claims.csv"] = claims.table(judgements.values())
        files["curves.csv"] = curves.table(runs)
        return files


def _first(
    params: Params,
    runs: Mapping[str, Training],
    judgements: Mapping[str, Judgement],
    places: Mapping[str, str],
    data: Mapping[str, Any] | None,
    *,
    timed: bool,
) -> dict[str, bytes | Picture]:
    """The first page and its figures."""
    overview = forest(list(judgements.values()))
    parts = ranking(params.ranking, runs, look_level(params.looks))
    ranks = ranked(parts)
    counts = [len(params.resolve(variant).train.seeds) for variant in params.variants]
    verdicts = Counter(judgement.verdict for judgement in judgements.values())
    page = text.page(
        "README.md.j2",
        title=params.title,
        preview=params.preview,
        profile=params.profile,
        dataset=params.data.label,
        runs=runs,
        train=params.train,
        base=_base(params),
        variants=list(params.variants),
        absent=[variant for variant in params.variants if variant not in runs],
        judgements=[(judgement, places[id]) for id, judgement in judgements.items()],
        tally=[f"{verdicts[verdict]} {verdict}" for verdict in _VERDICTS if verdicts[verdict]],
        fewest=min(counts),
        most=max(counts),
        without_experiment=[judgement for id, judgement in judgements.items() if places[id].startswith("#")],
        timed=timed,
        groups=_groups(params, runs),
        data=data,
        scenes=params.scenes if any(params.resolve(variant).task == "captioning" for variant in params.variants) else None,
        samples=SAMPLES if (REPORTS / SAMPLES).exists() else None,
        data_digests=_data(runs),
        label=str,
        verdicts=overview,
        ranking=ranks,
        parts={kind: [_part(part) for part in parts if part.kind == kind] for kind in ("more", "fewer", "small", "open")},
        level=100 * look_level(params.looks),
        judged=sum(verdicts[verdict] for verdict in DECIDED),
        false_expected=f"{(1 - LEVEL) * sum(verdicts[verdict] for verdict in (*DECIDED, 'not decided')):.1f}",
        fixed=Counter(one.fixed.word for one in judgements.values() if one.fixed and one.verdict in DECIDED),
        seen=[one.id for one in judgements.values() if one.claim.seen and one.verdict in DECIDED],
        of_thesis=any(map(_section, judgements.values())),
        one_run=bool(one_run.select(runs)),
    )
    return {"README.md": page} | {f"figures/{made.name}.png": made for made in (ranks, overview) if made}


def _part(part: Part) -> str:
    """A part with its effect: `1 block for 3 (1.38 [1.30 to 1.46])`."""
    return f"{part.name} ({text.estimate(part.ratio, part.interval, text.digits)})"


def _places(params: Params, judgements: Mapping[str, Judgement], *, timed: bool) -> dict[str, str]:
    """The link to each claim's section: on the page of its first experiment, else on the timing page, else on the first page."""
    pages = {id: timing.PAGE for id, claim in params.claims.items() if timed and is_timed(claim)}
    for name, settings in reversed(params.experiments.items()):
        pages |= dict.fromkeys(settings.claims, f"experiments/{name}.md")
    return {id: f"{pages.get(id, '')}#{text.anchor(judgement)}" for id, judgement in judgements.items()}


# --- the page beside the thesis ---


def _section(judgement: Judgement) -> str:
    """The (first) section of the thesis that a claim is from; empty for a claim of another source, such as somebody's own thesis."""
    found = re.match(r"(?:this project, of )?thesis, (\d+(?:\.\d+)*)", judgement.claim.source)
    return found[1] if found else ""


def _thesis(
    params: Params,
    runs: Mapping[str, Training],
    judgements: Sequence[Judgement],
    places: Mapping[str, str],
    timings: Timings | None,
) -> dict[str, bytes | Picture]:
    """The page beside V. Kovinić's thesis (Računarski fakultet, Belgrade, 2024), and its figure: of its fourth chapter's claims."""
    own = [judgement for judgement in judgements if _section(judgement)]
    if not own:
        return {}
    # `thesis, 4.2, with ...` is judged on another network than the thesis's.
    fourth = [one for one in own if _section(one).startswith("4") and one.claim.quote and ", with " not in one.claim.source]
    drawn = forest(fourth, sentences=True)
    verdicts = drawn and replace(drawn, name="thesis")
    pairs = [] if timings is None or not timings.quiet else _ASKED
    ratios = [(*pair, timings.relative(*(f"step/published/{name}" for name in pair))) for pair in pairs] if timings else []
    page = text.page(
        "thesis.md.j2",
        preview=params.preview,
        dataset=params.data.label,
        claims=own,
        chapter4=fourth,
        verdicts=verdicts,
        places={id: f"README.md{place}" if place.startswith("#") else place for id, place in places.items()},
        machine=timings and timings.raw["machine"],
        base=summarize(runs["base"].accuracy) if "base" in runs else None,
        published=PUBLISHED_ACCURACY,
        ratios=[(slower, faster, text.estimate(*found, text.digits)) for slower, faster, found in ratios if found],
    )
    return {"thesis.md": page} | ({"figures/thesis.png": verdicts} if verdicts else {})


# --- the variants, by experiment ---


def _groups(params: Params, runs: Mapping[str, Training]) -> list[tuple[str, str, bool, list[list[str]]]]:
    """(title, experiment, whether all are captioners, rows) of the variants that it is the first to name, by mean; then those of none."""
    accuracy = {}
    for name, run in runs.items():
        found = summarized(run, "scene accuracy" if run.settings.task == "captioning" else "late accuracy")
        if found is not None:
            accuracy[name] = found

    def row(variant: str, baseline: str | None) -> list[str]:
        start, run = [variant, text.differs(params, variant, baseline)], runs.get(variant)
        if run is None or variant not in accuracy:
            return [*start, "not evaluated" if run else "not run", "-", "-", "-"]
        found, diverged = accuracy[variant], f", {run.diverged} diverged" if run.diverged else ""
        sizes = [f"{run.parameters:,}" if run.parameters else "-", text.count(run.flops) if run.flops else "-"]
        return [*start, f"{found.n}{diverged}", text.estimate(found.mean, found.interval, text.percent), *sizes]

    left, groups = dict.fromkeys(params.variants), []
    experiments = [(one.title, name, one.variants, one.baseline) for name, one in params.experiments.items()]
    for title, name, members, baseline in (*experiments, ("In no experiment", "", tuple(params.variants), None)):
        own = sorted((v for v in members if v in left), key=lambda v: -accuracy[v].mean if v in accuracy else math.inf)
        if name or own:
            captions = bool(own) and all(params.resolve(variant).task == "captioning" for variant in own)
            groups.append((title, name, captions, [row(variant, baseline) for variant in own]))
        left = {variant: None for variant in left if variant not in own}
    return groups


def _base(params: Params) -> list[tuple[str, str]]:
    """(part, its options) of the base, as params.yaml writes them."""
    train = params.train.model_dump()
    parts = {"network": params.base.model_dump(), "training": {name: value for name, value in train.items() if name != "seeds"}}
    return [(what, ", ".join(f"{name}: {text.plain(value)}" for name, value in options.items())) for what, options in parts.items()]


# --- where the numbers come from ---


def _origins(runs: Mapping[str, Training]) -> list[dict[str, str]]:
    """Where the seeds come from, for each group that was trained alike: what was checked out, and how often later code was replayed."""
    found = []
    for run in runs.values():
        for group in run.trainings:
            commit = f"`{group['git_commit'][:_SHORT]}`" if group.get("git_commit") else "no git"
            replays = group.get("replays", ())
            exact = sum(bool(replay["exact"]) for replay in replays)
            found.append(
                {
                    "variant": run.variant,
                    "seeds": text.seed_list(group["seeds"]),
                    "commit": commit + ", edited" * bool(group.get("git_dirty")),
                    "code": f"`{str(group.get('code_hash'))[:_SHORT]}`",
                    "device": str(group.get("device_name")),
                    "replays": f"{exact} + {len(replays) - exact}" if replays else "",
                }
            )
    return found


def _data(runs: Mapping[str, Training]) -> list[tuple[str, str, list[str]]]:
    """(name, digest, variants) of the data that the runs recorded."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, run in runs.items():
        source = str(run.record.get("dataset"))
        label = (DATASETS[source].label or source) if source in DATASETS else source
        label = f"scenes of {label}" if run.settings.task == "captioning" else label
        found.setdefault((label, str(run.record.get("data_digest"))), []).append(name)
    return [(label, digest, variants) for (label, digest), variants in found.items()]


def _versions(runs: Mapping[str, Training]) -> list[tuple[str, int]]:
    """The versions that trained seeds, and the number of seeds that each trained, the most first."""
    found: Counter[str] = Counter()
    for group in (group for run in runs.values() for group in run.trainings):
        found[", ".join(f"{name} {version}" for name, version in (group.get("versions") or {}).items())] += len(group["seeds"])
    return found.most_common()
