"""The page of one machine, from its timings and the circumstances of the run. Every number comes from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from benchmarks import results
from benchmarks.loops import LOADER_PROCESSES
from benchmarks.measure import IMPLEMENTATIONS

_OURS, _ALONE = "ours-10", "ours-threads"  # each way's time is divided by theirs


def render(name: str, table: pd.DataFrame, facts: Mapping[str, Any]) -> str:
    """The page as Markdown.

    Args:
        name: of the page's files, without ending.
        table: every timing of the run, those that do not count included.
        facts: what `python -m benchmarks` writes beside them.
    """
    versions = ", ".join(f"{key} {value}" for key, value in facts["versions"].items())
    blocks = [
        f"# Benchmark: {facts['machine']}",
        "**A quick run that shows that everything works. Its numbers are not to be quoted.**" if facts["quick"] else "",
        "One epoch of the thesis's configuration (patch 4, width 32, 8 heads, 3 blocks, batch 128, Adam, fp32) on MNIST: training only, no"
        " test. Implementations are timed in turn, in a new random order each round, each time in a fresh process. `make bench` repeats it;"
        f" every timing is in [{name}.csv]({name}.csv).",
        f"Measured at {commit(facts)}, {facts['date']}, {facts['rounds']} rounds; {facts['threads']} threads of torch, as many of our"
        f" processes; our attention is `{facts['attention']}`; {versions}. {(~table.kept).sum()} of {len(table)} timings do not count and"
        f" were repeated, because other processes used more than {facts['threshold']:.0%} of the machine.",
        "## Time of an epoch",
        _epochs(table),
        *_overheads(table, facts),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _epochs(table: pd.DataFrame) -> str:
    summaries = results.summarize(table)
    labels = {name: entry.label for name, entry in IMPLEMENTATIONS.items()}
    header = (
        "implementation", "parameters", "s/epoch", "images/s", f"time / {labels[_OURS]}", f"time / {labels[_ALONE]}"
    )  # fmt: skip
    body = []
    for name in [key for key in IMPLEMENTATIONS if key in summaries]:
        row, seconds = summaries[name], results.by_round(table, name)
        ratios = [_ratio(results.ratio(seconds, results.by_round(table, other))) for other in (_OURS, _ALONE)]
        spread = f"{number(row.median)} [{number(row.low)} .. {number(row.high)}]"
        body.append((labels[name], f"{row.parameters:,}", spread, f"{60_000 / row.median:,.0f}", *ratios))
    lost = [labels.get(name, name) for name in dict.fromkeys(table.implementation) if name not in summaries]
    steps = ", ".join(str(steps) for steps in sorted({row.steps for row in summaries.values()}))
    notes = [
        "`s/epoch`: median [smallest .. largest] over the rounds, of one seed; with several, the time of all divided by their number."
        f" {steps} steps were timed after warm-up, and scaled to an epoch's 469.",
        "`time / ...`: ratio of the medians, with a 95 % bootstrap interval over rounds.",
        "The thesis's way reads every step's loss and uses torch's default Adam; peers read no loss and use its fused Adam.",
        f"`DataLoader`: {LOADER_PROCESSES} loading processes, PIL and ToTensor. `preloaded`: all images as floats on the device.",
        "timm's and transformers' networks are our `attention: full, final_norm: true`; vit-pytorch's has norms around the patch"
        " embedding and fewer biases. The thesis's is our base, or `pool: first, cls_insert: none`.",
        *([f"Without an undisturbed timing: {', '.join(lost)}."] if lost else []),
    ]
    return grid(header, body) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def _overheads(table: pd.DataFrame, facts: Mapping[str, Any]) -> list[str]:
    body = [(entry["what"], _spread(entry)) for entry in facts.get("overheads", ())]
    if (share := checkpoint_share(table, facts)) is not None:
        body.insert(0, ("a seed's checkpoint, share of its epoch's time on one process", f"{share:.2%}"))
    run = facts.get("parts", {}).get("overheads", facts)
    return (
        ["## Overheads", f"Measured at {commit(run)}, {run['date']}.", grid(("what", "median [smallest .. largest]"), body)] if body else []
    )


def _spread(entry: Mapping[str, Any]) -> str:
    values = sorted(entry["values"])
    low, middle, high = values[0], median(values), values[-1]
    if entry["unit"] == "share":
        return f"{middle:.2%} [{low:.2%} .. {high:.2%}]"
    return f"{middle:.2f} {entry['unit']} [{low:.2f} .. {high:.2f}]"


def checkpoint_share(table: pd.DataFrame, facts: Mapping[str, Any]) -> float | None:
    """A seed's checkpoint as a share of its epoch on one of the processes that share the seeds; None where it was not timed."""
    ours = results.summarize(table).get(_OURS)
    return None if ours is None else ours.checkpoint / (ours.median * facts["threads"])


def commit(run: Mapping[str, Any]) -> str:
    """The commit of a run, as the pages name it."""
    return f"`{run['commit'][:12]}`{' with changes' if run['dirty'] else ''}" if run["commit"] else "an unknown commit"


def number(value: float) -> str:
    """Three significant digits without an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4
    return f"{value:,.{digits}f}"


def _ratio(ratio: tuple[float, float, float] | None) -> str:
    return "{} [{}, {}]".format(*map(number, ratio)) if ratio else ""


def grid(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *body))
