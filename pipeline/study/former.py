"""Results of commits that are older than tables/: text files in a folder per variant."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.files import DamagedError
from pipeline.measures.definitions import FloatArray
from pipeline.study.files import Files, curves_of, parse_json
from pipeline.study.training import Training

_FILES = ("run.json", "epochs.csv", "metrics.json")


def read(files: Files, prefix: str, name: str) -> tuple[dict[str, Training], dict[str, str]]:
    """The trainings by variant; and the variants without a whole record, with what it lacks.

    Args:
        prefix: of runs/ and evaluations/, in `files`.
        name: of the source, in sentences.

    Raises:
        UserError: no variant has a whole record, or a file is damaged.
    """
    trainings: dict[str, Training] = {}
    left_out: dict[str, str] = {}
    found = files.matching(f"{prefix}runs/*/run.json")
    variants = [PurePosixPath(path).parent.name for path in found]
    evaluated = [f"{prefix}evaluations/{variant}/{file}" for variant in variants for file in ("inputs.json", "seeds.csv")]
    contents = files.read([*(f"{prefix}runs/{variant}/{file}" for variant in variants for file in _FILES), *evaluated])
    for variant in variants:
        missing = [file for file in _FILES if f"{prefix}runs/{variant}/{file}" not in contents]
        if missing:
            left_out[variant] = f"no {' and no '.join(missing)}"
        else:
            trainings[variant] = _training(variant, contents, prefix, name)
    if not trainings:
        said = "; ".join(f"{variant}: {why}" for variant, why in sorted(left_out.items())[:3])
        write = "" if name.startswith("the commit") else "; `dvc repro evaluate` writes tables/ of what is trained"
        raise UserError(f"{name[0].upper()}{name[1:]} holds no whole record in {prefix}runs ({said}){write}.")
    return trainings, left_out


def _training(variant: str, contents: Mapping[str, bytes], prefix: str, name: str) -> Training:
    directory, evaluation = f"{prefix}runs/{variant}/", f"{prefix}evaluations/{variant}/"

    def parsed(path: str, parse: Callable[[bytes], Any], digests: Mapping[str, str]) -> Any:
        try:
            digest = digests.get(path.rpartition("/")[2])
            if digest is not None and hashlib.sha256(contents[path]).hexdigest() != digest:
                raise DamagedError("it does not have the recorded sha256")
            return parse(contents[path])
        except DamagedError as fault:
            raise UserError(f"{path} of {name} is damaged, {fault}: compare another commit, or restore it with `git checkout`.") from None

    record = parsed(directory + "run.json", _record, {})
    seeds, curves = parsed(directory + "epochs.csv", _epochs, _outputs(record))
    metrics = parsed(directory + "metrics.json", parse_json, _outputs(record))
    sizes = [int(metrics[key]) if isinstance(metrics.get(key), int | float) else None for key in ("parameters", "flops")]
    columns = None
    if {evaluation + "seeds.csv", evaluation + "inputs.json"} <= contents.keys():
        inputs = parsed(evaluation + "inputs.json", parse_json, {})
        columns = parsed(evaluation + "seeds.csv", _seeds, _outputs(inputs))
        accuracy = columns.pop("test_accuracy")
        columns.pop("test_loss", None)  # the training's own, to the last bit on one machine
        if tuple(columns.pop("seed")) != seeds or not np.allclose(accuracy, curves["test_accuracy"][:, -1], rtol=0, atol=1e-6):
            columns = None  # of another training
    return Training(variant, record, seeds, curves, sizes[0], sizes[1], columns)


def _record(content: bytes) -> dict[str, Any]:
    record = parse_json(content)
    if not isinstance(record.get("config"), dict):
        raise DamagedError("it lacks `config`")
    return record


def _outputs(record: Mapping[str, Any]) -> dict[str, str]:
    """The digests of what was written beside a record; none where an older one has none."""
    outputs = record.get("outputs")
    return outputs if isinstance(outputs, dict) else {}


def _epochs(content: bytes) -> tuple[tuple[int, ...], dict[str, FloatArray]]:
    return curves_of(_rows(content))


def _seeds(content: bytes) -> dict[str, FloatArray]:
    """The columns (seeds,) of an evaluation's seeds.csv, `seed` among them."""
    rows = _rows(content)
    try:
        columns = {name: np.array([float(row[name]) for row in rows]) for name in (rows[0] if rows else ())}
    except (KeyError, TypeError, ValueError):
        raise DamagedError("it is not a table of numbers by seed") from None
    if not {"seed", "test_accuracy"} <= columns.keys():
        raise DamagedError("it lacks `seed` or `test_accuracy`")
    return columns


def _rows(content: bytes) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")))
    except (ValueError, csv.Error):
        return []
