"""What a training reports: one row a seed and epoch, as in `runs/VARIANT/epochs.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import UserError
from pipeline.files import write_text


class EpochRow(NamedTuple):
    """One epoch of one seed.

    Attributes:
        epoch: counted from 1.
        train_loss: mean cross-entropy (nats) over the epoch's training images, each before its own batch's update.
        test_loss: mean cross-entropy (nats) over the test images after the epoch.
        test_accuracy: fraction of the test images.
        gradient_norm: L2 norm of the seed's gradient over all its weights, before clipping; mean over the epoch's steps.
        seconds: wall time of the epoch's training, without test and checkpoint; of the whole stack when seeds share one.
    """

    seed: int
    epoch: int
    train_loss: float
    test_loss: float
    test_accuracy: float
    gradient_norm: float
    seconds: float


def write_epochs(path: Path, rows: Iterable[EpochRow]) -> None:
    """Writes rows in the order given, floats at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(EpochRow._fields)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_epochs(path: Path) -> list[EpochRow]:
    """Reads `epochs.csv`.

    Raises:
        UserError: the file is missing or not such a table.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return [EpochRow(int(row["seed"]), int(row["epoch"]), *(float(row[name]) for name in EpochRow._fields[2:])) for row in reader]
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run `dvc repro` to train the variant.") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged: run `dvc checkout {path.parent}` or `dvc repro --force` for its stage.") from None
