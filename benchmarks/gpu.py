"""`python -m benchmarks --gpu`: an epoch on a GPU by the thesis's loop, timm, torch's stack and the fused engine, then by variant.

All of it runs in one process and within `SECONDS`, in interleaved rounds of a few steps. Times are of an epoch of 60,000 images and one
seed. What differs from `benchmarks.runner`: a start of torch takes longer here than a timing, and the processor's load matters little.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import images, loops, ours, results, runner
from benchmarks.measure import FULL, IMPLEMENTATIONS, THESIS, Task
from benchmarks.peers import timm_vit
from pipeline.data.datasets import Dataset
from pipeline.errors import first_line
from pipeline.files import write_json, write_text
from pipeline.params import ModelSettings, Params, VariantSettings, load
from pipeline.provenance import device_name, versions
from pipeline.timing.load import LoadMeter
from pipeline.timing.rounds import Say, run_rounds
from pipeline.training.engine import Trainer, set_reproducible
from pipeline.training.fused import make_trainer, why_not

SECONDS = 340.0
VARIANT_SEEDS = 10
Make = Callable[[VariantSettings, Dataset, Sequence[int], torch.device], Trainer]


@dataclass(frozen=True)
class Subject:
    """What is timed. `begin` makes it ready, and gives a function that returns the seconds of a seed's epoch."""

    label: str
    seeds: int
    begin: Callable[[], Callable[[], float]]


def subjects(dataset: Dataset, device: torch.device, *, make: Make, rounds: int, quick: bool) -> dict[str, Subject]:
    """What the table has, by name. `make` makes our trainers."""
    few = 3 if quick else 20

    def loop(name: str, steps: int) -> Callable[[], Callable[[], float]]:
        task = Task(dataset, device, torch.get_num_threads(), 2, few if quick else steps)

        def seconds() -> float:
            with _as_users_run_it():
                return IMPLEMENTATIONS[name].run(task).epoch_seconds

        return lambda: seconds

    def compiled() -> Callable[[], float]:
        with _as_users_run_it():
            model: nn.Module = torch.compile(timm_vit(FULL).to(device), mode="reduce-overhead")  # type: ignore[assignment]

            def seconds() -> float:
                with _as_users_run_it():
                    epochs = loops.preloaded_epochs(dataset, device)
                    steps = few if quick else 200
                    # The first steps of a call are those in which its graphs are recorded.
                    return loops.time_training(
                        lambda: model, epochs, device=device, warmup=5, steps=steps, fused=True, read_each_loss=False
                    ).epoch_seconds

            seconds()
        return seconds

    def trainer(make: Make, seeds: int, steps: int | None) -> Callable[[], Callable[[], float]]:
        return functools.partial(
            epochs_of, make, ours.variant(THESIS, seeds, rounds + 1), ours.cut(dataset, few if quick else steps), device
        )

    stacks = (1, 2) if quick else (1, 10, 20, 100)
    return {
        "thesis": Subject("the thesis's code, as published", 1, loop("thesis-cls", 20)),
        "timm": Subject("timm, eager, images on the GPU", 1, loop("timm-preloaded", 100)),
        "timm-compiled": Subject('timm, `torch.compile(mode="reduce-overhead")`, images on the GPU', 1, compiled),
        **{
            f"torch-{seeds}": Subject(f"this project, torch's engine, {_of(seeds)}", seeds, trainer(Trainer, seeds, 120))
            for seeds in stacks[:2]
        },
        **{f"fused-{seeds}": Subject(f"this project, fused engine, {_of(seeds)}", seeds, trainer(make, seeds, None)) for seeds in stacks},
    }


def epochs_of(make: Make, settings: VariantSettings, dataset: Dataset, device: torch.device) -> Callable[[], float]:
    """Trains an epoch, and gives the function that trains the next one and returns the seconds of a seed's 469 steps."""
    set_reproducible(device)
    seeds = settings.train.seeds
    trainer = make(settings, dataset, seeds, device)
    trainer.run_epoch()
    steps = ours.num_steps(dataset)

    def seconds() -> float:
        set_reproducible(device)
        return trainer.run_epoch()[0].seconds / (steps * len(seeds)) * loops.EPOCH_STEPS

    return seconds


@contextlib.contextmanager
def _as_users_run_it() -> Iterator[None]:
    """Without the deterministic algorithms that our engine asks for."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def time_subjects(listed: dict[str, Subject], rounds: int, say: Say, seconds: float) -> dict[str, dict[str, Any]]:
    """The seconds of every round by subject; one that cannot run has the reason instead."""
    found: dict[str, dict[str, Any]] = {}
    ready: dict[str, Callable[[], float]] = {}
    for name, subject in listed.items():
        found[name] = {"label": subject.label, "seeds": subject.seeds, "epoch_seconds": []}
        try:
            ready[name] = subject.begin()
        except Exception as error:  # a peer that is not installed, a compiler that is missing: the others are timed
            found[name]["failed"] = first_line(error)
            say(f"{subject.label}: {first_line(error)}")

    def measure(names: Sequence[str]) -> tuple[float, float]:
        (name,) = names
        with LoadMeter() as load:
            value = ready[name]()
        return value, load.foreign

    timings = run_rounds(
        list(ready), measure, rounds=rounds, say=say, repeat="timing", show="{:.4f} s".format, attempts=1, threshold=1.0, seconds=seconds
    )
    for timing in timings:
        found[timing.names[0]]["epoch_seconds"].append(timing.value)
    return found


def covered(params: Params, device: torch.device) -> list[tuple[ModelSettings, list[str]]]:
    """The networks of the variants that the fused engine trains, each with these variants."""
    found: dict[str, tuple[ModelSettings, list[str]]] = {}
    for variant in params.variants:
        settings = params.resolve(variant)
        if why_not(settings, device) is None and isinstance(settings.model, ModelSettings):
            found.setdefault(settings.model.model_dump_json(), (settings.model, []))[1].append(variant)
    return list(found.values())


def time_variants(
    listed: Sequence[tuple[ModelSettings, list[str]]], dataset: Dataset, device: torch.device, make: Make, until: float
) -> list[dict[str, Any]]:
    """Of each network the seconds of an epoch with ten seeds, as many as time allows; first ours of all, then torch's."""
    few = ours.cut(dataset, 64)
    found: list[dict[str, Any]] = [{"variants": variants, "tokens": model.num_tokens} for model, variants in listed]
    for key, maker in (("fused", make), ("torch", Trainer)):
        for (model, _), entry in zip(listed, found, strict=True):
            if time.perf_counter() > until:
                break
            try:
                seconds = epochs_of(maker, ours.variant(model, VARIANT_SEEDS, 3), few, device)
                entry[key] = min(seconds(), seconds())
            except Exception as error:
                entry[f"{key}_failed"] = first_line(error)
    return found


def compile_all(models: Iterable[ModelSettings]) -> None:
    """Compiles kernels in as many processes as there are cores, so that the timings find them."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), mp_context=context) as pool:
        list(pool.map(_compile, models))


def _compile(model: ModelSettings) -> None:
    from pipeline.kernels.fused_vit import FusedVit

    with contextlib.suppress(Exception):  # the engine says it
        FusedVit(model, 1, loops.BATCH_SIZE, torch.device("cuda"))


def run(base: Path, data: Path, say: Say, *, rounds: int, quick: bool) -> None:
    """Times all of it and writes BASE-gpu.json and BASE-gpu.md."""
    device, start = torch.device("cuda"), time.perf_counter()
    dataset = images.load(data)
    networks = covered(load(), device)
    say(f"compiling the kernels of {len(networks)} networks")
    compile_all([THESIS, *(model for model, _ in networks)])
    facts: dict[str, Any] = {
        "machine": device_name("cuda"), **results.this_run(), "versions": versions("cuda") | {"timm": runner.version("timm")},
        "data": dataset.name, "rounds": rounds, "quick": quick, "compile_seconds": time.perf_counter() - start,
    }  # fmt: skip
    listed = subjects(dataset, device, make=make_trainer, rounds=rounds, quick=quick)
    facts["subjects"] = time_subjects(listed, rounds, say, start + SECONDS - time.perf_counter())
    write(base, facts)  # because a lent GPU may go before the variants are timed
    facts["variants"] = time_variants(networks, dataset, device, make_trainer, start + SECONDS)
    write(base, facts)
    say(f"wrote {base}-gpu.md")


def write(base: Path, facts: dict[str, Any]) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    write_json(base.with_name(f"{base.name}-gpu.json"), facts)
    write_text(base.with_name(f"{base.name}-gpu.md"), page(facts))


def page(facts: dict[str, Any]) -> str:
    """The tables in markdown."""
    timed = {name: entry for name, entry in facts["subjects"].items() if entry["epoch_seconds"]}
    ours_alone = statistics.median(timed["fused-1"]["epoch_seconds"]) if "fused-1" in timed else None
    commit = (facts["commit"] or "none")[:12] + " with changes" * bool(facts["dirty"])
    named = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    lines = [
        f"# On {facts['machine']}",
        "",
        f"An epoch of 60,000 images and one seed, batch 128, float32, the thesis's network. {facts['rounds']} interleaved rounds in one run"
        f" of {facts['date']}, commit {commit}, images: {facts['data']}. {named}.",
        "",
        "| | ms: median (least to most) | times the fused engine alone |",
        "|---|---:|---:|",
    ]
    for entry in facts["subjects"].values():
        seconds = entry["epoch_seconds"]
        if not seconds:
            lines.append(f"| {entry['label']} | {entry.get('failed', 'not timed in time')} | |")
            continue
        middle, least, most = (1000 * value for value in (statistics.median(seconds), min(seconds), max(seconds)))
        times = f"{middle / 1000 / ours_alone:.3g}" if ours_alone else ""
        lines.append(f"| {entry['label']} | {middle:,.1f} ({least:,.1f} to {most:,.1f}) | {times} |")
    if variants := [entry for entry in facts.get("variants", ()) if "fused" in entry]:
        hours = sum(entry["fused"] * len(entry["variants"]) for entry in variants) * 100 * 30 / 3600
        count = sum(len(entry["variants"]) for entry in variants)
        lines += [
            "",
            f"By network, {VARIANT_SEEDS} seeds in a stack, ms for an epoch of 60,000 images and one seed. 100 seeds of these {count}"
            f" variants for 30 epochs take {60 * hours:.0f} minutes, tests left out.",
            "",
            "| variants | tokens | fused | torch's engine | times |",
            "|---|---:|---:|---:|---:|",
        ]
        for entry in variants:
            torchs = f"{1000 * entry['torch']:,.1f} | {entry['torch'] / entry['fused']:.1f}" if "torch" in entry else " | "
            lines.append(f"| {', '.join(entry['variants'])} | {entry['tokens']} | {1000 * entry['fused']:,.1f} | {torchs} |")
    return "\n".join(lines) + "\n"


def _of(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds in a stack"
