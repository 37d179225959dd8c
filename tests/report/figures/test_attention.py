"""Maps of attention."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.report.figures import attention


def test_rollouts_are_a_row_of_images_over_rows_of_maps(drawn: list[Figure]) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((10, 28, 28))
    maps = rng.random((10, 7, 7))
    first = attention.draw_rollouts(images, [("one\nseed 0", maps), ("two", maps)], "light")
    tiles = [axes for axes in drawn[0].axes if axes.images]
    pictures = [np.asarray(axes.images[0].get_array()) for axes in tiles]
    assert len(pictures) == 30
    assert {axes.images[0].get_clim() for axes in tiles[10:]} == {(0, maps.max())}  # one scale, from nothing to the greatest share
    assert pictures[3] == pytest.approx(images[3])
    assert pictures[10 + 4] == pytest.approx(maps[4])
    figure = drawn[0]
    figure.draw_without_rendering()
    for text in (text for axes in figure.axes for text in axes.texts):
        assert text.get_window_extent().x0 >= 0, text.get_text()
    assert attention.draw_rollouts(images, [("one\nseed 0", maps), ("two", maps)], "light") == first
    assert attention.draw_rollouts(images, [("one\nseed 0", maps), ("two", maps)], "dark") != first


@pytest.mark.parametrize(("blocks", "heads"), [(3, 8), (3, 1), (1, 4), (1, 16)])
def test_maps_of_heads_share_a_scale_that_no_weight_exceeds(drawn: list[Figure], blocks: int, heads: int) -> None:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.full(50, 0.1), size=(blocks, heads))[..., 1:].reshape(blocks, heads, 7, 7)
    attention.draw_heads(rng.random((28, 28)), maps, "light")
    panels = [axes for axes in drawn[0].axes if axes.images]
    assert len(panels) == blocks * heads
    assert np.asarray(panels[-1].images[0].get_array()) == pytest.approx(maps[-1, -1])
    assert {axes.images[0].get_clim() for axes in panels} == {(0, maps.max())}
    figure = drawn[0]
    assert all(axes.get_position().x0 >= 0 and axes.get_position().x1 <= 1 for axes in figure.axes)
    figure.draw_without_rendering()
    (bar,) = (axes for axes in figure.axes if not axes.images)
    labels = [label for label in bar.get_yticklabels() if label.get_text()]
    assert labels[0].get_text() == "0 %"
    boxes = [label.get_window_extent() for label in labels]
    assert all(box.x1 <= figure.bbox.width for box in boxes)
    assert all(above.y0 >= below.y1 - 1 for below, above in itertools.pairwise(boxes))
