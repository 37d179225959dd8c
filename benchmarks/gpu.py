"""`python -m benchmarks --gpu`: an epoch on a GPU by the thesis's loop, timm, torch's stack and the fused engine, then by variant.

All of it runs in one process and within `SECONDS`, in interleaved rounds of a few steps, because a start of torch takes longer here than a
timing. Times are of an epoch of 60,000 images and one seed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks import loops, ours, peers, results
from benchmarks.measure import FULL, THESIS
from benchmarks.page import commit, grid
from pipeline.data.datasets import Dataset
from pipeline.params import ModelSettings, Params, VariantSettings, load
from pipeline.system.errors import first_line
from pipeline.system.files import write_json, write_text
from pipeline.system.provenance import device_name, versions
from pipeline.timing.rounds import Say, run_rounds
from pipeline.training.engine import Trainer
from pipeline.training.fused import FusedTrainer, make_trainer, why_not

SECONDS = 300.0
VARIANT_SEEDS = 10
Begin = Callable[[], Callable[[], float]]  # makes ready what is timed, and gives a function that returns the seconds of a seed's epoch


def fused(settings: VariantSettings, dataset: Dataset, seeds: Sequence[int], device: torch.device) -> Trainer:
    """A trainer of the fused engine. Raises RuntimeError where torch's would take its place: its times would be said to be the other's."""
    if not isinstance(trainer := make_trainer(settings, dataset, seeds, device), FusedTrainer):
        raise RuntimeError(trainer.engine)
    return trainer


def subjects(dataset: Dataset, device: torch.device, *, make: ours.Make, rounds: int, quick: bool) -> dict[str, Begin]:
    """What the table has, by label. `make` makes our trainers."""

    def loop(build: Callable[[], nn.Module], steps: int, *, published: bool = False) -> Callable[[], float]:
        epochs = loops.loader_epochs(dataset) if published else loops.preloaded_epochs(dataset, device)
        build()  # one that is not installed fails here
        steps = 3 if quick else steps
        return lambda: loops.time_training(build, epochs, device=device, steps=steps, published=published).epoch_seconds

    def compiled() -> Callable[[], float]:
        model: Any = torch.compile(peers.timm_vit(FULL).to(device), mode="reduce-overhead")
        seconds = loop(lambda: model, 200)
        seconds()  # compiles; the first steps of every call, which are not timed, may record graphs
        return seconds

    def trainer(make: ours.Make, seeds: int, steps: int | None) -> Begin:
        return lambda: ours.epochs_of(make, ours.variant(THESIS, seeds, rounds + 1, 3 if quick else steps), dataset, device)

    stacks = {1: "one seed"} | {seeds: f"{seeds} seeds in a stack" for seeds in ((2,) if quick else (10, 20, 100))}
    return {
        "the thesis's code, as published": lambda: loop(lambda: peers.thesis_vit(THESIS), 20, published=True),
        "timm, eager, images on the GPU": lambda: loop(lambda: peers.timm_vit(FULL), 100),
        'timm, `torch.compile(mode="reduce-overhead")`, images on the GPU': compiled,
        **{f"this project, torch's engine, {text}": trainer(Trainer, seeds, 120) for seeds, text in list(stacks.items())[:2]},
        **{f"this project, fused engine, {text}": trainer(make, seeds, None) for seeds, text in stacks.items()},
    }


def time_subjects(listed: dict[str, Begin], rounds: int, say: Say, seconds: float) -> dict[str, list[float] | str]:
    """By label the seconds of every round, or why it cannot run."""
    found: dict[str, list[float] | str] = {}
    ready: dict[str, Callable[[], float]] = {}
    for label, begin in listed.items():
        try:
            ready[label] = begin()
        except Exception as error:  # a peer that is not installed, a compiler that is missing: the others are timed
            found[label] = first_line(error)
            say(f"{label}: {first_line(error)}")

    def measure(names: Sequence[str]) -> tuple[float, float]:
        (label,) = names
        try:
            return (math.nan if label in found else ready[label]()), 0.0  # the processor's load matters little here
        except Exception as error:  # no memory beside the others
            found[label] = first_line(error)
            say(f"{label}: {found[label]}")
            return math.nan, 0.0

    show = "{:.4f} s".format
    timings = run_rounds(list(ready), measure, rounds=rounds, say=say, repeat="timing", show=show, seconds=seconds)
    return {label: [one.value for one in timings if one.names == (label,)] for label in ready} | found


def covered(params: Params, device: torch.device) -> list[tuple[ModelSettings, list[str]]]:
    """The networks of the variants that the fused engine trains, each with these variants."""
    found: dict[str, tuple[ModelSettings, list[str]]] = {}
    for variant in params.variants:
        settings = params.resolve(variant)
        if why_not(settings, device) is None and isinstance(settings.model, ModelSettings):
            found.setdefault(settings.model.model_dump_json(), (settings.model, []))[1].append(variant)
    return list(found.values())


def time_variants(
    listed: Sequence[tuple[ModelSettings, list[str]]], dataset: Dataset, device: torch.device, make: ours.Make, until: float
) -> list[dict[str, Any]]:
    """Of each network the seconds of an epoch with ten seeds, as many as time allows; first ours of all, then torch's."""
    found: list[dict[str, Any]] = [{"variants": variants, "tokens": model.num_tokens} for model, variants in listed]
    for key, maker in (("fused", make), ("torch", Trainer)):
        for (model, _), entry in zip(listed, found, strict=True):
            if time.perf_counter() > until:
                break
            try:
                epoch = ours.epochs_of(maker, ours.variant(model, VARIANT_SEEDS, 3, 64), dataset, device)
                entry[key] = min(epoch(), epoch())
            except Exception as error:
                entry[f"{key}_failed"] = first_line(error)
    return found


def compile_kernel(model: ModelSettings) -> None:
    """So that the timings find it."""
    from pipeline.kernels.fused_vit import FusedVit

    with contextlib.suppress(Exception):  # the engine says it
        FusedVit(model, 1, loops.BATCH_SIZE, torch.device("cuda"))


def run(base: Path, dataset: Dataset, say: Say, *, rounds: int, quick: bool) -> None:
    """Times all of it and writes BASE-gpu.json and BASE-gpu.md."""
    device, start = torch.device("cuda"), time.perf_counter()
    networks = covered(load(), device)
    dataset = replace(dataset, test_images=dataset.test_images[:100], test_labels=dataset.test_labels[:100])  # tests are not timed here
    say(f"compiling the kernels of {len(networks)} networks")
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_kernel, [THESIS, *(model for model, _ in networks)]))
    facts: dict[str, Any] = {
        "machine": device_name("cuda"), **results.this_run(), "versions": versions("cuda") | {"timm": version("timm")},
        "data": dataset.name, "rounds": rounds, "quick": quick, "compile_seconds": time.perf_counter() - start,
    }  # fmt: skip
    listed = subjects(dataset, device, make=fused, rounds=rounds, quick=quick)
    facts["subjects"] = time_subjects(listed, rounds, say, start + SECONDS - time.perf_counter())
    write(base, facts)  # because a lent GPU may go before the variants are timed
    facts["variants"] = time_variants(networks, dataset, device, fused, start + SECONDS)
    write(base, facts)
    say(f"wrote {base}-gpu.md")


def version(distribution: str) -> str | None:
    """The installed version, or None."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def write(base: Path, facts: dict[str, Any]) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    write_json(base.with_name(f"{base.name}-gpu.json"), facts)
    write_text(base.with_name(f"{base.name}-gpu.md"), page(facts))


def page(facts: dict[str, Any]) -> str:
    """The tables in markdown."""
    alone = facts["subjects"].get("this project, fused engine, one seed")
    named = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    rows = []
    for label, seconds in facts["subjects"].items():
        if isinstance(seconds, str) or not seconds:
            rows.append((label, seconds or "not timed in time", ""))
        else:
            middle, least, most = (1000 * value for value in (median(seconds), min(seconds), max(seconds)))
            times = f"{middle / 1000 / median(alone):.3g}" if isinstance(alone, list) and alone else ""
            rows.append((label, f"{middle:,.1f} ({least:,.1f} to {most:,.1f})", times))
    text = (
        f"# On {facts['machine']}\n\nAn epoch of 60,000 images and one seed, batch 128, float32, the thesis's network. {facts['rounds']}"
        f" interleaved rounds in one run of {facts['date']}, commit {commit(facts)}, images: {facts['data']}. {named}.\n\n"
        f"{grid(('', 'ms: median (least to most)', 'times the fused engine alone'), rows)}\n"
    )
    if variants := [entry for entry in facts.get("variants", ()) if "fused" in entry]:
        hours = sum(entry["fused"] * len(entry["variants"]) for entry in variants) * 100 * 30 / 3600
        body = []
        for entry in variants:
            torchs = (f"{1000 * entry['torch']:,.1f}", f"{entry['torch'] / entry['fused']:.1f}") if "torch" in entry else ("", "")
            body.append((", ".join(entry["variants"]), str(entry["tokens"]), f"{1000 * entry['fused']:,.1f}", *torchs))
        text += (
            f"\nBy network, {VARIANT_SEEDS} seeds in a stack, ms for an epoch of one seed. 100 seeds of all these for 30 epochs take"
            f" {60 * hours:.0f} minutes, tests left out.\n\n{grid(('variants', 'tokens', 'fused', 'torch engine', 'times'), body)}\n"
        )
    return text
