"""Metrics of captions: against pycocoevalcap's and sacrebleu's numbers, and numbers worked out by hand."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from pipeline.captioning import metrics
from pipeline.captioning.grammar import BOS, EOS, MAX_WORDS, PAD, PHRASINGS, Grammar
from pipeline.captioning.metrics import Captions, CiderD, bleu, bleu_statistics, measure, summarise
from pipeline.captioning.scenes import scene_of

FIXTURE = json.loads((Path(__file__).parent / "cider_d.json").read_text())
SENTENCES = [scene["references"] for scene in FIXTURE["scenes"]]
CANDIDATES = [scene["candidate"] for scene in FIXTURE["scenes"]]
VOCABULARY = sorted({word for sentences in [CANDIDATES, *SENTENCES] for sentence in sentences for word in sentence.split()})


def coded(sentence: str, width: int = MAX_WORDS + 1) -> npt.NDArray[np.uint8]:
    words = [EOS + 1 + VOCABULARY.index(word) for word in sentence.split()]
    return np.array([*words, EOS, *[PAD] * width][: max(width, len(words))], dtype=np.uint8)


def stacked(sentences: list[list[str]]) -> Captions:
    return np.array([[coded(sentence) for sentence in scene] for scene in sentences])


REFERENCES = stacked(SENTENCES)
CAPTIONS = stacked([CANDIDATES])[0]


def test_cider_d_is_that_of_pycocoevalcap() -> None:
    scores = CiderD(REFERENCES).score(CAPTIONS, np.arange(len(CAPTIONS)))
    assert scores == pytest.approx([scene["score"] for scene in FIXTURE["scenes"]], rel=1e-12, abs=1e-12)
    assert scores.mean() == pytest.approx(FIXTURE["mean"], rel=1e-12)


def test_cider_d_of_a_word_that_every_scene_has_is_nothing() -> None:
    both = np.array([[[3, 4, EOS]], [[3, EOS, PAD]]], dtype=np.uint8)
    assert CiderD(both).score(np.array([[3, EOS, PAD]], dtype=np.uint8), np.array([0])) == 0


def sacrebleu(captions: list[str], references: list[list[str]]) -> float:
    scorer = BLEU(tokenize="none", smooth_method="none")
    return scorer.corpus_score(captions, [list(stream) for stream in zip(*references, strict=True)]).score / 100


SENTENCE = st.lists(st.sampled_from(VOCABULARY[:5]), min_size=1, max_size=MAX_WORDS).map(" ".join)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(SENTENCE, st.lists(SENTENCE, min_size=3, max_size=3)), min_size=1, max_size=4))
def test_bleu_is_sacrebleus_of_any_corpus(corpus: list[tuple[str, list[str]]]) -> None:
    captions, references = [caption for caption, _ in corpus], [references for _, references in corpus]
    ours = bleu(*bleu_statistics(stacked([captions])[0], stacked(references)))
    assert ours == pytest.approx(sacrebleu(captions, references), rel=1e-12)


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
    assert metrics.edit_distance(first[None], np.stack(references)[None]).tolist() == [expected]


def test_a_caption_ends_at_its_first_eos() -> None:
    captions = np.array([[3, 4, EOS, 5, EOS], [3, PAD, BOS, 4, 5], [EOS, PAD, PAD, PAD, PAD]], dtype=np.uint8)
    references = np.array([[[3, 4, EOS, PAD, PAD]]] * 3, dtype=np.uint8)
    assert metrics.num_words(captions).tolist() == [2, 5, 0]
    assert metrics.exact_matches(captions, references).tolist() == [[True], [False], [False]]
    assert metrics.edit_distance(captions, references).tolist() == [0, 3, 2]
    clean = np.array([[3, 4, EOS, PAD, PAD]], dtype=np.uint8)
    corpus = np.array([[[3, 4, EOS, PAD, PAD]], [[4, 3, EOS, PAD, PAD]]], dtype=np.uint8)
    assert CiderD(corpus).score(captions[:1], np.array([0])) == CiderD(corpus).score(clean, np.array([0])) > 0


GRAMMAR = Grammar([("zero", "zeros"), ("one", "ones"), ("seven", "sevens")])
# A scene (top left, top right, bottom left, bottom right, -1 where there is nothing) and what is said of it.
SAID = [
    ((0, -1, 1, 1), "a zero at the top left and two ones at the bottom"),
    ((0, -1, 1, 1), "on the right at the bottom a seven and on the left a one below a zero"),  # two of three cells
    ((7, -1, -1, -1), "a seven on the right at the bottom"),  # nothing right
    ((1, 1, -1, -1), "a one at the top right and a one at the top left"),  # true, but no phrasing says it so
    ((0, 1, -1, -1), "a zero at the top left and a one at the"),  # no caption, though its first half is right
    ((-1, 7, 1, -1), "at the top right a seven"),  # right as far as it goes
    ((-1, -1, -1, 0), "a zero bottom right a one top left"),  # more than there is
]
LABELS = np.array([[2 if label == 7 else label for label in scene] for scene, _ in SAID], dtype=np.int8)


def test_measures_of_each_caption_and_of_each_group() -> None:
    captions = np.array([GRAMMAR.encode(caption.split()) for _, caption in SAID], dtype=np.uint8)
    described = [[GRAMMAR.describe(scene_of(row), phrasing) for phrasing in PHRASINGS] for row in LABELS]
    references = np.array([[GRAMMAR.encode(words) for words in scene] for scene in described], dtype=np.uint8)
    measures = measure(captions, references, LABELS, GRAMMAR)
    assert measures["digits"].tolist() == [3, 3, 1, 2, 2, 2, 1]
    assert measures["repeats"].tolist() == [True, True, False, True, False, False, False]
    assert measures["true"].tolist() == [True, False, False, True, False, False, False]
    assert measures["cells_right"].tolist() == [3, 2, 0, 2, 0, 1, 1]
    names = ["rows", "columns back", "columns", None, None, "rows up", "classes"]
    assert [PHRASINGS[place] if place >= 0 else None for place in measures["phrasing"]] == names
    assert measures["exact"].tolist() == [True, False, False, False, False, False, False]
    assert measures["words"].tolist() == [len(caption.split()) for _, caption in SAID]
    # "seven" for "one"; "right" and "bottom" for "left" and "top".
    assert measures["edit_distance"].tolist()[:3] == [0, 1, 2]
    assert measures["bleu_correct"][0].tolist() == [12, 11, 10, 9]
    assert measures["cider_d"].tolist() == CiderD(references).score(captions, np.arange(len(SAID))).tolist()

    summary = summarise(measures)
    every = summary["all"]
    assert (every["share"], every["scene_accuracy"], every["cell_accuracy"]) == (1, 2 / 7, 9 / 14)
    assert every["exact_match"] == 1 / 7
    assert every["edit_distance"] == measures["edit_distance"].mean()
    assert every["cider_d"] == measures["cider_d"].mean()
    assert every["bleu_4"] == bleu(measures["bleu_correct"], measures["words"], measures["reference_words"]) > 0
    assert (summary["repeats"]["scene_accuracy"], summary["repeats"]["cell_accuracy"]) == (2 / 3, 7 / 8)
    assert (summary["no repeats"]["scene_accuracy"], summary["no repeats"]["cell_accuracy"]) == (0, 2 / 6)
    assert [summary[name]["share"] for name in ("rows", "no phrasing")] == [1 / 7, 2 / 7]
    assert summary["rows"]["bleu_4"] == summary["rows"]["exact_match"] == 1
