"""`reports/curves.csv`: every variant's learning curves in one small table, which `dvc plots` draws (see plots: in dvc.yaml)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from pipeline.study import Training

_CURVES = ("test_error", "train_loss")


def table(runs: Mapping[str, Training]) -> bytes:
    """CSV with a line for each variant and epoch.

    The columns are variant, epoch (from 1), and for each of test error (a fraction) and train loss (nats) the mean over the seeds, the
    lowest and the highest seed. Where a seed's loss is not a number they are `nan`, so that the curve ends there.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", "epoch", *(f"{name}{end}" for name in _CURVES for end in ("", "_lowest", "_highest"))])
    for variant, run in runs.items():
        curves = (1 - run.test_accuracy, run.train_loss)  # (seeds, epochs)
        columns = [column for curve in curves for column in (curve.mean(axis=0), curve.min(axis=0), curve.max(axis=0))]
        writer.writerows([variant, epoch, *(f"{value:.6g}" for value in row)] for epoch, row in enumerate(zip(*columns, strict=True), 1))
    return text.getvalue().encode()
