"""The page of one machine, from its timings and the circumstances of the run. Every number comes from there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks import captions, images, results
from benchmarks.accuracy import STEPS
from benchmarks.loops import EPOCH_STEPS, LOADER_PROCESSES
from benchmarks.measure import FULL, IMPLEMENTATIONS, epoch_flops
from benchmarks.results import Row, Summary
from pipeline.models import build, count_parameters
from pipeline.report.text import counted
from pipeline.study.statistics import paired_difference
from pipeline.timing.power_law import fit_power_law

_OURS = {"cpu": "ours-10", "cuda": "stack-10"}
_ALONE = {"cpu": "ours-threads", "cuda": "stack-1"}


@dataclass(frozen=True)
class _Bar:
    """A ratio that the project wants to reach on a device: `slower` takes at least `least` times as long as `faster`."""

    device: str
    sentence: str
    slower: str
    faster: str
    least: float
    aim: float | None = None


_BARS = (
    _Bar("cpu", "the reference against ours", "reference", "ours-10", 45, 60),
    _Bar("cpu", "the thesis's published way against ours", "thesis", "ours-10", 4, 5),
    _Bar("cpu", "timm with a DataLoader against ours", "timm-loader", "ours-10", 3.3, 4),
    _Bar("cpu", "timm preloaded against ours", "timm-preloaded", "ours-10", 2.8, 3.4),
    _Bar("cpu", "seeds one after another, all threads each, against seeds over processes", "ours-threads", "ours-10", 1),
    _Bar("cuda", "the thesis's published way against ours", "thesis", "stack-10", 100),
)

_ARCHITECTURES = {
    "reference": "MLP four times as wide as a token; softmax before the cross-entropy; attention on slices, no output projection",
    "thesis": "attention on slices, no output projection, no class token; the same function as our `pool: first, cls_insert: none`",
    "thesis-cls": "the same with a class token; the same function as our base",
    "timm-loader": "attention over whole tokens with output projection, a last norm: our `attention: full, final_norm: true`",
    "vit-pytorch-loader": "as timm's, but norms before and after the patch embedding, and no bias in queries, keys and values",
    "transformers-loader": "as timm's",
}


def render(name: str, rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The page as Markdown.

    Args:
        name: of the page's files, without ending.
        rows: every timing of the run, those that do not count included.
        facts: what `python -m benchmarks` writes beside them.
    """
    summaries = results.summarize(rows)
    page = _joined(
        _head(name, rows, facts),
        _table(rows, summaries, facts),
        _architectures(summaries),
        _bars(rows, facts),
        _profile(facts),
        _overheads(summaries, facts),
        _accuracy(facts),
        _growth(name, facts),
        _captions(facts),
    )
    return page + "\n"


def _joined(*blocks: str) -> str:
    """Those that are not empty, with a blank line between them."""
    return "\n\n".join(block for block in blocks if block)


def _head(name: str, rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    discarded = sum(not row.kept for row in rows)
    data = f"`{facts['data']}`, {images.NUM_TRAIN:,} training images"
    if facts["data"] == images.SYNTHETIC:
        data = f"noise, {images.NUM_TRAIN:,} images of MNIST's shape, because MNIST was not prepared; the arithmetic is the same"
    return _joined(
        f"# Benchmark: {facts['machine']}",
        "**A quick run that shows that everything works. Its numbers are not to be quoted.**" if facts["quick"] else "",
        "One epoch of the thesis's configuration (patch 4, width 32, 8 heads, 3 blocks, batch 128, Adam, fp32): training only, no test."
        f" Implementations are timed in turn, in a new random order each round, each time in a fresh process. `make bench` repeats it;"
        f" every timing is in [{name}.csv]({name}.csv).",
        _grid(
            ("", ""),
            [
                ("machine", facts["machine"]),
                ("threads of torch, processes of ours", str(facts["threads"])),
                ("attention kernel of ours", f"`{facts['attention']}`"),
                ("versions", ", ".join(f"{key} {value}" for key, value in facts["versions"].items())),
                ("images", data),
                ("commit, date", f"{commit(facts)}, {facts['date']}"),
                ("rounds, seed of their orders", f"{facts['rounds']}, {facts['seed']}"),
                (
                    "timings not counted",
                    f"{discarded} of {len(rows)}, repeated because other processes used more than {facts['threshold']:.0%} of the machine",
                ),
                ("fp32 matrix rate, measured in every round", _rate_text(facts["matrix_rates"])),
            ],
        ),
    )


def _rate_text(rates: Sequence[float]) -> str:
    if not rates:
        return "not measured undisturbed"
    low, middle, high = (value / 1e9 for value in (min(rates), median(rates), max(rates)))
    return f"{middle:,.0f} GFLOP/s [{low:,.0f} .. {high:,.0f}]"


def _table(rows: Sequence[Row], summaries: Mapping[str, Summary], facts: Mapping[str, Any]) -> str:
    device = facts["device"]
    ours, alone = _OURS[device], _ALONE[device]
    header = (
        "implementation", "parameters", "s/epoch", "images/s", f"time / {_label(ours)}", f"time / {_label(alone)}", "first step after, s",
        "memory, MiB", "matrix rate",
    )  # fmt: skip
    body = []
    for name in [key for key in IMPLEMENTATIONS if key in summaries]:
        summary = summaries[name]
        seconds = results.by_round(rows, name)
        body.append(
            (
                _label(name),
                f"{summary.parameters:,}",
                f"{_spread(summary)}{'' if summary.steps == EPOCH_STEPS else ' *'}",
                f"{images.NUM_TRAIN / summary.median:,.0f}",
                _ratio(seconds, results.by_round(rows, ours)),
                _ratio(seconds, results.by_round(rows, alone)),
                f"{summary.warmup:.1f}",
                f"{summary.memory / 2**20:,.0f}",
                _share(name, summary, facts["matrix_rates"]),
            )
        )
    lost = [name for name in dict.fromkeys(row.implementation for row in rows) if name not in summaries]
    memory = (
        "the peak of what torch allocated on the GPU"
        if device == "cuda"
        else "the peak of the process tree's memory, shared pages counted once, sampled twice a second"
    )
    scaled = ", ".join(sorted({f"{summary.steps}" for summary in summaries.values() if summary.steps != EPOCH_STEPS}, key=int))
    notes = [
        "`s/epoch`: median [smallest .. largest] over the rounds, of one seed; with several, the time of all divided by their number.",
        "`time / ...`: ratio of the medians, with a 95 % bootstrap interval over rounds.",
        f"`first step after`: the model's construction, warm-up and compilation, not in the epoch. `memory`: {memory}.",
        "`matrix rate`: arithmetic of the epoch's matrix products (three times the forward pass) as a share of the measured fp32 rate.",
        *([f"\\* Not a whole epoch: {scaled} steps were timed after warm-up, and scaled to {EPOCH_STEPS}."] if scaled else []),
        "The reference and the thesis read every step's loss and use torch's default Adam; peers read no loss and use its fused Adam.",
        f"`DataLoader`: {LOADER_PROCESSES} loading processes, PIL and ToTensor. `preloaded`: all images as floats on the device.",
        *([f"Without an undisturbed timing: {', '.join(_label(name) for name in lost)}."] if lost else []),
    ]
    return _joined("## Time of an epoch", _grid(header, body), "\n".join(f"- {note}" for note in notes))


def _architectures(summaries: Mapping[str, Summary]) -> str:
    """What differs between the models that are compared, with the counts of this run."""
    full = count_parameters(build(FULL))
    body = []
    for name, text in _ARCHITECTURES.items():
        twin = name.replace("-loader", "-preloaded")
        summary = summaries.get(name) or summaries.get(twin)
        if summary:
            against = "" if name in ("reference", "thesis", "thesis-cls") else f" ({summary.parameters - full:+,} parameters against ours)"
            body.append((_label(name).split(", DataLoader")[0], f"{summary.parameters:,}", text + against))
    return _joined("## What the models share and what not", _grid(("model", "parameters", "architecture"), body)) if body else ""


def _bars(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    body = []
    for bar in _BARS:
        ratio = results.ratio(results.by_round(rows, bar.slower), results.by_round(rows, bar.faster))
        if bar.device != facts["device"] or ratio is None:
            continue
        verdict = "reached" if ratio.low >= bar.least else "missed" if ratio.high < bar.least else "not decided by these rounds"
        body.append((bar.sentence, f"{bar.least:g}", "" if bar.aim is None else f"{bar.aim:g}", _ratio_text(ratio), verdict))
    if not body:
        return ""
    text = "Set for two cores and for an H200; `ours` is ten seeds, per seed. Reached means that the whole interval lies above the bar."
    return _joined("## Bars", text, _grid(("time of ...", "at least", "aim", "measured", ""), body))


def _profile(facts: Mapping[str, Any]) -> str:
    operators = facts.get("profile")
    if not operators:
        return ""
    shown = operators[:12]
    rest = sum(share for _, _, share in operators[12:])
    body = [(f"`{name}`", str(calls), f"{share:.1%}") for name, calls, share in shown] + [("all others", "", f"{rest:.1%}")]
    where = "kernel on the GPU" if facts["device"] == "cuda" else "operator, one thread"
    return _joined("## Where our step spends its time", _grid((where, "calls a step", "share of own time"), body))


def _overheads(summaries: Mapping[str, Summary], facts: Mapping[str, Any]) -> str:
    body: list[tuple[str, ...]] = []
    ours = summaries.get(_OURS["cpu"])
    if facts["device"] == "cpu" and ours and ours.checkpoint:
        body.append(
            (
                "a seed's checkpoint, share of its epoch's time on one process",
                f"{checkpoint_share(ours, facts):.2%}",
                "1 %",
            )
        )
    body += [(entry["what"], _overhead_text(entry), entry.get("bar", "")) for entry in facts.get("overheads", ())]
    if not body:
        return ""
    return _joined("## Overheads", _run_of("overheads", facts), _grid(("what", "median [smallest .. largest]", "at most"), body))


def checkpoint_share(ours: Summary, facts: Mapping[str, Any]) -> float:
    """A seed's checkpoint as a share of its epoch on one of the processes that share the seeds."""
    return ours.checkpoint / (ours.median * facts["threads"])


def _run_of(part: str, facts: Mapping[str, Any]) -> str:
    """The sentence that names a part's own run, where it was noted."""
    run = facts.get("parts", {}).get(part)
    return measured_at(run) if run else ""


def measured_at(run: Mapping[str, Any]) -> str:
    """The sentence that names a run."""
    return f"Measured at {commit(run)}, {run['date']}."


def commit(run: Mapping[str, Any]) -> str:
    """The commit of a run, as the pages name it."""
    return f"`{run['commit'][:12]}`{' with changes' if run['dirty'] else ''}" if run["commit"] else "an unknown commit"


def _overhead_text(entry: Mapping[str, Any]) -> str:
    values = sorted(entry["values"])
    low, middle, high = values[0], median(values), values[-1]
    if entry["unit"] == "share":
        return f"{middle:.2%} [{low:.2%} .. {high:.2%}]"
    return f"{middle:.2f} {entry['unit']} [{low:.2f} .. {high:.2f}]"


def _captions(facts: Mapping[str, Any]) -> str:
    measured = facts.get("captions")
    if not measured:
        return ""
    header = ("variant", "training step, ms", "greedy, scenes/s", "beam of 5, scenes/s")
    text = (
        "One process, on the CPU one thread; untrained models, captions of the greatest length. A step has 128 scenes; "
        f"{captions.SCENES} scenes are written at once. Median over the rounds, least and most in brackets; "
        "timed in turn, in a new random order each round."
    )
    return _joined("## Captions", _run_of("captions", facts), text, _grid(header, captions.table(measured)))


def _accuracy(facts: Mapping[str, Any]) -> str:
    measured = facts.get("accuracy")
    if not measured:
        return ""
    fused, plain = measured["accuracy"]["fused"], measured["accuracy"]["sdpa"]
    difference = paired_difference(fused, plain)
    interval = difference.interval
    text = (
        f"The thesis's configuration on {measured['images']:,} images, {counted(measured['epochs'], 'epoch')}, seeds 0 to "
        f"{measured['seeds'] - 1}, with the fused attention and with PyTorch's `scaled_dot_product_attention`: the same weights, "
        "orders and batches. "
        f"Mean test accuracy {100 * mean(fused):.2f} % and {100 * mean(plain):.2f} %, a difference of {100 * difference.mean:+.2f} points"
        + (f" [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]" if interval else "")
        + " (bar: within 0.3). "
        f"Largest difference of a loss in the first {STEPS} steps: {max(measured['loss_difference']):.1e} (bar: 1e-4): "
        "two orders of summation, so not the same to the last bit."
    )
    columns = zip(fused, plain, measured["loss_difference"], strict=True)
    body = [(str(seed), f"{a:.2%}", f"{b:.2%}", f"{d:.1e}") for seed, (a, b, d) in enumerate(columns)]
    table = _grid(("seed", "fused attention", "PyTorch's attention", f"largest loss difference, first {STEPS} steps"), body)
    return _joined("## Accuracy does not move", _run_of("accuracy", facts), text, table)


def _growth(name: str, facts: Mapping[str, Any]) -> str:
    growth = facts.get("growth")
    if not growth:
        return ""
    body = []
    for series in growth:
        fit = fit_power_law(series["x"], series["y"])
        measured = ", ".join(f"{x:g}: {_number(y)}" for x, y in zip(series["x"], series["y"], strict=True))
        last = math.log(series["y"][-1] / series["y"][-2]) / math.log(series["x"][-1] / series["x"][-2])
        exponent = f"{fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]"
        body.append((series["y_name"], series["x_name"], measured, exponent, f"{last:.2f}"))
    text = (
        "Medians over repeats in random order; exponent of a power law by least squares on logarithms, with Student's t interval of 95 %, "
        "and that between the last two points. Where a fixed cost weighs (starting DVC, Python and torch) or the way of computing changes, "
        f"no power law holds: beyond {facts['fused_tokens']} tokens PyTorch's attention takes over from the fused kernel; and "
        f"of {facts['threads']} seeds or fewer each has a core of its own."
    )
    alt = "Seconds against number, a panel for each row of the table, with the fitted line"
    table = _grid(("time of", "against", "measured, s", "exponent", "last two"), body)
    return _joined("## Growth", _run_of("growth", facts), text, f"![{alt}]({name}-growth.png)", table)


def _label(name: str) -> str:
    return IMPLEMENTATIONS[name].label if name in IMPLEMENTATIONS else name


def _spread(summary: Summary) -> str:
    return f"{_number(summary.median)} [{_number(summary.low)} .. {_number(summary.high)}]"


def _number(value: float) -> str:
    """Three significant digits without an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4
    return f"{value:,.{digits}f}"


def _ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> str:
    ratio = results.ratio(numerator, denominator)
    return "" if ratio is None else _ratio_text(ratio)


def _ratio_text(ratio: results.Ratio) -> str:
    return f"{_number(ratio.value)} [{_number(ratio.low)}, {_number(ratio.high)}]"


def _share(name: str, summary: Summary, rates: Sequence[float]) -> str:
    architecture = IMPLEMENTATIONS[name].architecture
    if architecture is None or not rates:
        return ""
    return f"{epoch_flops(architecture) / summary.median / median(rates):.1%}"


def _grid(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *body))
