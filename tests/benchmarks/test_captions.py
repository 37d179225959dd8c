"""That captioners are timed at what they do."""

from __future__ import annotations

import pytest
import torch

from benchmarks import captions
from pipeline.captioning.grammar import EOS, MAX_WORDS, PAD
from pipeline.params import Params


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("variant", ["caption", "caption-cnn-lstm"])
def test_captions_have_the_greatest_length_and_steps_learn(study: Params, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "SCENES", 4)
    settings = study.resolve(variant)
    few = settings.model_copy(update={"train": settings.train.model_copy(update={"batch_size": 4})})
    for kind in ("greedy", "beam"):
        written = captions._job(few, kind, torch.device("cpu"))()
        words = written if isinstance(written, torch.Tensor) else written[0]  # type: ignore[index]
        assert words.shape == (4, MAX_WORDS + 1)
        assert not ((words == PAD) | (words == EOS)).any()
    losses: list[float] = []
    real = captions.word_losses

    def kept(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        found = real(logits, words)
        losses.append(found.detach().mean().item())
        return found

    monkeypatch.setattr(captions, "word_losses", kept)
    job = captions._job(few, "step", torch.device("cpu"))
    for _ in range(20):
        job()
    assert len(losses) == 20 * captions.STEPS
    assert losses[-1] < 0.8 * losses[0]
