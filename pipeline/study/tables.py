"""The results of a whole study as tidy tables. The evaluate stage writes them, git keeps them, and all that shows results reads them.

    epochs.csv    a row per variant, seed and epoch
    seeds.csv     a row per variant and seed: what the evaluation found
    variants.csv  a row per variant: its settings by dotted key, its model's size, and where it comes from

An empty cell is a value that is not known; a NaN is one that is. A cell that is not a plain word holds JSON. Tables of any age are read:
what older ones lack is absent.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.measures.definitions import FloatArray
from pipeline.params import flatten
from pipeline.study.training import Training
from pipeline.system.files import DamagedError
from pipeline.system.paths import CURVES, REPEATED
from pipeline.training.records import EpochRow

NAMES = ("epochs.csv", "seeds.csv", "variants.csv")
# Entries of a training's record that are in the other tables, or that only another training of the variant needs.
_LEFT_OUT = ("digest", "epochs", "metrics", "outputs", "stacks", "tables", "variant")


def training(run: Mapping[str, Any], columns: Mapping[str, Sequence[float]] | None) -> Training:
    """A training from its record.

    Args:
        columns: (seeds,) each, of its evaluation; None where it was not evaluated.
    """
    names, seeds = EpochRow._fields[2:], tuple(run["seeds"])
    table = np.array(run["epochs"], dtype=np.float64).reshape(len(seeds), -1, len(EpochRow._fields))[:, :, 2:]
    curves = {name: table[:, :, i] for i, name in enumerate(names)}
    evaluation = None if columns is None else {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
    return Training(run["variant"], run, seeds, curves, run["metrics"]["parameters"], run["metrics"]["flops"], evaluation)


def render(trainings: Iterable[Training]) -> dict[str, str]:
    """The text of each table."""
    tables: tuple[list[dict[str, Any]], ...] = ([], [], [])
    for one in trainings:
        tables[0].append(epoch_columns(one))
        if one.evaluation is not None:
            last = {name: one.curves[name][:, -1] for name in REPEATED}
            tables[1].append({"variant": one.variant, "seed": one.seeds, **last, **one.evaluation})
        record = {name: value for name, value in one.record.items() if name not in _LEFT_OUT}
        sizes = {"parameters": one.parameters, "flops": one.flops}
        tables[2].append({"variant": one.variant, **{name: _cell(value) for name, value in flatten(sizes | record)}})
    return {name: _text(parts) for name, parts in zip(NAMES, tables, strict=True)}


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    """The text of a table: a NaN is "nan", and a column that a part lacks stays empty there."""
    file = io.StringIO()
    names = dict.fromkeys(["variant", *(name for part in parts for name in part)])
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for part in parts:
        count = len(part["seed"]) if "seed" in part else 1
        columns = (part.get(name, "") for name in names)
        writer.writerows(zip(*([one] * count if isinstance(one, str) else np.asarray(one).tolist() for one in columns), strict=True))
    return file.getvalue()


def epoch_columns(training: Training) -> dict[str, Any]:
    """A row for each seed and epoch."""
    seeds, epochs = training.test_accuracy.shape
    own = {"variant": training.variant, "seed": np.repeat(training.seeds, epochs), "epoch": np.tile(np.arange(1, epochs + 1), seeds)}
    return own | {name: curve.ravel() for name, curve in training.curves.items()}


def _cell(value: Any) -> str:
    """JSON, but a plain word stays as it is: printable, not empty, and no JSON itself."""
    if isinstance(value, str) and value and value.isprintable() and _parsed(value) is value:
        return value
    return json.dumps(value)


def _parsed(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def parse(contents: Mapping[str, bytes]) -> list[Training]:
    """The trainings that the tables hold, in their order, at least one.

    Args:
        contents: of the tables, by NAMES.

    Raises:
        DamagedError: they are no such tables.
    """
    try:
        tables = (pd.read_csv(io.BytesIO(contents[name]), dtype=object, keep_default_na=False) for name in NAMES)
        epochs, seeds, variants = (dict(list(table.groupby("variant", sort=False))) for table in tables)
        found = [_training(rows.iloc[0].to_dict(), epochs[variant], seeds.get(variant)) for variant, rows in variants.items()]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        found = []
    if not found:
        raise DamagedError("the tables lack rows or columns, or do not fit together")
    return found


def _training(row: Mapping[Any, str], epochs: pd.DataFrame, evaluated: pd.DataFrame | None) -> Training:
    record = _nested({name: _parsed(cell) for name, cell in row.items() if cell})
    sizes = [None if (size := record.pop(name, None)) is None else int(size) for name in ("parameters", "flops")]
    rows = list(zip(epochs["seed"].map(int), epochs["epoch"].map(int), strict=True))
    seeds = tuple(dict.fromkeys(seed for seed, _ in rows))
    curves = {name: _floats(epochs[name]).reshape(len(seeds), -1) for name in CURVES}
    tested = seeds if evaluated is None else tuple(evaluated["seed"].map(int))
    if not record["config"] or tested != seeds or rows != [(seed, epoch + 1) for seed in seeds for epoch in range(len(rows) // len(seeds))]:
        raise ValueError
    evaluation = None
    if evaluated is not None:
        own = evaluated.drop(columns=["variant", "seed", *REPEATED])
        evaluation = {str(name): _floats(cells) for name, cells in own.items() if cells.any()}
    return Training(row["variant"], record | {"variant": row["variant"]}, seeds, curves, sizes[0], sizes[1], evaluation)


def _floats(cells: Iterable[str]) -> FloatArray:
    return np.array([float(cell) for cell in cells])


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undoes `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
