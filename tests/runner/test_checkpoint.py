"""Checkpoints: whole or not at all, bitwise, and every flipped bit is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.files import DamagedError, read_sealed, write_sealed
from pipeline.runner.seeds import Checkpoint
from pipeline.training.engine import Trainer

CODE = "c" * 64
HERE: dict[str, Any] = {"device_name": "A processor (2 cores)", "versions": {"python": "3.11.2", "torch": "2.15.0"}}
ORIGIN = {"started": "then", **HERE}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path, [0, 1], CODE)


def test_round_trip_is_bitwise_and_one_file_is_kept(checkpoint: Checkpoint, tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    trainer, other = tiny_trainer(), tiny_trainer()
    assert checkpoint.restore(other, **HERE) == {}
    for _ in range(2):
        trainer.run_epoch()
        checkpoint.save(trainer, ORIGIN)
    assert list(tmp_path.iterdir()) == [checkpoint.path]
    trainer.run_epoch()
    assert checkpoint.restore(other, **HERE) == ORIGIN
    assert other.epoch == 2
    other.run_epoch()
    assert [row[:5] for row in other.rows] == [row[:5] for row in trainer.rows]
    for name, value in trainer.state().items():
        assert torch.equal(other.state()[name], value)


def test_a_stack_of_a_hundred_has_a_name_that_a_folder_takes_and_no_other_stack_has(tmp_path: Path) -> None:
    stacks = [range(1000, 1100), [*range(1000, 1050), *range(1051, 1100), 1099], range(1000, 1099)]
    paths = {Checkpoint(tmp_path, list(stack), CODE).path for stack in stacks}
    assert len(paths) == 3
    for path in paths:
        path.touch()


@pytest.mark.parametrize(
    ("saved", "here", "usable"),
    [
        ({}, {}, True),
        ({}, {"device_name": "A processor (64 cores)"}, True),  # the number of cores does not affect results
        ({}, {"device_name": "Another (2 cores)"}, False),
        ({}, {"versions": {"python": "3.11.2", "torch": "2.16.0"}}, False),
        ({}, {"versions": {"torch": "2.15.0", "cuda": "13.0"}}, False),
        ({"engine": "fused"}, {}, False),
    ],
)
def test_what_another_processor_software_or_engine_computed_leaves_the_trainer_at_the_start(
    checkpoint: Checkpoint, tiny_trainer: Callable[..., Trainer], saved: dict[str, Any], here: dict[str, Any], usable: bool
) -> None:
    trainer, resumed = tiny_trainer(), tiny_trainer()
    trainer.run_epoch()
    checkpoint.save(trainer, ORIGIN | saved)
    before = resumed.state()
    if usable:
        checkpoint.restore(resumed, **HERE | here)
        assert resumed.epoch == 1
    else:
        with pytest.raises(DamagedError):
            checkpoint.restore(resumed, **HERE | here)
        assert resumed.epoch == 0
        assert all(torch.equal(resumed.state()[name], value) for name, value in before.items())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sealed file in the place of a checkpoint: its seal is the same."""
    path = tmp_path_factory.mktemp("sealed") / "seed-0.part"
    write_sealed(path, bytes(range(256)) * 8)
    return path


@given(bit=st.integers(0, 8 * (256 * 8 + 32) - 1), cut=st.booleans())
def test_every_flipped_bit_and_every_cut_is_noticed(stored: Path, bit: int, cut: bool) -> None:
    content = bytearray(stored.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    damaged = stored.with_name("damaged.part")
    damaged.write_bytes(content[: bit // 8] if cut else content)
    with pytest.raises(DamagedError):
        read_sealed(damaged)
