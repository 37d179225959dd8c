"""What the first page says of all claims."""

from __future__ import annotations

from pipeline.params import Params
from pipeline.report.text import interval_levels
from pipeline.study.claims import Finding, Judgement, Why
from pipeline.study.statistics import Interval


def test_the_levels_of_intervals_are_named(study: Params) -> None:
    def judged(id: str, level: float | None) -> Judgement:
        claim = study.claims[id]
        interval = None if level is None else Interval(0.9, 1.1, level)
        return Judgement(id, claim, "supported", (Finding(claim.comparisons[0], "supported", Why.INSIDE, effect=1.0, interval=interval),))

    found = [judged("T1a", 0.98839), judged("T3", 0.98839), judged("T4", 0.95), judged("T10", None)]
    assert interval_levels(found) == "Intervals have a level of 98.8 %, of timings 95 %."
    found += [judged("L4", 0.9942), judged("K1a", 0.9942), judged("L1b", 0.95)]
    assert interval_levels([*found, judged("T11a", 0.98839)]).endswith("98.8 %, of timings 95 %, of L4 and K1a 99.4 %.")
    assert interval_levels([judged("T10", None)]) == ""
