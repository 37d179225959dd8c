"""Times everything that claims about speed need, interleaved, each round in a process of its own, and measures profiles and memory.

Rounds of one process share where its memory lies and what its allocator holds, so an interval over them would leave out what differs from
one process to the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from pipeline.data.datasets import Dataset
from pipeline.kernels import attention_path
from pipeline.params import ModelSettings, Params
from pipeline.system.errors import UserError
from pipeline.system.processes import die_with_parent
from pipeline.system.provenance import device_name, versions
from pipeline.timing.load import LoadMeter
from pipeline.timing.profile import profile, saved_bytes
from pipeline.timing.rounds import THRESHOLD, Say, run_rounds
from pipeline.timing.steps import AttentionSteps, batches, build, make
from pipeline.timing.subjects import Entry, entries
from pipeline.training.engine import keep_freed_memory, set_reproducible

CPU_GROWTH_BATCH = 16  # as published, 784 tokens keep 64 MB per image for the backward pass: 1 GB here, but 8 GB for 128 images
PROFILED_STEPS = 3  # one if params ask for few steps, because the profiler's bookkeeping takes a second per step
ORDER_SEED = 0


def measure(params: Params, dataset: Dataset, device: torch.device, say: Say) -> dict[str, Any]:
    """The content of timing/DEVICE.json; `pipeline.timing.results`, which reads it, describes the fields.

    Args:
        say: gets lines about the progress.

    Raises:
        UserError: the process of a round ended early (status 1).
        FloatingPointError: a model's loss is not finite.
    """
    threads = torch.get_num_threads()  # what torch takes by itself
    set_reproducible(device)
    keep_freed_memory()  # as every training does
    settings = params.timing
    listed = entries(params, growth_batch(params.base, max(settings.tokens), device))
    # A quarter of the time is for what is timed; the rest for processes to start and warm up, and for rounds that have to be repeated.
    slot = settings.seconds / settings.rounds / len(listed) / 4
    planned = {entry.name: (entry, *_plan(entry, params, dataset, device, slot, threads)) for entry in listed}
    if device.type == "cuda":
        torch.cuda.empty_cache()  # for the processes of the rounds
    many = f"up to {settings.rounds} rounds" if settings.rounds > 1 else "one round"
    say(f"{len(listed)} measurements are planned; {many} in at most {settings.seconds:g} s follow")
    work = {name: (entry, steps) for name, (entry, steps, _) in planned.items()}
    time_round = partial(_in_process, params, dataset, device, work, threads)
    rounds = run_rounds(
        list(planned), time_round, rounds=settings.rounds, seconds=settings.seconds, say=say, repeat="round", seed=ORDER_SEED
    )
    profiles = {}
    largest = str(max(settings.tokens))
    for entry in listed:
        if (
            entry.nested
            or not isinstance(entry.model, ModelSettings)
            or not (entry.kind == "step" or (entry.kind == "growth" and entry.subject == largest))
        ):
            continue
        steps = PROFILED_STEPS if entry.kind == "step" and settings.steps >= 10 else 1
        profiles[entry.name] = profile(entry, params, dataset, device, steps, threads)
    say(f"{len(profiles)} profiles taken")
    return {
        "machine": {
            "device": device.type,
            "name": device_name(device.type),
            "cores": os.cpu_count(),
            "threads": threads,
            "versions": versions(device.type),
        },
        "dataset": {"name": dataset.name, "digest": dataset.digest, "images": len(dataset.train_labels)},
        "settings": {
            **settings.model_dump(mode="json", exclude={"subjects", "labels"}),
            "batch_size": params.train.batch_size,
            "threshold": THRESHOLD,
            "order_seed": ORDER_SEED,
        },
        "measurements": [_describe(entry, steps, peak, device, dataset) for entry, steps, peak in planned.values()],
        "rounds": [{"foreign": _short(entry.foreign), "kept": entry.kept, "seconds": _rounded(entry.value)} for entry in rounds],
        "profiles": {
            name: {"seconds": _short(found["seconds"]), "groups": _rounded(found["groups"]), "operators": found["operators"]}
            for name, found in profiles.items()
        },
    }


def growth_batch(model: ModelSettings, tokens: int, device: torch.device) -> int:
    """Images per step, the same for all token counts: `CPU_GROWTH_BATCH`; on a GPU what fits half of its free memory."""
    if device.type == "cpu":
        return CPU_GROWTH_BATCH
    free, _ = torch.cuda.mem_get_info(device)
    # As published, every head of every block keeps its attention weights, and the backward pass needs a few more such tensors.
    one_image = 4 * tokens**2 * model.heads * (model.blocks + 2)
    return max(1, 2 ** int(np.log2(max(1, free // 2 // one_image))))


def _plan(entry: Entry, params: Params, dataset: Dataset, device: torch.device, slot: float, threads: int) -> tuple[int, int]:
    """How many steps fit into `slot` seconds (at least one), and on a GPU the peak memory of one in bytes."""
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    work = make(entry, params, dataset, device, 1, threads)
    work()
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0
    return max(1, min(params.timing.steps, int(slot / work()))), peak


def _in_process(
    params: Params, dataset: Dataset, device: torch.device, listed: Mapping[str, tuple[Entry, int]], threads: int, order: Sequence[str]
) -> tuple[dict[str, float], float]:
    """`time_round` in a new process. Raises UserError if it ends early."""
    with ProcessPoolExecutor(1, get_context("spawn"), die_with_parent, (os.getpid(),)) as pool:
        try:
            return pool.submit(time_round, params, dataset, device, listed, threads, order).result()
        except BrokenProcessPool:
            raise UserError("A process of the timing stage ended early (out of memory?); run the same command again.", status=1) from None


def time_round(
    params: Params, dataset: Dataset, device: torch.device, listed: Mapping[str, tuple[Entry, int]], threads: int, order: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Warms everything up and times each once.

    Args:
        listed: by name, what to time and its number of steps.
        threads: of a step as published.
        order: all names, in the order in which they are timed.

    Returns:
        Seconds of one step by name, in the order of `listed`; and the share of the machine that others used while they were timed.
    """
    set_reproducible(device)
    keep_freed_memory()
    works = {name: make(entry, params, dataset, device, steps, threads) for name, (entry, steps) in listed.items()}
    for work in works.values():
        work()  # compiles and allocates
    with LoadMeter() as load:
        seconds = {name: works[name]() / listed[name][1] for name in order}
    return {name: seconds[name] for name in listed}, load.foreign


def _describe(entry: Entry, steps: int, peak: int, device: torch.device, dataset: Dataset) -> dict[str, Any]:
    model = entry.model
    tokens, path = entry.words, "none"
    if isinstance(model, ModelSettings):
        tokens, path = model.num_tokens, "loop over heads"
        if entry.way == "fast":
            path = attention_path(device=device, head_dim=model.dim // model.heads, tokens=tokens)
    described: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "way": entry.way,
        "subject": entry.subject,
        "tokens": tokens,
        "batch": entry.batch,
        "steps": steps,
        "attention": path,
        "model": model.model_dump(mode="json"),
    }
    if entry.kind == "attention":
        described["saved_bytes"] = saved_bytes(AttentionSteps(entry, device, 1).forward)
    elif entry.kind == "growth":
        ((images, _),) = batches(dataset, entry.batch, 1, device)
        built = build(entry).to(device).train()
        described["saved_bytes"] = saved_bytes(lambda: built(images), built.parameters())
    if device.type == "cuda" and entry.kind in ("step", "growth"):
        described["peak_bytes"] = peak
    return described


def _short(number: float) -> float:
    """Rounded to five digits, more than the clocks' precision."""
    return float(f"{number:.5g}")


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(number) for name, number in numbers.items()}
