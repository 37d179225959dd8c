"""Figures by what they draw: the data in their axes, letters that can be read, and pictures that are kept while nothing changes."""

import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy import stats

from pipeline.params import ClaimSettings, Params
from pipeline.report.figures import Material, attention, base, panels, tiles, verdicts
from pipeline.report.figures.base import Picture, pictures
from pipeline.report.figures.errors import errors
from pipeline.report.figures.measure import ranking
from pipeline.report.figures.panels import Line, Panel, of_epochs
from pipeline.report.figures.tiles import Tile
from pipeline.study.claims import Finding, Judgement, Verdict, Why
from pipeline.study.ranking import Part
from pipeline.study.statistics import Interval
from pipeline.study.training import Attention
from tests.made_up import make_run

RNG = np.random.default_rng(0)
DIGIT = np.clip(np.add.outer(-np.abs(np.arange(28) - 14.0), -np.abs(np.arange(28) - 14.0)) / 10 + 1, 0, 1)
LABELS = np.array([0, 0, 1, 2], np.uint8)
HEADS = RNG.dirichlet(np.full(50, 0.1), size=(3, 8))[..., 1:].reshape(3, 8, 7, 7)


def judgement(id: str, verdict: Verdict, effect: float, low: float, high: float, **comparison: Any) -> Judgement:
    claim = ClaimSettings.model_validate({
        "source": "a test", "sentence": "It is.", "measured": "Accuracy.", "margin": "None.",
        "comparisons": [{"measure": "late test error", "variant": "one", "reference": "other"} | comparison],
    })  # fmt: skip
    found = Finding(claim.comparisons[0], verdict, Why.INSIDE, effect=effect, interval=Interval(low, high))
    return Judgement(id, claim, verdict, (found,))


SIMILAR: dict[str, Any] = {"rule": "equivalent", "bound": 1.25}
LESS: dict[str, Any] = {"rule": "less", "bound": 0.8}
CLAIMS = [
    judgement("A", "supported", 1.0, 0.9, 1.1, **SIMILAR),
    judgement("B", "contradicted", 1.5625, 1.25, 2.0, **LESS),
    judgement("C", "not decided", 1.25, 1.0, 4.0, **SIMILAR),
    judgement("D", "short run", 0.2, 0.1, 0.3, **LESS),
]


def wrong(*channels: int, **answers: list[list[int]]) -> Any:
    """The material of a figure of errors: by variant, (seed, image) answers. `channels`: how many, of images that have such."""
    runs = [
        SimpleNamespace(
            predictions=(np.array(given, np.uint8), LABELS), accuracy=(np.array(given) == LABELS).mean(1), label=name,
            settings=SimpleNamespace(model=SimpleNamespace(shape=SimpleNamespace(classes=3))),
        )
        for name, given in answers.items()
    ]  # fmt: skip
    images = np.arange(math.prod((4, *channels, 3, 3)), dtype=np.uint8).reshape(4, *channels, 3, 3)
    return SimpleNamespace(runs=runs, test_images=images, label=lambda run: run.label, is_baseline=lambda run: run.label == "base")


def of(study: Params, experiment: str, kind: Any, **runs: dict[str, Any]) -> list[Picture]:
    """An experiment's figures of runs, each given by what differs; `_` stands for `-` in their names."""
    made = [make_run(study, name.replace("_", "-"), **options) for name, options in runs.items()]
    return pictures(kind, Material("a", study.experiments[experiment], made, 60_000))


def heads(maps: np.ndarray) -> Picture:
    run = SimpleNamespace(seeds=(0,), variant="base")
    return attention._heads("base", run, Attention(np.stack([DIGIT]), (3,), "class token", maps[None], 50, maps[None, :1, 0]))  # type: ignore[arg-type]


@cache
def made(draw: Callable[[], Figure]) -> Figure:
    """The figure in the pages' style, laid out at its own resolution: the file has another."""
    kept: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure) or figure.draw_without_rendering())
        base._saved(draw)
    return kept[0]


CURVES = [of_epochs("base", RNG.random((6, 30)), True), of_epochs("one", RNG.random((6, 1)))]
EPOCHS = Panel("Error (%)", "epoch", CURVES, "errors", "epochs")
VARIANTS = [Line(f"variant-{i}", (100, 1000, 60_000), RNG.random((6, 3)), not i) for i in range(6)]
COUNTS = Panel("Error (%)", "images", VARIANTS, "errors", "counts")
PARTS = [Part("no position vectors", "a", "b", 5.6, Interval(5.2, 5.9)), Part("1 head", "a", "b", 1, Interval(0.9, 1.02))]
MAPS = {"heads": HEADS, "one head": HEADS[:, :1], "four heads": HEADS[:1, :4]}
DRAWN: dict[str, Callable[[], Figure]] = {
    "two panels": partial(panels.draw, [EPOCHS, EPOCHS]),
    "counts": partial(panels.draw, [COUNTS]),
    "ranking": ranking(PARTS).draw,
    "verdicts": verdicts.forest(15 * CLAIMS).draw,
    "rollouts": attention.rollouts(np.stack([DIGIT] * 10), [("base (sliced), mean", RNG.random((10, 7, 7)))] * 3),
    **{name: heads(maps).draw for name, maps in MAPS.items()},
    "signs": partial(tiles.draw, [("", [Tile(RNG.random((55, 55)), "signs", "base (of some words), seed 0")] * 2)], 3.7, bar=True),
    "no errors": errors(wrong(base=[[0, 0, 1, 2]]))[0].draw,
    "errors": errors(wrong(3, base=[[0, 1, 1, 2], [0, 1, 1, 0]], other=[[0, 0, 1, 2], [0, 0, 1, 2]]))[0].draw,
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_every_word_can_be_read_and_lies_inside_of_the_picture(name: str) -> None:
    figure = made(DRAWN[name])
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert width <= base.WIDTH
    assert 830 * height / width <= 1500  # pixels of a page that is 830 wide
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.03
    for text in figure.findobj(Text):
        assert not text.get_text() or text.get_fontsize() * 830 / base.WIDTH / 72 >= 10, text


def test_a_picture_is_drawn_anew_only_where_its_data_or_code_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def picture(level: float) -> Picture:
        line = Line("base", (1.0, 2.0), np.full((6, 2), level))
        return Picture("", partial(panels.draw, [Panel("A", "b", [line], "accuracies", "values")]))

    stored = tmp_path / "a.png"
    first = picture(0.5).png(stored)
    stored.write_bytes(first)
    with monkeypatch.context() as patch:
        patch.setattr(base, "png", lambda draw, digest: b"drawn")
        assert picture(0.5).png(stored) == first
        assert picture(0.6).png(stored) == b"drawn"
        patch.setattr(base, "_code", lambda module: "other code")
        assert picture(0.5).png(stored) == b"drawn"
    stored.write_bytes(b"no picture")
    assert picture(0.5).png(stored) == first  # equal inputs give equal bytes


def test_a_matplotlibrc_of_the_user_does_not_change_the_bytes() -> None:
    expected = base.png(DRAWN["counts"])
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "axes.titlepad": 40, "savefig.bbox": "tight"}):
        assert base.png(DRAWN["counts"]) == expected


# --- lines ---


@pytest.mark.parametrize("seeds", [3, 10])
def test_bands_are_intervals_of_the_mean_or_the_range_of_few_seeds(study: Params, seeds: int) -> None:
    (picture,) = of(study, "positions", "curves", base={"seeds": range(seeds)})
    error = make_run(study, "base", seeds=range(seeds)).test_error
    axes = made(picture.draw).axes[1]
    assert axes.lines[0].get_ydata() == pytest.approx(error.mean(axis=0))
    edges = axes.collections[0].get_paths()[0].vertices
    low, high = error.min(axis=0), error.max(axis=0)
    if seeds == 10:
        low, high = stats.t.interval(0.95, 9, loc=error.mean(axis=0), scale=stats.sem(error, axis=0))
    for epoch in range(30):
        own = edges[edges[:, 0] == epoch + 1, 1]
        assert (own.min(), own.max()) == pytest.approx((low[epoch], high[epoch]))


def test_what_is_not_finite_is_left_out_of_lines() -> None:
    values = np.array([[0.1, 0.2, np.nan], [0.3, np.inf, np.nan], [0.5, 0.4, np.nan]])
    for found, expected in zip((panels.centre(values), *panels.band(values)), ((0.3, 0.3), (0.1, 0.2), (0.5, 0.4)), strict=True):
        assert found == pytest.approx([*expected, np.nan], nan_ok=True)
    lines = [of_epochs("a", np.full((2, 4), np.inf)), of_epochs("b", np.full((2, 4), 50.0))]
    figure = made(partial(panels.draw, [Panel("", "", lines, "losses", "epochs"), Panel("", "", lines[:1], "errors", "epochs")]))
    assert figure.axes[0].get_ylim()[1] <= panels.TOP_LOSS


def test_each_of_many_variants_stands_once_beside_the_baseline(study: Params) -> None:
    names = study.experiments["optimizers"].variants
    found = of(study, "optimizers", "curves", **{name.replace("-", "_"): {} for name in names})
    shown = [[line.label.split(" ")[0] for line in picture.draw.args[0][1].lines] for picture in found]
    assert {one[0] for one in shown} == {"base"}
    assert ["base", *(name for one in shown for name in one[1:])] == sorted(names, key="base".__ne__)


def test_networks_with_other_numbers_of_seeds_are_one_line(study: Params) -> None:
    """The base has more seeds than the transformers that were trained on fewer images."""
    (picture,) = of(study, "data-size", "data_size", vit_100={"error": 0.3}, base={"seeds": range(12)})
    (line,) = made(picture.draw).axes[0].lines
    assert list(line.get_xdata()) == [100, 60_000]
    runs = make_run(study, "vit-100", error=0.3), make_run(study, "base", seeds=range(12))
    assert line.get_ydata() == pytest.approx([np.median(run.test_error[:, -10:], axis=1).mean() for run in runs])  # as the claims


# --- rows ---


def test_a_measure_shows_every_seed_the_mean_and_its_interval(study: Params) -> None:
    names = study.experiments["schedules"].variants[:2]
    (picture,) = of(study, "schedules", "measure", **{name.replace("-", "_"): {"seeds": range(10)} for name in names})
    axes = made(picture.draw).axes[0]
    for place, row in enumerate(picture.draw.args[0]):
        assert row.seeds.size == 10
        interval = stats.t.interval(0.95, 9, loc=row.seeds.mean(), scale=stats.sem(row.seeds))
        shown = [list(line.get_xdata()) for line in axes.lines if {*line.get_ydata()} == {place}]
        assert shown == [pytest.approx(interval), pytest.approx([row.seeds.mean()])]
        (rings,) = (line for line in axes.lines if len(line.get_xdata()) == 10 and round(float(np.mean(line.get_ydata()))) == place)
        assert list(rings.get_xdata()) == pytest.approx(list(row.seeds))


def test_effects_regions_and_intervals_stand_in_margins() -> None:
    """In logarithms of 1.25. A bound without a margin stands at one; two points less, where one more is claimed, at -2."""
    reached = judgement("F", "supported", 0.997, 0.996, 0.998, rule="at least", bound=0.995, measure="late accuracy", reference=None)
    less = judgement("G", "contradicted", -0.02, -0.03, -0.01, rule="at least", bound=0.01, measure="own-image deletion", reference=None)
    fewer = judgement("H", "not decided", 0.9, 0.8, 1.1, rule="less", bound=None, measure="late test error")  # no effect is its bound
    shown = {row.label[0]: row for row in verdicts.forest([*CLAIMS, reached, less, fewer]).draw.args[0]}
    far = math.inf
    for id, numbers in {
        "A": (0, -0.472165, 0.427125, -1, 1),
        "B": (2, 1, 3.106284, -far, -1),
        "F": (3, 2, 4, 1, far),
        "G": (-2, -3, -1, 1, far),
        "H": (-0.661701, -1.401419, 0.598581, -far, 0),
    }.items():
        assert (shown[id].effect, shown[id].low, shown[id].high, *shown[id].region) == pytest.approx(numbers, abs=1e-6)
    colours = {id: (row.colour, row.hollow) for id, row in shown.items()}
    assert [colours[id] for id in "ABCD"] == [(base.COLOURS[0], False), (base.COLOURS[1], False), (base.INK, False), (base.MUTED, True)]


# --- tiles ---


@pytest.mark.parametrize("name", MAPS)
def test_maps_of_heads_share_a_scale_that_no_weight_exceeds_and_a_whole_bar(name: str) -> None:
    figure, maps = made(DRAWN[name]), MAPS[name]
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == maps.shape[0] * maps.shape[1]
    assert np.asarray(shown[-1].images[0].get_array()) == pytest.approx(maps[-1, -1])
    assert {axes.images[0].get_clim() for axes in shown} == {(0, maps.max())}
    (bar,) = (axes for axes in figure.axes if not axes.images)
    boxes = [label.get_window_extent() for label in bar.get_yticklabels() if label.get_text()]
    assert len(boxes) >= 3
    assert all(box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height for box in boxes)
    assert all(above.y0 >= below.y1 - 1 for below, above in itertools.pairwise(boxes))


def test_shares_of_classes_and_the_images_that_most_seeds_miss() -> None:
    """A network that errs nowhere has its matrix, too."""
    (picture,) = errors(wrong(base=[[0, 1, 1, 2], [0, 1, 1, 0]], other=[[0, 0, 1, 2], [0, 0, 1, 2]]))
    (_, shares, worst), (_, all_right, none) = picture.draw.args[0]
    assert shares == pytest.approx(np.array([[0.5, 0.5, 0], [0, 1, 0], [0.5, 0, 0.5]]))
    assert [tile.title for tile in worst] == ["0 as 1\n2 of 2", "2 as 0\n1 of 2"]
    assert worst[1].image == pytest.approx(np.arange(27, 36).reshape(3, 3) / 255)
    assert all_right == pytest.approx(np.eye(3))
    assert none == []
    coloured = wrong(3, base=[[0, 1, 1, 2]])
    (picture,) = errors(coloured)
    (((_, _, (tile,)),),) = picture.draw.args
    assert tile.image[1, 2] * 255 == pytest.approx(coloured.test_images[1, :, 1, 2])
