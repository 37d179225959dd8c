"""README.md's table of speed, copied from the benchmark that README.md names.

    python -m benchmarks.readme

replaces what stands between `<!-- speed of BENCHMARK -->` and `<!-- end of speed -->`; BENCHMARK is its files' path without ending.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import page, results
from benchmarks.results import Row
from benchmarks.runner import ROOT
from pipeline.errors import UserError, run_command
from pipeline.files import write_text

_MARKED = re.compile(r"(<!-- speed of (\S+) -->\n).*?(<!-- end of speed -->)", flags=re.DOTALL)
_ALONE = "ours-threads"
# Ten seeds trained at once here, of the thesis's network and of the libraries'; each other way beside the one of its size.
_OTHERS = {
    "ours-10": {
        "thesis-cls": "the thesis's published way, class token by loop",
        "thesis": "the thesis's published way, no class token",
    },
    "ours-full-10": {
        "timm-loader": "timm with a DataLoader",
        "timm-preloaded": "timm with preloaded tensors",
        "vit-pytorch-preloaded": "vit-pytorch with preloaded tensors",
        "transformers-preloaded": "transformers with preloaded tensors",
    },
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description="Writes README.md's table of speed anew.")
    parser.parse_args(argv)
    path = ROOT / "README.md"
    write_text(path, updated(path.read_text(encoding="utf-8")))


def updated(readme: str, root: Path = ROOT) -> str:
    """The text of README.md with what its benchmark measured.

    Raises:
        UserError: it has no marks to write between, or the benchmark's files are missing, damaged, or lack what README.md says.
    """
    marked = _MARKED.search(readme)
    if marked is None:
        raise UserError("README.md has no lines `<!-- speed of BENCHMARK -->` and `<!-- end of speed -->` to write between.")
    base = root / marked[2]
    try:
        facts = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{marked[2]}.json is missing: name a benchmark that is there, or run `make bench`.") from None
    except ValueError:
        raise UserError(f"{marked[2]}.json is damaged: restore it from git, or run `make bench` again.") from None
    text = section(marked[2], results.read(base.with_suffix(".csv")), facts)
    return readme[: marked.start()] + f"{marked[1]}{text}\n{marked[3]}" + readme[marked.end() :]


def section(name: str, rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """What README.md says of a benchmark on a CPU.

    Args:
        name: path of its files, without ending.

    Raises:
        UserError: something that README.md says was not measured.
    """
    summaries = results.summarize(rows)
    absent = [key for key in (_ALONE, *_OTHERS, *(key for others in _OTHERS.values() for key in others)) if key not in summaries] + [
        part for part in ("overheads", "accuracy") if part not in facts
    ]
    if absent:
        raise UserError(f"{name} does not have {absent[0]}, which README.md states: run `make bench` to its end.")
    table = ["| an epoch by | parameters | takes | one of ten seeds here | ratio |", "|:---|---:|---:|---:|---:|"]
    for ours, others in _OTHERS.items():
        for key, label in others.items():
            ratio = results.ratio(results.by_round(rows, key), results.by_round(rows, ours))
            there, here = summaries[key], summaries[ours]
            table.append(f"| {label} | {there.parameters:,} | {there.median:.1f} s | {here.median:.1f} s | {_times(ratio)} |")
    alone = f"One seed of the thesis's network alone takes {summaries[_ALONE].median:.1f} s here, on both cores."
    return "\n".join([_circumstances(name, facts), "", *table, "", alone, _overheads(summaries, facts), _accuracy(facts["accuracy"])])


def _circumstances(name: str, facts: Mapping[str, Any]) -> str:
    return (
        f"{'**A quick run, not to be quoted.** ' if facts['quick'] else ''}Measured at commit {page.commit(facts)} on {facts['machine']}:"
        f" {facts['rounds']} rounds, medians, 95 % intervals ([all of it]({name}.md))."
    )


def _times(ratio: results.Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.1f} times [{ratio.low:.1f} to {ratio.high:.1f}]"


def _overheads(summaries: Mapping[str, results.Summary], facts: Mapping[str, Any]) -> str:
    def middle(what: str) -> tuple[str, float]:
        """The last of the overheads that begin so, and its median."""
        entry = [entry for entry in facts["overheads"] if entry["what"].startswith(what)][-1]
        return entry["what"], median(entry["values"])

    training, tracking = middle("MLflow's share of the processor time")
    if "left to `sync`" in training:
        raise UserError("MLflow's cost was not measured: the benchmark's training is too short for it. Raise overheads.py's epochs.")
    noop, seconds = middle("`dvc repro` with nothing to do")
    checkpoint = page.checkpoint_share(summaries["ours-10"], facts)
    count = noop.rpartition(", ")[2]
    run = facts.get("parts", {}).get("overheads", facts)
    return (
        f"What surrounds a training, at commit {page.commit(run)}: MLflow takes {tracking:.1%} of the processor time,"
        f" a checkpoint {checkpoint:.2%} of its epoch;"
        f" a `dvc repro` with nothing to do takes {seconds:.1f} s for {count}.".replace("%", " %")
    )


def _accuracy(measured: Mapping[str, Any]) -> str:
    fused, plain = measured["accuracy"]["fused"], measured["accuracy"]["sdpa"]
    differences = [100 * (one - other) for one, other in zip(fused, plain, strict=True)]
    furthest = max(abs(difference) for difference in differences)
    moved = f"moves a seed's test accuracy by {furthest:.2f} points at most" if furthest else "leaves each seed's test accuracy as it is"
    return f"Beside PyTorch's attention the fused one {moved} ({measured['seeds']} seeds of {measured['epochs']} epochs)."


if __name__ == "__main__":
    run_command(main)
