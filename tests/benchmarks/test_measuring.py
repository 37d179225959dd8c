"""Images and the timing of loops: each against what it has to see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import images, loops, ours
from benchmarks.measure import FIRST, THESIS
from benchmarks.reference import thesis_vit
from pipeline.data import datasets

CPU = torch.device("cpu")


def test_written_images_are_what_the_trainers_load(tmp_path: Path) -> None:
    dataset = images.synthetic(300, 50)
    images.write(dataset, tmp_path)
    loaded = datasets.load(tmp_path)
    for name in datasets.ARRAYS:
        assert np.array_equal(getattr(loaded, name), getattr(dataset, name))


def test_missing_or_small_data_are_replaced_by_noise_of_full_size(tmp_path: Path) -> None:
    images.write(images.synthetic(300, 50), tmp_path / "small")
    for directory in (tmp_path / "none", tmp_path / "small"):
        dataset = images.load(directory)
        assert dataset.name == images.SYNTHETIC
        assert dataset.train_images.shape == (60_000, 28, 28)


def test_preloaded_epoch_gives_every_image_once() -> None:
    dataset = images.synthetic(300, 50)
    batches = list(loops.preloaded_epochs(dataset, CPU)())
    assert [len(labels) for _, labels in batches] == [128, 128, 44]
    seen = torch.cat([pixels for pixels, _ in batches]).mul(255).round().to(torch.uint8).flatten(1)
    assert sorted(map(bytes, seen.numpy())) == sorted(map(bytes, dataset.train_images.reshape(300, -1)))


def test_loader_gives_the_pixels_that_preloading_gives() -> None:
    dataset = images.synthetic(20, 50)
    ((loaded, labels),) = loops.loader_epochs(dataset)()
    ((preloaded, other),) = loops.preloaded_epochs(dataset, CPU)()
    order, again = loaded.flatten(1).sum(1).argsort(), preloaded.flatten(1).sum(1).argsort()
    assert torch.equal(loaded[order], preloaded[again])
    assert torch.equal(labels[order], other[again])


def test_timed_steps_are_counted_and_scaled() -> None:
    dataset = images.synthetic(5 * 128, 50)
    timing = loops.time_training(
        lambda: thesis_vit(FIRST), loops.preloaded_epochs(dataset, CPU), device=CPU, warmup=1, steps=2, fused=True, read_each_loss=False
    )
    assert (timing.steps, timing.parameters) == (2, 10_602)
    assert timing.epoch_seconds == pytest.approx(timing.seconds / 2 * 469)
    whole = loops.time_training(
        lambda: thesis_vit(FIRST), loops.preloaded_epochs(dataset, CPU), device=CPU, warmup=1, steps=None, fused=False, read_each_loss=True
    )
    assert whole.steps == 5


@pytest.mark.parametrize(
    ("durations", "processes", "expected"),
    [([1, 1, 1, 1, 1], 2, 3), ([1, 1, 1, 1], 2, 2), ([4, 1, 1, 1], 2, 4), ([2, 3], 1, 5), ([2, 3], 8, 3)],
)
def test_makespan_is_when_the_last_process_ends(durations: list[float], processes: int, expected: float) -> None:
    assert ours.makespan(durations, processes) == expected


def test_our_engine_is_timed_through_processes_and_stacks() -> None:
    dataset = images.synthetic(3 * 128, 100)
    processes = ours.time_processes(THESIS, dataset, 2, processes=1, steps=2)
    assert (processes.seeds, processes.steps, processes.parameters) == (2, 2, 10_666)
    assert processes.checkpoint_seconds > 0
    stack = ours.time_stack(THESIS, dataset, 1, device=CPU, threads=1, steps=None)
    assert stack.steps == 3
    assert stack.seconds > 0


def test_the_profile_of_a_step_counts_its_calls() -> None:
    """Three blocks attend once each."""
    rows = ours.profile(THESIS, images.synthetic(2 * 128, 100), device=CPU, steps=2)
    assert sum(share for _, _, share in rows) == pytest.approx(1)
    calls = {name: count for name, count, _ in rows}
    assert calls["lab::sliced_attention_backward"] == 3  # a step's; forward passes are the test's, too
