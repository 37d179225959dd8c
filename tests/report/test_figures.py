"""Figures by what they draw: the data in their axes, letters that can be read, and pictures that are kept while nothing changes."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from scipy import stats

from pipeline.params import Params
from pipeline.report.figures import Material, arithmetic, attention, base, captions, curves, measure, positions, ranking, scaling, timing
from pipeline.report.figures.arithmetic import Point
from pipeline.report.figures.base import Line, Picture
from pipeline.report.figures.curves import Curves
from pipeline.study import Training
from pipeline.timing.subjects import WAYS

RNG = np.random.default_rng(0)
DIGIT = np.clip(np.add.outer(-np.abs(np.arange(28) - 14.0), -np.abs(np.arange(28) - 14.0)) / 10 + 1, 0, 1)
WORDS = ("a", "three", "at", "the", "top", "left", "and", "two", "sevens", "at", "the", "bottom", "end")


def of_epochs(label: str, seeds: int, epochs: int, level: float = 0.03, *, is_baseline: bool = False) -> Curves:
    late = 1 / np.arange(1, epochs + 1)
    losses, tested, error = (
        start + fall * late + np.abs(RNG.normal(0, 0.002, (seeds, epochs))) for start, fall in ((0.05, 0.4), (0.1, 0.3), (level, 0.1))
    )
    return Curves(label, losses, tested, error, is_baseline)


def lines(values: int = 3) -> list[Line]:
    x = tuple(10.0**power for power in range(2, 2 + values))
    return [Line(f"variant-{i}", x, RNG.uniform(0.1, 0.9, (6, values)), i == 0) for i in range(6)]


def points() -> list[Point]:
    return [Point(f"variant-{i}", 10**6 * (i + 1), 9000 * (i + 1), RNG.uniform(0.02, 0.03, 6), i == 0) for i in range(9)]


HEADS = RNG.dirichlet(np.full(50, 0.1), size=(3, 8))[..., 1:].reshape(3, 8, 7, 7)
GAZE = RNG.dirichlet(np.ones(16), size=(3, len(WORDS))).reshape(3, len(WORDS), 4, 4)
DRAWN: dict[str, Callable[[], Figure]] = {
    "curves": partial(curves.draw_curves, [of_epochs("base", 6, 30, is_baseline=True), of_epochs("another (and its label)", 6, 30)]),
    "one epoch": partial(curves.draw_curves, [of_epochs("base", 1, 1)]),
    "panels": partial(curves.draw_panels, [of_epochs(f"variant-{i} (of some words)", 6, 30, is_baseline=not i) for i in range(9)]),
    "lines": partial(scaling.draw_lines, lines(), "Test error (%)", "images", "errors"),
    "accuracies": partial(scaling.draw_lines, lines(5), "Test accuracy (%)", "shift", "accuracies"),
    "measure": partial(measure.draw_measure, [Line(line.label, (), line.values[:, 0]) for line in lines()], "Something (points)"),
    "arithmetic": partial(arithmetic.draw_arithmetic, points()),
    "rollouts": partial(attention.draw_rollouts, np.stack([DIGIT] * 10), [("base (sliced), mean", RNG.random((10, 7, 7)))] * 3),
    "heads": partial(attention.draw_heads, DIGIT, HEADS),
    "one head": partial(attention.draw_heads, DIGIT, HEADS[:, :1]),
    "filters": partial(attention.draw_filters, [("base, seed 0", RNG.normal(size=(8, 4, 4)), np.full(8, 0.125))] * 2),
    "ranking": partial(ranking.draw, [("no position vectors", 5.6, 5.2, 5.9, "more"), ("1 head, not 8", 0.96, 0.9, 1.02, "small")]),
    "gaze": partial(captions.draw_gaze, np.tile(DIGIT, (2, 2)), WORDS, GAZE),
    "scenes": partial(captions.draw_scenes, np.stack([np.tile(DIGIT, (2, 2))] * 6)),
    "positions": partial(positions.draw_similarity, [("base (learned), mean over 20 seeds", RNG.uniform(-1, 1, (55, 55)))] * 3),
}  # fmt: skip


def made(draw: Callable[[], Figure]) -> Figure:
    """The figure in the pages' style, laid out."""
    kept: list[Figure] = []

    def draw_and_keep() -> Figure:
        kept.append(draw())
        return kept[0]

    base.png(draw_and_keep)
    kept[0].draw_without_rendering()  # at the figure's own resolution: the file has another
    return kept[0]


@pytest.mark.parametrize("name", DRAWN)
def test_every_word_can_be_read_and_lies_inside_of_the_picture(name: str) -> None:
    figure = made(DRAWN[name])
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert width <= base.WIDTH
    assert box.x0 > -0.03
    assert box.y0 > -0.03
    assert box.x1 < width + 0.03
    assert box.y1 < height + 0.03
    for text in figure.findobj(Text):
        assert not text.get_text() or text.get_fontsize() * 830 / base.WIDTH / 72 >= 10, text  # pixels of a page that is 830 wide


def test_a_picture_is_drawn_anew_only_where_its_data_or_code_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def picture(level: float) -> Picture:
        return Picture("", partial(scaling.draw_lines, [Line("base", (1.0, 2.0), np.full((6, 2), level))], "A", "b", "accuracies"))

    stored = tmp_path / "a.png"
    stored.write_bytes(picture(0.5).png(stored))
    assert picture(0.5).png() == stored.read_bytes()  # equal inputs give equal bytes
    with monkeypatch.context() as patch:
        patch.setattr(base, "png", lambda draw, digest: b"drawn")
        assert picture(0.5).png(stored) == stored.read_bytes()
        assert picture(0.6).png(stored) == b"drawn"
        assert picture(0.5).png(tmp_path / "another.png") == b"drawn"
        patch.setattr(base, "_code", lambda module: "other code")
        assert picture(0.5).png(stored) == b"drawn"
    stored.write_bytes(b"no picture")
    assert Image.open(io.BytesIO(picture(0.5).png(stored))).size[0] > 1000


def test_a_matplotlibrc_of_the_user_does_not_change_the_bytes() -> None:
    expected = base.png(DRAWN["lines"])
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "axes.titlepad": 40, "savefig.bbox": "tight"}):
        assert base.png(DRAWN["lines"]) == expected


@pytest.mark.parametrize("seeds", [3, 10])
def test_bands_are_intervals_of_the_mean_or_the_range_of_few_seeds(seeds: int) -> None:
    line = of_epochs("base", seeds, 8)
    axes = made(partial(curves.draw_curves, [line])).axes[1]
    assert axes.lines[0].get_ydata() == pytest.approx(line.test_error.mean(axis=0))
    edges = axes.collections[0].get_paths()[0].vertices
    low, high = line.test_error.min(axis=0), line.test_error.max(axis=0)
    if seeds == 10:
        low, high = stats.t.interval(0.95, 9, loc=line.test_error.mean(axis=0), scale=stats.sem(line.test_error, axis=0))
    for epoch in range(8):
        own = edges[edges[:, 0] == epoch + 1, 1]
        assert (own.min(), own.max()) == pytest.approx((low[epoch], high[epoch]))


def test_what_is_not_finite_is_left_out_of_lines() -> None:
    values = np.array([[0.1, 0.2, np.nan], [0.3, np.inf, np.nan], [0.5, 0.4, np.nan]])
    assert base.centre(values) == pytest.approx([0.3, 0.3, np.nan], nan_ok=True)
    low, high = base.band(values)
    assert low == pytest.approx([0.1, 0.2, np.nan], nan_ok=True)
    assert high == pytest.approx([0.5, 0.4, np.nan], nan_ok=True)
    diverged = Curves("a", np.full((2, 4), np.nan), np.full((2, 4), np.inf), np.full((2, 4), 0.9))
    assert made(partial(curves.draw_curves, [diverged, of_epochs("b", 2, 4)])).axes[0].get_ylim()[1] <= curves.TOP_LOSS


def test_each_panel_has_its_variant_beside_the_baseline() -> None:
    shown = [of_epochs(f"v{i}", 6, 30, 0.02 * (i + 1), is_baseline=i == 2) for i in range(7)]
    panels = [axes for axes in made(partial(curves.draw_panels, shown)).axes if axes.lines]
    others = [line for line in shown if not line.is_baseline]
    for axes, line in zip(panels, others, strict=True):
        assert [drawn.get_ydata() for drawn in axes.lines] == [pytest.approx(one.test_error.mean(0)) for one in (shown[2], line)]
        assert axes.get_title(loc="left") == f"{line.label}\n{100 * line.test_error[:, -1].mean():.2f} %"
        assert axes.get_ylim() == panels[0].get_ylim()


def test_a_measure_shows_every_seed_the_mean_and_its_interval() -> None:
    rows = [Line("base", (), RNG.normal(1, 0.1, 10), True), Line("other", (), np.append(RNG.normal(2, 0.1, 9), np.nan))]
    axes = made(partial(measure.draw_measure, rows, "Something")).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["base", "other\n1 of 10 not finite"]
    for place, row in enumerate(rows):
        finite = row.values[np.isfinite(row.values)]
        rings = next(
            line for line in axes.lines if len(line.get_xdata()) == finite.size and round(float(np.mean(line.get_ydata()))) == place
        )
        assert sorted(rings.get_xdata()) == pytest.approx(sorted(finite))
        interval = stats.t.interval(0.95, finite.size - 1, loc=finite.mean(), scale=stats.sem(finite))
        here = [list(line.get_xdata()) for line in axes.lines if {*line.get_ydata()} == {place}]
        assert here == [pytest.approx(interval), pytest.approx([finite.mean()])]
    far = [*rows, Line("far", (), np.full(3, 90.0))]
    assert made(partial(measure.draw_measure, far, "Something")).axes[0].get_xscale() == "log"


def test_networks_with_other_numbers_of_seeds_are_one_line(study: Params) -> None:
    """The base has more seeds than the transformers that were trained on fewer images."""
    runs = []
    for name, seeds, error in (("vit-100", 6, 0.3), ("base", 12, 0.03)):
        settings = study.resolve(name)
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"seeds": tuple(range(seeds))})})
        own = {"test_accuracy": 1 - error * np.exp(RNG.normal(0, 0.1, (seeds, 30)))}
        runs.append(Training(name, {"config": settings.model_dump(mode="json")}, tuple(range(seeds)), own, 10, 10))
    (picture,) = scaling.data_size(Material("a", study.experiments["data-size"], runs, 60_000))
    (line,) = made(picture.draw).axes[0].lines
    assert list(line.get_xdata()) == [100, 60_000]
    assert line.get_ydata() == pytest.approx([run.test_error[:, -5:].mean() for run in runs])  # as the claims about them


def test_points_stand_at_their_size_and_error() -> None:
    flops, parameters = made(partial(arithmetic.draw_arithmetic, points())).axes
    for axes, size in ((flops, "flops"), (parameters, "parameters")):
        drawn = [line.get_xydata()[0].tolist() for line in axes.lines if len(line.get_xdata()) == 1]
        assert [x for x, _ in drawn] == [getattr(point, size) for point in points()]


@pytest.mark.parametrize("maps", [HEADS, HEADS[:, :1], HEADS[:1, :4]])
def test_maps_of_heads_share_a_scale_that_no_weight_exceeds_and_a_whole_bar(maps: np.ndarray) -> None:
    figure = made(partial(attention.draw_heads, DIGIT, maps))
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == maps.shape[0] * maps.shape[1]
    assert np.asarray(panels[-1].images[0].get_array()) == pytest.approx(maps[-1, -1])
    assert {axes.images[0].get_clim() for axes in panels} == {(0, maps.max())}
    (bar,) = (axes for axes in figure.axes if not axes.images)
    place = bar.get_position()
    assert 0 <= place.y0 < place.y1 <= 1
    boxes = [label.get_window_extent() for label in bar.get_yticklabels() if label.get_text()]
    assert len(boxes) >= 3
    assert all(box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height for box in boxes)
    assert all(above.y0 >= below.y1 - 1 for below, above in itertools.pairwise(boxes))


def test_rollouts_are_a_row_of_images_over_rows_of_maps() -> None:
    images, maps = RNG.random((10, 28, 28)), RNG.random((10, 7, 7))
    tiles = [axes for axes in made(partial(attention.draw_rollouts, images, [("one", maps), ("two", maps)])).axes if axes.images]
    shown = [np.asarray(axes.images[0].get_array()) for axes in tiles]
    assert [len(shown), {axes.images[0].get_clim() for axes in tiles[10:]}] == [30, {(0, maps.max())}]
    assert shown[3] == pytest.approx(images[3])
    assert shown[24] == pytest.approx(maps[4])


def test_gaze_has_a_map_for_each_word_and_level() -> None:
    figure = made(DRAWN["gaze"])
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["the scene", *WORDS]
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images and axes.images[0].get_array().shape == (4, 4)]
    assert sorted(map(np.ndarray.tolist, shown)) == sorted(GAZE.reshape(-1, 4, 4).tolist())


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a three at the top left and two nines at the bottom", "a three at the top left and two **nines** [sevens] at the bottom"),
        ("at the bottom two sevens and at the top left", "at the bottom two sevens and at the top left [a three]"),
        ("at the bottom two sevens and and at the top left a three", "at the bottom two sevens **and** and at the top left a three"),
        ("", "[a three at the top left and two sevens at the bottom]"),
    ],
)
def test_words_are_compared_with_the_nearest_reference(written: str, shown: str) -> None:
    references = [WORDS[:-1], (*WORDS[9:12], *WORDS[7:9], "and", *WORDS[2:6], *WORDS[:2])]
    assert captions.marked(tuple(written.split()), references) == shown


def test_lines_of_the_timings_are_the_medians_of_an_image(make_timings: Callable[..., Any]) -> None:
    timings = make_timings()
    time, memory = made(timing.growth(timings).draw).axes
    for line, (way, kind) in enumerate((way, kind) for way in WAYS for kind in ("growth", "attention")):
        entries = timings.growth(kind, way)
        median = [float(np.median([one[entry["name"]] for one in timings.rounds])) for entry in entries]
        for axes, values in ((time, 1e3 * np.array(median)), (memory, np.array([entry["saved_bytes"] for entry in entries]) / 1e6)):
            x, y = axes.lines[line].get_data()
            assert list(x) == [entry["tokens"] for entry in entries]
            assert y == pytest.approx(values / [entry["batch"] for entry in entries])
