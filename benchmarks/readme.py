"""README.md's table of speed, copied from the benchmark that README.md names.

    python -m benchmarks.readme

replaces what stands between `<!-- speed of BENCHMARK -->` and `<!-- end of speed -->`; BENCHMARK is its files' path without ending.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from benchmarks import page, results
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_text

ROOT = Path(__file__).parent.parent
_MARKED = re.compile(r"(<!-- speed of (\S+) -->\n).*?(<!-- end of speed -->)", flags=re.DOTALL)
_ALONE = "ours-threads"
# Ten seeds trained at once here, of the thesis's network and of the libraries'; each other way beside the one of its size.
_OTHERS = {
    "thesis-cls": ("the thesis's published way, class token by loop", "ours-10"),
    "thesis": ("the thesis's published way, no class token", "ours-10"),
    "timm-loader": ("timm with a DataLoader", "ours-full-10"),
    "timm-preloaded": ("timm with preloaded tensors", "ours-full-10"),
    "vit-pytorch-preloaded": ("vit-pytorch with preloaded tensors", "ours-full-10"),
    "transformers-preloaded": ("transformers with preloaded tensors", "ours-full-10"),
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
    text = section(marked[2], results.read(base.with_suffix(".csv")), results.read_facts(base.with_suffix(".json")))
    return readme[: marked.start()] + f"{marked[1]}{text}\n{marked[3]}" + readme[marked.end() :]


def section(name: str, table: pd.DataFrame, facts: Mapping[str, Any]) -> str:
    """What README.md says of a benchmark on a CPU. `name` is the path of its files, without ending.

    Raises:
        UserError: something that README.md says was not measured.
    """
    summaries = results.summarize(table)
    needed = [_ALONE, *_OTHERS, *(ours for _, ours in _OTHERS.values())]
    if absent := [key for key in needed if key not in summaries] + ["overheads"] * ("overheads" not in facts):
        raise UserError(f"{name} does not have {absent[0]}, which README.md states: run `make bench` to its end.")
    lines = [
        f"{'**A quick run, not to be quoted.** ' if facts['quick'] else ''}Measured at commit {page.commit(facts)} on {facts['machine']}:"
        f" {facts['rounds']} rounds, medians, 95 % intervals ([all of it]({name}.md)).",
        "",
        "| an epoch by | parameters | takes | one of ten seeds here | ratio |",
        "|:---|---:|---:|---:|---:|",
    ]
    for key, (label, ours) in _OTHERS.items():
        ratio = results.ratio(results.by_round(table, key), results.by_round(table, ours))
        times = "{:.1f} times [{:.1f} to {:.1f}]".format(*ratio) if ratio else ""
        there, here = summaries[key], summaries[ours].median
        lines.append(f"| {label} | {there.parameters:,} | {there.median:.1f} s | {here:.1f} s | {times} |")
    share = page.checkpoint_share(table, facts) or 0.0
    besides = [f"a checkpoint ({100 * share:.2f} % of its epoch)", *(_overhead(facts, what) for what in ("MLflow's s", "`dvc repro` with"))]
    run = facts.get("parts", {}).get("overheads", facts)
    alone = f"An epoch of one seed of the thesis's network alone takes {summaries[_ALONE].median:.1f} s here, on both cores."
    return "\n".join([*lines, "", alone, f"What surrounds a training, at commit {page.commit(run)}: {'; '.join(besides)}."])


def _overhead(facts: Mapping[str, Any], what: str) -> str:
    """The last of the overheads that begin so, with its median."""
    entry = [entry for entry in facts["overheads"] if entry["what"].startswith(what)][-1]
    middle = median(entry["values"])
    return f"{entry['what']} ({f'{100 * middle:.1f} %' if entry['unit'] == 'share' else f'{middle:.1f} s'})"


if __name__ == "__main__":
    run_command(main)
