"""Greedy and beam search against the full forward pass and exhaustive search."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.captioning import decoding
from pipeline.captioning.decoding import beam, greedy
from pipeline.captioning.grammar import BOS, EOS, MAX_WORDS, PAD
from pipeline.models import build
from pipeline.params import AnyModelSettings, BaselineSettings, Shape
from tests.helpers import captioner

NAMES = ["plain", "m2", "cnn_lstm"]


def make(name: str, words: int = 35, end: float = 0.0) -> Any:
    """A random model in float64 that is sure of its words; `end` is added to the logit of EOS."""
    shape, changes = Shape(words=words), {"meshed": True, "memory": 3, "norm": "post"} if name == "m2" else {}
    settings: AnyModelSettings = captioner(shape, dropout=0.3, **changes)
    if name == "cnn_lstm":
        settings = BaselineSettings.model_validate({"architecture": name, "widths": (8, 12)}, context={"shape": shape})
    torch.manual_seed(0)
    model: Any = build(settings).double()
    with torch.no_grad():
        model.head.weight *= 8
        model.head.bias[EOS] += end
        for _ in range(3):
            model(scenes(), torch.full((6, 1), BOS))  # running statistics that differ from the batch's
    return model


def scenes(count: int = 6) -> Tensor:
    bright = torch.rand(count, 1, 56, 56, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return bright * (torch.arange(count)[:, None, None, None] + 1) / count


def log_p(model: nn.Module, images: Tensor, ids: Tensor) -> Tensor:
    """The log-probability of each image's caption (image,), by the full forward pass."""
    words = torch.cat([torch.full((len(ids), 1), BOS), ids[:, :-1]], dim=1)
    with decoding.evaluating(model), torch.no_grad():
        each = model(images, words).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return (each * (ids != PAD)).sum(1)


def check_form(ids: Tensor) -> None:
    """(image, MAX_WORDS + 1); words, then EOS, unless the caption is cut, then padding alone."""
    assert ids.shape[1] == MAX_WORDS + 1
    for caption in ids.tolist():
        length = caption.index(EOS) + 1 if EOS in caption else len(caption)
        assert not {PAD, BOS} & set(caption[:length])
        assert set(caption[length:]) <= {PAD}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", [-50.0, 1.0])
def test_greedy_is_the_argmax_of_the_full_pass(name: str, end: float) -> None:
    model, images = make(name, end=end).train(), scenes()
    ids = greedy(model, images)
    assert model.training
    check_form(ids)
    assert (EOS in ids) == (end > 0)  # else all captions are cut
    words = torch.cat([torch.full((6, 1), BOS), ids], dim=1)
    with decoding.evaluating(model), torch.no_grad():
        logits = model(images, words[:, :-1])
    logits[..., [PAD, BOS]] = -math.inf
    read = ids != PAD
    assert torch.equal(logits.argmax(-1)[read], ids[read])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 20])
def test_a_beam_s_score_is_its_caption_s_and_a_beam_of_one_is_greedy(name: str, width: int) -> None:
    """Its cached keys followed the right rows, then."""
    model, images = make(name, end=1.0), scenes()
    ids, scores = beam(model, images, width, 0.7)
    check_form(ids)
    assert width > 1 or torch.equal(ids, greedy(model, images))
    torch.testing.assert_close(scores, log_p(model, images, ids) / (ids != PAD).sum(1) ** 0.7, rtol=0, atol=1e-10)
    alone, score = beam(model, images[3:4], width, 0.7)
    assert torch.equal(alone[0], ids[3])
    torch.testing.assert_close(score[0], scores[3], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("normalisation", "end"), [(0.0, 2.0), (1.0, -2.0)])
def test_a_beam_wide_enough_searches_everything(monkeypatch: pytest.MonkeyPatch, name: str, normalisation: float, end: float) -> None:
    """Three words and the end in up to four places: 3 + 9 + 27 captions that end, with the empty one, and 81 that are cut."""
    monkeypatch.setattr(decoding, "MAX_WORDS", 3)
    model, images = make(name, words=6, end=end), scenes()
    captions = [(*words, EOS) for length in range(4) for words in product((3, 4, 5), repeat=length)] + list(product((3, 4, 5), repeat=4))
    ids = torch.tensor([[*caption, *[PAD] * (4 - len(caption))] for caption in captions])
    assert len(ids) == 40 + 81
    found, scores = beam(model, images, 130, normalisation)
    for i in range(2):
        total = log_p(model, images[i : i + 1].expand(len(ids), -1, -1, -1), ids) / (ids != PAD).sum(1) ** normalisation
        best = int(total.argmax())
        assert found[i].tolist() == ids[best].tolist()
        torch.testing.assert_close(scores[i], total[best], rtol=0, atol=1e-10)
