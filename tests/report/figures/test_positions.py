"""The figure of position vectors."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from pipeline.report.figures import positions
from pipeline.report.figures.style import THEMES


def test_mosaic_is_drawn_in_both_themes(drawn: list[Figure]) -> None:
    panel = ("seed 0", np.linspace(-1, 1, 121).reshape(11, 11))
    light, dark = (positions.draw_similarity([panel] * 2, theme) for theme in THEMES)
    assert light != dark
    np.testing.assert_array_equal(drawn[0].axes[1].images[0].get_array(), panel[1])
    assert light == positions.draw_similarity([panel] * 2, "light")
    for number in (1, 3):
        assert positions.draw_similarity([panel] * number, "light") != light
