"""reports/claims.csv: every claim's verdict as a table."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from pipeline.params import Params
from pipeline.report import claims
from pipeline.study.claims import judge


def test_a_line_for_each_claim_with_the_numbers_of_its_deciding_comparison(study: Params, make_timings: Callable[..., Any]) -> None:
    timings = make_timings(loop=1.3)
    judgements = [judge(id, study.claims[id], {}, {"cuda": timings}, images_shown=study.images_shown) for id in ("T4", "T3", "T9")]
    table = pd.read_csv(io.BytesIO(claims.table(judgements))).set_index("claim")
    assert list(table.index) == ["T4", "T3", "T9"]
    assert dict(table.verdict) == {"T4": "supported", "T3": "not run", "T9": "supported"}
    for judgement in (judgements[0], judgements[2]):
        found, row = judgement.deciding, table.loc[judgement.id]
        assert found.interval is not None
        numbers = (found.effect, found.interval.low, found.interval.high, found.interval.level, 12)
        assert tuple(row[["effect", "low", "high", "level", "n"]]) == pytest.approx(numbers, rel=1e-5)
    assert table.comparison["T4"] == "cls-loop / first, step time"
    assert table.shown["T4"].startswith("1.3")
    assert " times [1." in table.shown["T4"]
    assert table.loc["T3", ["n", "effect", "low", "high", "level", "shown"]].isna().all()
