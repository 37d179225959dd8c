"""Figures against numbers of images, shifts and steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.params import Params
from pipeline.report.figures import Material, scaling
from pipeline.report.figures.scaling import Series
from pipeline.report.figures.style import THEMES, Theme
from pipeline.study import Training


@pytest.mark.parametrize("theme", THEMES)
def test_data_size_is_drawn_over_the_numbers_of_images(drawn: list[Figure], theme: Theme) -> None:
    rng = np.random.default_rng(0)
    vit = Series("ViT", (100.0, 1000.0, 60000.0), np.array([0.7, 0.9, 0.97]) + rng.normal(0, 0.003, (6, 3)), True)
    cnn = Series("CNN", (100.0, 60000.0), np.array([0.8, 0.99]) + rng.normal(0, 0.003, (6, 2)))
    first = scaling.draw_data_size([vit, cnn], theme)
    axes = drawn[0].axes[0]
    assert axes.get_xscale() == "log"
    assert [axes.xaxis.get_major_formatter()(tick, 0) for tick in axes.get_xticks()] == ["100", "1,000", "60,000"]
    assert axes.lines[0].get_ydata() == pytest.approx(vit.values.mean(axis=0))
    assert len(axes.collections) == 2  # bands
    assert [text.get_text() for text in axes.texts] == ["ViT", "CNN"]
    assert scaling.draw_data_size([vit, cnn], theme) == first


def test_networks_with_other_numbers_of_seeds_are_one_line(drawn: list[Figure], study: Params) -> None:
    """The base has more seeds than the transformers that were trained on fewer images."""
    rng = np.random.default_rng(0)
    runs = []
    for name, seeds, error in (("vit-100", 6, 0.3), ("base", 12, 0.03)):
        settings = study.resolve(name)
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": tuple(range(seeds))})})
        curves = {"test_accuracy": 1 - error * np.exp(rng.normal(0, 0.1, (seeds, 30)))}
        runs.append(Training(name, {"config": settings.model_dump(mode="json")}, tuple(range(seeds)), curves, 10, 10))
    (drawing,) = scaling.data_size(Material("a", study.experiments["data-size"], runs, 60_000))
    means = [100 * run.test_error[:, -5:].mean() for run in runs]  # as the claims about them
    assert f"from {means[0]:.2f} % with 100 images to {means[1]:.2f} % with 60,000 images" in drawing.alt
    drawing.draw("light")
    (line,) = drawn[0].axes[0].lines
    assert list(line.get_xdata()) == [100, 60_000]
    assert 100 * np.asarray(line.get_ydata()) == pytest.approx(means)


def test_first_steps_are_drawn_on_a_logarithmic_axis(drawn: list[Figure]) -> None:
    steps = tuple(map(float, range(1, 11)))
    adam, radam = (
        Series(name, steps, np.geomspace(first, 1e-3, 10) * np.ones((6, 1))) for name, first in (("Adam", 5e-3), ("RAdam", 1e-5))
    )
    scaling.draw_first_steps([adam, radam], "light")
    axes = drawn[0].axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] < 1e-5
    assert axes.lines[1].get_ydata() == pytest.approx(radam.values[0])


def test_names_at_the_ends_of_lines_do_not_touch_and_stay_in_the_figure(drawn: list[Figure]) -> None:
    ends = (0.570, 0.571, 0.569, 0.5705, 0.90, 0.53)
    lines = [Series(f"a long name {i}", (0.0, 1.0), np.array([[0.97, end]]), i == 0) for i, end in enumerate(ends)]
    scaling.draw_shifts(lines, "light")
    figure = drawn[0]
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in figure.axes[0].texts), key=lambda box: box.y0)  # without the leader
    for below, above in itertools.pairwise(boxes):
        assert above.y0 >= below.y1 - 2
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 and box.y1 <= figure.bbox.height for box in boxes)


def test_spreading_keeps_order_and_leaves_alone_what_does_not_touch() -> None:
    places = np.array([0.9, 0.5, 0.505, 0.1])
    spread = scaling.spread(places, 0.05)
    assert spread[[0, 3]] == pytest.approx(places[[0, 3]])
    assert spread[2] - spread[1] == pytest.approx(0.05)
    assert spread[1:3].mean() == pytest.approx(places[1:3].mean())
