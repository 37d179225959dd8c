"""Error against floating-point operations and parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy import stats

from pipeline.params import ExperimentSettings, Params
from pipeline.report.figures import Material, arithmetic, drawings
from pipeline.report.figures.arithmetic import Point
from pipeline.study import Training


def grid() -> list[list[Point]]:
    """Three depths of three widths."""
    rng = np.random.default_rng(0)

    def point(width: int, depth: int) -> Point:
        errors = 0.5 / width / depth**0.3 * rng.lognormal(0, 0.05, 6)
        return Point(f"{width} wide, {depth} blocks", 900 * width * depth * 16, 3 * width**2 * depth, errors, (width, depth) == (32, 3))

    return [[point(width, depth) for depth in (1, 3, 6)] for width in (16, 32, 64)]


def test_points_are_means_at_their_arithmetic_with_intervals(drawn: list[Figure]) -> None:
    lines = grid()
    first = arithmetic.draw_arithmetic(lines, "light")
    flops, parameters = drawn[0].axes
    assert (flops.get_xscale(), flops.get_yscale(), parameters.get_xscale()) == ("log", "log", "log")
    for axes, sizes in ((flops, [[point.flops for point in line] for line in lines]),
                        (parameters, [[point.parameters for point in line] for line in lines])):  # fmt: skip
        for line, x, shown in zip(lines, sizes, axes.lines, strict=False):
            assert shown.get_xdata() == pytest.approx(x)
            assert shown.get_ydata() == pytest.approx([point.errors.mean() for point in line])
    errors = lines[0][1].errors
    bar = flops.collections[1].get_segments()[0]  # type: ignore[attr-defined]
    assert bar[:, 1] == pytest.approx(stats.t.interval(0.95, 5, loc=errors.mean(), scale=stats.sem(errors)))
    dotted = flops.lines[len(lines)].get_xydata()
    baseline = lines[1][1]
    assert dotted.prod(axis=1) == pytest.approx(2 * [baseline.flops * baseline.errors.mean()])
    assert arithmetic.draw_arithmetic(grid(), "light") == first
    assert arithmetic.draw_arithmetic(grid(), "dark") != first


def test_each_point_has_its_name_and_no_name_hides_another(drawn: list[Figure]) -> None:
    arithmetic.draw_arithmetic(grid(), "light")
    figure = drawn[0]
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    assert sorted(text.get_text() for text in texts) == sorted(point.label for line in grid() for point in line)
    boxes = [Text.get_window_extent(text) for text in texts]
    inside = figure.axes[0].get_window_extent()
    assert all(inside.x0 - 1 <= box.x0 and box.x1 <= inside.x1 + 1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def trained(study: Params, name: str, flops: int | None, parameters: int = 100) -> Training:
    curves = {curve: np.full((2, 2), 0.5) for curve in ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "seconds")}
    return Training(name, {"config": study.resolve(name).model_dump(mode="json")}, (0, 1), curves, parameters, flops)


def test_variants_that_differ_in_depth_or_else_in_patches_are_one_line(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[list[Point]]] = []
    monkeypatch.setattr(arithmetic, "draw_arithmetic", lambda lines, theme: shown.append(lines) or b"")

    def labels(*variants: str) -> list[list[str]]:
        experiment = ExperimentSettings(title="A", question="Is it?", source="code", baseline="base", variants=variants)
        runs = [trained(study, variant, 1000 - i) for i, variant in enumerate(variants)]
        (drawing,) = drawings("arithmetic", Material("a", experiment, runs))
        assert "the number of parameters" not in drawing.caption  # they are the same
        assert ("Lines join" in drawing.caption) == any(len(line) > 1 for line in _draw(drawing))
        return [[point.label for point in line] for line in shown[-1]]

    def _draw(drawing: arithmetic.Drawing) -> list[list[Point]]:
        drawing.draw("light")
        return shown[-1]

    assert labels("base", "scale-32x1", "scale-32x6", "scale-16x1") == [["scale-32x6", "scale-32x1", "base"], ["scale-16x1"]]
    assert labels("base", "patch-7", "patch-14") == [["patch-14", "patch-7", "base"]]
    assert labels("base", "relu") == [["base"], ["relu"]]
    experiment = ExperimentSettings(title="A", question="Is it?", source="code", baseline="base", variants=("base", "relu"))
    assert drawings("arithmetic", Material("a", experiment, [trained(study, "base", 10), trained(study, "relu", None)])) == []
