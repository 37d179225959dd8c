"""Generation: writing captions of scenes by greedy search, by beam search, or by sampling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.captioning.grammar import BOS, EOS, MAX_WORDS, PAD
from pipeline.captioning.model import CaptionModel, State, evaluating
from pipeline.models.dropout import mix


@torch.no_grad()
def greedy(model: CaptionModel, images: Tensor) -> Tensor:
    """The caption of each image in which every word is the likeliest next one; of equally likely words the lowest id.

    Args:
        model: runs in evaluation mode, without dropout and with batch norm's running statistics; its mode is then restored.
        images: (image, channel, height, width) in [0, 1].

    Returns:
        (image, MAX_WORDS + 1) int64: the words, EOS, then PAD. PAD and BOS are never chosen as words; a caption without EOS is cut.
    """
    with evaluating(model):
        return _write(model, model.start(images), torch.arange(len(images), device=images.device), lambda scores, _: scores)


@torch.no_grad()
def beam(model: CaptionModel, images: Tensor, width: int, length_normalisation: float = 0.0) -> tuple[Tensor, Tensor]:
    """The best caption of each image that a beam search finds.

    A caption's score is log p / length^length_normalisation, where the length includes EOS. After every word the `width` best captions
    of an image are kept; ended ones stay as they are. Equal scores are ordered by the rank of their beam, then by the word's id.

    Args:
        model: as for `greedy`, which gives the same captions as a width of 1.
        images: (image, channel, height, width) in [0, 1].
        width: captions kept for each image.
        length_normalisation: 0 compares captions by their probability, which favours short ones; 1 by the mean log p of their words.

    Returns:
        The words, as for `greedy`, and the scores (image,).

    Raises:
        ValueError: `width` is below 1.
    """
    if width < 1:
        raise ValueError(f"a beam has a width of at least 1, not {width}")
    with evaluating(model):
        state = model.start(images)
        first = torch.arange(len(images), device=images.device)[:, None]  # each image's index, to be broadcast over its beams
        ids = torch.full((len(images), 1, MAX_WORDS + 1), PAD, device=images.device)
        words = torch.full((len(images), 1), BOS, device=images.device)
        log_p = torch.zeros(words.shape, device=images.device)
        lengths = torch.zeros_like(words)
        ended = torch.zeros_like(words, dtype=torch.bool)
        for place in range(MAX_WORDS + 1):
            logits, state = model.step(words.flatten(), state)
            gain = _sayable(logits.log_softmax(1)).unflatten(0, words.shape)  # (image, beam, word)
            gain[ended] = -math.inf
            gain[..., PAD].masked_fill_(ended, 0)
            lengths = lengths + ~ended
            total = log_p[..., None] + gain
            score = (total / lengths[..., None] ** length_normalisation).flatten(1)
            order = score.sort(dim=1, descending=True, stable=True).indices[:, :width]
            source, words = order // gain.shape[2], order % gain.shape[2]
            state = state.select((first * gain.shape[1] + source).flatten())
            ids, log_p, lengths, ended = ids[first, source], total.flatten(1)[first, order], lengths[first, source], ended[first, source]
            ids[..., place] = words
            ended = ended | (words == EOS) | log_p.isinf()  # placeholders of probability 0, where there are fewer captions than beams
            if ended.all():
                break
    return ids[:, 0], score[first, order][:, 0]


@torch.no_grad()
def sample(model: CaptionModel, images: Tensor, count: int, key: Tensor, step: Tensor) -> Tensor:
    """Samples `count` captions of each image, each word with the model's probability.

    Args:
        model, images: as for `greedy`.
        key, step: (1,) int64 and () int64. The samples are a function of key, step and place, the same on any device.

    Returns:
        The words, as for `greedy`, (image * count, MAX_WORDS + 1); an image's captions are adjacent.
    """
    with evaluating(model):
        rows = torch.arange(len(images), device=images.device).repeat_interleave(count)

        def with_noise(scores: Tensor, place: int) -> Tensor:
            """The argmax of logits with Gumbel noise is a sample from their softmax (Maddison et al. 2014)."""
            index = torch.arange(scores.numel(), device=images.device).view(scores.shape)
            uniform = (mix(mix(mix(index + key) + place) + step).double() + 0.5) * 2**-32
            return scores - (-uniform.log()).log().float()

        return _write(model, model.start(images).select(rows), rows, with_noise)


def _write(model: CaptionModel, state: State, rows: Tensor, rate: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Writes a caption for each of the rows (row,) int64, whose next word has the highest of the scores that `rate` makes of logits."""
    words = torch.full_like(rows, BOS)
    ended = torch.zeros_like(words, dtype=torch.bool)
    ids = torch.full((len(rows), MAX_WORDS + 1), PAD, device=rows.device)
    for place in range(ids.shape[1]):
        logits, state = model.step(words, state)
        words = rate(_sayable(logits), place).argmax(1).masked_fill(ended, PAD)  # argmax takes the first of several maxima
        ids[:, place] = words
        ended |= words == EOS
        if ended.all():
            break
    return ids


def _sayable(scores: Tensor) -> Tensor:
    """The scores (..., word) with -inf for PAD and BOS, which cannot occur in a caption."""
    scores = scores.clone()
    scores[..., [PAD, BOS]] = -math.inf
    return scores
