"""What captions say, and that nothing else is taken for one."""

from itertools import product

import pytest

from pipeline.captioning.grammar import EOS, MAX_WORDS, PAD, PHRASINGS, Grammar, Scene, grammar_of
from pipeline.params import DATASETS, DataSource
from pipeline.system.errors import UserError

SCENES: list[Scene] = [scene for scene in product((None, *range(10)), repeat=4) if scene != (None,) * 4]


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return grammar_of("mnist")


@pytest.mark.parametrize(("dataset", "each"), [("mnist", 1), ("kmnist", 23)])
def test_every_caption_of_every_scene_is_its_own_and_is_understood(dataset: str, each: int) -> None:
    grammar = grammar_of(dataset)
    assert len(SCENES) == 11**4 - 1 == 14_640
    meant, scenes = {}, [*SCENES[::each], *SCENES[-1:] * (each > 1)]
    for scene, phrasing in product(scenes, PHRASINGS):
        caption = grammar.describe(scene, phrasing)
        assert grammar.parse(caption) == scene, caption
        assert grammar.decode(grammar.encode(caption)) == caption
        meant[caption] = scene
    assert len(meant) == 5 * len(set(scenes))
    assert max(map(len, meant)) == MAX_WORDS
    assert {word for caption in meant for word in caption} == set(grammar.words[3:])


def test_phrasings(grammar: Grammar) -> None:
    assert [" ".join(grammar.describe((3, None, 7, 7), phrasing)) for phrasing in PHRASINGS] == [
        "a three at the top left and two sevens at the bottom",
        "at the bottom two sevens and at the top left a three",
        "a three above a seven on the left and a seven on the right at the bottom",
        "on the right at the bottom a seven and on the left a seven below a three",
        "a three top left two sevens bottom left bottom right",
    ]
    assert grammar.describe((8, None, None, 1), "classes") == ("a", "one", "bottom", "right", "an", "eight", "top", "left")
    assert grammar_of("kmnist").describe((0, 1, None, 0), "rows")[:5] == ("an", "o", "and", "a", "ki")


@pytest.mark.parametrize(
    ("caption", "scene"),
    [
        ("two sevens at the bottom and a three at the top left", (3, None, 7, 7)),  # the parts in another order
        ("a seven and a seven at the bottom", (None, None, 7, 7)),  # not counted
        ("two sevens on the left and a three at the top right", (7, 3, 7, None)),  # by columns, then by rows
        ("", None),
        ("a three above a seven", None),  # in which column?
        ("three threes at the top", None),
        ("a three at the top left and a seven at the top left", None),  # a cell twice
        ("a three top left a seven at the top right", None),  # two phrasings
    ],
)
def test_what_no_reference_says_is_understood_or_is_no_caption(grammar: Grammar, caption: str, scene: Scene | None) -> None:
    assert grammar.parse(caption.split()) == scene


def test_no_word_of_a_caption_may_be_missing_twice_or_another(grammar: Grammar) -> None:
    """Whatever a changed caption means, it is not its scene."""
    for scene in SCENES[::1171]:
        for phrasing in PHRASINGS:
            caption = grammar.describe(scene, phrasing)
            for place, word in enumerate(caption):
                before, after = caption[:place], caption[place + 1 :]
                assert grammar.parse((*before, *after)) != scene
                assert grammar.parse((*before, word, word, *after)) is None
                for other in grammar.words:
                    assert other == word or grammar.parse((*before, other, *after)) != scene


@pytest.mark.parametrize("dataset", [name for name, source in DATASETS.items() if source.nouns])
def test_the_table_of_data_sets_knows_the_size_of_the_vocabulary(dataset: str) -> None:
    source = DATASETS[dataset]
    assert len(source.nouns) == source.shape.classes
    assert len(grammar_of(dataset).words) == source.shape.words


def test_ids(grammar: Grammar) -> None:
    caption = grammar.describe((None, 2, None, None), "classes")
    ids = grammar.encode(caption)
    assert (len(ids), ids[4:]) == (MAX_WORDS + 1, (EOS, *[PAD] * 13))
    assert grammar.decode([*ids[:5], 5]) == caption
    with pytest.raises(UserError, match="the nearest is 'eight'"):
        grammar.encode(["eigth"])


def test_nouns_that_are_missing_or_ambiguous_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "noise", DataSource("Noise"))
    with pytest.raises(UserError, match="Noise has no captions"):
        grammar_of("noise")
    for nouns in ([("cat", "cats"), ("cat", "cattes")], [("ankle boot", "ankle boots")]):
        with pytest.raises(ValueError, match="nouns have to be single words"):
            Grammar(nouns)
