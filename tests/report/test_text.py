"""Numbers in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.params import ComparisonSettings
from pipeline.report import text
from pipeline.report.text import NBSP
from pipeline.study.claims import Finding, Why
from pipeline.study.statistics import Interval


def shown(low: float, high: float, region: tuple[float, float]) -> str:
    rule: Any = "equivalent" if region[0] else "less"
    comparison = ComparisonSettings(measure="late test error", variant="a", reference="b", rule=rule, bound=region[1])
    finding = Finding(comparison, "not decided", Why.ACROSS, effect=(low * high) ** 0.5, interval=Interval(low, high, 0.95))
    return text.effect(finding).split(" times ")[1].replace(NBSP, " ")


@pytest.mark.parametrize(
    ("low", "high", "region", "expected"),
    [
        (0.79996, 0.947, (0.8, 1.25), "[0.79996 to 0.947]"),
        (0.80004, 1.2499, (0.8, 1.25), "[0.80004 to 1.2499]"),
        (0.8, 1.25, (0.8, 1.25), "[0.800 to 1.25]"),
        (0.795, 0.947, (0.8, 1.25), "[0.795 to 0.947]"),
        (0.7, 1.0000001, (0.0, 1.0), "[0.700 to 1.0000001]"),
    ],
)
def test_a_bound_that_looks_like_an_end_of_the_region_says_on_which_side_it_lies(
    low: float, high: float, region: tuple[float, float], expected: str
) -> None:
    assert shown(low, high, region) == expected


def test_an_effect_that_is_a_bound_says_so() -> None:
    comparison = ComparisonSettings(measure="late test error", variant="a", reference="b", rule="less", bound=1.25)
    said = {
        may_be: text.effect(Finding(comparison, "supported", Why.INSIDE, effect=2.0, may_be=may_be)).replace(NBSP, " ")
        for may_be in ("larger", "smaller", "")
    }
    assert said == {"larger": "2.00 times or more", "smaller": "2.00 times or less", "": "2.00 times"}


def test_an_anchor_keeps_what_a_git_host_keeps() -> None:
    judgement = SimpleNamespace(id="my_claim-2", verdict="not decided")
    assert text.anchor(judgement) == "my_claim-2-not-decided"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "expected"), [((), "-"), ((10, 10), "10"), ((10, 6), "10 and 6"), ((10, 10, 20, 10), "10, 10, 20 and 10"), ((6,) * 4, "6")]
)
def test_each_side_of_a_comparison_has_its_number_of_seeds(sizes: tuple[int, ...], expected: str) -> None:
    comparison = ComparisonSettings(measure="late test error", variant="a", reference="b", rule="equivalent", bound=1.25)
    assert text.sizes(Finding(comparison, "not decided", Why.ACROSS, sizes=sizes)) == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(999, "999"), (999_499, "999 k"), (999_600, "1 M"), (999_960_000, "1 G"), (1_234_567, "1.23 M")]
)
def test_a_large_count_never_has_four_digits_before_its_unit(number: int, expected: str) -> None:
    assert text.count(number) == expected
