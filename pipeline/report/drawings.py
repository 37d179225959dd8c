"""What each kind of figure shows of an experiment: its data, what a reader who cannot see it is told, and its caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.measures import MEASURES, NotFormed, positions, shift_accuracy
from pipeline.measures.definitions import SHIFTS, FloatArray
from pipeline.params import ARCHITECTURES, ExperimentSettings, Figure, ModelSettings
from pipeline.report import figures, text
from pipeline.report.text import counted, digits, listed, percent, signed
from pipeline.study import Training, statistics
from pipeline.study.claims import measure_values
from pipeline.study.results import Attention
from pipeline.study.statistics import LEVEL, Summary
from pipeline.timing.results import Timings
from pipeline.timing.subjects import WAYS, Way


@dataclass(frozen=True)
class Drawing:
    """A figure before it is drawn. `part` tells several of one kind apart, in the file's name."""

    alt: str
    caption: str
    draw: Callable[[figures.Theme], bytes]
    part: str = ""


def drawings(kind: Figure, experiment: ExperimentSettings, runs: Mapping[str, Training], train_images: int | None) -> list[Drawing]:
    """The figures of one kind; none where there is nothing to draw yet.

    Args:
        runs: of all variants that were trained.
        train_images: size of the whole training set; None where it is not known.
    """
    present = [runs[variant] for variant in experiment.variants if variant in runs]
    if kind == "data_size":
        return _data_size(experiment, present, train_images)
    return _KINDS[kind](experiment, present) if present else []


def _lines(experiment: ExperimentSettings, present: Sequence[Training]) -> list[figures.Line]:
    return [figures.Line(experiment.label(run.variant), run, run.variant == experiment.baseline) for run in present]


def _bands(present: Sequence[Training]) -> str:
    kinds = {figures.band_kind(len(run.seeds)) for run in present}
    if kinds == {None}:
        return "One seed (n = 1), so no bands."
    return f"Lines: mean over n = {_numbers(present)} seeds; bands: {', or with few seeds '.join(sorted(kind for kind in kinds if kind))}."


def _numbers(present: Sequence[Training]) -> str:
    """How many seeds the variants have: 6, or 6 to 10."""
    least, most = (choose(len(run.seeds) for run in present) for choose in (min, max))
    return str(least) if least == most else f"{least} to {most}"


def _panels(present: Sequence[Training]) -> str:
    if len(present) <= figures.MOST_LINES:
        return ""
    return "A panel each: its own line in colour, the baseline's in ink, all others' in grey. "


def _epochs(experiment: ExperimentSettings, present: Sequence[Training]) -> str:
    """`30 epochs (best: 60)`, the baseline's number first."""
    numbers = {experiment.label(run.variant): run.settings.train.epochs for run in present}
    usual = next((run.settings.train.epochs for run in present if run.variant == experiment.baseline), next(iter(numbers.values())))
    others = [f"{label}: {number}" for label, number in numbers.items() if number != usual]
    return counted(usual, "epoch") + (f" ({', '.join(others)})" if others else "")


def _curves(experiment: ExperimentSettings, present: Sequence[Training]) -> list[Drawing]:
    lines = _lines(experiment, present)
    final = {line.label: float(line.run.test_accuracy[:, -1].mean()) for line in lines}
    worst, best = min(final, key=lambda k: final[k]), max(final, key=lambda k: final[k])
    cut = figures.cut_epochs(max(run.settings.train.epochs for run in present))
    alt = (
        f"Curves over {_epochs(experiment, present)} of {listed(list(final))}: train and test loss, and "
        f"test accuracy, which ends between {percent(final[worst])} % ({worst}) and {percent(final[best])} % ({best})."
    )
    caption = (
        "Train loss (dashed) and test loss (solid), and test accuracy, after each epoch. "
        f"{_panels(present)}{_bands(present)} Train loss is averaged while the epoch goes on, so it can lie above "
        "the test loss. The loss axis is logarithmic"
        + (f" and ends at {figures.TOP_LOSS:g} nats, above which some losses lie" if figures.exceeds_loss_axis(lines) else "")
        + ", the accuracy axis spaced by the logarithm of the error"
        + (f"; what of the first {f'{cut} epochs' if cut > 1 else 'epoch'} lies below its edge is cut off." if cut else ".")
    )
    gaps = {}
    for line in lines:
        lost = int((~np.isfinite(line.run.train_loss) | ~np.isfinite(line.run.test_loss)).any(axis=1).sum())
        if lost:
            gaps[line.label] = f"{line.label}, {lost} of {counted(len(line.run.seeds), 'seed')}"
    if gaps:
        caption += (
            f" Losses that are not finite are left out ({listed(list(gaps.values()))}): their means are of the other seeds, and a line "
            "ends where no seed is left."
        )
    return [Drawing(alt, caption, lambda theme: figures.curves(lines, theme))]


def _epoch_time(experiment: ExperimentSettings, present: Sequence[Training]) -> list[Drawing]:
    lines = _lines(experiment, present)
    medians = {line.label: float(np.median(line.run.seconds)) for line in lines}
    alt = f"Recorded seconds of each epoch; medians: {', '.join(f'{label} {value:.3g} s' for label, value in medians.items())}."
    shared = any(run.record.get("device") == "cuda" for run in present)
    caption = (
        f"Wall time of each epoch's training as the runs recorded it. {_panels(present)}{_bands(present)} "
        + ("On a GPU the seeds of a variant train together: a value is the time of all of them. " if shared else "")
        + "The variants ran one after another or side by side, on a machine that may have had other work: this figure describes "
        "the runs and cannot decide which variant is faster; that takes interleaved timings."
    )
    return [Drawing(alt, caption, lambda theme: figures.epoch_time(lines, theme))]


# --- position vectors ---


@dataclass(frozen=True)
class NearnessRow:
    label: str
    fixed: bool
    summary: Summary


def _with_positions(present: Sequence[Training]) -> list[Training]:
    """Those with position vectors on a grid, stored and finite."""
    return [
        run
        for run in present
        if isinstance(model := run.settings.model, ModelSettings)
        and model.position != "none"
        and run.grid > 1
        and run.has_positions
        and np.isfinite(run.patch_positions).all()
    ]


def nearness_rows(experiment: ExperimentSettings, runs: Mapping[str, Training]) -> list[NearnessRow]:
    """Rank correlation of similarity with nearness, of each variant that adds position vectors; a fixed table has one value."""
    rows = []
    for run in _with_positions([runs[variant] for variant in experiment.variants if variant in runs]):
        fixed = _is_fixed(run)
        values = measure_values("nearness correlation", run)
        rows.append(NearnessRow(experiment.label(run.variant), fixed, statistics.summarize(values[:1] if fixed else values)))
    return rows


def _is_fixed(run: Training) -> bool:
    return isinstance(run.settings.model, ModelSettings) and run.settings.model.position != "learned"


def _position_similarity(experiment: ExperimentSettings, present: Sequence[Training]) -> list[Drawing]:
    panels: list[tuple[str, FloatArray]] = []
    for run in _with_positions(present):
        label = experiment.label(run.variant)
        vectors = run.patch_positions[:1] if _is_fixed(run) else run.patch_positions
        similarity = positions.cosine_similarity(vectors)
        first = positions.similarity_mosaic(similarity[0], run.grid)
        if _is_fixed(run):
            panels.append((f"{label} (fixed)", first))
            continue
        panels.append((f"{label}, seed {run.seeds[0]}", first))
        if len(run.seeds) > 1:
            mosaic = positions.similarity_mosaic(similarity.mean(axis=0), run.grid)
            panels.append((f"{label}, mean over {len(run.seeds)} seeds", mosaic))
    if not panels:
        return []
    rows = nearness_rows(experiment, {run.variant: run for run in present})
    alt = (
        f"Mosaics of the cosine similarities of position vectors: {listed([label for label, _ in panels])}. "
        f"Rank correlation with nearness on the grid: {', '.join(f'{row.label} {signed(row.summary.mean)}' for row in rows)}."
    )
    caption = (
        "Cosine similarity of the position vector of each patch with those of all patches. Each small square belongs to the patch at "
        "its place in the image and maps the whole image: red is alike, the page's colour is a right angle, blue is opposite. The class "
        "token's vector is left out. Learned vectors are those after the last epoch; a mean over seeds is of similarities, as the "
        "vectors of different seeds have no common axes."
    )
    return [Drawing(alt, caption, lambda theme: figures.position_similarity(panels, theme))]


# --- the experiment's own measure ---


def seed_values(name: str, run: Training) -> FloatArray | None:
    """(seeds,): the measure of each seed, which may be NaN or infinite where the seed diverged; None where it is not there."""
    values = MEASURES[name].values
    try:
        return None if values is None else values(run)
    except NotFormed:
        return None


def measure_rows(experiment: ExperimentSettings, present: Sequence[Training]) -> list[tuple[Training, FloatArray]]:
    """The variants that have the experiment's measure, with its values."""
    values = [(run, seed_values(experiment.measure, run)) for run in present]
    return [(run, found) for run, found in values if found is not None]


def _measure(experiment: ExperimentSettings, present: Sequence[Training]) -> list[Drawing]:
    rows, measure = measure_rows(experiment, present), MEASURES[experiment.measure]
    if not rows:
        return []
    dots = [
        figures.Dots(experiment.label(run.variant), measure.factor * values, run.variant == experiment.baseline) for run, values in rows
    ]
    means = {}
    for run, values in rows:
        finite = values[np.isfinite(values)]
        means[experiment.label(run.variant)] = text.value(measure, float(finite.mean())) if finite.size else "none finite"
    title = measure.title + (f" ({measure.of_value})" if measure.of_value else "")
    spoken = ", ".join(f"{label} {mean}" for label, mean in means.items())
    alt = f"{measure.title} of each seed, by variant. Means: {spoken}{f' {measure.of_value}' if measure.of_value else ''}."
    caption = f"{measure.note} Rings: the seeds of each variant (n = {_numbers([run for run, _ in rows])}); diamond: mean"
    caption += f"; bar: its {100 * LEVEL:g} % Student t interval." if max(len(values) for _, values in rows) > 1 else "."
    if any(run.variant == experiment.baseline for run, _ in rows):
        caption += f" Dotted: the mean of {experiment.label(experiment.baseline)}, the baseline."
    if any(not np.isfinite(values).all() for _, values in rows):
        caption += " Values that are not finite are counted at the right and left out of the means."
    lacking = [experiment.label(run.variant) for run in present if run.variant not in {found.variant for found, _ in rows}]
    if lacking:
        caption += f" {listed(lacking)} {'have' if len(lacking) > 1 else 'has'} no such measure."
    return [Drawing(alt, caption, lambda theme: figures.measure(dots, title, theme))]


# --- accuracy against something else than epochs ---


def _data_size(experiment: ExperimentSettings, present: Sequence[Training], train_images: int | None) -> list[Drawing]:
    groups: dict[str, list[tuple[int, Training]]] = {}
    for run in present:
        number = run.settings.train.train_images or train_images
        if number is not None:
            # The same network, trained the same way, is one line.
            train = run.settings.train.model_copy(update={"train_images": None})
            key = run.settings.model_copy(update={"train": train}).to_json()
            groups.setdefault(key, []).append((number, run))
    lines = []
    architectures = [members[0][1].settings.model.architecture for members in groups.values()]
    for members in groups.values():
        members.sort(key=lambda member: member[0])
        architecture = members[0][1].settings.model.architecture
        own = architectures.count(architecture) == 1
        label = ARCHITECTURES[architecture].label if own else experiment.label(members[-1][1].variant)
        values = np.stack([run.test_accuracy[:, -1] for _, run in members], axis=1)
        is_baseline = any(run.variant == experiment.baseline for _, run in members)
        lines.append(figures.Series(label, tuple(float(number) for number, _ in members), values, is_baseline))
    if not any(len(line.x) > 1 for line in lines):
        return []
    spoken = []
    for line in lines:
        ends = [f"{percent(float(line.values[:, i].mean()))} % with {line.x[i]:,.0f} images" for i in (0, -1)]
        spoken.append(f"{line.label} from {ends[0]} to {ends[1]}")
    alt = f"Test accuracy against the number of training images. {'; '.join(spoken)}."
    caption = (
        f"Test accuracy after the last epoch against the number of different training images, at equal optimiser steps. {_bands(present)} "
        "A seed's subset is the same for all networks. Both axes are logarithmic, the accuracy axis in the error."
    )
    return [Drawing(alt, caption, lambda theme: figures.data_size(lines, theme))]


def _shifts(experiment: ExperimentSettings, present: Sequence[Training]) -> list[Drawing]:
    lines = []
    for run in present:
        if (shifted := shift_accuracy(run)) is not None:
            values = np.concatenate([run.test_accuracy[:, -1:], shifted], axis=1)
            lines.append(
                figures.Series(experiment.label(run.variant), (0.0, *map(float, SHIFTS)), values, run.variant == experiment.baseline)
            )
    if not lines:
        return []
    ends = [(line.label, *(percent(float(line.values[:, i].mean())) for i in (0, -1))) for line in lines]
    spoken = [f"{label} from {first} to {last} %" for label, first, last in ends]
    alt = f"Test accuracy against shifts of 0 to {SHIFTS[-1]} pixels: {'; '.join(spoken)}."
    caption = (
        "Test accuracy of the trained networks when the test images are shifted, mean over up, down, left and right, with zeros moving "
        f"in. {_bands(present)} None of them has seen a shifted image in training{_augmented(experiment, present)}."
    )
    return [Drawing(alt, caption, lambda theme: figures.shifts(lines, theme))]


def _augmented(experiment: ExperimentSettings, present: Sequence[Training]) -> str:
    labels = [experiment.label(run.variant) for run in present if run.settings.train.augment != "none"]
    return f", but for {listed(labels)}" if labels else ""


# --- attention ---


def _attention_maps(experiment: ExperimentSettings, present: Sequence[Training]) -> list[Drawing]:
    found = [(run, attention) for run in present if run.grid > 1 and (attention := run.attention) is not None]
    if not found:
        return []
    n = _numbers([run for run, _ in found])
    rows: list[tuple[str, FloatArray]] = []
    for run, attention in found:
        label = experiment.label(run.variant)
        rows.append((f"{label}\nseed {run.seeds[0]}", attention.rollout[0]))
        if len(run.seeds) > 1:
            rows.append((f"{label}\nmean of {len(run.seeds)} seeds", attention.rollout.mean(axis=0)))
    first = found[0][1]
    labels = listed([experiment.label(run.variant) for run, _ in found])
    whose = "class token's" if all(attention.has_cls for _, attention in found) else "class token's (or, without one, the mean token's)"
    alt = f"The first test image of each digit, and maps of the {whose} attention rollout on the patches of {labels}."
    seeds = f"the first seed's, and the mean over n = {n} seeds" if n != "1" else "one seed's (n = 1)"
    caption = (
        f"The {whose} attention rollout on the patches, for the first test image of each digit: {seeds}. Each map goes from its own "
        "least value (the page's colour) to its own greatest; the line is the digit's edge."
    )
    drawn = [Drawing(alt, caption, lambda theme: figures.rollouts(first.images, rows, theme))]
    return drawn + [_heads(experiment, run, attention) for run, attention in found]


def _heads(experiment: ExperimentSettings, run: Training, attention: Attention) -> Drawing:
    # A digit whose strokes are neither everywhere nor at one place.
    shown = attention.labels.index(_SHOWN_DIGIT) if _SHOWN_DIGIT in attention.labels else 0
    image, maps = attention.images[shown], attention.maps[shown]
    label, blocks, heads = experiment.label(run.variant), maps.shape[0], maps.shape[1]
    whose = "class token" if attention.has_cls else "mean token"
    block, head = np.unravel_index(int(maps.reshape(blocks, heads, -1).max(axis=2).argmax()), (blocks, heads))
    alt = (
        f"{label}: maps of what the {whose} attends to in each of {counted(blocks, 'block')} and {counted(heads, 'head')}, for a test "
        f"image of a {attention.labels[shown]}. The greatest single weight, {float(maps.max()):.2f}, is in block {block + 1}, head "
        f"{head + 1}."
    )
    caption = (
        f"{label}, seed {run.seeds[0]}: attention of the {whose} to each patch, head by head and block by block, for the test image of a "
        f"{attention.labels[shown]}, whose edge is the line. The page's colour is the weight that all {attention.keys} tokens would have "
        "if they shared it alike; warm colours are more, cold ones less."
    )
    return Drawing(alt, caption, lambda theme: figures.heads(image, maps, attention.keys, theme), part=f"heads-{run.variant}")


_SHOWN_DIGIT = 3

_KINDS: dict[Figure, Callable[[ExperimentSettings, Sequence[Training]], list[Drawing]]] = {
    "curves": _curves,
    "epoch_time": _epoch_time,
    "position_similarity": _position_similarity,
    "measure": _measure,
    "shifts": _shifts,
    "attention_maps": _attention_maps,
}


# --- the timing page ---

WAY_LABELS: dict[Way, str] = {"published": "as published", "fast": "fast path"}
SPOKEN: dict[Way, str] = {"published": "As published", "fast": "On the fast path"}


def timing_profile(timings: Timings, label: Callable[[str], str]) -> Drawing:
    """Where the time of a training step goes, of every subject that was timed in both ways."""
    profiles, subjects = timings.raw["profiles"], timings.subjects("fast")
    panels = [(SPOKEN[way], [(label(name), profiles[f"step/{way}/{name}"]["groups"]) for name in subjects]) for way in WAYS]
    totals = {name: [digits(1e3 * profiles[f"step/{way}/{name}"]["seconds"]) for way in WAYS] for name in subjects}
    spoken = "; ".join(f"{label(name)} {published} and {fast}" for name, (published, fast) in totals.items())
    alt = f"Bars of each part's share of a profiled step. Milliseconds of a step as published and on the fast path: {spoken}."
    caption = (
        "Where the time of a training step goes, in % of the profiled step, whose milliseconds stand at the end of its bar. The profiler "
        "adds to every operator and so makes what calls many of them look slower than it is; Tables 1 and 2 are taken without it."
    )
    return Drawing(alt, caption, lambda theme: figures.shares(panels, theme))


def timing_growth(timings: Timings) -> Drawing:
    """Time and memory of a step and of attention alone against the number of tokens."""
    time_lines, byte_lines = [], []
    for way in WAYS:
        for entries, what in ((timings.growth("growth", way), "step"), (timings.growth("attention", way), "attention alone")):
            x = [entry["tokens"] for entry in entries]
            label = f"{what}, {WAY_LABELS[way]}"
            milliseconds = [1e3 * float(np.median(timings.seconds(entry["name"]))) / entry["batch"] for entry in entries]
            time_lines.append((label, x, milliseconds))
            byte_lines.append((label, x, [entry["saved_bytes"] / entry["batch"] / 1e6 for entry in entries]))
    spoken = "; ".join(f"{label} from {digits(y[0])} to {digits(y[-1])} ms" for label, _, y in time_lines)
    alt = f"Time and memory an image against the number of tokens, both axes logarithmic. {spoken}."
    caption = (
        "Left: time of a training step and of one block's attention, divided by the "
        f"{timings.growth('growth', 'published')[0]['batch']} images of a batch, median over the rounds. Right: bytes kept for the "
        "backward pass. The dotted lines grow with the square of the tokens."
    )
    panels = [("Time (ms an image)", time_lines), ("Kept for backward (MB an image)", byte_lines)]
    return Drawing(alt, caption, lambda theme: figures.growth(panels, theme))
