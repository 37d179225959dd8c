"""Captions beside their references, and figures of them."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.report.figures import captions
from pipeline.report.figures.captions import Budget, Look, Written

ONE = ("a", "three", "at", "the", "top", "left", "and", "two", "sevens", "at", "the", "bottom")
OTHER = ("at", "the", "bottom", "two", "sevens", "and", "at", "the", "top", "left", "a", "three")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a three at the top left and two sevens at the bottom", ""),
        ("a three at the top left and two nines at the bottom", "-nines +sevens"),
        ("at the bottom two sevens and at the top left", "+a +three"),
        ("at the bottom two sevens and and at the top left a three", "-and"),
        ("", "+" + " +".join(ONE)),
    ],
)
def test_words_are_compared_with_the_nearest_reference(written: str, shown: str) -> None:
    marked = captions.compared(tuple(written.split()), [ONE, OTHER])
    signs = {"wrong": "-", "missing": "+"}
    assert " ".join(signs[kind] + word for word, kind in marked if kind != "right") == shown
    assert " ".join(word for word, kind in marked if kind != "missing") == written


def _inside(figure: Figure) -> None:
    figure.draw_without_rendering()
    for text in [*figure.texts, *(axes.title for axes in figure.axes if axes.get_title())]:
        box = text.get_window_extent()
        assert box.x0 >= -1, text.get_text()
        assert box.x1 <= figure.bbox.width + 1, text.get_text()
        assert box.y0 >= -1, text.get_text()
        assert box.y1 <= figure.bbox.height + 1, text.get_text()


@pytest.mark.parametrize("label", ["a label of many words, more", "memory", "WWWW MMMM"])
def test_captions_hold_every_word_inside_the_figure(label: str, drawn: list[Figure]) -> None:
    scenes = np.random.default_rng(0).random((2, 56, 56))
    marked = captions.compared(ONE[::-1], [ONE, OTHER])
    rows = [[Written("short", True, tuple((word, "right") for word in ONE)), Written(label, False, marked)]] * 2
    first = captions.draw_captions(scenes, rows, "light")
    assert captions.draw_captions(scenes, rows, "light") == first
    assert captions.draw_captions(scenes, rows, "dark") != first
    figure = drawn[0]
    _inside(figure)
    texts = [text.get_text() for text in figure.texts]
    assert texts.count("\N{CHECK MARK}") == texts.count("\N{BALLOT X}") == 2
    words = [text for text in texts if text.strip("[]") in ONE]
    assert len(words) == 2 * (len(ONE) + len(marked))
    wrong = {text.get_text() for text in figure.texts if text.get_fontweight() == "bold"} - {"\N{CHECK MARK}", "\N{BALLOT X}"}
    assert wrong == {word for word, kind in marked if kind == "wrong"}
    boxes = [text.get_window_extent().expanded(1.02, 1) for text in figure.texts]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


@pytest.mark.parametrize("levels", [1, 3])
def test_gaze_has_a_map_for_each_word_and_level(drawn: list[Figure], levels: int) -> None:
    rng = np.random.default_rng(0)
    words = (*ONE, "end")
    maps = rng.dirichlet(np.ones(16), size=(levels, len(words))).reshape(levels, len(words), 4, 4)
    captions.draw_gaze([Look(rng.random((56, 56)), words, maps)], "light")
    figure = drawn[0]
    _inside(figure)
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["the scene", *words]
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images[0].get_array().shape == (4, 4)]
    assert np.stack(shown) == pytest.approx(maps.swapaxes(0, 1).reshape(-1, 4, 4))
    assert [text.get_text() for text in figure.texts][:levels] == [f"level {level + 1}" for level in range(levels if levels > 1 else 0)]


def test_budget_draws_means_and_intervals(drawn: list[Figure]) -> None:
    rng = np.random.default_rng(0)
    values = [np.clip(level + rng.normal(0, 0.01, 6), 0, 1) for level in (0.5, 0.8, 0.9)]
    better = [value + 0.02 for value in values]
    lines = [Budget("one", (6, 14, 28), tuple(values), tuple(better), is_baseline=True), Budget("two", (7,), (values[1],), (better[1],))]
    captions.draw_budget(lines, "light")
    axes = drawn[0].axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx([value.mean() for value in values])
    assert axes.lines[1].get_ydata() == pytest.approx([value.mean() for value in better])
    places = [line.get_transform().transform((line.get_xdata()[-1 if line.get_xdata()[0] == 7 else 0], 0.5))[0] for line in axes.lines]
    assert len({*np.round(places, 1)}) == 4  # no point hides another
    bar = axes.collections[0].get_segments()[0]
    half = 2.5706 * values[0].std(ddof=1) / np.sqrt(6)
    assert bar[:, 1] == pytest.approx([values[0].mean() - half, values[0].mean() + half], abs=1e-5)
