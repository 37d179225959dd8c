"""Where a study keeps its files, and how those of a folder or of a commit are read.

Tables of any age are read. What older ones lack is absent, and does not count as different.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

import numpy as np

from pipeline.files import DamagedError
from pipeline.measures.definitions import FloatArray
from pipeline.provenance import mapping
from pipeline.study.git import Repository

# Where the stages keep things, relative to the DVC repository's root.
ARRAYS = Path("data/arrays")
CHECKPOINTS = Path(".checkpoints")
CODE_HASHES = Path("code-hashes")
CONFIGS = Path("configs")
FINISHED = CHECKPOINTS / "seeds"
STORE = Path("store")  # which git tracks: two files a variant
TRAININGS = STORE / "trainings"
PREDICTIONS = STORE / "predictions"
TABLES = Path("tables")
TIMINGS = Path("timing")  # cpu.json, cuda.json: a file for each kind of device that was timed

T = TypeVar("T")

CURVES = ("train_loss", "test_loss", "test_accuracy", "seconds", "gradient_norm")  # of epochs.csv
REPEATED = ("test_accuracy", "test_loss")  # of the last epoch: an evaluation is accepted only if it finds them again


class Files(Protocol):
    """Files by their paths from the top folder."""

    def matching(self, pattern: str) -> list[str]:
        """Paths, sorted; a `*` stays inside one part of a path."""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Contents of those files that exist."""


class CommitFiles:
    """The files at a commit."""

    def __init__(self, repository: Repository, commit: str) -> None:
        self._repository = repository
        self._ids = repository.files(commit)

    def matching(self, pattern: str) -> list[str]:
        return sorted(path for path in self._ids if PurePosixPath("/", path).match(f"/{pattern}"))

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        ids = {path: self._ids[path] for path in paths if path in self._ids}
        contents = self._repository.contents(ids.values())
        return {path: contents[id] for path, id in ids.items()}


class FolderFiles:
    """The files of a folder, whether git knows them or not."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def matching(self, pattern: str) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.glob(pattern) if path.is_file())

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        return {path: (self._root / path).read_bytes() for path in paths if (self._root / path).is_file()}


def parse_json(content: bytes) -> dict[str, Any]:
    """A JSON object. Raises DamagedError, with the reason as a clause."""
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise DamagedError("it is not a JSON object")
    return value


def curves_of(lines: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], dict[str, FloatArray]]:
    """Seeds, and the curves (seeds, epochs) of a variant's lines: losses in nats, accuracy a fraction, seconds of one epoch.

    Losses and gradient norms of a seed that diverged may be NaN or infinite.

    Raises:
        DamagedError: they are not a training's; with the reason as a clause.
    """
    try:
        rows = [(int(line["seed"]), int(line["epoch"]), [float(line[name]) for name in CURVES]) for line in lines]
    except (KeyError, TypeError, ValueError):
        raise DamagedError("it is not a table of numbers with the columns of a training") from None
    seeds = tuple(dict.fromkeys(seed for seed, _, _ in rows))
    epochs = max((epoch for _, epoch, _ in rows), default=0)
    full = 0 < len(rows) == len(seeds) * epochs
    expected = [(seed, epoch) for seed in seeds for epoch in range(1, epochs + 1)] if full else []
    if not full or sorted((seed, epoch) for seed, epoch, _ in rows) != sorted(expected):
        raise DamagedError("it has not one row for every seed and epoch")
    place = {pair: index for index, pair in enumerate(expected)}
    table = np.empty((len(expected), len(CURVES)))
    for seed, epoch, values in rows:
        table[place[seed, epoch]] = values
    curves = {name: table[:, index].reshape(len(seeds), epochs) for index, name in enumerate(CURVES)}
    if not ((curves["test_accuracy"] >= 0) & (curves["test_accuracy"] <= 1)).all() or not np.isfinite(curves["seconds"]).all():
        raise DamagedError("it holds an accuracy that is not between 0 and 1, or a time that is not a finite number")
    return seeds, curves


def mend(stage: str) -> str:
    """How to have a stage write its files again, as a clause."""
    return f"run `dvc repro --force --single-item {stage}`"


def places(files: Files, top: str) -> list[str]:
    """The folders whose tables/ hold results, as prefixes of paths: "" or ending in "/".

    Args:
        top: such a prefix; a `*` stays inside one part of it.
    """
    end = "tables/variants.csv"
    return sorted(path.removesuffix(end) for path in files.matching(f"{top}{end}"))


def described(files: Files, prefix: str) -> list[str]:
    """The variants in the params.yaml that the results in `prefix` follow, of whatever age.

    That is the root's, with a profile's laid over it. A file that cannot be read names nothing.
    """
    name = PurePosixPath(prefix).name
    paths = ["params.yaml", *([f"profiles/{name}.yaml", f"profiles/{name}/params.yaml"] if prefix else [])]
    contents = files.read(paths)
    sections = [mapping(contents[path]).get("variants") for path in paths if path in contents]
    return list(dict.fromkeys(str(name) for section in sections if isinstance(section, dict) for name in section))


def in_order(trainings: Mapping[str, T], variants: Sequence[str]) -> dict[str, T]:
    """The entries in the order of these variants, others after them by name."""
    rank = {variant: i for i, variant in enumerate(variants)}
    return {name: trainings[name] for name in sorted(trainings, key=lambda name: (rank.get(name, len(rank)), name))}
