"""Statistics of the rounds, against plain arithmetic and simulated truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import results
from benchmarks.results import Row
from pipeline.errors import UserError


def _row(number: int, name: str, seconds: float, *, kept: bool = True) -> Row:
    return Row(number, 1, name, 10_666, 1, 60, seconds, 2.5, 0.01, 300 * 2**20, 0.01 if kept else 0.4, kept)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    rows = [_row(1, "ours-10", 1 / 3), _row(1, "thesis", 25.7, kept=False)]
    results.write(tmp_path / "machine.csv", rows)
    assert results.read(tmp_path / "machine.csv") == rows


def test_other_files_are_refused_by_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "machine.csv"
    with pytest.raises(UserError, match="missing"):
        results.read(path)
    results.write(path, [_row(1, "ours-10", 6.0)])
    for content in ("round\n1\n", "not,a,table\n1,2,3\n", path.read_text().replace("6.0", "six")):
        path.write_text(content)
        with pytest.raises(UserError, match="damaged"):
            results.read(path)
    path.write_text("")
    assert results.read(path) == []


def test_summary_leaves_out_what_does_not_count() -> None:
    rows = [_row(1, "a", 5.0), _row(2, "a", 9.0, kept=False), _row(2, "a", 7.0), _row(3, "a", 6.0), _row(1, "b", 1.0, kept=False)]
    summaries = results.summarize(rows)
    assert list(summaries) == ["a"]
    assert (summaries["a"].median, summaries["a"].low, summaries["a"].high) == (6.0, 5.0, 7.0)
    assert results.by_round(rows, "a") == {1: 5.0, 2: 7.0, 3: 6.0}


def test_ratio_uses_shared_rounds_only() -> None:
    ratio = results.ratio({1: 8.0, 2: 12.0, 9: 1e6}, {1: 4.0, 2: 4.0, 7: 1e-6})
    assert ratio is not None
    assert ratio.value == 2.5
    assert 2.0 <= ratio.low <= ratio.value <= ratio.high <= 3.0
    assert results.ratio({1: 1.0}, {2: 1.0}) is None


def test_a_slow_round_for_both_does_not_widen_the_interval() -> None:
    speed = {1: 1.0, 2: 1.3, 3: 0.8, 4: 1.1, 5: 0.9}
    ratio = results.ratio({i: 5 * value for i, value in speed.items()}, speed)
    assert ratio is not None
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((5, 5, 5))


def test_interval_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(60):
        slow, fast = (scale * np.exp(generator.normal(0, 0.05, 15)) for scale in (4.0, 1.0))
        ratio = results.ratio(dict(enumerate(slow)), dict(enumerate(fast)))
        assert ratio is not None
        covered += ratio.low <= 4.0 <= ratio.high
    assert covered >= 50  # 57 expected of 60; fewer than 50 has a probability below 0.001 at 95 %
