"""`python -m benchmarks`: times this project beside its peers and writes benchmarks/results/MACHINE.md; `make bench` installs them first.

    python -m benchmarks                  the table and the overheads
    python -m benchmarks --only ours-10,timm-preloaded
    python -m benchmarks --gpu            on a GPU: an epoch by this project, timm and the thesis's code, six minutes
    python -m benchmarks --page           writes the page again from the last run's files

A run replaces the table of its machine; the overheads stay until they are measured again.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import gpu, overheads, page, results
from benchmarks.measure import IMPLEMENTATIONS, time_one
from pipeline.data.datasets import load
from pipeline.kernels import attention_path
from pipeline.runner.pool import why_no_gpu
from pipeline.system.errors import UserError, run_command
from pipeline.system.files import write_json, write_text
from pipeline.system.processes import die_with_parent
from pipeline.system.provenance import device_name, versions
from pipeline.timing.load import wait_until_quiet
from pipeline.timing.rounds import THRESHOLD, run_rounds

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
ARRAYS = ROOT / "data" / "arrays"


def main(argv: list[str]) -> None:
    arguments = _parse(argv)
    rounds, threshold = (2, 1.0) if arguments.quick else (5, THRESHOLD)
    if arguments.gpu and (reason := why_no_gpu()):
        raise UserError(f"--gpu needs an NVIDIA GPU that torch can use, and there is none here ({reason}).")
    device = "cuda" if arguments.gpu else "cpu"
    base = arguments.out / slug(device_name(device))
    dataset = None if arguments.page else load(ARRAYS)
    if dataset and dataset.train_images.shape != (60_000, 28, 28):
        raise UserError(f"{ARRAYS.relative_to(ROOT)} holds {dataset.name}: the benchmark needs MNIST's 60,000 images of 28 by 28.")
    if arguments.gpu and dataset:
        gpu.run(base, dataset, _say, rounds=rounds, quick=arguments.quick)
        return
    path = base.with_suffix(".json")
    facts = results.read_facts(path)
    if dataset:
        table = _time(_chosen(arguments.only), rounds, threshold, quick=arguments.quick)
        write_text(base.with_suffix(".csv"), table.to_csv(index=False, lineterminator="\n"))
        facts |= _describe(dataset.name, rounds, threshold, quick=arguments.quick)
        write_json(path, facts)
        if not arguments.only:
            facts["overheads"] = overheads.measure(_say, rounds)
            facts["parts"] = {"overheads": results.this_run()}  # of its own, because it may be of another run than the table
            write_json(path, facts)
    write_text(base.with_suffix(".md"), page.render(base.name, results.read(base.with_suffix(".csv")), facts))
    _say(f"wrote {base.with_suffix('.md')}")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Times this project beside its peers, interleaved, in one run."
    )
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of implementations, separated by commas; no overheads")
    parser.add_argument("--quick", action="store_true", help="two rounds of ten steps, whatever else runs: not to quote")
    parser.add_argument("--gpu", action="store_true", help="measure an epoch on this machine's GPU instead, in six minutes at most")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page again from the last run's files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    return parser.parse_args(argv)


def slug(device: str) -> str:
    """`AMD EPYC (2 cores)` to `amd-epyc-2-cores`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _chosen(only: Sequence[str] | None) -> list[str]:
    names = list(only or IMPLEMENTATIONS)
    if unknown := [name for name in names if name not in IMPLEMENTATIONS]:
        raise UserError(f"--only names {unknown[0]!r}, which is not timed here; the choices are {', '.join(IMPLEMENTATIONS)}.")
    needed = {IMPLEMENTATIONS[name].requires for name in names} - {None}
    if absent := sorted(name for name in needed if name and gpu.version(name) is None):
        raise UserError(
            f"{', '.join(absent)} is not installed here: run `make bench`, which installs the peers, or name with --only what needs none."
        )
    return names


def _time(names: Sequence[str], rounds: int, threshold: float, *, quick: bool) -> pd.DataFrame:
    """All timings, those that do not count included, in the columns of `results`."""

    def measure(one: Sequence[str]) -> tuple[dict[str, Any], float]:
        wait_until_quiet(threshold)
        steps = 10 if quick else IMPLEMENTATIONS[one[0]].steps
        with ProcessPoolExecutor(1, get_context("spawn"), die_with_parent, (os.getpid(),)) as pool:
            result = pool.submit(time_one, one[0], ARRAYS, steps, len(os.sched_getaffinity(0))).result()
        return result, result["foreign"]

    def show(result: dict[str, Any]) -> str:
        return f"{result['epoch_seconds']:.3f} s/epoch"

    timings = run_rounds(names, measure, rounds=rounds, say=_say, repeat="timing", show=show, threshold=threshold)
    rows = [one.value | {"round": one.round, "position": one.position, "implementation": one.names[0], "kept": one.kept} for one in timings]
    return pd.DataFrame(rows)[list(results.COLUMNS)]


def _describe(dataset: str, rounds: int, threshold: float, *, quick: bool) -> dict[str, Any]:
    """The circumstances of a run."""
    peers = {peer: gpu.version(peer) for peer in ("timm", "vit-pytorch", "transformers")}
    return {
        "machine": device_name("cpu"), "threads": len(os.sched_getaffinity(0)), "data": dataset, **results.this_run(),
        "versions": versions() | {peer: version for peer, version in peers.items() if version},
        "attention": attention_path(device="cpu", head_dim=4, tokens=50), "seed": 0, "threshold": threshold,
        "quick": quick, "rounds": rounds,
    }  # fmt: skip


def _say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    run_command(main)
