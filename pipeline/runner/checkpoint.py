"""Checkpoints of a group of seeds in training: one file with its own digest, and no pickles.

A checkpoint is replaced as a whole, so a kill at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.files import read_sealed, write_sealed
from pipeline.training.records import EpochRow

if TYPE_CHECKING:
    from pipeline.training.engine import Trainer


def path_of(directory: Path, seeds: Sequence[int], code: str) -> Path:
    """The checkpoint file of a group that this code trains."""
    return directory / f"seed-{'-'.join(map(str, seeds))}.{code[:12]}.part"


def save(path: Path, trainer: Trainer, *, started: str) -> None:
    """Replaces the checkpoint by the trainer's state. `started`: when the training began."""
    from safetensors.torch import save as to_bytes

    content = {
        "epoch": trainer.epoch,
        "rows": [list(row) for row in trainer.rows],
        "failed": {str(seed): epoch for seed, epoch in trainer.failed.items()},
        "started": started,
    }
    write_sealed(path, to_bytes(trainer.state(), {"content": json.dumps(content)}))


def restore(path: Path, trainer: Trainer) -> str | None:
    """Sets the trainer to its last checkpoint, if there is one.

    Returns:
        When the training began; None where there is no checkpoint.

    Raises:
        DamagedError: the checkpoint is not what was written; the trainer is untouched.
    """
    from safetensors.torch import load as from_bytes

    try:
        stored = read_sealed(path)
    except FileNotFoundError:
        return None
    content = metadata(stored)
    rows = [EpochRow(*row) for row in content["rows"]]
    failed = {int(seed): epoch for seed, epoch in content["failed"].items()}
    trainer.load(from_bytes(stored), epoch=content["epoch"], rows=rows, failed=failed)
    return str(content["started"])


def metadata(stored: bytes) -> dict[str, Any]:
    """What a safetensors file holds beside its tensors: the JSON under the key `content`."""
    size = int.from_bytes(stored[:8], "little")
    content: dict[str, Any] = json.loads(json.loads(stored[8 : 8 + size])["__metadata__"]["content"])
    return content
