"""Figures: equal bytes for equal inputs, both themes, and what the axes and bands show."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from pipeline.errors import UserError
from pipeline.report import figures
from pipeline.report.results import Epochs
from pipeline.training.records import EpochRow, write_epochs


def make_epochs(seeds: int, epochs: int, *, level: float = 0.97, seconds: float = 6.0, seed: int = 0) -> Epochs:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.002, size=(4, seeds, epochs))
    late = 1 / np.arange(1, epochs + 1)
    return Epochs(
        seeds=tuple(range(seeds)),
        train_loss=0.05 + 0.4 * late + np.abs(noise[0]),
        test_loss=0.1 + 0.3 * late + np.abs(noise[1]),
        test_accuracy=np.minimum(level - 0.1 * late + noise[2], 1.0),
        seconds=seconds * (1 + np.abs(noise[3])),
    )


def make_lines(seeds: int, epochs: int) -> list[figures.Line]:
    return [
        figures.Line("base", make_epochs(seeds, epochs), is_baseline=True),
        figures.Line("other", make_epochs(seeds, epochs, level=0.95, seconds=40.0, seed=1)),
    ]


@pytest.mark.parametrize(("seeds", "epochs"), [(1, 1), (3, 5), (10, 30)])
@pytest.mark.parametrize("theme", figures.THEMES)
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
    for number in (1, 2, 3):
        light, dark = (figures.position_similarity([panel] * number, theme) for theme in figures.THEMES)
        assert light != dark
        assert light == figures.position_similarity([panel] * number, "light")


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
    accuracy = line.epochs.test_accuracy
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
        mean = line.epochs.test_accuracy.mean(axis=0)[figures.cut_epochs(epochs) :]
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


def test_variant_curves_reads_the_table_and_writes_one_picture(tmp_path: Path) -> None:
    epochs = make_epochs(3, 4)
    rows = [
        EpochRow(seed, e + 1, *(float(a[i, e]) for a in (epochs.train_loss, epochs.test_loss, epochs.test_accuracy, epochs.seconds)))
        for i, seed in enumerate(epochs.seeds)
        for e in range(4)
    ]
    write_epochs(tmp_path / "epochs.csv", rows)
    figures.variant_curves("base", tmp_path / "epochs.csv", tmp_path / "curves.png")
    first = (tmp_path / "curves.png").read_bytes()
    assert Image.open(io.BytesIO(first)).size[0] > 800
    figures.variant_curves("base", tmp_path / "epochs.csv", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes() == first
    with pytest.raises(UserError, match="missing"):
        figures.variant_curves("base", tmp_path / "none.csv", tmp_path / "curves.png")
