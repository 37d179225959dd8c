"""Metrics of captions: against pycocoevalcap's and sacrebleu's numbers, and numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from pipeline.captioning.grammar import BOS, EOS, MAX_WORDS, PAD
from pipeline.captioning.metrics import (
    CiderD,
    Words,
    bleu,
    bleu_statistics,
    edit_distance,
    exact_matches,
    num_words,
)

FIXTURE = json.loads((Path(__file__).parent / "cider_d.json").read_text())
SENTENCES = [scene["references"] for scene in FIXTURE["scenes"]]
CANDIDATES = [scene["candidate"] for scene in FIXTURE["scenes"]]
VOCABULARY = sorted({word for sentences in [CANDIDATES, *SENTENCES] for sentence in sentences for word in sentence.split()})


def coded(sentence: str, width: int = MAX_WORDS + 1) -> npt.NDArray[np.uint8]:
    words = [EOS + 1 + VOCABULARY.index(word) for word in sentence.split()]
    return np.array([*words, EOS, *[PAD] * width][: max(width, len(words))], dtype=np.uint8)


def stacked(sentences: list[list[str]]) -> Words:
    return np.array([[coded(sentence) for sentence in scene] for scene in sentences])


REFERENCES = stacked(SENTENCES)
CAPTIONS = stacked([CANDIDATES])[0]


def test_cider_d_is_that_of_pycocoevalcap() -> None:
    scores = CiderD(REFERENCES).score(CAPTIONS, np.arange(len(CAPTIONS)))
    assert scores == pytest.approx([scene["score"] for scene in FIXTURE["scenes"]], rel=1e-12, abs=1e-12)
    assert scores.mean() == pytest.approx(FIXTURE["mean"], rel=1e-12)


def test_cider_d_scores_any_captions_of_any_scenes_in_any_order() -> None:
    scorer = CiderD(REFERENCES)
    scores = scorer.score(CAPTIONS, np.arange(len(CAPTIONS)))
    scenes = np.array([7, 3, 3, 16])
    assert scorer.score(CAPTIONS[scenes], scenes) == pytest.approx(scores[scenes])
    assert scorer.score(CAPTIONS[:0], scenes[:0]).shape == (0,)


def test_cider_d_by_hand() -> None:
    # Two scenes, one reference each, words x (in both scenes) and y (in one): x weighs 0, y ln 2. A caption "y y" of the
    # reference "y": unigrams min(2, 1) * 1 / (2 * 1) = 1/2, no bigram in common, a difference of one word.
    references = np.array([[[4, EOS, PAD]], [[3, EOS, PAD]]], dtype=np.uint8)
    scores = CiderD(references).score(np.array([[4, 4, EOS], [3, EOS, PAD]], dtype=np.uint8), np.array([0, 1]))
    assert scores == pytest.approx([10 / 4 * 0.5 * np.exp(-1 / 72), 10 / 4])
    both = np.array([[[3, 4, EOS]], [[3, EOS, PAD]]], dtype=np.uint8)
    # "x" of the reference "x y" has no length, as x is in every scene.
    assert CiderD(both).score(np.array([[3, EOS, PAD]], dtype=np.uint8), np.array([0])) == 0


def test_the_ceiling_is_the_score_of_references() -> None:
    scorer = CiderD(REFERENCES)
    by_phrasing = [scorer.score(REFERENCES[:, phrasing], np.arange(len(REFERENCES))).mean() for phrasing in range(5)]
    assert scorer.ceiling() == pytest.approx(by_phrasing)
    # One reference a scene is its own ceiling, 10, where it has four words.
    assert CiderD(REFERENCES[:5, :1]).ceiling() == pytest.approx(10)


def sacrebleu(captions: list[str], references: list[list[str]]) -> float:
    scorer = BLEU(tokenize="none", smooth_method="none")
    return scorer.corpus_score(captions, [list(stream) for stream in zip(*references, strict=True)]).score / 100


def test_bleu_is_sacrebleus() -> None:
    assert bleu(*bleu_statistics(CAPTIONS, REFERENCES)) == pytest.approx(sacrebleu(CANDIDATES, SENTENCES), rel=1e-12)


SENTENCE = st.lists(st.sampled_from(VOCABULARY[:5]), min_size=1, max_size=MAX_WORDS).map(" ".join)


@settings(deadline=None)
@given(st.lists(st.tuples(SENTENCE, st.lists(SENTENCE, min_size=3, max_size=3)), min_size=1, max_size=4))
def test_bleu_is_sacrebleus_of_any_corpus(corpus: list[tuple[str, list[str]]]) -> None:
    captions, references = [caption for caption, _ in corpus], [references for _, references in corpus]
    ours = bleu(*bleu_statistics(stacked([captions])[0], stacked(references)))
    assert ours == pytest.approx(sacrebleu(captions, references), rel=1e-12)


def test_bleu_by_hand() -> None:
    # "a b a a" of "a b c" and "a a b c": a counts twice, b once; "a b" once; nothing longer. Nearest in length: four words.
    captions = np.array([[3, 4, 3, 3, EOS]], dtype=np.uint8)
    references = np.array([[[3, 4, 5, EOS, PAD], [3, 3, 4, 5, EOS]]], dtype=np.uint8)
    correct, words, reference_words = bleu_statistics(captions, references)
    assert correct.tolist() == [[3, 2, 0, 0]]
    assert (words.tolist(), reference_words.tolist()) == ([4], [4])
    assert bleu(correct, words, reference_words) == 0
    # Between references of three and five words a caption of four takes the shorter.
    assert bleu_statistics(captions, np.array([[[3, 3, 3, 3, 3], [3, 3, 3, EOS, PAD]]], dtype=np.uint8))[2].tolist() == [3]


def slow_distance(left: list[int], right: list[int]) -> int:
    if not left or not right:
        return len(left) + len(right)
    if left[0] == right[0]:
        return slow_distance(left[1:], right[1:])
    return 1 + min(slow_distance(left[1:], right), slow_distance(left, right[1:]), slow_distance(left[1:], right[1:]))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(3, 5), max_size=5), min_size=3, max_size=3))
def test_edit_distance_is_the_recursion_of_its_definition(captions: list[list[int]]) -> None:
    first, *references = np.array([[*words, EOS, *[PAD] * 5][:6] for words in captions], dtype=np.uint8)
    expected = min(slow_distance(captions[0], words) for words in captions[1:])
    assert edit_distance(first[None], np.stack(references)[None]).tolist() == [expected]


def test_edit_distance_of_known_words() -> None:
    def spelt(word: str) -> list[int]:
        return [ord(letter) for letter in word] + [EOS] + [PAD] * (8 - len(word))

    captions = np.array([spelt("sitting"), spelt("sunday")], dtype=np.uint8)
    references = np.array([[spelt("kitten")] * 2, [spelt("monday"), spelt("saturday")]], dtype=np.uint8)
    assert edit_distance(captions, references).tolist() == [3, 2]


def test_a_caption_ends_at_its_first_eos() -> None:
    captions = np.array([[3, 4, EOS, 5, EOS], [3, PAD, BOS, 4, 5], [EOS, PAD, PAD, PAD, PAD]], dtype=np.uint8)
    references = np.array([[[3, 4, EOS, PAD, PAD]]] * 3, dtype=np.uint8)
    assert num_words(captions).tolist() == [2, 5, 0]
    assert exact_matches(captions, references).tolist() == [[True], [False], [False]]
    assert edit_distance(captions, references).tolist() == [0, 3, 2]
    clean = np.array([[3, 4, EOS, PAD, PAD]], dtype=np.uint8)
    corpus = np.array([[[3, 4, EOS, PAD, PAD]], [[4, 3, EOS, PAD, PAD]]], dtype=np.uint8)
    assert CiderD(corpus).score(captions[:1], np.array([0])) == CiderD(corpus).score(clean, np.array([0])) > 0
