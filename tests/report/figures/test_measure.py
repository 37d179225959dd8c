"""The figure of an experiment's own measure."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy import stats

from pipeline.measures import MEASURES
from pipeline.params import Params
from pipeline.report.figures import measure
from pipeline.report.figures.measure import Dots


def test_measure_shows_every_seed_the_mean_and_its_interval(drawn: list[Figure]) -> None:
    rng = np.random.default_rng(0)
    rows = [Dots("base", rng.normal(1, 0.1, 10), True), Dots("other", rng.normal(2, 0.1, 10))]
    measure.draw_measure(rows, "Something", "light")
    axes = drawn[0].axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["base", "other"]
    for place, row in enumerate(rows):
        rings = next(line for line in axes.lines if len(line.get_xdata()) == 10 and round(float(np.mean(line.get_ydata()))) == place)
        assert sorted(rings.get_xdata()) == pytest.approx(sorted(row.values))
        low, high = stats.t.interval(0.95, 9, loc=row.values.mean(), scale=stats.sem(row.values))
        assert any(line.get_xdata() == pytest.approx([low, high]) for line in axes.lines if list(line.get_ydata()) == [place, place])
        assert any(line.get_xdata() == pytest.approx([row.values.mean()]) for line in axes.lines if list(line.get_ydata()) == [place])
    assert axes.get_xscale() == "linear"


def test_measure_counts_what_is_not_finite_and_takes_a_logarithm_where_sizes_differ(drawn: list[Figure]) -> None:
    rows = [Dots("a", np.array([0.1, 0.2, 0.3])), Dots("b", np.array([5.0, np.nan, np.inf])), Dots("c", np.full(3, np.nan))]
    assert measure.is_logarithmic(rows)
    assert not measure.is_logarithmic(rows[:1])
    assert not measure.is_logarithmic([*rows[:1], Dots("one small value", np.array([1e-4, 0.2, 0.3]))])
    measure.draw_measure(rows, "Something", "dark")
    axes = drawn[0].axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_title(loc="left") == "Something, log scale"
    assert [text.get_text() for text in axes.texts] == ["2 of 3 not finite", "3 of 3 not finite"]
    figure = drawn[0]
    figure.draw_without_rendering()
    for text in axes.texts:
        assert text.get_window_extent().x1 <= figure.bbox.width


def test_the_title_of_any_measure_fits_above_the_axes(drawn: list[Figure], study: Params) -> None:
    """Beside the longest label of the study, on a logarithmic axis."""
    label = max((name for one in study.experiments.values() for name in one.labels.values()), key=len)
    rows = [Dots(label, np.array([0.1, 0.2, 0.3])), Dots("b", np.array([5.0, 5.1, 5.2]))]
    longest = sorted(MEASURES.values(), key=lambda one: len(one.title))[-8:]
    for chosen in longest:
        measure.draw_measure(rows, f"{chosen.title} ({chosen.of_value})", "light")
        figure = drawn.pop()
        figure.draw_without_rendering()
        (title,) = (
            text for text in figure.axes[0].get_children() if isinstance(text, Text) and "log scale" in text.get_text().replace("\n", " ")
        )
        assert title.get_window_extent().x1 <= figure.bbox.width, chosen.title
        assert title.get_window_extent().y1 <= figure.bbox.height, chosen.title
