"""epochs.csv: what is written is read, to the last bit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.training.records import EpochRow, read_epochs, write_epochs

NUMBER = st.floats(allow_nan=False)  # inf is what a loss that was let go may end at; nan has a test of its own


@given(rows=st.lists(st.builds(EpochRow, st.integers(0, 2**31), st.integers(1, 1000), *[NUMBER] * 5), max_size=5))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[EpochRow]) -> None:
    path = tmp_path_factory.mktemp("records") / "epochs.csv"
    write_epochs(path, rows)
    assert read_epochs(path) == rows
    assert path.read_text().splitlines()[0] == "seed,epoch,train_loss,test_loss,test_accuracy,gradient_norm,seconds"


def test_a_loss_that_is_no_number_stays_one(tmp_path: Path) -> None:
    write_epochs(tmp_path / "epochs.csv", [EpochRow(0, 1, math.nan, math.nan, 0.098, math.inf, 1.0)])
    (row,) = read_epochs(tmp_path / "epochs.csv")
    assert math.isnan(row.train_loss)
    assert math.isnan(row.test_loss)
    assert (row.test_accuracy, row.gradient_norm) == (0.098, math.inf)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "epochs.csv"
    with pytest.raises(UserError, match=r"epochs.csv is missing: run `dvc repro`"):
        read_epochs(path)
    for text in ("seed,epoch\n1,2\n", "seed,epoch,train_loss,test_loss,test_accuracy,gradient_norm,seconds\n0,1,0.5,x,0.5,1,1\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"epochs.csv is damaged"):
            read_epochs(path)
