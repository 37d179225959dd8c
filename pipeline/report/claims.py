"""`reports/claims.csv`: every claim's verdict in one small table, which pandas opens and `make compare` compares."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from pipeline.report.text import NBSP, compared, effect
from pipeline.study.claims import Judgement
from pipeline.study.study import CLAIM_COLUMNS


def table(judgements: Iterable[Judgement]) -> bytes:
    """CSV with a line for each claim.

    The columns are claim, verdict, and of the comparison that decides it: comparison (in words), n (the fewest seeds or rounds of a
    side), effect (a ratio or a number in the measure's own unit, such as a share of the test images), low, high and level of its
    interval, shown (the effect and its interval as the pages have them). What is not known is empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CLAIM_COLUMNS)
    for judgement in judgements:
        found = judgement.deciding
        known = found.effect is not None
        interval = found.interval
        numbers = (found.effect, *((interval.low, interval.high, interval.level) if interval else (None, None, None)))
        writer.writerow(
            [
                judgement.id,
                judgement.verdict,
                compared(found.comparison),
                found.n if known else "",
                *("" if number is None else f"{number:.6g}" for number in numbers),
                effect(found).replace(NBSP, " ") if known else "",
            ]
        )
    return text.getvalue().encode()
