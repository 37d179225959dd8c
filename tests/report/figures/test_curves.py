"""Figures by epoch: equal bytes for equal inputs, and what the axes, bands and bars show."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from pipeline.params import ExperimentSettings, Params
from pipeline.report.figures import Material, curves, lines, style
from pipeline.report.figures.curves import Line
from pipeline.report.figures.style import Theme
from pipeline.study import Training


def make_epochs(seeds: int, epochs: int, *, level: float = 0.97, seed: int = 0) -> Training:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.002, size=(5, seeds, epochs))
    late = 1 / np.arange(1, epochs + 1)
    curves = {
        "train_loss": 0.05 + 0.4 * late + np.abs(noise[0]),
        "test_loss": 0.1 + 0.3 * late + np.abs(noise[1]),
        "test_accuracy": np.minimum(level - 0.1 * late + noise[2], 1.0),
        "gradient_norm": 0.5 + np.abs(noise[4]),
        "seconds": 6 * (1 + np.abs(noise[3])),
    }
    return Training("base", {}, tuple(range(seeds)), curves)


def make_lines(seeds: int, epochs: int) -> list[Line]:
    return [
        Line("base", make_epochs(seeds, epochs), is_baseline=True),
        Line("other", make_epochs(seeds, epochs, level=0.95, seed=1)),
    ]


@pytest.mark.parametrize(("seeds", "epochs", "theme"), [(1, 1, "light"), (3, 5, "dark"), (10, 30, "light")])
def test_equal_inputs_give_equal_bytes_without_date_or_software(seeds: int, epochs: int, theme: Theme) -> None:
    first, second = (curves.draw_curves(make_lines(seeds, epochs), theme) for _ in range(2))
    assert first == second
    image = Image.open(io.BytesIO(first))
    assert not {"Software", "Creation Time", "date"} & image.info.keys()
    assert len(first) < 150_000
    page = {"light": (255, 255, 255), "dark": (13, 17, 23)}[theme]
    assert image.convert("RGB").getpixel((2, 2)) == page


def test_a_matplotlibrc_of_the_user_does_not_change_the_bytes() -> None:
    import matplotlib

    expected = curves.draw_curves(make_lines(3, 5), "light")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "axes.titlepad": 40, "savefig.bbox": "tight"}):
        assert curves.draw_curves(make_lines(3, 5), "light") == expected


def _ticks(axes: Axes) -> list[float]:
    low, high = sorted(axes.get_ylim())
    return [tick for tick in axes.get_yticks() if low <= tick <= high]


@pytest.mark.parametrize("seeds", [3, 10])
def test_lines_are_means_and_bands_what_the_caption_calls_them(drawn: list[Figure], seeds: int) -> None:
    line = make_lines(seeds, 8)[0]
    curves.draw_curves([line], "light")
    axes = drawn[0].axes[1]
    error = line.run.test_error
    assert axes.lines[0].get_ydata() == pytest.approx(error.mean(axis=0))
    band = axes.collections[0].get_paths()[0].vertices
    if seeds == 3:
        assert lines.band_kind(seeds) == "lowest to highest seed"
        low, high = error.min(axis=0), error.max(axis=0)
    else:
        assert "95 % Student t" in lines.band_kind(seeds)
        low, high = stats.t.interval(0.95, seeds - 1, loc=error.mean(axis=0), scale=stats.sem(error, axis=0))
    for epoch in range(8):
        edges = band[band[:, 0] == epoch + 1, 1]
        assert (edges.min(), edges.max()) == pytest.approx((low[epoch], high[epoch]))
    assert lines.band_kind(1) == ""


@pytest.mark.parametrize(("seeds", "epochs"), [(1, 1), (3, 5), (10, 30)])
def test_error_axis_shows_every_late_value_and_some_numbers(drawn: list[Figure], seeds: int, epochs: int) -> None:
    lines = make_lines(seeds, epochs)
    curves.draw_curves(lines, "light")
    assert drawn[0].axes[1].get_yscale() == "log"
    low, high = drawn[0].axes[1].get_ylim()
    for line in lines:
        mean = line.run.test_error.mean(axis=0)[curves.cut_epochs(epochs) :]
        assert low < mean.min()
        assert mean.max() < high
    assert 1 <= len(_ticks(drawn[0].axes[1])) <= 10


def test_a_run_without_errors_leaves_the_axis_to_those_with_some(drawn: list[Figure]) -> None:
    epochs = make_epochs(2, 6)
    epochs.test_accuracy[:, -1] = 1.0
    curves.draw_curves([Line("base", epochs)], "light")
    low, high = drawn[0].axes[1].get_ylim()
    errors = epochs.test_error[:, :-1]
    assert errors.min() / 2 < low < errors.min()
    assert errors.max() < high < 2 * errors.max()
    epochs.test_accuracy[:] = 1.0
    curves.draw_curves([Line("base", epochs)], "light")
    assert np.isfinite(drawn[1].axes[1].get_ylim()).all()


def test_one_seed_that_fails_does_not_press_the_axis_flat(drawn: list[Figure]) -> None:
    epochs = make_epochs(6, 6)
    epochs.test_accuracy[0] = 0.1
    curves.draw_curves([Line("base", epochs)], "light")
    low, high = drawn[0].axes[1].get_ylim()
    mean = epochs.test_error.mean(axis=0)
    assert mean.min() / 4 < low < high < 4 * mean.max()


@pytest.mark.parametrize(("number", "banded"), [(3, True), (5, False)])
def test_many_lines_have_bars_at_their_ends_in_place_of_bands(drawn: list[Figure], number: int, banded: bool) -> None:
    lines = [Line(f"variant {i}", make_epochs(10, 8, seed=i), i == 0) for i in range(number)]
    curves.draw_curves(lines, "light")
    axes = drawn[0].axes[1]
    assert len(axes.collections) == number
    for line, shown in zip(lines, axes.collections, strict=True):
        last = line.run.test_error[:, -1]
        low, high = stats.t.interval(0.95, 9, loc=last.mean(), scale=stats.sem(last))
        edges = shown.get_paths()[0].vertices
        assert len(edges) == (8 * 2 + 3 if banded else 2)
        assert edges[edges[:, 0] == 8, 1].min() == pytest.approx(low)
        assert edges[edges[:, 0] == 8, 1].max() == pytest.approx(high)


def test_nothing_of_a_figure_lies_outside_of_it(drawn: list[Figure]) -> None:
    curves.draw_curves(make_lines(3, 30), "light")
    figure = drawn[0]
    figure.draw_without_rendering()
    texts = [*(axes.title for axes in figure.axes), *(axes._left_title for axes in figure.axes), *figure.legends[0].get_texts()]  # type: ignore[attr-defined]
    width, height = figure.bbox.width, figure.bbox.height
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width, text.get_text()
        assert box.y1 <= height


# --- seeds that diverged ---


def diverging(seeds: int, epochs: int, lost: int) -> Line:
    """The first `lost` seeds' losses are NaN or infinite from the third epoch on."""
    made = make_epochs(seeds, epochs)
    made.curves["train_loss"][:lost, 2:] = np.nan
    made.test_loss[:lost, 2:] = np.inf
    return Line("diverging", made)


@pytest.mark.parametrize("seeds", [3, 10])
def test_losses_that_are_not_finite_are_left_out_of_mean_and_band(drawn: list[Figure], seeds: int) -> None:
    line = diverging(seeds, 6, 1)
    curves.draw_curves([*make_lines(seeds, 6)[:1], line], "light")
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
    curves.draw_curves([line], "light")
    train, test = (drawn[0].axes[0].lines[i].get_ydata() for i in (0, 1))
    for values in (train, test):
        assert np.isfinite(values).tolist() == [True, True, False, False, False, False]
    low, high = drawn[0].axes[0].get_ylim()
    assert 0 < low < high < 10


def test_a_loss_that_explodes_does_not_press_the_others_flat(drawn: list[Figure]) -> None:
    line = diverging(3, 6, 0)
    assert not curves.exceeds_loss_axis([line])
    line.run.curves["train_loss"][:, 3] = 1e6
    assert curves.exceeds_loss_axis([line])
    curves.draw_curves([line], "light")
    assert drawn[0].axes[0].get_ylim()[1] == curves.TOP_LOSS


def test_lines_of_unequal_length_share_an_axis(drawn: list[Figure]) -> None:
    curves.draw_curves([make_lines(3, 5)[0], Line("longer", make_epochs(3, 12))], "light")
    for axes in drawn[0].axes:
        assert axes.get_xlim()[1] > 12
        assert {len(line.get_xdata()) for line in axes.lines} == {5, 12}


# --- many variants ---


def many_lines(number: int) -> list[Line]:
    return [Line(f"variant number {i}", make_epochs(3, 5, level=0.9 + i / 200, seed=i), i == 0) for i in range(number)]


@pytest.mark.parametrize("number", [7, 10, 14])  # three columns, and four of which the last row has an empty place
@pytest.mark.parametrize("baseline", [True, False])
def test_many_variants_have_a_panel_each_with_the_baseline_in_it(drawn: list[Figure], number: int, baseline: bool) -> None:
    lines = [line if baseline else Line(line.label, line.run) for line in many_lines(number)]
    curves.draw_curves(lines, "light")
    figure = drawn[0]
    panels = [axes for axes in figure.axes if axes.axison]
    shown = lines[1:] if baseline else lines
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in panels] == [line.label for line in shown]
    for axes, line in zip(panels, shown, strict=True):
        assert len(axes.lines) == 1 + baseline
        assert axes.lines[-1].get_color() != style.INK["light"]
        assert axes.lines[-1].get_ydata() == pytest.approx(line.run.test_error.mean(axis=0))
        assert axes.get_title(loc="right") == f"{100 * line.run.test_error[:, -1].mean():.2f} %"
        if baseline:
            assert axes.lines[0].get_color() == style.INK["light"]
            assert axes.lines[0].get_ydata() == pytest.approx(lines[0].run.test_error.mean(axis=0))
    assert len({axes.get_ylim() for axes in panels}) == 1
    assert figure.get_size_inches()[0] == style.WIDTH


def test_panels_end_at_some_times_the_baselines_error(drawn: list[Figure], study: Params) -> None:
    lines = many_lines(8)
    lines[3].run.test_accuracy[:] = 0.1
    curves.draw_curves(lines, "light")
    panels = [axes for axes in drawn[0].axes if axes.axison]
    baseline = float(lines[0].run.test_error[:, -1].mean())
    assert [axes.get_ylim()[1] for axes in panels] == pytest.approx([curves.MAX_TIMES * baseline] * 7)
    assert [[line.get_marker() for line in axes.lines].count("^") for axes in panels] == [0, 0, 1, 0, 0, 0, 0]
    names = ("base", "relu", "mean", "max", "first", "dropout", "linear", "warmup")
    experiment = ExperimentSettings(title="A", question="Is it?", source="code", baseline="base", variants=names)
    record = {name: {"config": study.resolve(name).model_dump(mode="json")} for name in names}
    runs = [Training(name, record[name], line.run.seeds, line.run.curves) for name, line in zip(names, lines, strict=True)]
    (drawing,) = curves.curves(Material("a", experiment, runs))
    assert "An arrow: the error lies above the axis (max)." in drawing.caption
    assert "max" in drawing.alt


def test_a_few_variants_stay_in_one_panel(drawn: list[Figure]) -> None:
    curves.draw_curves(many_lines(curves.MAX_LINES), "light")
    assert len(drawn[0].axes) == 2


@pytest.mark.parametrize(
    ("epoch", "accuracy", "said"),
    [
        (24, 0.5331, ["other, seed 1, epoch 24: 46.69 %"]),
        (24, 0.86, []),  # 14 % are less than 3 times 5 %
        (2, 0.2, []),  # a training may begin so
        (30, 0.2, []),  # nothing after it shows whether it recovers
        (slice(10, 30), 0.2, []),  # it has collapsed, and not one test
    ],
)
def test_single_tests_far_off_are_named(epoch: int | slice, accuracy: float, said: list[str]) -> None:
    lines = make_lines(2, 30)
    for line in lines:
        line.run.test_accuracy[:] = 0.95
    assert curves.excursions(lines) == []
    lines[1].run.test_accuracy[1, epoch if isinstance(epoch, slice) else epoch - 1] = accuracy
    assert curves.excursions(lines) == said
    lines[1].run.test_accuracy[:] = 0.999
    lines[1].run.test_accuracy[1, 23] = 0.96  # many times the error, and 4 points
    assert curves.excursions(lines) == []
