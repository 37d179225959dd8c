"""The simulated study: the numbers of its page, by hand."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Training, page, picture, simulate
from pipeline.report.figures.base import png

# An epoch takes 5 s, 4 s and 3 s: 10 s, 8 s and 3 s in all.
TRAININGS = [Training("a", 10.0, 2, 1_000_000), Training("b", 8.0, 2, 2_000_000), Training("c", 3.0, 1, 3_000_000)]
RUN = {"commit": "0123456789abcdef", "dirty": False, "date": "2026-01-31"}


def test_what_workers_need_and_write() -> None:
    """One: 21 s, and the most bytes a second are those of `c`. Two: `c` follows `b`, beside nothing but `a`; 11 s of at least 10.5."""
    one, two, many = (simulate(TRAININGS, count) for count in (1, 2, 1000))
    assert (one.seconds, one.bound) == (21, 21)
    assert (one.epochs, one.traffic) == pytest.approx((1 / 3, 1e6))
    assert (two.seconds, two.bound) == (11, 10.5)
    assert (two.epochs, two.traffic) == pytest.approx((1 / 5 + 1 / 3, 1.2e6))
    assert (many.seconds, many.bound) == (10, 10)
    assert many.traffic == pytest.approx(0.2e6 + 0.5e6 + 1e6)


def test_the_page_and_its_picture() -> None:
    rows = [simulate(TRAININGS, count) for count in (1, 2, 1000)]
    made = picture(rows)
    text = page(TRAININGS, rows, RUN, "Some CPU (2 cores)", 0.004, made.markdown("scaling", ""))
    assert "with 1 seed: 3 trainings" in text
    assert "Measured at `0123456789ab`, 2026-01-31." in text
    assert "| 2 | 0.00306 | 0.00292 | 4.8% | 0.533 | 1.2 MB/s |" in text
    assert "stays within 4.8% of it" in text
    assert "From 3 workers on the longest training rules: a seed of `a`, 0.00278 hours." in text
    assert "keeps up with 250 epochs a second" in text
    assert png(made.draw).startswith(b"\x89PNG")
