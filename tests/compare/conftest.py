"""A study in a real git repository, with real records in its runs/."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.runner import results
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
        self.trained = 0
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
        """Writes what a training leaves; a new training_id each time.

        Args:
            accuracy: of each seed after the last epoch.
            change: settings by dotted key.
            run: other entries of run.json.
            old: as before gradient norms, optimisers and architectures were recorded.
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
        columns = ["seed", "epoch", "train_loss", "test_loss", "test_accuracy", *(["gradient_norm"] if not old else []), "seconds"]
        lines, rows = [",".join(columns)], []
        epochs = config["train"]["epochs"]
        for seed, value in final.items():
            for epoch in range(1, epochs + 1):
                now = value if epoch == epochs else value / 2
                numbers = [2.3 / epoch + seed / 7, 2.1 / epoch + seed / 9, now, *([1.5 / epoch] if not old else []), seconds + seed / 3]
                lines.append(",".join([str(seed), str(epoch), *map(repr, numbers)]))
                rows.append([seed, epoch, *numbers])
        directory = self.directory(variant)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.json").write_text(json.dumps(record))
        (directory / "epochs.csv").write_text("\n".join([*lines, ""]))
        metrics = {"n": len(final), "parameters": parameters, "flops": 163 * parameters}
        (directory / "metrics.json").write_text(json.dumps(metrics))
        if not old:
            results.write_run(directory, record | {"epochs": rows, "metrics": metrics})

    def seal(self, variant: str) -> None:
        """Has run.json vouch for the files as they are now."""
        directory = self.directory(variant)
        results.write_run(directory, json.loads((directory / "run.json").read_text()))

    def remove(self, variant: str) -> None:
        shutil.rmtree(self.directory(variant))

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
