"""Checkpoints of a group of seeds: tensors in safetensors, the rest in JSON; pickles are neither written nor read.

A checkpoint is two files: `NAME.EPOCH.safetensors`, and `NAME.json`, which names it with its sha256 and is replaced last. So a
kill at any moment leaves the old checkpoint or the new one, whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors.numpy

from pipeline.errors import UserError
from pipeline.files import replacing, sha256, write_json
from pipeline.training.records import EpochRow

if TYPE_CHECKING:  # the coordinating process reads checkpoints without paying for torch
    from pipeline.training.engine import Trainer

Array = TypeVar("Array")


def _name(seeds: list[int]) -> str:
    return "seed-" + "-".join(str(seed) for seed in seeds)


def save(directory: Path, trainer: Trainer) -> None:
    """Writes the trainer's checkpoint and removes the one before it."""
    from safetensors.torch import save_file

    name = _name(trainer.seeds)
    tensors = directory / f"{name}.{trainer.epoch}.safetensors"
    with replacing(tensors) as temporary:
        save_file(trainer.state(), temporary)
    content = {
        "seeds": trainer.seeds,
        "epoch": trainer.epoch,
        "tensors": tensors.name,
        "sha256": sha256(tensors),
        "rows": [list(row) for row in trainer.rows],
        "failed": {str(seed): epoch for seed, epoch in trainer.failed.items()},
    }
    write_json(directory / f"{name}.json", content)
    for old in directory.glob(f"{name}.*.safetensors"):
        if old != tensors:
            old.unlink(missing_ok=True)


def restore(directory: Path, trainer: Trainer) -> str | None:
    """Takes the trainer to its last checkpoint, if there is one.

    Returns:
        None, or why a checkpoint that is there cannot be used; the trainer is then untouched and starts from the beginning.
    """
    from safetensors.torch import load_file

    try:
        tensors, content = _read(directory, trainer.seeds, load_file)
    except FileNotFoundError:
        return None
    except _Unusable as fault:
        return str(fault)
    rows = [EpochRow(*row) for row in content["rows"]]
    failed = {int(seed): epoch for seed, epoch in content["failed"].items()}
    trainer.load(tensors, epoch=content["epoch"], rows=rows, failed=failed)
    return None


class _Unusable(Exception):
    """Why a checkpoint that is there cannot be used."""


def _read(directory: Path, seeds: list[int], load_file: Callable[[Path], dict[str, Array]]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Tensors and description of a group's checkpoint; FileNotFoundError when there is none, _Unusable when it is damaged."""
    path = directory / f"{_name(seeds)}.json"
    text = path.read_bytes()
    try:
        content = json.loads(text)
        tensors = directory / content["tensors"]
        if sha256(tensors) != content["sha256"]:
            raise _Unusable(f"{tensors} does not match its checksum")
        return load_file(tensors), content
    except FileNotFoundError:
        raise _Unusable(f"{path} names a file that is missing") from None
    except (ValueError, KeyError, TypeError):
        raise _Unusable(f"{path} is damaged") from None


def load_seeds(directory: Path, groups: list[list[int]]) -> dict[int, dict[str, np.ndarray]]:
    """All tensors of each seed, without seed dimension, from the last checkpoints of all groups; `model.*` and `trace.*` among them.

    Raises:
        UserError: a checkpoint was damaged after it was written.
    """
    parts: dict[int, dict[str, np.ndarray]] = {}
    for seeds in groups:
        try:
            tensors, content = _read(directory, seeds, safetensors.numpy.load_file)
        except _Unusable as fault:
            raise UserError(f"{fault}: run the same command again; its seeds {seeds} are trained anew.") from None
        assert content["seeds"] == seeds
        for i, seed in enumerate(seeds):
            parts[seed] = {name: value[i] for name, value in tensors.items() if name.startswith(("model.", "trace.")) and value.ndim}
    return parts
