"""The figures of the timing page show the timings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.report.figures import timing
from pipeline.timing.subjects import WAYS


def test_bars_are_the_shares_of_each_way(make_timings: Callable[..., Any], drawn: list[Figure]) -> None:
    timings = make_timings()
    profiles = timings.raw["profiles"]
    for i, name in enumerate(timings.subjects("fast")):
        for j, way in enumerate(WAYS):
            groups = profiles[f"step/{way}/{name}"]["groups"]
            groups |= {part: 1.0 + 2 * i + 3 * j * k for k, part in enumerate(groups)}
    timing.profile(timings, str).draw("light")
    for axes, way in zip(drawn[0].axes, WAYS, strict=True):
        seconds = np.array([list(profiles[f"step/{way}/{name}"]["groups"].values()) for name in timings.subjects("fast")])
        widths = np.array([[bar.get_width() for bar in part] for part in axes.containers]).T
        assert widths == pytest.approx(100 * seconds / seconds.sum(1, keepdims=True))


def test_lines_are_the_medians_of_an_image(make_timings: Callable[..., Any], drawn: list[Figure]) -> None:
    timings = make_timings()
    timing.growth(timings).draw("light")
    time, memory = drawn[0].axes
    for line, (way, kind) in enumerate((way, kind) for way in WAYS for kind in ("growth", "attention")):
        entries = timings.growth(kind, way)
        median = [float(np.median([one[entry["name"]] for one in timings.rounds])) for entry in entries]
        for axes, values in ((time, 1e3 * np.array(median)), (memory, np.array([entry["saved_bytes"] for entry in entries]) / 1e6)):
            x, y = axes.lines[line].get_data()
            assert list(x) == [entry["tokens"] for entry in entries]
            assert y == pytest.approx(values / [entry["batch"] for entry in entries])
