"""What is timed on a CPU, and one timing of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import loops, ours, peers
from benchmarks.loops import Timing
from pipeline.data import datasets
from pipeline.params import ModelSettings

_CPU = torch.device("cpu")

# The thesis's configuration (chapter 4.1.1 and its published code), whatever params.yaml says today.
THESIS = ModelSettings(
    architecture="vit", patch=4, dim=32, heads=8, blocks=3, mlp_dim=32, attention="sliced", position="learned", pool="cls",
    cls_insert="expand", cls_init="normal", norm="pre", norm_eps=1e-5, final_norm=False, residual="input", score_scale=True, memory=0,
    activation="gelu", embed="linear", dropout=0.0, attention_dropout=0.0, mlp_dropout=0.0,
)  # fmt: skip
FULL = THESIS.model_copy(update={"attention": "full", "final_norm": True})
FIRST = THESIS.model_copy(update={"pool": "first", "cls_insert": "none"})

Run = Callable[[Path, int, int], Timing]  # of the folder of the prepared data set, the number of steps, and of threads


class Implementation(NamedTuple):
    """What is timed: its row's name on the page, how many steps, how, and the distribution that it needs, if the project does not."""

    label: str
    steps: int
    run: Run
    requires: str | None = None


def _loop(build: Callable[[ModelSettings], nn.Module], settings: ModelSettings, *, preloaded: bool, published: bool = False) -> Run:
    def run(arrays: Path, steps: int, threads: int) -> Timing:
        dataset = datasets.load(arrays)
        torch.set_num_threads(threads)
        epochs = loops.preloaded_epochs(dataset, _CPU) if preloaded else loops.loader_epochs(dataset)
        return loops.time_training(lambda: build(settings), epochs, device=_CPU, steps=steps, published=published)

    return run


def _processes(settings: ModelSettings, num_seeds: int) -> Run:
    return lambda arrays, steps, threads: ours.time_processes(settings, arrays, num_seeds, processes=threads, steps=steps)


def _library(name: str, build: Callable[[ModelSettings], nn.Module]) -> dict[str, Implementation]:
    return {
        f"{name}-loader": Implementation(f"{name}, DataLoader", 90, _loop(build, FULL, preloaded=False), name),
        f"{name}-preloaded": Implementation(f"{name}, preloaded", 90, _loop(build, FULL, preloaded=True), name),
    }


_FIRST = _loop(peers.thesis_vit, FIRST, preloaded=False, published=True)
_CLS = _loop(peers.thesis_vit, THESIS, preloaded=False, published=True)
IMPLEMENTATIONS: dict[str, Implementation] = {
    "thesis": Implementation("thesis, as published (first patch)", 60, _FIRST),
    "thesis-cls": Implementation("thesis, as published (class token by loop)", 60, _CLS),
    **_library("timm", peers.timm_vit),
    **_library("vit-pytorch", peers.vit_pytorch_vit),
    **_library("transformers", peers.huggingface_vit),
    "ours-thread": Implementation("ours, 1 seed, 1 thread", 240, lambda arrays, steps, _: ours.time_alone(THESIS, arrays, steps, 1)),
    "ours-threads": Implementation("ours, 1 seed, a thread a core", 240, lambda *given: ours.time_alone(THESIS, *given)),
    "ours-5": Implementation("ours, 5 seeds, a process a core", 120, _processes(THESIS, 5)),
    "ours-10": Implementation("ours, 10 seeds, a process a core", 120, _processes(THESIS, 10)),
    "ours-full-10": Implementation("ours, full attention and last norm (timm's weights), 10 seeds", 120, _processes(FULL, 10)),
}


def time_one(name: str, arrays: Path, steps: int, threads: int) -> dict[str, Any]:
    """One timing, for a process of its own: it keeps one implementation's threads, caches and allocator out of the next one's time."""
    return dataclasses.asdict(IMPLEMENTATIONS[name].run(arrays, steps, threads))
