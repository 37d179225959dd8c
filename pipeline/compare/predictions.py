"""Predictions of a commit's trainings, where DVC's cache on this machine still has them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from pipeline.study import Study

_MD5 = re.compile(r"[0-9a-f]{32}")


class Predictions(NamedTuple):
    """What each seed's model said of each test image: labels (images,), classes (seeds, images), seeds as in epochs.csv."""

    labels: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.uint8]
    seeds: tuple[int, ...]

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """(seeds, images)."""
        return self.classes == self.labels


class Cache:
    """Files of the DVC caches below a repository: its own, and those of the profiles in build/."""

    def __init__(self, root: Path) -> None:
        self._folders = [folder / "files" / "md5" for folder in _caches(root) if folder.is_dir()]

    def read(self, md5: str) -> bytes | None:
        """A cached file's bytes, or None where no cache has it."""
        name, end = md5.removesuffix(".dir"), ".dir" if md5.endswith(".dir") else ""
        if not _MD5.fullmatch(name):
            return None
        for folder in self._folders:
            path = folder / name[:2] / f"{name[2:]}{end}"
            if path.is_file():
                return path.read_bytes()
        return None


def _caches(root: Path) -> Iterator[Path]:
    from dvc.config import Config, ConfigError

    for repository in (root, *sorted(root.glob("build/*"))):
        if not (repository / ".dvc").is_dir():
            continue
        try:
            configured = Config(repository / ".dvc", validate=False)["cache"].get("dir")
        except (ConfigError, KeyError):
            configured = None
        yield Path(configured) if configured else repository / ".dvc" / "cache"


class Evaluated:
    """The predictions of one side: the files themselves in a working tree, else what its dvc.lock names."""

    def __init__(self, study: Study, cache: Cache) -> None:
        self._study = study
        self._cache = cache
        self._md5 = _locked(study, cache)

    def of(self, variant: str) -> Predictions | None:
        """The variant's predictions; None where they are not here, or not those of the side's training."""
        training, prefix = self._study.trainings[variant], self._study.prefix
        files = self._study.files.read([f"{prefix}predictions/{variant}.npz", f"{prefix}runs/{variant}/predictions.npz"])
        content = next(iter(files.values()), None) or self._cache.read(self._md5.get(variant, ""))
        predictions = _parse(content) if content else None
        if predictions is None or set(predictions.seeds) != set(training.seeds):
            return None
        order = [predictions.seeds.index(seed) for seed in training.seeds]
        predictions = Predictions(predictions.labels, predictions.classes[order], training.seeds)
        # An evaluation is accepted only if it repeats the training's accuracy, so others are of another training.
        return predictions if np.allclose(predictions.correct.mean(axis=1), training.accuracy, rtol=0, atol=1e-9) else None


def _locked(study: Study, cache: Cache) -> dict[str, str]:
    """md5 of each variant's predictions: of the folder predictions/, or in older studies one file in each runs/VARIANT."""
    path = f"{study.prefix}dvc.lock"
    try:
        lock = yaml.load(study.files.read([path])[path], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        outs = {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", ())}
    except (KeyError, TypeError, AttributeError, yaml.YAMLError):
        return {}
    found = {Path(name).parent.name: md5 for name, md5 in outs.items() if name.startswith("runs/") and name.endswith("/predictions.npz")}
    listing = cache.read(str(outs.get("predictions", "")))
    try:
        entries = json.loads(listing) if listing is not None else []
        return found | {Path(entry["relpath"]).stem: entry["md5"] for entry in entries}
    except (ValueError, KeyError, TypeError):
        return found


def _parse(content: bytes) -> Predictions | None:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            labels, classes, seeds = arrays["labels"], arrays["predictions"], arrays["seeds"]
    except Exception:
        # A zip file can be damaged in many ways; the comparison of accuracies does without it.
        return None
    if classes.ndim != 2 or classes.shape != (seeds.size, labels.size) or not labels.size:
        return None
    return Predictions(labels, classes, tuple(int(seed) for seed in seeds))
