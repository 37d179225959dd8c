"""A study's results as a user sees them: one `Training` per variant, and tidy pandas frames.

    from pipeline.study import load
    load(".").epochs                    # of a folder; load("HEAD~3") of a commit; load("HEAD", store="mlflow.db") of its MLflow runs

The stages write the files, and everything that shows results reads them here and nowhere else.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.files import DamagedError
from pipeline.params import Params
from pipeline.study import tables
from pipeline.study.files import (
    ARRAYS,
    PREDICTIONS,
    REPEATED,
    TABLES,
    CommitFiles,
    Files,
    FolderFiles,
    described,
    in_order,
    mend,
    parse_json,
    places,
)
from pipeline.study.git import Repository
from pipeline.study.study import Study
from pipeline.study.training import Arrays, Training

__all__ = ["Study", "Training", "load", "load_commit", "load_current", "load_dataset", "read", "read_arrays"]


def load(source: str | os.PathLike[str] = ".", folder: str = "", *, store: str | None = None) -> Study:
    """The results of a folder, or of a commit of the repository that the working directory lies in.

    With `store`, they come from the MLflow runs of the trainings that its tables name. `epochs`, `seeds` and `variants` are those of
    the files to the last bit; `timings` is empty, and no predictions are there.

    Args:
        source: a folder that holds tables/, such as "." or "build/demo", or what git takes for a commit, such as "HEAD~3".
        folder: where tables/ lies in the source.
        store: an MLflow store: a server's address, such as "http://127.0.0.1:5000", or a SQLite file, such as "mlflow.db" or
            "sqlite:///mlflow.db". What an evaluation after that commit found is there, too.

    Raises:
        UserError: there are no results, a file is damaged, or the store cannot be read.
    """
    if Path(source).is_dir():
        study = read(FolderFiles(Path(source)), folder, name=str(source), root=Path(source))
    else:
        study = load_commit(Repository.around(Path.cwd()), str(source), folder)
    return study if store is None else _of_store(study, store)


def _of_store(study: Study, store: str) -> Study:
    """The same trainings, with what the store says of them; those that it does not hold whole are left out."""
    from pipeline.tracking import read as tracking

    found = tracking.trainings([one.id for one in study.trainings.values() if one.id], store)
    trainings = {}
    for variant, one in study.trainings.items():
        if one.id in found:
            record, columns = found[one.id]
            columns = columns and {name: column for name, column in columns.items() if name not in REPEATED}
            trainings[variant] = tables.training(record, columns)
    left_out = tuple(variant for variant in study.trainings if variant not in trainings)
    return replace(study, place=store, trainings=trainings, left_out=left_out, timed=False)


def load_commit(repository: Repository, revision: str, folder: str = "") -> Study:
    """As `load`, of a commit of any repository."""
    commit = repository.commit(revision)
    return read(CommitFiles(repository, commit.id), folder, name=f"the commit {revision}", hint=repository.newest_with_tables)


def read(
    files: Files,
    folder: str = "",
    *,
    name: str,
    hint: Callable[[], str | None] = lambda: None,
    root: Path | None = None,
) -> Study:
    """What these files hold.

    Args:
        name: of the source, in sentences.
        hint: names a commit that has results, for a source that has none.
        root: the folder of these files, in which the stored predictions are found, too; None for a commit.

    Raises:
        UserError: no results there, or a damaged file.
    """
    prefix = f"{folder}/" if folder else ""
    if prefix not in places(files, prefix):
        said = f"{name[0].upper()}{name[1:]} holds no results in {prefix}{TABLES}/"
        if others := [place.removesuffix("/") for top in ("", "reports/*/", "build/*/") for place in places(files, top) if place != prefix]:
            first = f"`IN={others[0] or '.'}`"
            which = f"which, for example with {first}" if len(others) > 1 else f"so with {first}"
            raise UserError(f"{said}, only in {', '.join(place or 'the top folder' for place in others)}: say {which}.")
        newest = hint()
        more = f"; the newest commit that wrote some is {newest}" if newest else ""
        raise UserError(f"{said}{'; `dvc repro evaluate` writes tables/ of what is trained' if root else more}.")
    trainings = _of_tables(files, prefix, name)
    if root is not None:
        path = root / prefix / PREDICTIONS
        trainings = {variant: replace(one, stored=partial(_stored, path / f"{variant}.npz")) for variant, one in trainings.items()}
    return Study(f"{prefix}{TABLES}", prefix, in_order(trainings, described(files, prefix)), files)


def _of_tables(files: Files, prefix: str, name: str) -> dict[str, Training]:
    paths = {table: f"{prefix}{TABLES}/{table}" for table in tables.NAMES}
    contents = files.read(paths.values())
    try:
        found = tables.parse({table: contents[path] for table, path in paths.items() if path in contents})
        trainings = {training.variant: training for training in found}
        if not trainings:
            raise DamagedError("variants.csv names no variant")
        return trainings
    except DamagedError as fault:
        is_commit = name.startswith("the commit")
        of, do = (f" of {name}", "compare another commit") if is_commit else ("", mend("evaluate"))
        raise UserError(f"{prefix}{TABLES}/{of} is damaged, {fault}: {do}.") from None


def read_arrays(file: Path | BytesIO, name: str) -> Arrays:
    """All arrays of an npz file. Raises UserError where it is damaged; `name` is what the sentence calls it."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
        raise UserError(f"{name} is damaged: {mend('evaluate')}.") from None


def _stored(path: Path) -> Arrays | None:
    return read_arrays(path, str(path)) if path.exists() else None


def load_current(params: Params) -> Study:
    """The results in the working directory of the variants that params name, checked against it; one that was not trained is left out.

    Raises:
        UserError: no variant was trained, one not with these settings, or its files are damaged; names the command that mends it.
    """
    study = read(FolderFiles(Path()), "", name="this folder", root=Path())
    trainings = {variant: study.trainings[variant] for variant in params.variants if variant in study.trainings}
    if not trainings:
        raise UserError(f"{TABLES}/ has no results of any variant that params.yaml names: run `dvc repro`.")
    for variant, training in trainings.items():
        settings = params.resolve(variant)
        trained = (settings.train.seeds, settings.train.epochs)
        if not settings.trained_as(training.record["config"]) or (training.seeds, training.test_loss.shape[1]) != trained:
            raise UserError(f"{variant} was trained with other settings than params.yaml now has: run `dvc repro`.")
        if training.parameters is None or training.flops is None:
            raise UserError(f"{TABLES}/variants.csv is damaged, {variant} lacks `parameters` or `flops`: {mend('evaluate')}.")
    return replace(study, trainings=trainings)


def load_dataset() -> dict[str, Any] | None:
    """`data/arrays/dataset.json` as the prepare stage writes it, or None where the data are not here."""
    path = ARRAYS / "dataset.json"
    if not path.exists():
        return None
    try:
        data = parse_json(path.read_bytes())
        if lacking := {"arrays", "class_counts", "pixel_mean", "pixel_std", "digest"} - data.keys():
            raise DamagedError(f"it lacks {', '.join(sorted(lacking))}")
        try:
            _ = [(data["arrays"][f"{part}_images"]["shape"][0], data["class_counts"][part]) for part in ("train", "test")]
            _ = float(data["pixel_mean"]), float(data["pixel_std"])
        except (LookupError, TypeError, ValueError):
            raise DamagedError("it is not what the stage writes") from None
    except DamagedError as fault:
        raise UserError(f"{path} is damaged, {fault}: {mend('prepare')}.") from None
    return data
