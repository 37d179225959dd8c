"""What is timed computes what it should. No test asserts a speed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pipeline.data.datasets import load
from pipeline.models import VisionTransformer
from pipeline.params import Params
from pipeline.timing import steps
from pipeline.timing.subjects import entries

CPU = torch.device("cpu")


def test_both_attentions_under_the_clock_compute_the_same(small: Params) -> None:
    pair = [entry for entry in entries(small, 4) if entry.kind == "attention" and entry.subject == "16"]
    assert {entry.way for entry in pair} == {"published", "fast"}
    works = {entry.way: steps.AttentionSteps(entry, CPU, 1) for entry in pair}
    expected = F.scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in works["published"].inputs)).transpose(1, 2)
    for work in works.values():
        assert work() > 0
        torch.testing.assert_close(work.forward(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "way", "threads"), [("step", "published", 3), ("step", "fast", 1), ("growth", "published", 1), ("growth", "fast", 1)]
)
def test_only_a_step_as_published_has_torchs_own_threads(
    small: Params, arrays: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str, threads: int
) -> None:
    entry = next(entry for entry in entries(small, 4) if (entry.kind, entry.way) == (kind, way))
    seen: set[int] = set()
    embed = VisionTransformer.embed

    def watched(self: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return embed(self, images)

    monkeypatch.setattr(VisionTransformer, "embed", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as `measure` sets it
    try:
        steps.make(entry, small, load(arrays), CPU, 1, threads=3)()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert seen == {threads}


def test_a_step_whose_loss_is_not_finite_is_no_time(small: Params, arrays: Path) -> None:
    entry = next(entry for entry in entries(small, 4) if (entry.kind, entry.way) == ("step", "fast"))
    work = steps.make(entry, small, load(arrays), CPU, 1, 1)
    assert isinstance(work, steps.FastSteps)
    with torch.no_grad():
        work.trainer.stack.parameters[0].fill_(math.nan)
    with pytest.raises(FloatingPointError):
        work()


def test_images_are_gone_through_again_where_there_are_too_few(arrays: Path) -> None:
    dataset = load(arrays)
    count = len(dataset.train_labels)
    few = steps.part(dataset, count + 3)
    assert (few.train_images[count:] == dataset.train_images[:3]).all()
    assert (few.train_labels[count:] == dataset.train_labels[:3]).all()
    ((images, labels),) = steps.batches(dataset, 5, 1, CPU)
    assert images.shape == (5, 1, 28, 28)
    assert 0 <= images.min() < images.max() <= 1
    assert labels.tolist() == dataset.train_labels[:5].tolist()
