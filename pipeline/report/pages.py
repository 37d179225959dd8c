"""All pages of `reports/`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.captioning.data import SCENES
from pipeline.files import replacing
from pipeline.measures import MEASURES
from pipeline.measures.definitions import BEAM_WIDTH
from pipeline.params import DATASETS, ExperimentSettings, Params
from pipeline.report import captions, claims, curves, experiment, method, text, thesis, timing
from pipeline.report.figures.verdicts import forest
from pipeline.study import Training, statistics
from pipeline.study.claims import Judgement, Verdict, is_timed, judge
from pipeline.study.effects import look_level
from pipeline.study.files import ARRAYS
from pipeline.study.results import load_dataset
from pipeline.study.statistics import LEVEL, Summary
from pipeline.timing.results import load as load_timings
from pipeline.training.tasks import data_digest

REPORTS = Path("reports")
SAMPLES = Path("data/samples.png")  # inside reports/, written by the prepare stage
_SHORT = 12  # characters of a commit or hash that a page shows
OWN = ("timing.md", "figures/*.png", "experiments/*.md", "experiments/figures/*.png", "timing/*.png")  # removed where no longer written


def write(params: Params, runs: Mapping[str, Training]) -> None:
    """Writes all pages, their figures, claims.csv and curves.csv; removes those of experiments and timings that are gone.

    Everything is computed before the first file changes.

    Raises:
        UserError: as `render`.
    """
    files = {REPORTS / name: content for name, content in render(params, runs).items()}
    for path, content in files.items():
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    for pattern in OWN:
        for old in set(REPORTS.glob(pattern)) - files.keys():
            old.unlink()
    for folder in ("experiments", "figures", "timing"):  # dvc.yaml names them, so they exist even when they are empty
        (REPORTS / folder).mkdir(exist_ok=True)


def render(params: Params, runs: Mapping[str, Training]) -> dict[str, bytes]:
    """The contents of all report files, by their path inside `reports/`. Equal inputs give equal bytes.

    Args:
        runs: the variants that were trained, by name.

    Raises:
        UserError: predictions, timings or `dataset.json` are damaged.
    """
    timings = load_timings(params)
    data = load_dataset()
    train_images = int(data["arrays"]["train_images"]["shape"][0]) if data else None
    ended = [variant for variant in params.variants if params.resolve(variant).train.ends_at_zero]
    judgements = {
        id: judge(id, claim, runs, timings, images_shown=params.images_shown, looks=params.looks, ended=ended)
        for id, claim in params.claims.items()
    }
    places = _places(params, judgements, timed=timings is not None)
    files: dict[str, bytes] = {}
    if timings is not None:
        timed = [judgement for judgement in judgements.values() if is_timed(judgement.claim)]
        files |= timing.render(params, timings, timed, places)
    for name, settings in params.experiments.items():
        own = [judgements[id] for id in params.claims if id in settings.claims]
        kind = captions if params.resolve(settings.baseline).task == "captioning" else experiment
        files |= kind.render(params, name, runs, own, train_images=train_images, timed=timings is not None)
    overview = forest(list(judgements.values()))
    counts = [len(params.resolve(variant).train.seeds) for variant in params.variants]
    judged = [judgement for judgement in judgements.values() if judgement.verdict in ("supported", "contradicted", "not decided")]
    files["README.md"] = text.page(
        "README.md.j2",
        preview=params.preview,
        profile=params.profile,
        dataset=params.data.source.label,
        runs=runs,
        page="README.md",
        train=params.train,
        base=_base(params),
        variants=list(params.variants),
        absent=[variant for variant in params.variants if variant not in runs],
        judgements=[(judgement, places[id]) for id, judgement in judgements.items()],
        tally=_tally(list(judgements.values())),
        other_seeds=text.other_seeds(params, list(params.variants)),
        fewest=min(counts),
        most=max(counts),
        without_experiment=[judgement for id, judgement in judgements.items() if places[id].startswith("#")],
        timed=timings is not None,
        groups=_groups(params, runs),
        classifiers=sum(run.settings.task == "classification" for run in runs.values()),
        data=data,
        data_changed=_data_changed(runs, data),
        scenes=params.scenes if any(params.resolve(variant).task == "captioning" for variant in params.variants) else None,
        samples=SAMPLES if (REPORTS / SAMPLES).exists() else None,
        data_digests=_data(runs),
        label=str,
        verdicts=overview,
        false_expected=f"{(1 - LEVEL) * len(judged):.1f}",
        judged=len(judged),
        seen=[judgement.id for judgement in judged if judgement.claim.seen],
        levels=text.interval_levels(list(judgements.values())),
        of_thesis=any(thesis.section(judgement) for judgement in judgements.values()),
    )
    if overview is not None:
        files |= overview.files("figures")
    files["method.md"] = method.render(params, runs)
    files |= thesis.render(params, runs, list(judgements.values()), places, timings)
    files["hardware.md"] = text.page(
        "hardware.md.j2",
        preview=params.preview,
        versions=_versions(runs),
        origins=_origins(runs),
        times=[(run, float(np.median(run.seconds)), float(run.seconds.sum())) for run in runs.values()],
        shared=any(group.get("device") == "cuda" for run in runs.values() for group in run.trainings),
        timings=None if timings is None else timings.raw,
    )
    files["claims.csv"] = claims.table(judgements.values())
    files["curves.csv"] = curves.table(runs)
    files["glossary.md"] = text.page(
        "glossary.md.j2",
        preview=params.preview,
        level=LEVEL,
        look_level=look_level(params.looks),
        looks=params.looks,
        beam_width=BEAM_WIDTH,
    )
    return files


def _places(params: Params, judgements: Mapping[str, Judgement], *, timed: bool) -> dict[str, str]:
    """The link to each claim's section: on the page of its first experiment, else on the timing page, else on the first page."""
    pages = {id: timing.PAGE for id, claim in params.claims.items() if timed and is_timed(claim)}
    for name, settings in reversed(params.experiments.items()):
        pages |= dict.fromkeys(settings.claims, f"experiments/{name}.md")
    return {id: f"{pages.get(id, '')}#{text.anchor(judgement)}" for id, judgement in judgements.items()}


_COUNTED: dict[Verdict, str] = {
    "supported": "supported",
    "contradicted": "contradicted",
    "not decided": "not decided",
    "not settled": "not settled",
    "short run": "observed on short runs",
    "not run": "not run",
}


def _tally(judgements: Sequence[Judgement]) -> list[str]:
    """The number of claims of each verdict in words, and how many of them are about timings alone."""
    found = []
    for verdict, said in _COUNTED.items():
        of = [judgement for judgement in judgements if judgement.verdict == verdict]
        timed = sum(is_timed(judgement.claim) for judgement in of)
        note = "" if not timed or verdict == "not run" else " (timing)" if timed == len(of) else f" ({timed} of them timing)"
        if of:
            found.append(f"{len(of)} {said}{note}")
    return found


def _data_changed(runs: Mapping[str, Training], data: Mapping[str, Any] | None) -> list[str]:
    """The variants that were trained on other data than those here; the data of a captioner are the scenes."""
    digests = {"classification": data["digest"]} if data else {}
    if ARRAYS.with_name(SCENES).joinpath("scenes.json").exists():
        digests["captioning"] = data_digest("captioning", ARRAYS)
    return [name for name, run in runs.items() if digests.get(run.settings.task, own := run.record.get("data_digest")) != own]


# --- the variants, by experiment ---


@dataclass(frozen=True)
class Entry:
    """A variant in the list of all.

    Attributes:
        accuracy: late test accuracy, or of a captioner the greedy scene accuracy; None where it was not trained or evaluated.
        place: by mean accuracy, among the variants of the same task; None without an accuracy.
    """

    variant: str
    changes: str
    run: Training | None
    accuracy: Summary | None
    place: int | None


@dataclass(frozen=True)
class Group:
    """The variants that an experiment is the first to name, by mean accuracy; `elsewhere`: those that an earlier experiment names."""

    name: str
    settings: ExperimentSettings | None
    entries: list[Entry]
    elsewhere: list[str]


def _groups(params: Params, runs: Mapping[str, Training]) -> list[Group]:
    measures = {name: "scene accuracy" if run.settings.task == "captioning" else "late accuracy" for name, run in runs.items()}
    values = {name: MEASURES[measures[name]].per_seed(run) for name, run in runs.items()}
    accuracy = {name: _of_accuracy(statistics.summarize(found)) for name, found in values.items() if found is not None}
    order = sorted(accuracy, key=lambda name: -accuracy[name].mean)  # equal means stay in the order of params
    place = {name: i for measure in set(measures.values()) for i, name in enumerate((n for n in order if measures[n] == measure), 1)}
    left = dict.fromkeys(params.variants)
    groups = []
    for name, settings in (*params.experiments.items(), ("", None)):
        members = settings.variants if settings else tuple(left)
        baseline = settings.baseline if settings else None
        own = sorted((v for v in members if v in left), key=lambda v: place.get(v, math.inf))
        entries = [Entry(v, text.differs(params, v, baseline), runs.get(v), accuracy.get(v), place.get(v)) for v in own]
        if settings or entries:
            groups.append(Group(name, settings, entries, [v for v in members if v not in left]))
        for variant in own:
            del left[variant]
    return groups


def _of_accuracy(summary: statistics.Summary) -> statistics.Summary:
    """The summary with an interval that ends at 0 and 1: Student's, which knows no bounds, goes beyond where one seed lies far off."""
    found = summary.interval
    return replace(summary, interval=found and replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0)))


def _base(params: Params) -> list[tuple[str, str]]:
    """(part, its options) of the base, as params.yaml writes them."""
    train = params.train.model_dump()
    parts = {"network": params.base.model_dump(), "training": {name: value for name, value in train.items() if name != "seeds"}}
    return [(what, ", ".join(f"{name}: {text.plain(value)}" for name, value in options.items())) for what, options in parts.items()]


# --- where the numbers come from ---


def _origins(runs: Mapping[str, Training]) -> list[dict[str, str]]:
    """Where the seeds come from, in words, for each group that was trained alike.

    `commit`: what was checked out when they were trained, and what was not committed then. `replays`: how often later code was found
    to compute the same, and by which last.
    """
    return [
        {
            "variant": run.variant,
            "seeds": text.seed_list(group["seeds"]),
            "commit": _commit(group) + _uncommitted(group),
            "code": f"`{str(group.get('code_hash'))[:_SHORT]}`",
            "device": str(group.get("device_name")),
            "replays": _replays(group.get("replays", ())),
        }
        for run in runs.values()
        for group in run.trainings
    ]


def _commit(entry: Mapping[str, Any]) -> str:
    return f"`{entry['git_commit'][:_SHORT]}`" if entry.get("git_commit") else "not recorded (no git)"


def _uncommitted(group: Mapping[str, Any]) -> str:
    """The edits that decided the seeds and were not committed when they were trained."""
    if edits := group.get("git_edits"):
        return ", edited: " + "; ".join(f"`{_shortened(edit).replace('`', '')}`" for edit in edits)
    return ", edited; how was not recorded" if group.get("git_dirty") else ""


def _shortened(edit: str) -> str:
    """An edit of a mapping, `path: {...} -> {...}`, as those of its keys; any other as it is."""
    try:
        path, change = edit.split(": ", 1)
        before, after = (json.loads(side) for side in change.split(" -> "))
        keys = [key for key in before | after if before.get(key) != after.get(key)]
    except (ValueError, TypeError, AttributeError):
        return edit
    sides = (before, after)
    return "; ".join(f"{path}.{key}: {' -> '.join(json.dumps(side[key]) if key in side else 'none' for side in sides)}" for key in keys)


def _replays(replays: Sequence[Mapping[str, Any]]) -> str:
    if not replays:
        return ""
    last = f"by {_commit(replays[-1])} on {replays[-1]['date'][:10]}"
    rounded = sum(not replay["exact"] for replay in replays)
    if len(replays) == 1:
        return f"once, {'up to rounding, ' * rounded}{last}"
    how = "" if not rounded else " up to rounding" if rounded == len(replays) else f", {rounded} of them up to rounding"
    return f"{len(replays)} times{how}, last {last}"


def _data(runs: Mapping[str, Training]) -> list[tuple[str, str, list[str]]]:
    """(name, digest, variants) of the data that the runs recorded."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, run in runs.items():
        source = str(run.record.get("dataset"))
        label = DATASETS[source].label if source in DATASETS else source
        label = f"scenes of {label}" if run.settings.task == "captioning" else label
        found.setdefault((label, str(run.record.get("data_digest"))), []).append(name)
    return [(label, digest, variants) for (label, digest), variants in found.items()]


def _versions(runs: Mapping[str, Training]) -> list[tuple[str, int]]:
    """The versions that trained seeds, and the number of seeds that each trained, the most first."""
    found: Counter[str] = Counter()
    for group in (group for run in runs.values() for group in run.trainings):
        found[", ".join(f"{name} {version}" for name, version in (group.get("versions") or {}).items())] += len(group["seeds"])
    return found.most_common()
