"""The sentences that describe a scene: a grammar that writes and parses them.

A scene has four cells: top left, top right, bottom left, bottom right. Each holds an image of some class, or is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, get_args

from pipeline.params import DATASETS, nearest
from pipeline.system.errors import UserError

PAD, BOS, EOS = 0, 1, 2  # the first words of every vocabulary: padding after the end, the start, the end
MAX_WORDS = 17  # words of a caption, without these

Scene = tuple[int | None, int | None, int | None, int | None]  # the class in each cell
Words = tuple[str, ...]

# rows:      a three at the top left and two sevens at the bottom
# rows up:   at the bottom two sevens and at the top left a three
# columns:   a three above a seven on the left and a seven on the right at the bottom
# columns back: on the right at the bottom a seven and on the left a seven below a three
# classes:   a three top left two sevens bottom left bottom right
Phrasing = Literal["rows", "rows up", "columns", "columns back", "classes"]
PHRASINGS: tuple[Phrasing, ...] = get_args(Phrasing)

_ROWS, _COLUMNS = ((0, 1), (2, 3)), ((0, 2), (1, 3))
_CORNERS: dict[Words, int] = {corner: cell for cell, corner in enumerate(product(("top", "bottom"), ("left", "right")))}
# The phrases for the position of one cell or two neighbouring cells, in captions by rows and by columns.
_BY_ROWS: dict[tuple[int, ...], Words] = {
    **{(cell,): ("at", "the", *corner) for corner, cell in _CORNERS.items()},
    **{row: ("at", "the", side) for row, side in zip(_ROWS, ("top", "bottom"), strict=True)},
}
_BY_COLUMNS: dict[tuple[int, ...], Words] = {
    **{(cell,): ("on", "the", across, "at", "the", down) for (down, across), cell in _CORNERS.items()},
    **{column: ("on", "the", side) for column, side in zip(_COLUMNS, ("left", "right"), strict=True)},
}
_COUNTS = {2: "two", 3: "three", 4: "four"}
_OTHERS = ("and", "at", "the", "on", "top", "bottom", "left", "right", "above", "below")


class Grammar:
    """The captions of one data set's scenes.

    Args:
        nouns: (singular, plural) of each class, single words in lower case; the two may be the same.

    Attributes:
        words: the vocabulary; a word's id is its index. `<pad>`, `<bos>` and `<eos>` come first.

    Raises:
        ValueError: a noun is several words, is a word of the grammar itself, or names two classes.
    """

    def __init__(self, nouns: Sequence[tuple[str, str]]) -> None:
        flat = [noun for pair in nouns for noun in dict.fromkeys(pair)]
        if len(set(flat)) < len(flat) or any(noun.split() != [noun] or noun in (*_OTHERS, "a", "an") for noun in flat):
            raise ValueError(f"nouns have to be single words, each of one class and none of the grammar's own, not {', '.join(flat)}")
        self._singular: list[Words] = [(_article(singular), singular) for singular, _ in nouns]
        self._plural = [plural for _, plural in nouns]
        articles = sorted({article for article, _ in self._singular})
        every = ["<pad>", "<bos>", "<eos>", *articles, *_OTHERS, *_COUNTS.values(), *(singular for singular, _ in nouns), *self._plural]
        self.words: Words = tuple(dict.fromkeys(every))  # duplicates go: the noun of a digit may also be a count
        self._ids = {word: id for id, word in enumerate(self.words)}
        self._parts = {" ".join(text): dict(zip(cells, classes, strict=True)) for text, cells, classes in self._all_parts()}
        # "a three" and "two threes": (count, class).
        self._heads: dict[Words, tuple[int, int]] = {one: (1, label) for label, one in enumerate(self._singular)}
        self._heads |= {(word, noun): (count, label) for count, word in _COUNTS.items() for label, noun in enumerate(self._plural)}

    def describe(self, scene: Scene, phrasing: Phrasing) -> Words:
        """The scene's caption in one phrasing, at most `MAX_WORDS` words; no words for an empty scene."""
        if phrasing == "classes":
            return self._listing(scene)
        by_rows, where_first = phrasing in ("rows", "rows up"), phrasing in ("rows up", "columns back")
        parts = []
        for line in (_ROWS if by_rows else _COLUMNS)[:: -1 if where_first else 1]:
            classes = {cell: label for cell in line if (label := scene[cell]) is not None}
            if not classes:
                continue
            where = (_BY_ROWS if by_rows else _BY_COLUMNS)[tuple(classes)]
            link = "and" if by_rows else "below" if where_first else "above"
            what = self._what(list(classes.values()), link)
            parts.append((*where, *what) if where_first else (*what, *where))
        return tuple(word for number, part in enumerate(parts) for word in (("and",) * (number > 0) + part))

    def parse(self, words: Sequence[str]) -> Scene | None:
        """The scene that a caption describes; None if the words are not a caption.

        More is accepted than `describe` writes: the parts may come in any order, some by rows and others by columns, and "a seven and
        a seven" may stand for "two sevens". No cell may be named twice.
        """
        named = self._joined(" ".join(words).split(" and ")) or self._listed(words)
        scene = dict(named or [])
        if not named or len(scene) < len(named):
            return None
        return scene.get(0), scene.get(1), scene.get(2), scene.get(3)

    def encode(self, words: Sequence[str]) -> tuple[int, ...]:
        """A caption's ids, then `EOS`, then `PAD` up to `MAX_WORDS` + 1 ids.

        Raises:
            UserError: the caption is too long, or a word is not in the vocabulary.
        """
        if unknown := [word for word in words if word not in self._ids]:
            raise UserError(f"{unknown[0]!r} is not a word of these captions{nearest(unknown[0], self.words[3:])}.")
        if len(words) > MAX_WORDS:
            raise UserError(f"A caption has at most {MAX_WORDS} words, and {' '.join(words)!r} has {len(words)}.")
        return (*(self._ids[word] for word in words), EOS, *(PAD,) * (MAX_WORDS - len(words)))

    def decode(self, ids: Sequence[int]) -> Words:
        """The words before the first `EOS`, or all words if there is none."""
        ids = list(ids)
        return tuple(self.words[id] for id in (ids[: ids.index(EOS)] if EOS in ids else ids))

    def _what(self, classes: Sequence[int], link: str) -> Words:
        """Names one image or two neighbours: "two ..." if they are equal, else joined by `link`; with "below" the lower one comes first."""
        if len(classes) == 1:
            return self._singular[classes[0]]
        first, second = classes[::-1] if link == "below" else classes
        if first == second:
            return _COUNTS[2], self._plural[first]
        return (*self._singular[first], link, *self._singular[second])

    def _listing(self, scene: Scene) -> Words:
        """Lists each class of the scene, ascending, with its corners, without "and" and "the"."""
        corners = list(_CORNERS)
        words: list[str] = []
        for label in sorted({label for label in scene if label is not None}):
            cells = [cell for cell in range(4) if scene[cell] == label]
            words += self._singular[label] if len(cells) == 1 else (_COUNTS[len(cells)], self._plural[label])
            words += [word for cell in cells for word in corners[cell]]
        return tuple(words)

    def _all_parts(self) -> Iterator[tuple[Words, tuple[int, ...], tuple[int, ...]]]:
        """Every part from which "and" may build a caption: (words, cells, the class in each)."""
        labels = range(len(self._singular))
        for cells, where in (*_BY_ROWS.items(), *_BY_COLUMNS.items()):
            whats: list[tuple[Words, tuple[int, ...]]]
            if len(cells) == 1:
                whats = [(self._singular[label], (label,)) for label in labels]
            else:
                whats = [((_COUNTS[2], self._plural[label]), (label, label)) for label in labels]
                for first, second in product(labels, labels):
                    one, other = self._singular[first], self._singular[second]
                    if cells in _ROWS:
                        whats.append(((*one, "and", *other), (first, second)))
                    else:
                        whats += [((*one, "above", *other), (first, second)), ((*other, "below", *one), (first, second))]
            for what, classes in whats:
                yield (*what, *where), cells, classes
                yield (*where, *what), cells, classes

    def _joined(self, texts: list[str]) -> list[tuple[int, int]] | None:
        """(cell, class) of all parts of a caption; None if it is not one. It was split at each "and", also at that inside a pair."""
        named: list[tuple[int, int]] = []
        while texts:
            for size in (1, 2):
                if (part := self._parts.get(" and ".join(texts[:size]))) is not None:
                    named += part.items()
                    texts = texts[size:]
                    break
            else:
                return None
        return named

    def _listed(self, words: Sequence[str]) -> list[tuple[int, int]] | None:
        """(cell, class) of all corners of a caption in the phrasing "classes"; None if it is not one."""
        named: list[tuple[int, int]] = []
        rest = tuple(words)
        while rest:
            count, label = self._heads.get(rest[:2], (0, 0))
            corners = [_CORNERS.get(rest[place : place + 2]) for place in range(2, 2 + 2 * count, 2)]
            cells = [cell for cell in corners if cell is not None]
            if not count or len(cells) < count:
                return None
            named += [(cell, label) for cell in cells]
            rest = rest[2 + 2 * count :]
        return named


def grammar_of(dataset: str) -> Grammar:
    """The grammar of a data set's captions.

    Raises:
        UserError: its classes have no nouns.
    """
    source = DATASETS[dataset]
    if not source.nouns:
        others = ", ".join(name for name, one in DATASETS.items() if one.nouns)
        raise UserError(
            f"{source.label} has no captions, because its classes have no nouns: give it some in pipeline/params/data.py, "
            f"or choose one of {others}."
        )
    return Grammar(source.nouns)


def _article(noun: str) -> str:
    """The indefinite article, chosen by sound: "an eight", but "a one"."""
    return "an" if noun[0] in "aeiou" and not noun.startswith("one") else "a"
