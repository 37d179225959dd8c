"""The counted rates of `make judge`: what is counted, and that the page has the counts of today's rule."""

from __future__ import annotations

import numpy as np
import pytest

from docs.method.judge_rates import PAGE, answer, effect_table, errors_of, naive, null_table, splits
from tests.helpers import ROOT


def test_the_page_has_the_counts_of_todays_rule() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    errors, effects = errors_of(ROOT)
    (*_, row, _) = null_table({"base": errors["base"]})
    assert row in page
    assert len(effects) == 10
    assert effect_table(errors, effects[-1:])[-1] in page
    cells = next(line for line in page if line.startswith("| **the most")).strip("| ").split(" | ")
    either, _, margin, *_ = (float(cell.removesuffix(" %")) for cell in cells[-5:])
    assert max(either, margin) <= 5  # of changes that do nothing


def test_a_split_uses_each_seed_once_and_a_rule_sees_the_same_draws() -> None:
    errors = np.linspace(0.02, 0.03, 13)
    first, second = splits(errors, 2.0)(np.random.default_rng(1))
    assert len(first) == len(second) == 6
    assert len({*(first / 2).round(9), *second.round(9)}) == 12
    assert {*(first / 2).round(9), *second.round(9)} < {*errors.round(9)}
    assert naive(splits(errors, 0.1), 1) == 1.0
    assert naive(splits(errors, 10.0), 3) == 0.0


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.5, ("better", 6)), (2.0, ("worse", 6)), (1.0, ("the same", 6)), (0.96, ("not decided", 10))]
)
def test_the_first_look_that_decides_ends_it(ratio: float, expected: tuple[str, int]) -> None:
    spread = 0.01 if ratio != 0.96 else 0.1
    errors = 0.03 * np.exp(spread * np.array([-1, 1, -1, 1, -1, 1, -1, 1, -1, 1.0]))
    assert answer(errors * ratio, errors, (6, 10)) == expected
