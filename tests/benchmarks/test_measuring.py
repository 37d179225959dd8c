"""The timing of loops and of our engine: each against what it has to see."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import loops, ours
from benchmarks.measure import FIRST, THESIS, time_one
from benchmarks.peers import thesis_vit
from pipeline.data.datasets import Dataset

CPU = torch.device("cpu")
Blobs = Callable[[int, int], Dataset]


def test_preloaded_epoch_gives_every_image_once(blobs: Blobs) -> None:
    dataset = blobs(300, 50)
    batches = list(loops.preloaded_epochs(dataset, CPU)())
    assert [len(labels) for _, labels in batches] == [128, 128, 44]
    seen = torch.cat([pixels for pixels, _ in batches]).mul(255).round().to(torch.uint8).flatten(1)
    assert sorted(map(bytes, seen.numpy())) == sorted(map(bytes, dataset.train_images.reshape(300, -1)))


def test_loader_gives_the_pixels_that_preloading_gives(blobs: Blobs) -> None:
    dataset = blobs(20, 50)
    ((loaded, labels),) = loops.loader_epochs(dataset)()
    ((preloaded, other),) = loops.preloaded_epochs(dataset, CPU)()
    order, again = loaded.flatten(1).sum(1).argsort(), preloaded.flatten(1).sum(1).argsort()
    assert torch.equal(loaded[order], preloaded[again])
    assert torch.equal(labels[order], other[again])


def test_timed_steps_are_counted_and_scaled(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 4.0)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    epochs = loops.preloaded_epochs(blobs(10 * 128, 50), CPU)
    timing = loops.time_training(lambda: thesis_vit(FIRST), epochs, device=CPU, steps=2, published=True)
    assert (timing.steps, timing.parameters, timing.epoch_seconds) == (2, 10_602, 4.0 / 2 * 469)


@pytest.mark.slow
def test_our_engine_is_timed_through_processes_and_alone(arrays: Path) -> None:
    processes = ours.time_processes(THESIS, arrays, 2, processes=1, steps=2)
    assert (processes.seeds, processes.steps, processes.parameters) == (2, 2, 10_666)
    assert processes.checkpoint_seconds > 0
    assert processes.epoch_seconds > 0
    alone = time_one("ours-thread", arrays, 3, 2)
    assert (alone["steps"], alone["seeds"]) == (3, 1)
    assert alone["epoch_seconds"] > 0
