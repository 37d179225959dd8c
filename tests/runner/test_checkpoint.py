"""Checkpoints: whole or not at all, and every flipped bit is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.files import DamagedError, read_sealed, write_sealed
from pipeline.runner import checkpoint
from pipeline.training.engine import Trainer

CODE = "c" * 64
HERE: dict[str, Any] = {"device_name": "A processor (2 cores)", "versions": {"python": "3.11.2", "torch": "2.15.0"}}
ORIGIN = {"started": "then", **HERE}


def test_round_trip_is_bitwise(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    path = checkpoint.path_of(tmp_path, [0, 1], CODE)
    trainer = tiny_trainer()
    trainer.run_epoch()
    checkpoint.save(path, trainer, ORIGIN)
    trainer.run_epoch()
    other = tiny_trainer()
    assert checkpoint.restore(path, other, **HERE) == ORIGIN
    assert other.epoch == 1
    other.run_epoch()
    assert [row[:5] for row in other.rows] == [row[:5] for row in trainer.rows]
    for name, value in trainer.state().items():
        assert torch.equal(other.state()[name], value)


def test_one_checkpoint_is_kept_and_nothing_else(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    trainer = tiny_trainer()
    for _ in range(3):
        trainer.run_epoch()
        checkpoint.save(checkpoint.path_of(tmp_path, [0, 1], CODE), trainer, ORIGIN)
    assert [path.name for path in tmp_path.iterdir()] == ["seed-0-1.cccccccccccc.part"]


def test_a_stack_of_a_hundred_has_a_name_that_a_folder_takes_and_no_other_stack_has(tmp_path: Path) -> None:
    stacks = [range(1000, 1100), [*range(1000, 1050), *range(1051, 1100), 1099], range(1000, 1099)]
    paths = {checkpoint.path_of(tmp_path, list(stack), CODE) for stack in stacks}
    assert len(paths) == 3
    for path in paths:
        path.touch()


def test_a_checkpoint_of_the_other_engine_leaves_the_trainer_at_the_start(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    path = tmp_path / "seed-0-1.part"
    trainer = tiny_trainer()
    trainer.run_epoch()
    checkpoint.save(path, trainer, {**ORIGIN, "engine": "fused"})
    with pytest.raises(DamagedError, match=r"seed-0-1\.part is of another engine$"):
        checkpoint.restore(path, resumed := tiny_trainer(), **HERE)
    assert resumed.epoch == 0


def test_nothing_to_restore(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    trainer = tiny_trainer()
    assert checkpoint.restore(tmp_path / "seed-0.part", trainer, **HERE) == {}
    assert trainer.epoch == 0


def test_a_cut_file_is_noticed_and_leaves_the_trainer_at_the_start(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    path = tmp_path / "seed-0-1.part"
    trainer = tiny_trainer()
    trainer.run_epoch()
    checkpoint.save(path, trainer, ORIGIN)
    path.write_bytes(path.read_bytes()[:-100])
    other = tiny_trainer()
    before = other.state()
    with pytest.raises(DamagedError, match=r"seed-0-1\.part does not match its checksum"):
        checkpoint.restore(path, other, **HERE)
    assert other.epoch == 0
    assert all(torch.equal(other.state()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"device_name": "Another (2 cores)"}, r"another processor \(A processor \(2 cores\)\)"),
        ({"versions": {"python": "3.11.2", "torch": "2.16.0"}}, r"other software \(torch 2\.15\.0\)"),
        ({"versions": {"torch": "2.15.0", "cuda": "13.0"}}, r"other software \(python 3\.11\.2, cuda None\)"),
        ({"device_name": "A processor (64 cores)"}, None),
    ],
)
def test_a_checkpoint_of_another_processor_or_software_leaves_the_trainer_at_the_start(
    tmp_path: Path, tiny_trainer: Callable[..., Trainer], other: dict[str, Any], fault: str | None
) -> None:
    """The number of cores does not affect results; a checkpoint of an earlier version names neither, and is taken."""
    path = tmp_path / "seed-0-1.part"
    trainer = tiny_trainer()
    trainer.run_epoch()
    checkpoint.save(path, trainer, ORIGIN)
    resumed = tiny_trainer()
    if fault is None:
        checkpoint.restore(path, resumed, **HERE | other)
    else:
        with pytest.raises(DamagedError, match=rf"seed-0-1\.part is of {fault}$"):
            checkpoint.restore(path, resumed, **HERE | other)
    assert resumed.epoch == (fault is None)
    checkpoint.save(path, trainer, {"started": "then"})
    resumed = tiny_trainer()
    assert checkpoint.restore(path, resumed, **HERE | other) == {"started": "then"}
    assert resumed.epoch == 1


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sealed file in the place of a checkpoint: its seal is the same."""
    path = tmp_path_factory.mktemp("sealed") / "seed-0.part"
    write_sealed(path, bytes(range(256)) * 8)
    return path


@given(bit=st.integers(0, 8 * (256 * 8 + 32) - 1))
def test_every_flipped_bit_is_noticed(stored: Path, bit: int) -> None:
    content = bytearray(stored.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    damaged = stored.with_name("damaged.part")
    damaged.write_bytes(content)
    with pytest.raises(DamagedError):
        read_sealed(damaged)
