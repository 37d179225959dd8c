"""Figures: equal bytes for equal inputs, both themes, and what the axes and bands show."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from scipy import stats

from pipeline.report import figures
from pipeline.report.figures import Dots, Series
from pipeline.study import Training


def make_epochs(seeds: int, epochs: int, *, level: float = 0.97, seconds: float = 6.0, seed: int = 0) -> Training:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.002, size=(5, seeds, epochs))
    late = 1 / np.arange(1, epochs + 1)
    curves = {
        "train_loss": 0.05 + 0.4 * late + np.abs(noise[0]),
        "test_loss": 0.1 + 0.3 * late + np.abs(noise[1]),
        "test_accuracy": np.minimum(level - 0.1 * late + noise[2], 1.0),
        "gradient_norm": 0.5 + np.abs(noise[4]),
        "seconds": seconds * (1 + np.abs(noise[3])),
    }
    return Training("base", {}, tuple(range(seeds)), curves)


def make_lines(seeds: int, epochs: int) -> list[figures.Line]:
    return [
        figures.Line("base", make_epochs(seeds, epochs), is_baseline=True),
        figures.Line("other", make_epochs(seeds, epochs, level=0.95, seconds=40.0, seed=1)),
    ]


@pytest.mark.parametrize(("seeds", "epochs", "theme"), [(1, 1, "light"), (3, 5, "dark"), (10, 30, "light")])
def test_equal_inputs_give_equal_bytes_without_date_or_software(seeds: int, epochs: int, theme: figures.Theme) -> None:
    for draw in (figures.curves, figures.epoch_time):
        first, second = draw(make_lines(seeds, epochs), theme), draw(make_lines(seeds, epochs), theme)
        assert first == second
        image = Image.open(io.BytesIO(first))
        assert not {"Software", "Creation Time", "date"} & image.info.keys()
        assert len(first) < 150_000
        page = {"light": (255, 255, 255), "dark": (13, 17, 23)}[theme]
        assert image.convert("RGB").getpixel((2, 2)) == page


def test_a_matplotlibrc_of_the_user_does_not_change_the_bytes() -> None:
    import matplotlib

    expected = figures.curves(make_lines(3, 5), "light")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "axes.titlepad": 40, "savefig.bbox": "tight"}):
        assert figures.curves(make_lines(3, 5), "light") == expected


def test_mosaic_is_drawn_in_both_themes() -> None:
    panel = ("seed 0", np.linspace(-1, 1, 121).reshape(11, 11))
    light, dark = (figures.position_similarity([panel] * 2, theme) for theme in figures.THEMES)
    assert light != dark
    assert light == figures.position_similarity([panel] * 2, "light")
    for number in (1, 3):
        assert figures.position_similarity([panel] * number, "light") != light


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures as matplotlib objects, as they stand when they are saved."""
    seen: list[Figure] = []
    original = Figure.savefig

    def savefig(self: Figure, *args: object, **kwargs: object) -> None:
        seen.append(self)
        original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", savefig)
    return seen


def _ticks(axes: Axes) -> list[float]:
    low, high = sorted(axes.get_ylim())
    return [tick for tick in axes.get_yticks() if low <= tick <= high]


@pytest.mark.parametrize("seeds", [3, 10])
def test_lines_are_means_and_bands_what_the_caption_calls_them(drawn: list[Figure], seeds: int) -> None:
    line = make_lines(seeds, 8)[0]
    figures.curves([line], "light")
    axes = drawn[0].axes[1]
    accuracy = line.run.test_accuracy
    assert axes.lines[0].get_ydata() == pytest.approx(accuracy.mean(axis=0))
    band = axes.collections[0].get_paths()[0].vertices
    if seeds == 3:
        assert figures.band_kind(seeds) == "lowest to highest seed"
        low, high = accuracy.min(axis=0), accuracy.max(axis=0)
    else:
        assert "95 % Student t" in figures.band_kind(seeds)
        low, high = stats.t.interval(0.95, seeds - 1, loc=accuracy.mean(axis=0), scale=stats.sem(accuracy, axis=0))
    for epoch in range(8):
        edges = band[band[:, 0] == epoch + 1, 1]
        assert (edges.min(), edges.max()) == pytest.approx((low[epoch], high[epoch]))
    assert figures.band_kind(1) == ""


@pytest.mark.parametrize(("seeds", "epochs"), [(1, 1), (3, 5), (10, 30)])
def test_accuracy_axis_shows_every_late_value_and_some_numbers(drawn: list[Figure], seeds: int, epochs: int) -> None:
    lines = make_lines(seeds, epochs)
    figures.curves(lines, "light")
    low, high = drawn[0].axes[1].get_ylim()
    for line in lines:
        mean = line.run.test_accuracy.mean(axis=0)[figures.cut_epochs(epochs) :]
        assert low < mean.min()
        assert mean.max() < high
    assert 1 <= len(_ticks(drawn[0].axes[1])) <= 10


def test_a_perfect_run_has_its_place_on_the_axis(drawn: list[Figure]) -> None:
    epochs = make_epochs(2, 6)
    epochs.test_accuracy[:, -1] = 1.0
    figures.curves([figures.Line("base", epochs)], "light")
    low, high = drawn[0].axes[1].get_ylim()
    assert np.isfinite([low, high]).all()
    assert low < high <= 1.0


def test_epoch_time_is_logarithmic_only_where_the_range_asks_for_it(drawn: list[Figure]) -> None:
    figures.epoch_time(make_lines(3, 5), "light")  # 6 s and 40 s
    figures.epoch_time(make_lines(3, 5)[:1], "light")
    assert [figure.axes[0].get_yscale() for figure in drawn] == ["log", "linear"]
    assert drawn[1].axes[0].get_ylim()[0] == 0


def test_nothing_of_a_figure_lies_outside_of_it(drawn: list[Figure]) -> None:
    figures.curves(make_lines(3, 30), "light")
    figure = drawn[0]
    figure.draw_without_rendering()
    texts = [*(axes.title for axes in figure.axes), *(axes._left_title for axes in figure.axes), *figure.legends[0].get_texts()]  # type: ignore[attr-defined]
    width, height = figure.bbox.width, figure.bbox.height
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width, text.get_text()
        assert box.y1 <= height


def test_every_line_of_a_figure_looks_different() -> None:
    lines = [figures.Line(f"v{i}", make_epochs(1, 2), is_baseline=i == 0) for i in range(7)]
    styles = figures._line_styles(lines, "light")
    assert len({(style["color"], style["marker"]) for style in styles}) == len(lines)
    assert len({style["color"] for style in styles}) == len(lines)


@pytest.mark.parametrize("theme", figures.THEMES)
def test_colours_stand_out_from_the_page(theme: figures.Theme) -> None:
    """A contrast of 3:1 or more, as WCAG 2.1 (1.4.11) asks of graphics."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    page = luminance(figures._PAGE[theme])
    for colour in (*figures._COLOURS[theme], figures._INK[theme], figures._MUTED[theme]):
        lighter, darker = sorted((page, luminance(colour)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


def test_variant_curves_writes_one_picture(tmp_path: Path) -> None:
    figures.variant_curves(make_epochs(3, 4), tmp_path / "curves.png")
    first = (tmp_path / "curves.png").read_bytes()
    assert Image.open(io.BytesIO(first)).size[0] > 800
    figures.variant_curves(make_epochs(3, 4), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes() == first


# --- seeds that diverged ---


def diverging(seeds: int, epochs: int, lost: int) -> figures.Line:
    """The first `lost` seeds' losses are NaN or infinite from the third epoch on."""
    made = make_epochs(seeds, epochs)
    made.train_loss[:lost, 2:] = np.nan
    made.test_loss[:lost, 2:] = np.inf
    return figures.Line("diverging", made)


@pytest.mark.parametrize("seeds", [3, 10])
def test_losses_that_are_not_finite_are_left_out_of_mean_and_band(drawn: list[Figure], seeds: int) -> None:
    line = diverging(seeds, 6, 1)
    figures.curves([*make_lines(seeds, 6)[:1], line], "light")
    test = drawn[0].axes[0].lines[3].get_ydata()
    rest = line.run.test_loss[1:]
    assert test[2:] == pytest.approx(rest[:, 2:].mean(axis=0))
    assert test[:2] == pytest.approx(line.run.test_loss[:, :2].mean(axis=0))
    band = drawn[0].axes[0].collections[3].get_paths()[0].vertices
    edges = band[band[:, 0] == 5, 1]
    low, high = (rest[:, 4].min(), rest[:, 4].max()) if seeds == 3 else stats.t.interval(
        0.95, len(rest) - 1, loc=rest[:, 4].mean(), scale=stats.sem(rest[:, 4]))  # fmt: skip
    assert (edges.min(), edges.max()) == pytest.approx((low, high))


def test_a_line_ends_where_no_seed_is_finite(drawn: list[Figure]) -> None:
    line = diverging(3, 6, 3)
    figures.curves([line], "light")
    train, test = (drawn[0].axes[0].lines[i].get_ydata() for i in (0, 1))
    for values in (train, test):
        assert np.isfinite(values).tolist() == [True, True, False, False, False, False]
    low, high = drawn[0].axes[0].get_ylim()
    assert 0 < low < high < 10


def test_a_loss_that_explodes_does_not_press_the_others_flat(drawn: list[Figure]) -> None:
    line = diverging(3, 6, 0)
    assert not figures.exceeds_loss_axis([line])
    line.run.train_loss[:, 3] = 1e6
    assert figures.exceeds_loss_axis([line])
    figures.curves([line], "light")
    assert drawn[0].axes[0].get_ylim()[1] == figures.TOP_LOSS


def test_lines_of_unequal_length_share_an_axis(drawn: list[Figure]) -> None:
    figures.curves([make_lines(3, 5)[0], figures.Line("longer", make_epochs(3, 12))], "light")
    for axes in drawn[0].axes:
        assert axes.get_xlim()[1] > 12
        assert {len(line.get_xdata()) for line in axes.lines} == {5, 12}


# --- many variants ---


def many_lines(number: int) -> list[figures.Line]:
    return [figures.Line(f"variant number {i}", make_epochs(3, 5, level=0.9 + i / 200, seed=i), i == 0) for i in range(number)]


@pytest.mark.parametrize("number", [9, 14])  # three columns, and four of which the last row has an empty place
def test_many_variants_have_a_panel_each_with_all_others_in_it(drawn: list[Figure], number: int) -> None:
    lines = many_lines(number)
    figures.curves(lines, "light")
    figure = drawn[0]
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(panels) == 2 * number  # one of losses, one of accuracies
    assert [axes.get_title(loc="left") for axes in panels] == 2 * [line.label for line in lines]
    for axes, line in zip(panels[number:], lines, strict=True):
        assert len(axes.lines) == number
        own = max(axes.lines, key=lambda drawn_line: drawn_line.get_linewidth())
        assert own.get_ydata() == pytest.approx(line.run.test_accuracy.mean(axis=0))
        inks = [drawn_line for drawn_line in axes.lines if drawn_line.get_color() == figures._INK["light"]]
        assert len(inks) == 1
        assert inks[0].get_ydata() == pytest.approx(lines[0].run.test_accuracy.mean(axis=0))
    assert len({axes.get_ylim() for axes in panels[number:]}) == 1
    assert figure.get_size_inches()[0] == figures.WIDTH


def test_a_few_variants_stay_in_one_panel(drawn: list[Figure]) -> None:
    figures.curves(many_lines(figures.MOST_LINES), "light")
    assert len(drawn[0].axes) == 2


# --- the other kinds ---


def test_measure_shows_every_seed_the_mean_and_its_interval(drawn: list[Figure]) -> None:
    rng = np.random.default_rng(0)
    rows = [Dots("base", rng.normal(1, 0.1, 10), True), Dots("other", rng.normal(2, 0.1, 10))]
    figures.measure(rows, "Something", "light")
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
    assert figures.is_logarithmic(rows)
    assert not figures.is_logarithmic(rows[:1])
    assert not figures.is_logarithmic([*rows[:1], Dots("one small value", np.array([1e-4, 0.2, 0.3]))])
    figures.measure(rows, "Something", "dark")
    axes = drawn[0].axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_title(loc="left") == "Something, log scale"
    assert [text.get_text() for text in axes.texts] == ["2 of 3 not finite", "3 of 3 not finite"]
    figure = drawn[0]
    figure.draw_without_rendering()
    for text in axes.texts:
        assert text.get_window_extent().x1 <= figure.bbox.width


@pytest.mark.parametrize("theme", figures.THEMES)
def test_data_size_is_drawn_over_the_numbers_of_images(drawn: list[Figure], theme: figures.Theme) -> None:
    rng = np.random.default_rng(0)
    vit = Series("ViT", (100.0, 1000.0, 60000.0), np.array([0.7, 0.9, 0.97]) + rng.normal(0, 0.003, (6, 3)), True)
    cnn = Series("CNN", (100.0, 60000.0), np.array([0.8, 0.99]) + rng.normal(0, 0.003, (6, 2)))
    first = figures.data_size([vit, cnn], theme)
    axes = drawn[0].axes[0]
    assert axes.get_xscale() == "log"
    assert [axes.xaxis.get_major_formatter()(tick, 0) for tick in axes.get_xticks()] == ["100", "1,000", "60,000"]
    assert axes.lines[0].get_ydata() == pytest.approx(vit.values.mean(axis=0))
    assert len(axes.collections) == 2  # bands
    assert [text.get_text() for text in axes.texts] == ["ViT", "CNN"]
    assert figures.data_size([vit, cnn], theme) == first


def test_names_at_the_ends_of_lines_do_not_touch_and_stay_in_the_figure(drawn: list[Figure]) -> None:
    ends = (0.570, 0.571, 0.569, 0.5705, 0.90, 0.53)
    lines = [Series(f"a long name {i}", (0.0, 1.0), np.array([[0.97, end]]), i == 0) for i, end in enumerate(ends)]
    figures.shifts(lines, "light")
    figure = drawn[0]
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in figure.axes[0].texts), key=lambda box: box.y0)  # without the leader
    for below, above in itertools.pairwise(boxes):
        assert above.y0 >= below.y1 - 2
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 and box.y1 <= figure.bbox.height for box in boxes)


def test_spreading_keeps_order_and_leaves_alone_what_does_not_touch() -> None:
    places = np.array([0.9, 0.5, 0.505, 0.1])
    spread = figures._spread(places, 0.05)
    assert spread[[0, 3]] == pytest.approx(places[[0, 3]])
    assert spread[2] - spread[1] == pytest.approx(0.05)
    assert spread[1:3].mean() == pytest.approx(places[1:3].mean())


def test_rollouts_are_a_row_of_images_over_rows_of_maps(drawn: list[Figure]) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((10, 28, 28))
    maps = rng.random((10, 7, 7))
    first = figures.rollouts(images, [("one\nseed 0", maps), ("two", maps)], "light")
    pictures = [np.asarray(axes.images[0].get_array()) for axes in drawn[0].axes]
    assert len(pictures) == 30
    assert pictures[3] == pytest.approx(images[3])
    assert pictures[10 + 4] == pytest.approx(maps[4])
    figure = drawn[0]
    figure.draw_without_rendering()
    for text in (text for axes in figure.axes for text in axes.texts):
        assert text.get_window_extent().x0 >= 0, text.get_text()
    assert figures.rollouts(images, [("one\nseed 0", maps), ("two", maps)], "light") == first
    assert figures.rollouts(images, [("one\nseed 0", maps), ("two", maps)], "dark") != first


@pytest.mark.parametrize(("blocks", "heads"), [(3, 8), (3, 1), (1, 4), (1, 16)])
def test_maps_of_heads_are_multiples_of_the_uniform_weight(drawn: list[Figure], blocks: int, heads: int) -> None:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(50), size=(blocks, heads))[..., 1:].reshape(blocks, heads, 7, 7)
    maps[0, 0] = 1 / 50
    figures.heads(rng.random((28, 28)), maps, 50, "light")
    panels = [axes for axes in drawn[0].axes if axes.images]
    assert len(panels) == blocks * heads
    assert np.abs(panels[0].images[0].get_array()).max() == pytest.approx(0)
    shown = [np.asarray(axes.images[0].get_array()) for axes in panels]
    last = np.log2(maps[-1, -1] * 50)
    assert np.maximum(last, -6) == pytest.approx(shown[-1], abs=1e-6)
    figure = drawn[0]
    assert all(axes.get_position().x0 >= 0 and axes.get_position().x1 <= 1 for axes in figure.axes)
