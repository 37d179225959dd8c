"""The Markdown pages: what is known first, then the tables and figures it rests on, then how to make it again."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from pipeline.analysis import positions, statistics
from pipeline.analysis.claims import CLAIMS, Comparison, Finding, is_timed, judge
from pipeline.analysis.statistics import FloatArray, Interval, Summary
from pipeline.errors import UserError
from pipeline.files import replacing
from pipeline.params import ExperimentSettings, ModelSettings, Params
from pipeline.report import figures, results, timing
from pipeline.report.results import VariantResult

REPORTS = Path("reports")
SAMPLES = Path("data/samples.png")  # inside reports/, written by the prepare stage
DATASETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "kmnist": "Kuzushiji-MNIST", "digits": "scikit-learn's digits"}
MINUS, NBSP = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"
_PERMUTATION_SEEDS = 6  # the fewest with which a sign-flip p can fall below 0.05


@dataclass(frozen=True)
class Figure:
    """One figure on a page: file names inside `figures/`, what is seen, and the sentence below it."""

    name: str
    alt: str
    caption: str


def write(params: Params, root: Path = Path()) -> list[Path]:
    """Writes `reports/README.md`, a page per experiment, the timing page where timings are there, and the figures; removes old ones.

    Everything is computed before the first file changes.

    Returns:
        The files written, relative to `root`.

    Raises:
        UserError: a run is missing, stale or damaged, or an experiment names a claim that there is not.
    """
    files = {REPORTS / name: content for name, content in render(params, root).items()}
    for path, content in files.items():
        with replacing(root / path) as temporary:
            temporary.write_bytes(content)
    pages = root / REPORTS / "experiments"
    timings = (root / REPORTS / "timing.md", *(root / REPORTS / "timing").glob("*.png"))
    for old in (*pages.glob("*.md"), *(pages / "figures").glob("*.png"), *timings):
        if old.relative_to(root) not in files:
            old.unlink(missing_ok=True)
    return list(files)


def render(params: Params, root: Path = Path()) -> dict[str, bytes]:
    """The contents of all report files, by their path inside `reports/`. Equal inputs give equal bytes."""
    for name, experiment in params.experiments.items():
        for claim in experiment.claims:
            if claim not in CLAIMS:
                raise UserError(f"experiments.{name}.claims names {claim!r}, but the claims are {', '.join(CLAIMS)}.")
    runs = results.load(params, root)
    timings = timing.load(params, root)
    places = {claim: f"experiments/{name}.md" for name, e in reversed(params.experiments.items()) for claim in e.claims}
    if timings is not None:
        places = dict.fromkeys(timing.CLAIMS, "timing.md") | places
    judgements = {claim: judge(CLAIMS[claim], runs, timings) for claim in CLAIMS if claim in places}
    environment = _environment()
    files: dict[str, bytes] = {}
    if timings is not None:
        timed = [judgement for judgement in judgements.values() if is_timed(judgement.claim)]
        files |= timing.render(timings, timed, environment, params.preview)
    for name, experiment in params.experiments.items():
        lines = [figures.Line(experiment.label(v), runs[v].epochs, v == experiment.baseline) for v in experiment.variants]
        shown: list[Figure] = []
        for kind in experiment.figures:
            drawn = _FIGURES[kind](experiment, runs, lines)
            if drawn is None:
                continue
            alt, caption, draw = drawn
            figure = Figure(f"{name}-{kind.replace('_', '-')}", alt, caption)
            shown.append(figure)
            for theme in figures.THEMES:
                files[f"experiments/figures/{figure.name}{'-dark' if theme == 'dark' else ''}.png"] = draw(theme)
        page = environment.get_template("experiment.md.j2").render(
            preview=params.preview,
            dataset=DATASETS[params.data.dataset],
            train=params.train,
            base=_base_sentence(params.base),
            experiment=experiment,
            judgements=[judgements[claim] for claim in CLAIMS if claim in experiment.claims],
            nearness=_nearness_rows(experiment, runs) if "position_similarity" in experiment.figures else [],
            figures=shown,
            commits=sorted({str(runs[v].run["git_commit"]) for v in experiment.variants if runs[v].run.get("git_commit")}),
            dirty=any(runs[v].run.get("git_dirty") for v in experiment.variants),
            timed=timings is not None and any(is_timed(CLAIMS[claim]) for claim in experiment.claims),
            label=experiment.label,
            nats=_nats,
            correlation=_correlation,
            **_experiment_tables(params, experiment, runs),
        )
        files[f"experiments/{name}.md"] = _bytes(page)
    data = results.load_dataset(root)
    readme = environment.get_template("README.md.j2").render(
        preview=params.preview,
        dataset=DATASETS[params.data.dataset],
        train=params.train,
        base=_base_sentence(params.base),
        judgements=[(judgement, places[claim]) for claim, judgement in judgements.items()],
        timed=timings is not None,
        leaderboard=_leaderboard(runs),
        experiments=params.experiments,
        data=data,
        names=str,
        data_changed=[name for name, result in runs.items() if data and result.run.get("data_digest") != data["digest"]],
        samples=SAMPLES if (root / REPORTS / SAMPLES).exists() else None,
        provenance=_provenance(runs),
        runs=runs,
        commits=sorted({str(result.run["git_commit"]) for result in runs.values() if result.run.get("git_commit")}),
        dirty=any(result.run.get("git_dirty") for result in runs.values()),
    )
    files["README.md"] = _bytes(readme)
    return files


def _bytes(page: str) -> bytes:
    return (page.strip() + "\n").encode()


# --- numbers as text: accuracy in %, differences of it in points, losses in nats ---


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def signed(value: float, digits: int = 2) -> str:
    """With its sign, a true minus; a value that rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def points(fraction: float) -> str:
    return signed(100 * fraction)


def interval(value: Interval | None, show: Callable[[float], str]) -> str:
    """`low to high`, which a narrow table does not break, or a dash where there is none."""
    return f"{show(value.low)}{NBSP}to{NBSP}{show(value.high)}" if value else "-"


def at_least(fraction: float) -> str:
    """Points, rounded up: a bound stays true when it is rounded away from zero."""
    return f"{math.ceil(round(fraction * 1e4, 6)) / 100:.2f}"


def count(number: int) -> str:
    """A large count with a unit: 1.23 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def p_value(p: float) -> str:
    return f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def _nats(value: float) -> str:
    return signed(value, 4)


def _correlation(value: float) -> str:
    return signed(value, 3)


_SHOW: dict[str, tuple[Callable[[float], str], str]] = {
    "accuracy": (points, " points"),
    "unsteadiness": (lambda value: signed(100 * value, 3), " points"),
    "test loss": (_nats, " nats"),
    "nearness correlation": (_correlation, ""),
    "step time": (lambda value: f"{value:#.3g}", " times"),
    "attention time": (lambda value: f"{value:.2f}", ""),
    "saved bytes": (lambda value: f"{value:.2f}", ""),
}


def effect(finding: Finding) -> str:
    """The effect of a comparison with its interval and unit, or a dash."""
    if finding.effect is None:
        return "-"
    show, unit = _SHOW[finding.comparison.measure]
    return f"{show(finding.effect)}{unit}" + (f" [{interval(finding.interval, show)}]" if finding.interval else "")


def compared(comparison: Comparison, label: Callable[[str], str]) -> str:
    """What was compared, in words: `first patch - cls, accuracy`."""
    join = {"resembles": " against ", "exponent": " against ", "ratio": " / "}.get(comparison.rule, f" {MINUS} ")
    measure = {
        "unsteadiness": "unsteadiness of accuracy",
        "attention time": "exponent of its time",
        "saved bytes": "exponent of the bytes it keeps",
    }.get(comparison.measure, comparison.measure)
    return f"{label(comparison.variant)}{join}{label(comparison.reference)}, {measure}"


def margin(comparison: Comparison) -> str:
    """Where the claim puts the effect."""
    if comparison.rule == "equivalent" and comparison.bound is not None:
        return f"within {100 * comparison.bound:g} points" if comparison.measure == "accuracy" else f"within {comparison.bound:g} nats"
    if comparison.rule == "resembles" and comparison.bound is not None:
        return f"at least {100 * comparison.bound:g} % of the table's"
    if comparison.between is not None:
        low, high = comparison.between
        return f"above {low:g}" if math.isinf(high) else f"from {low:.3g} to {high:.3g}"
    return {"less": "below 0", "more": "above 0"}.get(comparison.rule, "-")


# --- tables ---


@dataclass(frozen=True)
class Row:
    """A variant's row in an experiment's tables; accuracies are fractions."""

    variant: str
    label: str
    is_baseline: bool
    changes: str
    tokens: int
    parameters: int
    flops: int
    accuracy: Summary
    train_loss: Summary
    test_loss: Summary
    difference: Summary | None
    loss_difference: Summary | None
    p: float | None
    outcome: str


def _experiment_tables(params: Params, experiment: ExperimentSettings, runs: Mapping[str, VariantResult]) -> dict[str, Any]:
    baseline = runs[experiment.baseline]
    others = [v for v in experiment.variants if v != experiment.baseline]
    n = len(params.train.seeds)
    adjusted: dict[str, float] = {}
    if n >= _PERMUTATION_SEEDS:
        raw = [statistics.sign_flip_p(runs[v].test_accuracy[:, -1], baseline.test_accuracy[:, -1]) for v in others]
        adjusted = dict(zip(others, statistics.holm(raw), strict=True))
    rows = []
    for variant in experiment.variants:
        run = runs[variant]
        other = variant != experiment.baseline
        difference = statistics.paired_difference(run.test_accuracy[:, -1], baseline.test_accuracy[:, -1]) if other else None
        rows.append(
            Row(
                variant=variant,
                label=experiment.label(variant),
                is_baseline=not other,
                changes=", ".join(f"{key}: {_plain(value)}" for key, value in params.variants[variant].items()) or "the base itself",
                tokens=run.settings.model.num_tokens,
                parameters=run.parameters,
                flops=run.flops,
                accuracy=statistics.summarize(run.test_accuracy[:, -1]),
                train_loss=statistics.summarize(run.epochs.train_loss[:, -1]),
                test_loss=statistics.summarize(run.test_loss[:, -1]),
                difference=difference,
                loss_difference=statistics.paired_difference(run.test_loss[:, -1], baseline.test_loss[:, -1]) if other else None,
                p=adjusted.get(variant),
                outcome=_outcome(difference, experiment.label(experiment.baseline)) if difference else "",
            )
        )
    return {
        "rows": rows,
        "baseline": experiment.label(experiment.baseline),
        "permutation": n >= _PERMUTATION_SEEDS,
        "smallest_p": statistics.smallest_p(n),
        "smallest_adjusted_p": min(1.0, len(others) * statistics.smallest_p(n)),
        "undecided": [
            row
            for row in rows
            if row.difference and row.difference.interval and not row.difference.interval.excludes_zero and row.difference.sd
        ],
    }


def _outcome(difference: Summary, baseline: str) -> str:
    """What the paired difference says, never without its bound."""
    if difference.n == 1:
        return f"{points(difference.mean)} points against {baseline} with one seed, which says nothing of other seeds"
    assert difference.interval is not None
    if difference.sd == 0:
        apart = f"exactly {points(difference.mean)} points from" if difference.mean else "at the same accuracy as"
        return f"every seed ends {apart} {baseline}"
    spread = f"{points(difference.mean)} points, 95 % interval {interval(difference.interval, points)}"
    if difference.interval.excludes_zero:
        return f"{'higher' if difference.mean > 0 else 'lower'} than {baseline} ({spread})"
    return f"no detectable difference of {at_least(difference.interval.reach)} points or more from {baseline} ({spread})"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _base_sentence(base: ModelSettings) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in base.model_dump().items())


def _leaderboard(runs: Mapping[str, VariantResult]) -> list[tuple[VariantResult, Summary]]:
    """All variants by mean accuracy, the best first; equal means in the order of params."""
    board = [(result, statistics.summarize(result.test_accuracy[:, -1])) for result in runs.values()]
    return sorted(board, key=lambda entry: -entry[1].mean)


@dataclass(frozen=True)
class NearnessRow:
    label: str
    fixed: bool
    summary: Summary


def _with_positions(experiment: ExperimentSettings, runs: Mapping[str, VariantResult]) -> list[VariantResult]:
    return [runs[v] for v in experiment.variants if runs[v].settings.model.position != "none" and runs[v].grid > 1]


def _nearness_rows(experiment: ExperimentSettings, runs: Mapping[str, VariantResult]) -> list[NearnessRow]:
    rows = []
    for result in _with_positions(experiment, runs):
        fixed = result.settings.model.position != "learned"
        tables = result.patch_positions[:1] if fixed else result.patch_positions
        values = [positions.nearness_correlation(table, result.grid) for table in tables]
        rows.append(NearnessRow(experiment.label(result.name), fixed, statistics.summarize(values)))
    return rows


# --- figures: (alt text, caption, drawing) of each kind, or None where there is nothing to draw ---

_Drawn = tuple[str, str, Callable[[figures.Theme], bytes]]


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _bands(n: int) -> str:
    kind = figures.band_kind(n)
    return f"Lines: mean over n = {n} seeds; bands: {kind}." if kind else "One seed (n = 1), so no bands."


def _curves(experiment: ExperimentSettings, runs: Mapping[str, VariantResult], lines: Sequence[figures.Line]) -> _Drawn:
    final = {line.label: float(line.epochs.test_accuracy[:, -1].mean()) for line in lines}
    worst, best = min(final, key=lambda k: final[k]), max(final, key=lambda k: final[k])
    epochs = lines[0].epochs.test_accuracy.shape[1]
    cut = figures.cut_epochs(epochs)
    alt = (
        f"Curves over {epochs} epoch{'s' if epochs > 1 else ''} of {_listed(list(final))}. Left: train and test loss. "
        f"Right: test accuracy, which ends between {percent(final[worst])} % ({worst}) and {percent(final[best])} % ({best})."
    )
    caption = (
        "Train loss (dashed) and test loss (solid) on the left, test accuracy on the right, after each epoch. "
        f"{_bands(len(lines[0].epochs.seeds))} Train loss is averaged while the epoch goes on, so it can lie above the test loss. "
        "The loss axis is logarithmic, the accuracy axis spaced by the logarithm of the error"
        + (f"; what of the first {f'{cut} epochs' if cut > 1 else 'epoch'} lies below its edge is cut off." if cut else ".")
    )
    return alt, caption, lambda theme: figures.curves(lines, theme)


def _epoch_time(experiment: ExperimentSettings, runs: Mapping[str, VariantResult], lines: Sequence[figures.Line]) -> _Drawn:
    medians = {line.label: float(np.median(line.epochs.seconds)) for line in lines}
    alt = f"Recorded seconds of each epoch; medians: {', '.join(f'{label} {value:.3g} s' for label, value in medians.items())}."
    shared = any(runs[v].run.get("device") == "cuda" for v in experiment.variants)
    caption = (
        f"Wall time of each epoch's training as the runs recorded it. {_bands(len(lines[0].epochs.seeds))} "
        + ("On a GPU the seeds of a variant train together: a value is the time of all of them. " if shared else "")
        + "The variants ran one after another or side by side, on a machine that may have had other work: this figure describes "
        "the runs and cannot decide which variant is faster; that takes interleaved timings."
    )
    return alt, caption, lambda theme: figures.epoch_time(lines, theme)


def _position_similarity(experiment: ExperimentSettings, runs: Mapping[str, VariantResult], lines: Sequence[figures.Line]) -> _Drawn | None:
    panels: list[tuple[str, FloatArray]] = []
    for result in _with_positions(experiment, runs):
        similarity = positions.cosine_similarity(result.patch_positions)
        label = experiment.label(result.name)
        if result.settings.model.position == "learned":
            panels.append((f"{label}, seed {result.seeds[0]}", positions.similarity_mosaic(similarity[0], result.grid)))
            if len(result.seeds) > 1:
                panels.append(
                    (f"{label}, mean over {len(result.seeds)} seeds", positions.similarity_mosaic(similarity.mean(axis=0), result.grid))
                )
        else:
            panels.append((f"{label} (fixed)", positions.similarity_mosaic(similarity[0], result.grid)))
    if not panels:
        return None
    rows = _nearness_rows(experiment, runs)
    alt = (
        f"Mosaics of the cosine similarities of position vectors: {_listed([label for label, _ in panels])}. "
        f"Rank correlation with nearness on the grid: {', '.join(f'{row.label} {signed(row.summary.mean)}' for row in rows)}."
    )
    caption = (
        "Cosine similarity of the position vector of each patch with those of all patches. Each small square belongs to the patch at "
        "its place in the image and maps the whole image: red is alike, the page's colour is a right angle, blue is opposite. The class "
        "token's vector is left out. Learned vectors are those after the last epoch; a mean over seeds is of similarities, as the "
        "vectors of different seeds have no common axes."
    )
    return alt, caption, lambda theme: figures.position_similarity(panels, theme)


_FIGURES: dict[str, Callable[[ExperimentSettings, Mapping[str, VariantResult], Sequence[figures.Line]], _Drawn | None]] = {
    "curves": _curves,
    "epoch_time": _epoch_time,
    "position_similarity": _position_similarity,
}


# --- where the numbers come from ---


_DIRTY = {"True": "**yes**: the commit alone does not say what ran", "False": "no"}


def _provenance(runs: Mapping[str, VariantResult]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(what, [(value, which variants; empty when all)]) of everything that the runs recorded about themselves."""
    fields: dict[str, Callable[[dict[str, Any]], str]] = {
        "commit": lambda run: f"`{run['git_commit']}`" if run.get("git_commit") else "not recorded (no git)",
        "uncommitted changes": lambda run: _DIRTY.get(str(run.get("git_dirty")), "not known"),
        "code hash": lambda run: f"`{run.get('code_hash')}`",
        "data": lambda run: f"{DATASETS.get(str(run.get('dataset')), run.get('dataset'))}, digest `{run.get('data_digest')}`",
        "device": lambda run: f"{run.get('device_name')} ({run.get('device')})",
        "attention kernel": lambda run: f"`{run.get('attention')}`",
        "versions": lambda run: ", ".join(f"{name} {version}" for name, version in (run.get("versions") or {}).items()),
    }
    table = []
    for what, show in fields.items():
        values: dict[str, list[str]] = {}
        for name, result in runs.items():
            values.setdefault(show(result.run), []).append(name)
        table.append((what, [(value, "" if len(values) == 1 else ", ".join(names)) for value, names in values.items()]))
    return table


# --- Markdown ---


def _cell(text: object) -> str:
    """Text inside a table's cell: one line, with bars that do not end it."""
    return " ".join(str(text).split()).replace("|", "\\|")


def _quote(text: str) -> str:
    """A block quote, every line of it."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())


def _picture(figure: Figure, folder: str = "figures") -> str:
    """An image for light pages and one for dark pages, as GitHub renders it."""
    source, alt = f"{folder}/{figure.name}", html.escape(figure.alt)
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{source}-dark.png">\n'
        f'  <img src="{source}.png" width="830" alt="{alt}">\n</picture>'
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters |= {
        "cell": _cell, "quote": _quote, "picture": _picture, "percent": percent, "points": points, "count": count, "effect": effect,
        "p_value": p_value, "at_least": at_least, "margin": margin, "listed": _listed,
    }  # fmt: skip
    environment.globals |= {
        "MINUS": MINUS,
        "NBSP": NBSP,
        "interval": interval,
        "percent": percent,
        "points": points,
        "signed": signed,
        "compared": compared,
    }
    return environment
