"""Predictions of a commit's trainings, where DVC's cache on this machine still has them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.provenance import mapping
from pipeline.study import Study
from pipeline.study.results import read_arrays
from pipeline.study.training import Arrays

_MD5 = re.compile(r"[0-9a-f]{32}")


class Cache:
    """Files of the DVC caches below a repository: its own, and those of the profiles in build/."""

    def __init__(self, root: Path) -> None:
        self._folders = [folder / "files" / "md5" for folder in _caches(root) if folder.is_dir()]

    def read(self, md5: str) -> bytes | None:
        """A cached file's bytes, or None where no cache has it."""
        name, end = md5.removesuffix(".dir"), ".dir" if md5.endswith(".dir") else ""
        if not _MD5.fullmatch(name):
            return None
        paths = (folder / name[:2] / f"{name[2:]}{end}" for folder in self._folders)
        return next((path.read_bytes() for path in paths if path.is_file()), None)


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


def with_predictions(study: Study, cache: Cache) -> Study:
    """The study, with predictions read from the files in the working tree, or from the cached files that its dvc.lock names."""
    locked = _locked(study, cache)

    def stored(variant: str) -> Arrays | None:
        path = f"{study.prefix}predictions/{variant}.npz"
        content = study.files.read([path]).get(path) or cache.read(locked.get(variant, ""))
        return read_arrays(io.BytesIO(content), path) if content else None

    trainings = {variant: replace(training, stored=partial(stored, variant)) for variant, training in study.trainings.items()}
    return replace(study, trainings=trainings)


def _locked(study: Study, cache: Cache) -> dict[str, str]:
    """md5 of each variant's file in predictions/, whose listing the study's dvc.lock names; none where the cache lacks that."""
    path = f"{study.prefix}dvc.lock"
    try:
        lock = mapping(study.files.read([path])[path])
        outs = {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", ())}
    except (KeyError, TypeError, AttributeError):
        return {}
    listing = cache.read(str(outs.get("predictions", "")))
    try:
        entries = json.loads(listing) if listing is not None else []
        return {Path(entry["relpath"]).stem: entry["md5"] for entry in entries}
    except (ValueError, KeyError, TypeError):
        return {}
