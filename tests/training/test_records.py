"""epochs.csv: what is written is read, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.training.records import EpochRow, read_epochs, write_epochs

NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@given(rows=st.lists(st.builds(EpochRow, st.integers(0, 2**31), st.integers(1, 1000), NUMBER, NUMBER, NUMBER, NUMBER), max_size=5))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[EpochRow]) -> None:
    path = tmp_path_factory.mktemp("records") / "epochs.csv"
    write_epochs(path, rows)
    assert read_epochs(path) == rows
    assert path.read_text().splitlines()[0] == "seed,epoch,train_loss,test_loss,test_accuracy,seconds"


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "epochs.csv"
    with pytest.raises(UserError, match=r"epochs.csv is missing: run `dvc repro`"):
        read_epochs(path)
    for text in ("seed,epoch\n1,2\n", "seed,epoch,train_loss,test_loss,test_accuracy,seconds\n0,1,0.5,x,0.5,1\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"epochs.csv is damaged"):
            read_epochs(path)
