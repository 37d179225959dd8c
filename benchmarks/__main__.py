"""`python -m benchmarks`: times this project beside its peers and writes benchmarks/results/MACHINE.md; `make bench` measures all of it.

    python -m benchmarks                  the table, the profile and the overheads
    python -m benchmarks --growth         the same, then how time grows with seeds, tokens, images and variants
    python -m benchmarks --accuracy       the same, and whether the fast path moves the accuracy
    python -m benchmarks --captions       the same, and how fast captioners learn and write
    python -m benchmarks --only ours-10,timm-preloaded --rounds 3
    python -m benchmarks --gpu            on a GPU: an epoch by this project, timm and the thesis's code, six minutes
    python -m benchmarks --page           writes the page again from the last run's files

A run replaces the table of its machine; every other part stays until it is measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import accuracy, captions, gpu, growth, images, overheads, page, results, runner
from benchmarks.measure import IMPLEMENTATIONS
from benchmarks.runner import ROOT, Options
from pipeline.errors import UserError, run_command
from pipeline.files import write_json, write_text
from pipeline.kernels import attention_path
from pipeline.kernels.small_head_attention import MAX_FUSED_TOKENS
from pipeline.provenance import device_name, versions
from pipeline.runner.pool import choose_device, why_no_gpu

RESULTS = Path(__file__).parent / "results"
ARRAYS = ROOT / "data" / "arrays"  # prepared MNIST; noise of its shapes is used where it is not
_ATTEMPTS = 4  # timings of one implementation a round, until one counts


def main(argv: list[str]) -> None:
    arguments = _parse(argv)
    if arguments.gpu and (reason := why_no_gpu()):
        raise UserError(f"--gpu needs an NVIDIA GPU that torch can use, and there is none here ({reason}).")
    device = choose_device()
    name = device_name(device)
    base = arguments.out / _slug(name)
    if arguments.gpu:
        gpu.run(base, ARRAYS, _say, rounds=2 if arguments.quick else arguments.rounds, quick=arguments.quick)
        return
    path = base.with_suffix(".json")
    facts = _read_facts(path)
    if arguments.page:
        _write_page(base, facts)
        return
    options = Options(
        device=device,
        data=ARRAYS,
        threads=len(os.sched_getaffinity(0)),
        warmup=2 if arguments.quick else 5,
        threshold=arguments.threshold,
        attempts=_ATTEMPTS,
        steps=10 if arguments.quick else None,
    )
    chosen = {key: entry for key, entry in IMPLEMENTATIONS.items() if device in entry.devices}
    if arguments.only:
        unknown = sorted(set(arguments.only) - chosen.keys())
        if unknown:
            raise UserError(f"--only names {unknown[0]!r}, which cannot be timed here; the choices are {', '.join(chosen)}.")
        chosen = {key: chosen[key] for key in arguments.only}
    absent = runner.missing([entry.requires for entry in chosen.values()])
    if absent:
        raise UserError(
            f"{', '.join(sorted(absent))} is not installed here: run `make bench`, which installs the peers,"
            " or name with --only what needs none."
        )

    num_rounds = 2 if arguments.quick else arguments.rounds
    if arguments.table:
        steps = {key: entry.steps for key, entry in chosen.items()}
        rows, rates = runner.run_rounds(steps, options, num_rounds, _say)
        results.write(base.with_suffix(".csv"), rows)
        _say("profile of our own step")
        facts |= _describe(arguments, options, name) | {"rounds": num_rounds, "matrix_rates": rates}
        facts["profile"] = runner.measure("profile", options, 10 if arguments.quick else 60)["operators"]
        write_json(path, facts)
    parts: dict[str, Callable[[], Any]] = {
        "overheads": lambda: overheads.measure(options, _say, repeats=num_rounds),
        "growth": lambda: growth.measure(options, _say, quick=arguments.quick),
        "accuracy": lambda: accuracy.measure(options, _say, quick=arguments.quick),
        "captions": lambda: captions.measure(options, _say, rounds=num_rounds),
    }
    for part, measure in parts.items():
        if getattr(arguments, part):
            facts[part] = measure()
            facts |= {"fused_tokens": MAX_FUSED_TOKENS} if part == "growth" else {}
            # Of its own, because it may be of another run than the table.
            facts.setdefault("parts", {})[part] = results.this_run()
            write_json(path, facts)
    _write_page(base, facts)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Times this project beside its peers, interleaved, in one run."
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="times each is timed (default 5)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of implementations, separated by commas")
    parser.add_argument("--quick", action="store_true", help="two rounds of ten steps: to see that everything runs, not to quote")
    parser.add_argument("--no-table", dest="table", action="store_false", help="leave the table and the profile as they are")
    parser.add_argument("--no-overheads", dest="overheads", action="store_false", help="leave the overheads as they are")
    parser.add_argument("--growth", action="store_true", help="measure growth with seeds, tokens, images and variants, too")
    parser.add_argument("--accuracy", action="store_true", help="train 5 seeds for 3 epochs with the fast path and with plain torch, too")
    parser.add_argument("--captions", action="store_true", help="time captioners, too")
    parser.add_argument("--gpu", action="store_true", help="measure an epoch on this machine's GPU instead, in six minutes at most")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page again from the last run's files")
    parser.add_argument(
        "--threshold", type=float, default=0.05, help="share of the machine that others may use during a timing (default 0.05)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _slug(device: str) -> str:
    """`AMD EPYC (2 cores)` to `amd-epyc-2-cores`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _describe(arguments: argparse.Namespace, options: Options, name: str) -> dict[str, Any]:
    """The circumstances of a run."""
    dataset = images.load(options.data)
    peers = {peer: runner.version(peer) for peer in ("timm", "vit-pytorch", "transformers")}
    return {
        "machine": name,
        "device": options.device,
        "threads": options.threads,
        "versions": versions() | {peer: version for peer, version in peers.items() if version},
        "data": dataset.name,
        **results.this_run(),
        "attention": attention_path(device=options.device, head_dim=4, tokens=50),
        "seed": 0,  # of the rounds' orders, as run_rounds has it
        "threshold": options.threshold,
        "quick": arguments.quick,
    }


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return facts
    except FileNotFoundError:
        return {}
    except ValueError:
        raise UserError(f"{path} is damaged: delete it or restore it from git, then run the command again.") from None


def _write_page(base: Path, facts: dict[str, Any]) -> None:
    rows = results.read(base.with_suffix(".csv"))
    write_text(base.with_suffix(".md"), page.render(base.name, rows, facts))
    if "growth" in facts:
        growth.draw(facts["growth"], base.with_name(f"{base.name}-growth.png"))
    _say(f"wrote {base.with_suffix('.md')}")


def _say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    # Ended like by Ctrl-C, so that the process that is being timed ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_command(main)
