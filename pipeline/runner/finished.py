"""Finished seeds: the results of a training, one file per seed.

A folder holds the seeds of one key: settings without the seeds, and data. A file is one seed, trained by one version of the code, on
whatever device. So a seed is added or removed without touching the others, and settings that were trained once are found again under
any name of the variant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

from pipeline.files import DamagedError, read_sealed, write_sealed
from pipeline.params import VariantSettings
from pipeline.runner.checkpoint import metadata
from pipeline.training.records import EpochRow

if TYPE_CHECKING:
    from pipeline.training.engine import Trainer

# The trace keeps every step at the beginning, where replay compares it, then each tenth.
WHOLE_STEPS = 500
REPLAYED_STEPS = 50
STRIDE = 10
# How far rounding may move a test of stored weights on another kind of processor or with another kernel.
TEST_TOLERANCE = 1e-3  # of the loss
IMAGES_APART = 2


@dataclass(frozen=True)
class Finished:
    """One finished seed.

    Attributes:
        tensors: `model.NAME` (weights and buffers), and for the kept steps `trace.step` (counted from 1), `trace.loss` (nats, mean
            over the step's batch) and `trace.gradient_norm` (L2, before clipping), each (step,).
        rows: its epochs, in order.
        origin: where it comes from. `code_hash`, `git_commit`, `git_dirty`, `git_edits`, `versions`, `device`, `device_name`, `attention`,
            `started` and `finished` describe its training, `engine` too (earlier versions had none), and on a GPU `graphs` (see
            `pipeline.training.step.Driver`). `stack` has the seeds that it was trained with, `parameters` and `flops` are the model's,
            `tables` the digests of `replay.tables`, `config` the settings, `replays` the later versions of the code that compute the same.
    """

    seed: int
    tensors: dict[str, np.ndarray]
    rows: tuple[EpochRow, ...]
    origin: dict[str, Any]

    @property
    def is_fused(self) -> bool:
        """Whether the engine with the fused kernel trained it, so that its bits do not depend on its stack."""
        return self.origin.get("engine") == "fused"

    @property
    def codes(self) -> list[str]:
        """Hashes of the versions of the code that compute this result."""
        return [self.origin["code_hash"], *(replay["code_hash"] for replay in self.origin["replays"])]

    def replayed(self, replay: dict[str, Any]) -> Finished:
        """The same result, with one more version of the code that computes it."""
        return replace(self, origin={**self.origin, "replays": [*self.origin["replays"], replay]})


def kept_steps(num_steps: int) -> np.ndarray:
    """The steps whose trace is kept, counted from 1: the first 500, then each tenth."""
    steps = np.arange(1, num_steps + 1)
    return steps[(steps <= WHOLE_STEPS) | (steps % STRIDE == 0)]


def folder(root: Path, settings: VariantSettings, data_digest: str) -> Path:
    """Where the seeds of a key lie under `root`."""
    return root / f"{settings.training_hash[:16]}-{data_digest[:12]}"


def of_trainer(trainer: Trainer, origin: dict[str, Any], tables: dict[int, dict[str, str]]) -> list[Finished]:
    """The seeds of a trainer that is done, without those whose loss stopped being finite."""
    state = {name: tensor.numpy() for name, tensor in trainer.state().items() if name.startswith(("model.", "trace."))}
    steps = kept_steps(state["trace.loss"].shape[1])
    origin = {**origin, "config": trainer.settings.model_dump(mode="json")}
    result = []
    for i, seed in enumerate(trainer.seeds):
        if seed in trainer.failed:
            continue
        tensors = {name: value[i] for name, value in state.items() if name.startswith("model.")}
        tensors |= {name: state[name][i, steps - 1] for name in ("trace.loss", "trace.gradient_norm")} | {"trace.step": steps}
        rows = tuple(row for row in trainer.rows if row.seed == seed)
        result.append(Finished(seed, tensors, rows, {**origin, "stack": trainer.seeds, "tables": tables[seed], "replays": []}))
    return result


def write(directory: Path, finished: Finished) -> None:
    """Keeps a finished seed."""
    content = {"seed": finished.seed, "rows": finished.rows, "origin": finished.origin}
    tensors = {name: np.asarray(value, order="C") for name, value in finished.tensors.items()}
    stored = safetensors.numpy.save(tensors, {"content": json.dumps(content)})
    write_sealed(_path(directory, finished.seed, finished.origin["code_hash"]), stored)


def read(path: Path) -> Finished:
    """Raises FileNotFoundError, or DamagedError where the file is not what was written."""
    stored = read_sealed(path)
    content: dict[str, Any] = metadata(stored)
    rows = tuple(EpochRow(*row) for row in content["rows"])
    return Finished(content["seed"], safetensors.numpy.load(stored), rows, content["origin"])


def is_there(directory: Path, seed: int, origin: Mapping[str, Any]) -> bool:
    """Whether the seed is kept as trained by the code that `origin` names, with at least its replays."""
    try:
        kept = read(_path(directory, seed, origin["code_hash"]))
    except (FileNotFoundError, DamagedError):
        return False
    return {replay["code_hash"] for replay in origin.get("replays", ())} <= set(kept.codes)


def find(directory: Path, code: str, settings: VariantSettings | None = None) -> tuple[dict[int, Finished], list[str]]:
    """By seed, the result of this very code, else one that this code has replayed, else the newest of other code.

    Args:
        settings: what other settings trained is left out, whatever folder it lies in; None takes any.

    Returns:
        The results, and a clause about every file that is damaged; damaged files are removed.
    """
    parts, damaged = read_all(directory)
    for path in damaged:
        path.unlink()
    return best(parts, code, settings), list(damaged.values())


def read_all(directory: Path) -> tuple[list[Finished], dict[Path, str]]:
    """Every result of a folder, of whatever code, and a clause about every file that is damaged."""
    parts, damaged = [], {}
    for path in sorted(directory.glob("seed-*.done")):
        try:
            parts.append(read(path))
        except DamagedError as fault:
            damaged[path] = str(fault)
    return parts, damaged


def best(parts: Iterable[Finished], code: str, settings: VariantSettings | None = None) -> dict[int, Finished]:
    """By seed, the result that `find` takes of several."""
    found: dict[int, Finished] = {}
    for part in parts:
        # Seeds that were kept before they carried their settings have their folder alone.
        if settings is None or not part.origin.get("config") or settings.trained_as(part.origin["config"]):
            found[part.seed] = max(found.get(part.seed, part), part, key=lambda one: _rank(one, code))
    return found


def _rank(finished: Finished, code: str) -> tuple[bool, bool, str]:
    return finished.origin["code_hash"] == code, code in finished.codes, finished.origin["finished"]


def _path(directory: Path, seed: int, code: str) -> Path:
    return directory / f"seed-{seed}.{code[:12]}.done"


def stack_arrays(parts: Sequence[Finished]) -> dict[str, np.ndarray]:
    """All tensors with a leading seed dimension, (seed, ...); `trace.step`, which all seeds share, without one."""
    arrays = {name: np.stack([part.tensors[name] for part in parts]) for name in parts[0].tensors if name != "trace.step"}
    return arrays | {"trace.step": parts[0].tensors["trace.step"]}
