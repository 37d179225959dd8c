"""A study in a real git repository, with real tables."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.runner import seeds
from pipeline.study import tables
from pipeline.training.records import EpochRow
from tests.helpers import commit_all, git

CONFIG: dict[str, Any] = {
    "data": {"dataset": "digits"},
    "train": {"seeds": [0, 1, 2], "epochs": 2, "batch_size": 128, "learning_rate": 0.005, "optimizer": "adam", "clip_norm": None},
    "model": {"architecture": "vit", "patch": 4, "dim": 32, "final_norm": False, "memory": 0},
}


class Study:
    """A repository with results below `prefix`."""

    def __init__(self, root: Path, prefix: str = "") -> None:
        self.root = root
        self.prefix = prefix
        self.records: dict[str, dict[str, dict[str, Any]]] = {}  # by prefix and variant
        self.trained = 0
        self.waits = False
        root.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    def directory(self, variant: str) -> Path:
        return self.root / self.prefix / "runs" / variant

    def train(
        self,
        variant: str,
        accuracy: Mapping[int, float] | Sequence[float],
        *,
        change: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        old: bool = False,
        parameters: int = 10_666,
        seconds: float = 12.5,
    ) -> None:
        """Writes what a training leaves, and the tables of all; a new training_id each time.

        Args:
            accuracy: of each seed after the last epoch.
            change: settings by dotted key.
            run: other entries of run.json.
            old: as before optimisers and architectures were recorded.
        """
        self.trained += 1
        final = dict(accuracy) if isinstance(accuracy, Mapping) else dict(enumerate(accuracy))
        config = copy.deepcopy(CONFIG)
        config["train"]["seeds"] = list(final)
        for key, value in (change or {}).items():
            section, name = key.split(".")
            config[section][name] = value
        if old:
            for key in ("train.optimizer", "train.clip_norm", "model.architecture", "model.memory"):
                section, name = key.split(".")
                del config[section][name]
        record = {
            "training_id": f"{self.trained:032x}",
            "variant": variant,
            "stage": f"train@{variant}",
            "config": config,
            "config_hash": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
            "code_hash": "c" * 64,
            "data_digest": "d" * 64,
            "dataset": "digits",
            "git_commit": None,
            "git_dirty": None,
            "device": "cpu",
            "device_name": "A processor (2 cores)",
            "attention": "fused-cpu",
            "versions": {"python": "3.11.7", "torch": "2.15.0"},
            "seeds": list(final),
            "started": "2026-01-02T03:04:05+00:00",
            "finished": "2026-01-02T03:14:05+00:00",
        } | dict(run or {})
        rows = []
        epochs = config["train"]["epochs"]
        for seed, value in final.items():
            for epoch in range(1, epochs + 1):
                now = value if epoch == epochs else value / 2
                losses = {"train_loss": 2.3 / epoch + seed / 7, "test_loss": 2.1 / epoch + seed / 9}
                row = EpochRow(seed, epoch, **losses, test_accuracy=now, gradient_norm=1.5 / epoch, seconds=seconds + seed / 3)
                rows.append(list(row))
        metrics = {"n": len(final), "parameters": parameters, "flops": 163 * parameters}
        self.write(variant, record | {"epochs": rows, "metrics": metrics})

    def write(self, variant: str, record: dict[str, Any]) -> None:
        """Writes run.json, which vouches for the files as they are now, and the tables."""
        directory = self.directory(variant)
        directory.mkdir(parents=True, exist_ok=True)
        seeds.write_run(directory, record)
        self.records.setdefault(self.prefix, {})[variant] = record
        self._write_tables()

    def change(self, variant: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Writes a variant's record as `change` leaves it."""
        record = copy.deepcopy(self.records[self.prefix][variant])
        change(record)
        self.write(variant, record)

    def seal(self, variant: str) -> None:
        """Has run.json vouch for the files as they are now."""
        self.write(variant, self.records[self.prefix][variant])

    def remove(self, variant: str) -> None:
        shutil.rmtree(self.directory(variant))
        del self.records[self.prefix][variant]
        self._write_tables()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """The tables are written once for all that is trained and removed inside; each writing takes time for all variants."""
        self.waits = True
        yield
        self.waits = False
        self._write_tables()

    def _write_tables(self) -> None:
        if self.waits:
            return
        folder = self.root / self.prefix / "tables"
        folder.mkdir(exist_ok=True)
        trainings = [tables.training(record, None) for _, record in sorted(self.records[self.prefix].items())]
        for name, content in tables.render(trainings).items():
            (folder / name).write_text(content)

    def commit(self, message: str = "results") -> str:
        return commit_all(self.root, message)


@pytest.fixture(scope="session")
def study_class() -> type[Study]:
    """For fixtures that outlive one test."""
    return Study


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Study]:
    """A new study: `make_study(name, prefix)`."""
    return lambda name="study", prefix="": Study(tmp_path / name, prefix)


@pytest.fixture
def study(make_study: Callable[..., Study]) -> Study:
    return make_study()
