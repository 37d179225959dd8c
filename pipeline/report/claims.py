"""`reports/claims.csv`: every claim's verdict in one small table, which pandas opens and `make compare` compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pandas as pd

from pipeline.report.text import NBSP, compared, effect
from pipeline.study.claims import Judgement
from pipeline.study.results import CLAIM_COLUMNS


def table(judgements: Iterable[Judgement]) -> bytes:
    """CSV with a line for each claim.

    The columns are claim, verdict, and of the comparison that decides it: comparison (in words), n (the fewest seeds or rounds of a
    side), effect (a ratio or a number in the measure's own unit, such as a share of the test images), low, high and level of its
    interval, shown (the effect and its interval as the pages have them). The last is fixed: whether the claim stood as it stands before
    all, some or none of the seeds that count began to train (before, partly, after). What is not known is empty.
    """
    rows = []
    for judgement in judgements:
        found = judgement.deciding
        row: dict[str, Any] = {"claim": judgement.id, "verdict": judgement.verdict, "comparison": compared(found.comparison)}
        row["fixed"] = judgement.fixed and judgement.fixed.word
        if found.effect is not None:
            row |= {"n": found.n, "effect": found.effect, "shown": effect(found).replace(NBSP, " ")}
            row |= asdict(found.interval) if found.interval else {}
        rows.append(row)
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS).to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()
