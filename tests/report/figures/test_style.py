"""What all figures share: colours that can be told apart, and axes that can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from pipeline.report.figures import style
from pipeline.report.figures.style import THEMES, Theme


def test_every_line_of_a_figure_looks_different() -> None:
    styles = style.line_styles([True] + [False] * 6, "light")
    assert len({own["color"] for own in styles}) == 7


@pytest.mark.parametrize("theme", THEMES)
def test_colours_stand_out_from_the_page(theme: Theme) -> None:
    """A contrast of 3:1 or more, as WCAG 2.1 (1.4.11) asks of graphics."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    page = luminance(style.PAGE[theme])
    for colour in (*style.COLOURS[theme], style.INK[theme], style.MUTED[theme]):
        lighter, darker = sorted((page, luminance(colour)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


@pytest.mark.parametrize("theme", THEMES)
def test_maps_begin_at_the_pages_colour_and_go_one_way(theme: Theme) -> None:
    page, ink = (np.array(to_rgb(colour)) for colour in (style.PAGE[theme], style.INK[theme]))
    weights = style.weights_map(theme)(np.linspace(0, 1, 50))[:, :3]
    assert np.abs(weights[0] - page).max() < 0.01
    brightness = weights.mean(axis=1) * np.sign(ink.mean() - page.mean())
    assert (np.diff(brightness) > 0).all()
    signs = style.signs_map(theme)(np.linspace(0, 1, 101))[:, :3]
    assert np.abs(signs[50] - page).max() < 0.02
    assert signs[0, 2] > signs[0, 0]  # blue
    assert signs[-1, 0] > signs[-1, 2]  # red


@pytest.mark.parametrize(("low", "high"), [(0.91, 0.97), (2.7, 4), (2.4, 10), (0.3, 4), (1.5, 40), (0.01, 2), (3, 2500), (1e-5, 10)])
def test_a_logarithmic_axis_has_three_to_ten_numbers(low: float, high: float) -> None:
    axes = Figure().add_subplot()
    axes.plot([1, 2], [low, high])
    style.log_axis(axes, "y")
    bottom, top = axes.get_ylim()
    shown = [value for value in axes.get_yticks() if bottom <= value <= top]
    assert 3 <= len(shown) <= 10
