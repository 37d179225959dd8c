"""The page says what the rows say."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import captions, growth, page
from benchmarks.results import Row

FACTS: dict[str, Any] = {
    "machine": "Some CPU (2 cores)", "device": "cpu", "threads": 2, "versions": {"python": "3.11.9", "torch": "2.15.0"}, "data": "mnist",
    "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "date": "2026-01-02", "attention": "fused-cpu", "seed": 0,
    "threshold": 0.05, "quick": False, "rounds": 3, "matrix_rates": [180e9, 200e9, 210e9],
    "profile": [["lab::small_head_attention", 3, 0.5], ["aten::addmm", 12, 0.3], ["aten::gelu", 3, 0.2]],
}  # fmt: skip


def _rows() -> list[Row]:
    seconds = {"thesis": (24.0, 25.0, 26.0), "ours-10": (5.0, 5.0, 6.0), "ours-threads": (6.0, 6.0, 7.0), "timm-loader": (14.0, 20.0, 26.0)}
    steps = {"thesis": 60, "ours-10": 469, "ours-threads": 469, "timm-loader": 90}
    rows = [
        Row(number, 1, name, 10_602, 10 if name == "ours-10" else 1, steps[name], value, 3.0, 0.05, 512 * 2**20, 0.01, True)
        for name, values in seconds.items()
        for number, value in enumerate(values, start=1)
    ]
    return [*rows, Row(1, 5, "thesis", 10_602, 1, 60, 99.0, 3.0, 0.0, 0, 0.6, False)]


def _line(text: str, start: str) -> list[str]:
    """Cells of the only table row that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_states_medians_spreads_and_ratios() -> None:
    text = page.render("some-cpu", _rows(), FACTS)
    table = text[text.index("## Time of an epoch") : text.index("## What the models share")]
    cells = _line(table, "thesis, as published (first patch)")
    assert cells[1:4] == ["10,602", "25.0 [24.0 .. 26.0] *", "2,400"]
    assert cells[4].startswith("5.00 [")
    assert cells[5].startswith("4.17 [")
    assert cells[6:8] == ["3.0", "512"]
    ours = _line(table, "ours, 10 seeds")
    assert ours[2] == "5.00 [5.00 .. 6.00]"
    assert ours[4] == "1.00 [1.00, 1.00]"
    assert "60, 90 steps were timed" in table
    assert "1 of 13" in text
    assert "99" not in table


def test_share_of_the_matrix_rate_is_arithmetic_over_time() -> None:
    # 49 patches of 16 pixels to 32; three blocks of 50 tokens: sliced maps, scores and sums, MLP; ten classes.
    multiply_adds = 49 * 16 * 32 + 3 * (3 * 50 * 32 * 4 + 2 * 50 * 50 * 32 + 2 * 50 * 32 * 32) + 320
    expected = 3 * 60_000 * 2 * multiply_adds / 5.0 / 200e9
    text = page.render("some-cpu", _rows(), FACTS)
    assert _line(text[text.index("## Time of") :], "ours, 10 seeds")[-1] == f"{expected:.1%}"


def test_bars_are_judged_by_the_whole_interval() -> None:
    text = page.render("some-cpu", _rows(), FACTS)
    bars = text[text.index("## Bars") :]
    assert _line(bars, "the thesis's published way")[-1] == "reached"
    assert _line(bars, "timm with a DataLoader")[-1] == "not decided by these rounds"  # 2.8 to 4.3 around 3.3
    assert "the reference against ours" not in bars  # it was not timed


def test_overheads_profile_and_growth_appear_when_measured() -> None:
    series = {"x_name": "seeds", "x": [1, 2, 4], "y_name": "an epoch of all seeds", "y": [3.0, 6.0, 12.0]}
    overheads = [
        {"what": "`dvc repro` with nothing to do, 50 variants", "values": [4.0, 5.0, 4.5], "unit": "s", "bar": "6 s"},
        {"what": "MLflow's share", "values": [0.011], "unit": "share", "bar": "2 %"},
    ]
    bare = page.render("some-cpu", _rows(), FACTS)
    assert "## Growth" not in bare
    text = page.render("some-cpu", _rows(), FACTS | {"growth": [series], "fused_tokens": 256, "overheads": overheads})
    assert "beyond 256 tokens PyTorch's attention" in text
    assert "Measured at" not in text
    parts = {"overheads": {"commit": "f" * 40, "dirty": False, "date": "2026-01-02"}}
    stamped = page.render("some-cpu", _rows(), FACTS | {"growth": [series], "fused_tokens": 256, "overheads": overheads, "parts": parts})
    assert stamped.count("Measured at") == 1
    assert "## Overheads\n\nMeasured at `ffffffffffff`, 2026-01-02.\n" in stamped
    assert _line(text, "`dvc repro` with nothing")[1:] == ["4.50 s [4.00 .. 5.00]", "6 s"]
    assert _line(text, "MLflow's share")[1] == "1.10% [1.10% .. 1.10%]"
    assert _line(text, "a seed's checkpoint")[1] == "0.50%"  # 0.05 s of 2 x 5 s
    assert _line(text, "an epoch of all seeds")[-2:] == ["1.00 [1.00, 1.00]", "1.00"]
    assert _line(text, "`lab::small_head_attention`")[1:] == ["3", "50.0%"]


def test_synthetic_images_and_quick_runs_are_named() -> None:
    text = page.render("some-cpu", _rows(), FACTS | {"data": "synthetic", "quick": True})
    assert "noise, 60,000 images" in text
    assert "not to be quoted" in text


def test_growth_picture_is_drawn(tmp_path: Any) -> None:
    from PIL import Image

    series = [{"x_name": "seeds", "x": [1, 2, 4], "y_name": "an epoch", "y": [3.0, 6.1, 11.8]}]
    growth.draw(series * 2, tmp_path / "growth.png")
    with Image.open(tmp_path / "growth.png") as picture:
        assert picture.width > 600


@pytest.mark.parametrize("rates", [[], [1e11]])
def test_a_lost_matrix_rate_leaves_its_cells_empty(rates: list[float]) -> None:
    text = page.render("some-cpu", _rows(), FACTS | {"matrix_rates": rates})
    assert bool(_line(text[text.index("## Time of") :], "ours, 10 seeds")[-1]) == bool(rates)


def test_captions_are_told_per_step_and_per_second() -> None:
    """Five steps in 0.4, 0.5 and 0.6 s; 500 scenes in 2, 4 and 5 s; of the last variant nothing counts."""
    seconds = {"step": [0.5, 0.4, 0.6], "greedy": [2.0, 4.0, 5.0], "beam": [10.0]}
    measured = [
        {"variant": variant, "kind": kind, "seconds": [] if variant == captions.VARIANTS[-1] else seconds[kind], "scenes": 500}
        for variant in captions.VARIANTS
        for kind in captions.KINDS
    ]
    text = page.render("some-cpu", _rows(), FACTS | {"captions": measured})
    table = text[text.index("## Captions") :]
    assert _line(table, "caption-m2")[1:] == ["100 [80 .. 120]", "125 [100 .. 250]", "50 [50 .. 50]"]
    assert _line(table, captions.VARIANTS[-1])[1:] == ["not measured undisturbed"] * 3
    assert "## Captions" not in page.render("some-cpu", _rows(), FACTS)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.1, 90.0, [0.1, 1, 10, 100]), (0.13, 6.0, [0.1, 0.2, 0.5, 1, 2, 5]), (1.7, 2.4, [1.5, 2, 3])],
)
def test_an_axis_has_three_ticks_or_more(low: float, high: float, ticks: list[float]) -> None:
    assert growth._ticks(low, high) == pytest.approx(ticks)
