"""`reports/claims.csv` and `reports/curves.csv`: small tables, which pandas opens."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from pipeline.report.text import NBSP, compared, effect
from pipeline.study import Training
from pipeline.study.claims import Judgement
from pipeline.study.results import CLAIM_COLUMNS

_CURVES = ("test_error", "train_loss")


def claims(judgements: Iterable[Judgement]) -> bytes:
    """CSV with a line for each claim, which `make compare` compares.

    The columns are claim, verdict, and of the comparison that decides it: comparison (in words), n (the fewest seeds or rounds of a
    side), effect (a ratio or a number in the measure's own unit, such as a share of the test images), low, high and level of its
    interval, shown (the effect and its interval as the pages have them). The last are fixed: whether the claim stood as it stands before
    all, some or none of the seeds that count began to train (before, partly, after); and digest, of what decides the claim. What is not
    known is empty.
    """
    rows = []
    for judgement in judgements:
        found = judgement.deciding
        row: dict[str, Any] = {"claim": judgement.id, "verdict": judgement.verdict, "comparison": compared(found.comparison)}
        row |= {"fixed": judgement.fixed and judgement.fixed.word, "digest": judgement.claim.digest}
        if found.effect is not None:
            row |= {"n": found.n, "effect": found.effect, "shown": effect(found).replace(NBSP, " ")}
            row |= asdict(found.interval) if found.interval else {}
        rows.append(row)
    return _csv(pd.DataFrame(rows, columns=CLAIM_COLUMNS))


def curves(runs: Mapping[str, Training]) -> bytes:
    """CSV with a line for each variant and epoch, which `dvc plots` draws (see plots: in dvc.yaml).

    The columns are variant, epoch (from 1), and for each of test error (a fraction) and train loss (nats) the mean over the seeds, the
    lowest and the highest seed. Where a seed's loss is not a number they are `nan`, so that the curve ends there.
    """
    head = ["variant", "epoch", *(f"{name}{end}" for name in _CURVES for end in ("", "_lowest", "_highest"))]
    frames = [pd.DataFrame(columns=head)]
    for variant, run in runs.items():
        columns = [part(getattr(run, name), axis=0) for name in _CURVES for part in (np.mean, np.min, np.max)]
        frames.append(pd.DataFrame(dict(zip(head, [variant, range(1, len(columns[0]) + 1), *columns], strict=True))))
    return _csv(pd.concat(frames[1:] or frames), na_rep="nan")


def _csv(frame: pd.DataFrame, **options: Any) -> bytes:
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n", **options).encode()
