"""What is timed computes what it should, in rounds; `tests/stages` has them run whole. No test asserts a speed."""

import math
import multiprocessing
import threading
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pipeline.captioning.decoding import greedy
from pipeline.captioning.grammar import BOS, EOS, PAD
from pipeline.data.datasets import load
from pipeline.models import VisionTransformer
from pipeline.params import Params
from pipeline.system.errors import UserError
from pipeline.timing import measure, steps
from pipeline.timing.subjects import entries
from tests.timing.conftest import SUBJECTS

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
    steps.make(entry, small, load(arrays), CPU, 1, threads=3)()
    assert torch.get_num_threads() == 1  # as in all tests
    assert seen == {threads}


@pytest.mark.parametrize("subject", ["caption", "caption-cnn-lstm"])
def test_words_under_the_clock_are_those_of_greedy_search(study: Params, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")  # its heads have a width for which the kernel would be compiled
    longest = [entry for entry in entries(study, 4) if (entry.kind, entry.subject) == ("decoding", subject)][-1]
    work = steps.DecodingSteps(longest, CPU, 1)
    with torch.no_grad():
        work.model.head.bias[[PAD, BOS, EOS]] = -100.0  # so that no caption ends
        written = work.write(work.model.start(work.images))
    assert written.tolist() == greedy(work.model, work.images).tolist()
    assert work() > 0


def test_a_network_without_attention_takes_steps_too(study: Params, arrays: Path) -> None:
    """As published, where a transformer would loop over its heads."""
    entry = next(entry for entry in entries(study, 4) if (entry.kind, entry.way, entry.subject) == ("step", "published", "lstm"))
    assert steps.make(entry, study, load(arrays), CPU, 1, threads=1)() > 0


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


def test_a_round_gives_the_seconds_of_one_step_by_name(small: Params, arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "make", lambda entry, params, dataset, device, steps, threads: lambda: 0.5 * steps)
    listed = {entry.name: (entry, steps) for entry, steps in zip(entries(small, 4)[:2], (3, 7), strict=True)}
    seconds, _ = measure.time_round(small, load(arrays), CPU, listed, 1, list(reversed(listed)))
    assert list(seconds.items()) == [(name, 0.5) for name in listed]


@pytest.mark.slow
def test_a_round_whose_process_is_killed_is_one_sentence(small: Params, arrays: Path) -> None:
    """Each has a process of its own."""
    subjects = {name: SUBJECTS[name] for name in ("base", "reference")}
    quick = small.model_copy(update={"timing": small.timing.model_copy(update={"seconds": 3600.0, "tokens": (4,), "subjects": subjects})})
    killed = threading.Event()

    def kill() -> None:
        while not killed.wait(0.05):
            for process in multiprocessing.active_children():
                process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(UserError, match=r"ended early \(out of memory\?\); run the same command"):
            measure.measure(quick, load(arrays), CPU, lambda line: None)
    finally:
        killed.set()
        thread.join()
    assert not multiprocessing.active_children()
