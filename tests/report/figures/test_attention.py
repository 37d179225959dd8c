"""Maps of attention."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.report.figures import attention


def test_rollouts_are_a_row_of_images_over_rows_of_maps(drawn: list[Figure]) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((10, 28, 28))
    maps = rng.random((10, 7, 7))
    first = attention.draw_rollouts(images, [("one\nseed 0", maps), ("two", maps)], "light")
    pictures = [np.asarray(axes.images[0].get_array()) for axes in drawn[0].axes]
    assert len(pictures) == 30
    assert pictures[3] == pytest.approx(images[3])
    assert pictures[10 + 4] == pytest.approx(maps[4])
    figure = drawn[0]
    figure.draw_without_rendering()
    for text in (text for axes in figure.axes for text in axes.texts):
        assert text.get_window_extent().x0 >= 0, text.get_text()
    assert attention.draw_rollouts(images, [("one\nseed 0", maps), ("two", maps)], "light") == first
    assert attention.draw_rollouts(images, [("one\nseed 0", maps), ("two", maps)], "dark") != first


@pytest.mark.parametrize(("blocks", "heads"), [(3, 8), (3, 1), (1, 4), (1, 16)])
def test_maps_of_heads_are_multiples_of_the_uniform_weight(drawn: list[Figure], blocks: int, heads: int) -> None:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(50), size=(blocks, heads))[..., 1:].reshape(blocks, heads, 7, 7)
    maps[0, 0] = 1 / 50
    attention.draw_heads(rng.random((28, 28)), maps, 50, "light")
    panels = [axes for axes in drawn[0].axes if axes.images]
    assert len(panels) == blocks * heads
    assert np.abs(panels[0].images[0].get_array()).max() == pytest.approx(0)
    shown = [np.asarray(axes.images[0].get_array()) for axes in panels]
    last = np.log2(maps[-1, -1] * 50)
    assert np.maximum(last, -6) == pytest.approx(shown[-1], abs=1e-6)
    figure = drawn[0]
    assert all(axes.get_position().x0 >= 0 and axes.get_position().x1 <= 1 for axes in figure.axes)
