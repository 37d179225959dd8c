"""Metrics of captions: against the references of their scenes, and by the truth of what they say.

Captions are arrays of word ids (caption, place) uint8, references (scene, phrasing, place). A caption ends before its first EOS;
without EOS it has as many words as places. PAD and BOS before the end count as words that no reference has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.captioning.grammar import EOS, PHRASINGS, Grammar

Captions = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Measures = dict[str, npt.NDArray[Any]]  # by name, one row per scene

ORDERS = 4  # BLEU-4 and CIDEr-D use n-grams of 1 to 4 words
_SIGMA = 6.0  # words, in CIDEr-D's length penalty


def _ended(captions: Captions) -> Captions:
    """The captions with EOS at every place from the first EOS on."""
    return np.where(np.logical_or.accumulate(captions == EOS, axis=-1), np.uint8(EOS), captions)


def num_words(captions: Captions) -> IntArray:
    """The number of words before EOS, (...) of captions (..., place)."""
    return np.asarray((_ended(captions) != EOS).sum(-1))


def exact_matches(captions: Captions, references: Captions) -> BoolArray:
    """Whether a caption equals each reference word for word: (caption, phrasing).

    Args:
        captions: (caption, place).
        references: of each caption's scene, (caption, phrasing, place).
    """
    result: BoolArray = (_ended(captions)[:, None] == _ended(references)).all(-1)
    return result


def edit_distance(captions: Captions, references: Captions) -> IntArray:
    """Words to insert, delete or replace to turn a caption into its nearest reference (Levenshtein 1966): (caption,).

    Args:
        captions: (caption, place).
        references: of each caption's scene, (caption, phrasing, place).
    """
    length, columns = num_words(captions)[:, None, None], np.arange(references.shape[-1] + 1, dtype=np.int16)
    # distance[..., j] is the distance of the caption's words so far from the reference's first j words.
    distance = np.broadcast_to(columns, (*references.shape[:2], len(columns)))
    for place in range(captions.shape[1]):
        replaced = distance[..., :-1] + (references != captions[:, place, None, None])
        row = np.concatenate([distance[..., :1] + 1, np.minimum(replaced, distance[..., 1:] + 1)], axis=-1)
        row = np.minimum.accumulate(row - columns, axis=-1) + columns  # insertions, each one word further
        distance = np.where(place < length, row, distance)
    return np.asarray(np.take_along_axis(distance, num_words(references)[..., None], -1)[..., 0].min(1), dtype=np.int64)


def _equal_ngrams(left: Captions, right: Captions) -> Iterator[BoolArray]:
    """For n = 1 to 4, whether the n-gram at a place of one caption equals that at a place of another.

    Args:
        left: (place, ...), as `_ended` returns it. Places come first, so that sums over them run along the captions.
        right: (place, ...), likewise.

    Yields:
        (place in left, place in right, ...), False where an n-gram reaches beyond the end.
    """
    words = (left[:, None] == right[None]) & (left != EOS)[:, None]
    ngrams = words
    for n in range(1, ORDERS + 1):
        yield ngrams
        ngrams = ngrams[:-1, :-1] & words[n:, n:]


def _counts(captions: Captions, others: Captions) -> Iterator[npt.NDArray[np.uint8]]:
    """For n = 1 to 4, how often the n-gram at each place occurs in the other caption: (place, ...), 0 beyond the caption's end."""
    for equal in _equal_ngrams(captions, others):
        yield np.add.reduce(equal.view(np.uint8), axis=1, dtype=np.uint8)


def _ngram_codes(captions: Captions) -> Iterator[npt.NDArray[np.uint32]]:
    """For n = 1 to 4, the n-grams at all places as numbers, one byte per word: (place, ...) of captions (place, ...)."""
    words = captions.astype(np.uint32)
    codes = words
    for n in range(1, ORDERS + 1):
        yield codes
        codes = (codes[:-1] << np.uint32(8)) | words[n:]


def bleu_statistics(captions: Captions, references: Captions) -> tuple[IntArray, IntArray, IntArray]:
    """The counts that BLEU sums over captions (Papineni et al. 2002, sections 2.1 and 2.2).

    Args:
        captions: (caption, place).
        references: of each caption's scene, (caption, phrasing, place).

    Returns:
        (caption, n): n-grams that a reference has, each counted at most as often as in the reference that has it most.
        (caption,): words of the caption.
        (caption,): words of the reference that is nearest in length; of two, the shorter.
    """
    words, others = _ended(captions).T.copy(), _ended(references).T.copy()
    correct = [
        # Each of an n-gram's `own` places gets an equal part of the clipped count.
        np.rint((np.minimum(own, shared.max(1)) / np.maximum(own, 1)).sum(0))
        for own, shared in zip(_counts(words, words), _counts(words[:, None], others), strict=True)
    ]
    length, lengths = num_words(captions), np.sort(num_words(references), axis=1)
    nearest = np.abs(lengths - length[:, None]).argmin(1)
    return np.stack(correct, axis=1).astype(np.int64), length, lengths[np.arange(len(lengths)), nearest]


def bleu(correct: IntArray, words: IntArray, reference_words: IntArray) -> float:
    """BLEU-4 of a corpus without smoothing, 0 to 1, from the `bleu_statistics` of its captions; 0 if for some n no n-gram is correct."""
    total = np.maximum(words[:, None] - np.arange(ORDERS), 0).sum(0)
    if not correct.sum(0).all():
        return 0.0
    brevity = min(0.0, 1 - reference_words.sum() / words.sum())
    return float(np.exp(brevity + np.log(correct.sum(0) / total).mean()))


def _norm(counts: npt.NDArray[np.uint8], weights: FloatArray) -> FloatArray:
    """The length of a caption's vector: the component of an n-gram with c places is c idf, so each place adds c idf^2 to the square."""
    return np.asarray(np.sqrt((counts * weights).sum(0)))


class CiderD:
    """CIDEr-D of captions (Vedantam et al. 2015, CIDEr and its variant for the COCO server), document frequencies from the references.

    The weight of an n-gram is its count times its idf, the log of the number of scenes over the number of those whose references have
    it (over 1, if none has). A caption's score is 10 times the mean, over references and n, of the cosine between the weights of caption
    and reference, times exp(-d^2 / 2 sigma^2), where d is the difference in words and sigma is 6. In the dot product a caption's weight
    is clipped to the reference's.

    Attributes:
        references: (scene, phrasing, place).
    """

    def __init__(self, references: Captions) -> None:
        """
        Args:
            references: (scene, phrasing, place), of the whole corpus.
        """
        self.references = references
        self._words = _ended(references).T.copy()  # (place, phrasing, scene), because numpy is fast along a long last axis
        self._lengths = num_words(references).T
        self._idf: list[tuple[npt.NDArray[np.uint32], FloatArray]] = []  # for n = 1 to 4 the known n-grams, ascending, and their idf
        for codes in _ngram_codes(self._words):
            by_scene = np.sort(codes.reshape(-1, len(references)).T, axis=1)
            first = np.diff(by_scene, axis=1, prepend=by_scene[:, :1] + np.uint32(1)) != 0
            known, frequency = np.unique(by_scene[first], return_counts=True)
            self._idf.append((known, np.log(len(references)) - np.log(frequency)))
        counts = zip(_counts(self._words, self._words), self._weights(self._words), strict=True)
        self._norms = [_norm(own, weight) for own, weight in counts]  # for n = 1 to 4, (phrasing, scene)

    def _weights(self, captions: Captions) -> Iterator[FloatArray]:
        """For n = 1 to 4, the square of the inverse document frequency of the n-grams at all places: (place, ...)."""
        for codes, (known, idf) in zip(_ngram_codes(captions), self._idf, strict=True):
            at = np.minimum(np.searchsorted(known, codes), len(known) - 1)
            yield np.where(known[at] == codes, idf[at], np.log(len(self.references))) ** 2

    def score(self, captions: Captions, scenes: IntArray) -> FloatArray:
        """The score of each caption, 0 to 10: (caption,).

        Args:
            captions: (caption, place).
            scenes: the index of each caption's scene in `references`, (caption,).
        """
        words, references = _ended(captions).T.copy(), self._words.take(scenes, axis=-1)
        similarity = np.zeros(references.shape[1:])
        counts = zip(_counts(words, words), _counts(words[:, None], references), strict=True)
        for (own, shared), weight, norms in zip(counts, self._weights(words), self._norms, strict=True):
            each = weight / np.maximum(own, 1)  # the share of one place; an n-gram that occurs c times has c places
            dot = (each[:, None] * (np.minimum(own[:, None], shared) * shared.astype(np.uint16))).sum(0)
            norm = _norm(own, weight) * norms[:, scenes]
            similarity += np.divide(dot, norm, out=np.zeros_like(dot), where=norm > 0)
        distance = num_words(captions) - self._lengths[:, scenes]
        return np.asarray(10 / ORDERS * (similarity * np.exp(-(distance**2) / (2 * _SIGMA**2))).mean(0))


def measure(captions: Captions, references: Captions, labels: npt.NDArray[np.int8], grammar: Grammar) -> Measures:
    """All measures of each scene's caption.

    Args:
        captions: one for each scene, (scene, place).
        references: (scene, phrasing, place); CIDEr-D takes its document frequencies from them.
        labels: the class in each cell of the scenes, -1 for an empty cell, (scene, cell).
        grammar: the grammar of the references.

    Returns:
        Arrays (scene,), and (scene, n) for `bleu_correct`:
        `digits`, the number of occupied cells; `repeats`, whether two of them hold the same class;
        `true`, whether the caption describes all of its scene and nothing else;
        `cells_right`, the number of occupied cells whose class it names, 0 if it is not a caption of the grammar;
        `phrasing`, its index in `PHRASINGS`, whether or not it is true, and -1 for none;
        `exact`, whether it equals a reference; `edit_distance`; `cider_d`;
        `bleu_correct`, `words` and `reference_words`, the results of `bleu_statistics`.
    """
    described, phrasing = np.full(labels.shape, -2), np.full(len(captions), -1)  # -2 equals no label, so nothing counts as correct
    for row, caption in enumerate(captions.tolist()):
        words = grammar.decode(caption)
        if (scene := grammar.parse(words)) is not None:
            described[row] = [-1 if cell is None else cell for cell in scene]
            phrasing[row] = next((place for place, name in enumerate(PHRASINGS) if grammar.describe(scene, name) == words), -1)
    ordered = np.sort(labels, axis=1)
    correct, length, reference_length = bleu_statistics(captions, references)
    return {
        "digits": (labels >= 0).sum(1),
        "repeats": ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1),
        "true": (described == labels).all(1),
        "cells_right": ((described == labels) & (labels >= 0)).sum(1),
        "phrasing": phrasing,
        "exact": exact_matches(captions, references).any(1),
        "edit_distance": edit_distance(captions, references),
        "cider_d": CiderD(references).score(captions, np.arange(len(captions))),
        "bleu_correct": correct,
        "words": length,
        "reference_words": reference_length,
    }


def summarise(measures: Measures) -> dict[str, dict[str, float]]:
    """Means over all scenes and over groups of them.

    Args:
        measures: the result of `measure`.

    Returns:
        By group: `all`, `1 digit` to `4 digits`, `repeats` and `no repeats`, the names of `PHRASINGS` and `no phrasing`; groups
        without scenes are left out.
        By measure: `share` of the scenes; `scene_accuracy`; `cell_accuracy`, the share of the occupied cells whose class the caption names;
        `exact_match`; `edit_distance` in words; `bleu_4`, 0 to 1; `cider_d`, 0 to 10, with the document frequencies of all scenes.
    """
    digits, repeats, phrasing = measures["digits"], measures["repeats"], measures["phrasing"]
    groups = {"all": digits > 0}
    groups |= {"1 digit" if number == 1 else f"{number} digits": digits == number for number in range(1, 5)}
    groups |= {"repeats": repeats, "no repeats": ~repeats}
    groups |= {name: phrasing == place for place, name in enumerate(PHRASINGS)} | {"no phrasing": phrasing < 0}
    return {
        group: _summary({name: values[chosen] for name, values in measures.items()}, len(digits))
        for group, chosen in groups.items()
        if chosen.any()
    }


def _summary(measures: Measures, scenes: int) -> dict[str, float]:
    """One group's row of `summarise`; `scenes` is the number of all scenes."""
    return {
        "share": len(measures["digits"]) / scenes,
        "scene_accuracy": float(measures["true"].mean()),
        "cell_accuracy": float(measures["cells_right"].sum() / measures["digits"].sum()),
        "exact_match": float(measures["exact"].mean()),
        "edit_distance": float(measures["edit_distance"].mean()),
        "bleu_4": bleu(measures["bleu_correct"], measures["words"], measures["reference_words"]),
        "cider_d": float(measures["cider_d"].mean()),
    }
