"""The counted error rates that the method page shows."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.params import load
from pipeline.study import error_rates
from pipeline.study.effects import look_path
from pipeline.study.error_rates import LOOKS, power, rates, read, scenarios, verdicts
from tests.conftest import ROOT


def test_the_table_has_every_scenario_and_keeps_its_promise() -> None:
    """At most 5 % false verdicts over all looks: under a true null, on the margin, with skewed and with collapsed seeds.

    The one exception is named on the method page: one side alone is strongly skewed, and the other hardly spreads.
    """
    rows = read()
    assert [row["scenario"] for row in rows if row["kind"] == "error"] == [scenario.name for scenario in scenarios()]
    assert [row["scenario"] for row in rows if row["kind"] == "power"] == [scenario.name for scenario in power()]
    assert {row["trials"] for row in rows} == {str(error_rates.TRIALS)}
    apart = [row for row in rows if float(row["false"]) > 0.05]
    assert {row["scenario"].partition(", ")[2] for row in apart} == {"one side skewed, the other spreads a third as far"}
    assert load(ROOT / "params.yaml").looks == LOOKS  # what was counted is what the study does


def test_seeds_are_added_side_by_side() -> None:
    assert look_path(LOOKS) == [(6, 6), (6, 10), (10, 10), (10, 20), (20, 20)]
    assert look_path((3,)) == [(3, 3)]


def test_the_same_trials_give_the_same_counts() -> None:
    scenario = next(scenarios())
    assert rates(scenario, 5) == rates(scenario, 5)
    found = verdicts(scenario, np.random.default_rng(0))
    assert len(found) == len(look_path(LOOKS))
    assert set(found) <= {"supported", "contradicted", "not decided"}  # trainings that do not move are always judged


@pytest.mark.slow
def test_the_tables_numbers_are_counted() -> None:
    """A twentieth of the trials of the worst scenario, within four standard errors of the table."""
    worst = max((row for row in read() if row["kind"] == "error"), key=lambda row: float(row["false"]))
    scenario = next(scenario for scenario in scenarios() if scenario.name == worst["scenario"])
    trials = error_rates.TRIALS // 20
    share = float(worst["false"])
    wrong, first, decided = rates(scenario, trials)
    for counted, stored in ((wrong, share), (first, float(worst["first"])), (decided, float(worst["decided"]))):
        assert counted == pytest.approx(stored, abs=4 * (max(stored, 0.005) * (1 - stored) / trials) ** 0.5)
