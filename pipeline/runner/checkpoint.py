"""Checkpoints of a group of seeds in training: one file with its own digest, and no pickles.

A checkpoint is replaced as a whole, so a kill at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.files import DamagedError, read_sealed, write_sealed
from pipeline.provenance import same_processor
from pipeline.training.records import EpochRow

if TYPE_CHECKING:
    from pipeline.training.engine import Trainer


def path_of(directory: Path, seeds: Sequence[int], code: str) -> Path:
    """The checkpoint file of a group that this code trains."""
    name = "-".join(map(str, seeds))
    if len(name) > 100:  # a hundred seeds are longer than a name may be
        name = f"{seeds[0]}-to-{seeds[-1]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return directory / f"seed-{name}.{code[:12]}.part"


def save(path: Path, trainer: Trainer, origin: Mapping[str, Any]) -> None:
    """Replaces the checkpoint by the trainer's state.

    Args:
        origin: what the finished seeds will say of where they come from, as far as a later process cannot find it out: `started`,
            `device_name`, `versions`, `engine`, and on a GPU `graphs`.
    """
    from safetensors.torch import save as to_bytes

    content = {
        **origin,
        "epoch": trainer.epoch,
        "rows": [list(row) for row in trainer.rows],
        "failed": {str(seed): epoch for seed, epoch in trainer.failed.items()},
    }
    write_sealed(path, to_bytes(trainer.state(), {"content": json.dumps(content)}))


def restore(path: Path, trainer: Trainer, device_name: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """Sets the trainer to its last checkpoint, if there is one.

    Args:
        device_name, versions: of this process, as `provenance` gives them. Checkpoints of earlier versions have neither, and pass.

    Returns:
        The `origin` that was saved; an empty one where there is no checkpoint.

    Raises:
        DamagedError: the checkpoint is not what was written, or was computed on another kind of processor or by other software; the
            trainer is untouched.
    """
    from safetensors.torch import load as from_bytes

    try:
        stored = read_sealed(path)
    except FileNotFoundError:
        return {}
    content = metadata(stored)
    if reason := why_not_from(content, device_name, versions):
        raise DamagedError(f"{path} is of {reason}")
    if (content.get("engine") == "fused") != trainer.is_fused:
        raise DamagedError(f"{path} is of another engine")
    rows = [EpochRow(*row) for row in content.pop("rows")]
    failed = {int(seed): epoch for seed, epoch in content.pop("failed").items()}
    trainer.load(from_bytes(stored), epoch=content.pop("epoch"), rows=rows, failed=failed)
    return content


def why_not_from(content: Mapping[str, Any], device_name: str, versions: Mapping[str, str]) -> str | None:
    """What else computed a checkpoint, as a clause, so that a training cannot go on from it; None where it can.

    The bits of a training are those of one processor and one software, and its record names one.

    Args:
        content: what the checkpoint says beside its tensors.
        device_name, versions: as for `restore`.
    """
    if not same_processor(before := content.get("device_name", device_name), device_name):
        return f"another processor ({before})"
    known = content.get("versions", versions)
    others = [f"{name} {known.get(name)}" for name in {**known, **versions} if known.get(name) != versions.get(name)]
    return f"other software ({', '.join(others)})" if others else None


def metadata(stored: bytes) -> dict[str, Any]:
    """What a safetensors file holds beside its tensors: the JSON under the key `content`."""
    size = int.from_bytes(stored[:8], "little")
    content: dict[str, Any] = json.loads(json.loads(stored[8 : 8 + size])["__metadata__"]["content"])
    return content
