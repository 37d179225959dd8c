"""One timing in a process of its own: `python -m benchmarks.measure NAME ...` prints it as one line of JSON.

A fresh process per timing keeps one implementation's threads, caches and allocator out of the next one's time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import images, loops, ours, peers
from benchmarks.loops import Timing
from benchmarks.reference import reference_vit, thesis_vit
from pipeline.data.datasets import Dataset
from pipeline.errors import run_command
from pipeline.models import count_flops
from pipeline.params import ModelSettings
from pipeline.timing.load import LoadMeter

_MATRIX_SIDE = 2048

# The thesis's configuration (chapter 4.1.1 and its published code), whatever params.yaml says today.
THESIS = ModelSettings(
    architecture="vit", patch=4, dim=32, heads=8, blocks=3, mlp_dim=32, attention="sliced", position="learned", pool="cls",
    cls_insert="expand", cls_init="normal", norm="pre", norm_eps=1e-5, final_norm=False, residual="input", score_scale=True, memory=0,
    activation="gelu", embed="linear", dropout=0.0, attention_dropout=0.0, mlp_dropout=0.0,
)  # fmt: skip
FULL = THESIS.model_copy(update={"attention": "full", "final_norm": True})
FIRST = THESIS.model_copy(update={"pool": "first", "cls_insert": "none"})


@dataclass(frozen=True)
class Task:
    dataset: Dataset
    device: torch.device
    threads: int
    warmup: int
    steps: int | None


@dataclass(frozen=True)
class Implementation:
    """What is timed.

    Attributes:
        label: its row's name on the page.
        steps: how many steps are timed unless whole epochs are.
        run: times it.
        devices: where it runs.
        requires: the distribution that it needs, if that is no dependency of the project.
        architecture: the settings with the same arithmetic, for the share of the matrix rate; None where that is not comparable.
    """

    label: str
    steps: int
    run: Callable[[Task], Timing]
    devices: tuple[str, ...] = ("cpu", "cuda")
    requires: str | None = None
    architecture: ModelSettings | None = THESIS


def _loop(
    build: Callable[[ModelSettings], nn.Module], settings: ModelSettings, *, preloaded: bool, published: bool
) -> Callable[[Task], Timing]:
    def run(task: Task) -> Timing:
        epochs = loops.preloaded_epochs(task.dataset, task.device) if preloaded else loops.loader_epochs(task.dataset)
        return loops.time_training(
            lambda: build(settings),
            epochs,
            device=task.device,
            warmup=task.warmup,
            steps=task.steps,
            fused=not published,
            read_each_loss=published,
        )

    return run


def _stack(settings: ModelSettings, num_seeds: int, *, one_thread: bool = False) -> Callable[[Task], Timing]:
    def run(task: Task) -> Timing:
        threads = 1 if one_thread else task.threads
        return ours.time_stack(settings, task.dataset, num_seeds, device=task.device, threads=threads, steps=task.steps)

    return run


def _processes(settings: ModelSettings, num_seeds: int) -> Callable[[Task], Timing]:
    return lambda task: ours.time_processes(settings, task.dataset, num_seeds, processes=task.threads, steps=task.steps)


def _peer(label: str, build: Callable[[ModelSettings], nn.Module], package: str, name: str) -> dict[str, Implementation]:
    def entry(how: str, preloaded: bool) -> Implementation:
        run = _loop(build, FULL, preloaded=preloaded, published=False)
        return Implementation(f"{label}, {how}", 90, run, requires=package, architecture=FULL)

    return {f"{name}-loader": entry("DataLoader", False), f"{name}-preloaded": entry("preloaded", True)}


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": Implementation("reference", 8, _loop(reference_vit, THESIS, preloaded=False, published=True), architecture=None),
    "thesis": Implementation(
        "thesis, as published (first patch)", 60, _loop(thesis_vit, FIRST, preloaded=False, published=True), architecture=FIRST
    ),
    "thesis-cls": Implementation(
        "thesis, as published (class token by loop)", 60, _loop(thesis_vit, THESIS, preloaded=False, published=True)
    ),
    **_peer("timm", peers.timm_vit, "timm", "timm"),
    **_peer("vit-pytorch", peers.vit_pytorch_vit, "vit-pytorch", "vit-pytorch"),
    **_peer("transformers", peers.huggingface_vit, "transformers", "transformers"),
    "ours-thread": Implementation("ours, 1 seed, 1 thread", 240, _stack(THESIS, 1, one_thread=True), devices=("cpu",)),
    "ours-threads": Implementation("ours, 1 seed, a thread a core", 240, _stack(THESIS, 1), devices=("cpu",)),
    "ours-5": Implementation("ours, 5 seeds, a process a core", 120, _processes(THESIS, 5), devices=("cpu",)),
    "ours-10": Implementation("ours, 10 seeds, a process a core", 120, _processes(THESIS, 10), devices=("cpu",)),
    "ours-full-10": Implementation(
        "ours, full attention and last norm (timm's weights), 10 seeds", 120, _processes(FULL, 10), devices=("cpu",), architecture=FULL
    ),
    "stack-1": Implementation("ours, 1 seed", 469, _stack(THESIS, 1), devices=("cuda",)),
    "stack-5": Implementation("ours, stack of 5 seeds", 469, _stack(THESIS, 5), devices=("cuda",)),
    "stack-10": Implementation("ours, stack of 10 seeds", 469, _stack(THESIS, 10), devices=("cuda",)),
    "stack-full-10": Implementation(
        "ours, full attention and last norm (timm's weights), stack of 10 seeds",
        469,
        _stack(FULL, 10),
        devices=("cuda",),
        architecture=FULL,
    ),
}


def epoch_flops(settings: ModelSettings) -> int:
    """Arithmetic of training on 60,000 images: a backward pass costs two forward ones."""
    return 3 * images.NUM_TRAIN * count_flops(settings)


def matrix_rate(device: torch.device) -> dict[str, float]:
    """Operations a second of an fp32 product of two square matrices: the median of several, on all of torch's threads."""
    torch.backends.cuda.matmul.allow_tf32 = False
    left, right = torch.randn(2, _MATRIX_SIDE, _MATRIX_SIDE, device=device)
    out = torch.empty_like(left)
    seconds = []
    with LoadMeter() as meter:
        for _ in range(12):
            start = time.perf_counter()
            torch.mm(left, right, out=out)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    return {"flops_per_second": 2 * _MATRIX_SIDE**3 / sorted(seconds)[len(seconds) // 2], "foreign": meter.foreign}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument("name", choices=[*IMPLEMENTATIONS, "ours", "matrix", "profile"])
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--steps", type=int, help="left out: a whole epoch")
    parser.add_argument("--seeds", type=int, default=1, help="of `ours`")
    parser.add_argument("--patch", type=int, default=THESIS.patch, help="of `ours`")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    result: dict[str, Any]
    if arguments.name == "matrix":
        result = matrix_rate(device)
    else:
        dataset = images.load(arguments.data)
        if arguments.name == "profile":
            result = {"operators": ours.profile(THESIS, dataset, device=device, steps=arguments.steps)}
        else:
            task = Task(dataset, device, arguments.threads, arguments.warmup, arguments.steps)
            timing = _run(arguments, task)
            result = dataclasses.asdict(timing) | {"epoch_seconds": timing.epoch_seconds}
    print(json.dumps(result), flush=True)


def _run(arguments: argparse.Namespace, task: Task) -> Timing:
    if arguments.name != "ours":
        return IMPLEMENTATIONS[arguments.name].run(task)
    settings = THESIS.model_copy(update={"patch": arguments.patch})
    return (_stack if arguments.device == "cuda" else _processes)(settings, arguments.seeds)(task)


if __name__ == "__main__":
    run_command(main)
