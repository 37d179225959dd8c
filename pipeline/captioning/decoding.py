"""Generation: the captions that a model writes of scenes, by greedy or by beam search, or as samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.captioning.grammar import BOS, EOS, MAX_WORDS, PAD
from pipeline.captioning.model import CaptionModel, evaluating
from pipeline.models.dropout import mix


@torch.no_grad()
def greedy(model: CaptionModel, images: Tensor) -> Tensor:
    """The caption of each image whose every word is the likeliest after the words before it; of equally likely ones the lowest.

    Args:
        model: without dropout and with batch norm's running statistics, whether it is in training or not; it is left as it was.
        images: (image, channel, height, width) in [0, 1].

    Returns:
        (image, MAX_WORDS + 1) int64: the words, EOS, then PAD. PAD and BOS are no words; a caption without an end is cut.
    """
    with evaluating(model):
        state = model.start(images)
        words = torch.full((len(images),), BOS, device=images.device)
        ended = torch.zeros_like(words, dtype=torch.bool)
        ids = torch.full((len(images), MAX_WORDS + 1), PAD, device=images.device)
        for place in range(ids.shape[1]):
            logits, state = model.step(words, state)
            words = _sayable(logits).argmax(1).masked_fill(ended, PAD)  # of several largest, argmax takes the first
            ids[:, place] = words
            ended |= words == EOS
            if ended.all():
                break
    return ids


@torch.no_grad()
def beam(model: CaptionModel, images: Tensor, width: int, length_normalisation: float = 0.0) -> tuple[Tensor, Tensor]:
    """The best caption of each image that a beam search finds.

    A caption's score is log p / length^length_normalisation, its length that with EOS. After every word the `width` best captions of
    an image go on, ended ones among them as they are. Of equal scores the one from the better beam comes first, then the lower word.

    Args:
        model: as of `greedy`, which a width of 1 equals.
        images: (image, channel, height, width) in [0, 1].
        width: captions that are kept for each image.
        length_normalisation: 0 compares captions by their probability, which favours short ones, 1 by the mean of their words' log p.

    Returns:
        The words, as of `greedy`, and the scores (image,).

    Raises:
        ValueError: `width` is below 1.
    """
    if width < 1:
        raise ValueError(f"a beam has a width of at least 1, not {width}")
    with evaluating(model):
        state = model.start(images)
        first = torch.arange(len(images), device=images.device)[:, None]  # an image, as an index beside its beams
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
            ended = ended | (words == EOS) | log_p.isinf()  # there may be fewer captions than beams: these fill up
            if ended.all():
                break
    return ids[:, 0], score[first, order][:, 0]


@torch.no_grad()
def sample(model: CaptionModel, images: Tensor, count: int, key: Tensor, step: Tensor) -> Tensor:
    """Captions whose every word is drawn with the model's own probability, so many of each image.

    Args:
        model, images: as of `greedy`.
        key: (1,) int64; step: () int64. They and the place decide what is drawn, on any device.

    Returns:
        The words, as of `greedy`, (image * count, MAX_WORDS + 1); an image's captions lie beside each other.
    """
    with evaluating(model):
        rows = torch.arange(len(images), device=images.device).repeat_interleave(count)
        state = model.start(images).select(rows)
        words = torch.full_like(rows, BOS)
        ended = torch.zeros_like(words, dtype=torch.bool)
        ids = torch.full((len(rows), MAX_WORDS + 1), PAD, device=images.device)
        for place in range(ids.shape[1]):
            logits, state = model.step(words, state)
            scores = _sayable(logits)
            index = torch.arange(scores.numel(), device=images.device).view(scores.shape)
            # The largest of logits with Gumbel noise is a draw from their softmax (Maddison et al. 2014).
            uniform = (mix(mix(mix(index + key) + place) + step).double() + 0.5) * 2**-32
            words = (scores - (-uniform.log()).log().float()).argmax(1).masked_fill(ended, PAD)
            ids[:, place] = words
            ended |= words == EOS
            if ended.all():
                break
    return ids


def _sayable(scores: Tensor) -> Tensor:
    """Scores (..., word), with PAD and BOS, which no caption has before its end, at -inf."""
    scores = scores.clone()
    scores[..., [PAD, BOS]] = -math.inf
    return scores
