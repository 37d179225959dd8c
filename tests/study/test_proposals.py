"""Whether a change is better: answers on made-up seeds, beside scipy's Welch, and the levels of looks and of series."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from pipeline.measures import MEASURES
from pipeline.study.effects import common_look_level
from pipeline.study.proposals import LOOKS, STATUS, error_of, judge, looks_up_to, words
from tests.helpers import ends

SPREAD = np.array([-1.5, -1.0, -0.5, 0.5, 1.0, 1.5])  # of six seeds; its mean is 0


def errors(mean: float, spread: float) -> np.ndarray:
    """(6,): with this geometric mean, and this scale of the logarithm's deviations."""
    return mean * np.exp(spread * SPREAD)


@pytest.mark.parametrize(
    ("factor", "spread", "answer", "status"),
    [
        (0.8, 0.02, "better", 0), (1.25, 0.02, "worse", 3), (1.0, 0.002, "the same", 4), (0.97, 0.02, "not decided", 5),
        (1.0, 0.2, "not decided", 5), (1.2, 0.2, "not decided", 5),
    ],
)  # fmt: skip
def test_the_answer_is_where_welchs_interval_of_log_errors_lies(factor: float, spread: float, answer: str, status: int) -> None:
    change, against = errors(factor, spread), errors(1.0, 2 * spread / 3)
    found = judge("late test error", change, against)
    welch = stats.ttest_ind(np.log(change), np.log(against), equal_var=False).confidence_interval(common_look_level(LOOKS))
    assert (found.answer, STATUS[found.answer], found.n) == (answer, status, 6)
    assert (found.effect, *ends(found.interval)) == pytest.approx((factor, math.exp(welch.low), math.exp(welch.high)))
    low, high = welch.low / math.log(1.05), welch.high / math.log(1.05)
    assert answer == ("better" if high < -1 else "worse" if low > 1 else "the same" if low > -1 and high < 1 else "not decided")


def test_the_number_of_seeds_that_would_decide_does() -> None:
    change, against = errors(0.8, 0.15), errors(1.0, 0.15)
    found = judge("late test error", change, against)
    assert found.answer == "not decided"
    assert found.needed is not None
    times = math.ceil(found.needed / 6)
    assert judge("late test error", np.tile(change, times), np.tile(against, times)).answer == "better"
    assert judge("late test error", np.ones(6), np.full(6, 2.0)).needed is None  # without a spread nothing is known
    assert judge("late test error", np.ones(6), np.full(6, 2.0)).answer == "not decided"


def test_differences_have_a_margin_in_the_measures_own_unit() -> None:
    change, against = 2.0 + 0.01 * SPREAD, 1.0 + 0.01 * SPREAD
    name = next(name for name, one in MEASURES.items() if one.values and not one.ratio and not one.share and one.of_value != "%")
    answers = [judge(name, *sides, margin=margin).answer for *sides, margin in ((against, change, 0.5), (change, against, 0.5))]
    assert answers == [*words(name)]
    assert judge(name, change, against, margin=2.0).answer == "the same"
    assert (words("accuracy"), words("late test error")) == (("worse", "better"), ("better", "worse"))
    known = [one.better for name, one in MEASURES.items() if one.values and re.search(r"error|loss|accuracy$|^time|^steps", name)]
    assert all(known)
    assert (looks_up_to(100), looks_up_to(6), looks_up_to(15)) == (LOOKS, (6,), (6, 10, 15))


def test_a_series_of_any_length_errs_in_five_percent() -> None:
    assert error_of(1) == pytest.approx(0.05 * 6 / math.pi**2)
    assert 0.0497 < sum(map(error_of, range(1, 201))) < 0.05
