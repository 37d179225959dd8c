"""The figure of position vectors."""

from __future__ import annotations

import numpy as np

from pipeline.report.figures import positions
from pipeline.report.figures.style import THEMES


def test_mosaic_is_drawn_in_both_themes() -> None:
    panel = ("seed 0", np.linspace(-1, 1, 121).reshape(11, 11))
    light, dark = (positions.draw_similarity([panel] * 2, theme) for theme in THEMES)
    assert light != dark
    assert light == positions.draw_similarity([panel] * 2, "light")
    for number in (1, 3):
        assert positions.draw_similarity([panel] * number, "light") != light
