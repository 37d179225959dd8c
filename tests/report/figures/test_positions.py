"""The figure of position vectors."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.params import ExperimentSettings, Params
from pipeline.report.figures import positions
from pipeline.report.figures.drawing import Material
from pipeline.report.figures.style import THEMES


def test_mosaic_is_drawn_in_both_themes(drawn: list[Figure]) -> None:
    panel = ("seed 0", np.linspace(-1, 1, 121).reshape(11, 11))
    light, dark = (positions.draw_similarity([panel] * 2, theme) for theme in THEMES)
    assert light != dark
    np.testing.assert_array_equal(drawn[0].axes[1].images[0].get_array(), panel[1])
    assert light == positions.draw_similarity([panel] * 2, "light")
    for number in (1, 3):
        assert positions.draw_similarity([panel] * number, "light") != light


class Learned:
    """Two seeds of learned positions on a grid: patches at the edge are all alike, the others at right angles to them and each other."""

    variant = "base"
    seeds = (0, 1)
    has_positions = True

    def __init__(self, study: Params, grid: int) -> None:
        self.grid, self.settings = grid, study.resolve("base")
        self.patch_positions = np.zeros((2, grid**2, grid**2))
        for place in range(grid**2):
            row, column = divmod(place, grid)
            edge = {row, column} & {0, grid - 1}
            self.patch_positions[:, place, 0 if edge else place] = 3.0


def test_edge_and_others_are_told_apart(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "measure_values", lambda name, run: np.array([0.25, 0.75]))
    experiment = ExperimentSettings(title="One", question="Is it?", source="code", baseline="base", variants=("base", "relu"))

    def of(grid: int) -> positions.SimilarityRow:
        (row,) = positions.similarity_rows(Material("one", experiment, [Learned(study, grid)], None))  # type: ignore[list-item]
        return row

    row = of(5)
    assert (row.border.mean, row.border.sd, row.nearness.mean) == (1.0, 0.0, 0.5)
    assert row.inner is not None
    assert row.inner.mean == 0.0
    assert (of(3).inner, of(3).inner_nearness) == (None, None)  # one patch has no pair
