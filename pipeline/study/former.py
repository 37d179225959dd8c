"""Results of commits that are older than tables/: text files in a folder per variant."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import PurePosixPath

import numpy as np

from pipeline.errors import UserError
from pipeline.files import DamagedError
from pipeline.measures.definitions import FloatArray
from pipeline.study.files import Files, curves_of, parse_json
from pipeline.study.training import Training

_FILES = ("run.json", "epochs.csv", "metrics.json")


def read(files: Files, prefix: str, name: str) -> tuple[dict[str, Training], dict[str, str]]:
    """The trainings by variant, and what is missing of each variant without a whole record.

    Args:
        prefix: of runs/ and evaluations/, in `files`.
        name: of the source, in sentences.

    Raises:
        UserError: no variant has a whole record, or a file is damaged.
    """
    trainings: dict[str, Training] = {}
    left_out: dict[str, str] = {}
    variants = [PurePosixPath(path).parent.name for path in files.matching(f"{prefix}runs/*/run.json")]
    paths = {
        variant: {file: f"{prefix}runs/{variant}/{file}" for file in _FILES} | {"seeds.csv": f"{prefix}evaluations/{variant}/seeds.csv"}
        for variant in variants
    }
    contents = files.read([path for own in paths.values() for path in own.values()])
    for variant, own in paths.items():
        found = {file: contents[path] for file, path in own.items() if path in contents}
        if missing := [file for file in _FILES if file not in found]:
            left_out[variant] = f"no {' and no '.join(missing)}"
            continue
        try:
            trainings[variant] = _training(variant, found)
        except (DamagedError, KeyError, TypeError, ValueError) as fault:
            where = f"{prefix}runs/{variant} of {name}"
            raise UserError(f"{where} is damaged, {fault}: compare another commit, or restore it with `git checkout`.") from None
    if not trainings:
        said = "; ".join(f"{variant}: {why}" for variant, why in sorted(left_out.items())[:3])
        write = "" if name.startswith("the commit") else "; `dvc repro evaluate` writes tables/ of what is trained"
        raise UserError(f"{name[0].upper()}{name[1:]} holds no whole record in {prefix}runs ({said}){write}.")
    return trainings, left_out


def _training(variant: str, contents: Mapping[str, bytes]) -> Training:
    record, metrics = (parse_json(contents[file]) for file in ("run.json", "metrics.json"))
    if not isinstance(record.get("config"), dict):
        raise DamagedError("run.json lacks `config`")
    seeds, curves = curves_of(_rows(contents["epochs.csv"]))
    columns: dict[str, FloatArray] | None = None
    if rows := _rows(contents.get("seeds.csv", b"")):
        columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        accuracy = columns.pop("test_accuracy")
        columns.pop("test_loss", None)  # the training's own, to the last bit on one machine
        if tuple(columns.pop("seed")) != seeds or not np.allclose(accuracy, curves["test_accuracy"][:, -1], rtol=0, atol=1e-6):
            columns = None  # of another training
    return Training(variant, record, seeds, curves, metrics.get("parameters"), metrics.get("flops"), columns)


def _rows(content: bytes) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))
    except (ValueError, csv.Error):
        return []
