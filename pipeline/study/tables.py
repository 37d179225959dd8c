"""The results of a whole study as tidy tables. The evaluate stage writes them, git keeps them, and all that shows results reads them.

    epochs.csv    a row per variant, seed and epoch
    seeds.csv     a row per variant and seed: what the evaluation found
    variants.csv  a row per variant: its settings by dotted key, its model's size, and where it comes from

An empty cell is a value that is not known. A cell that is not a plain word holds JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.files import DamagedError
from pipeline.measures.definitions import FloatArray
from pipeline.params import flatten
from pipeline.study.files import REPEATED, curves_of
from pipeline.study.training import Training
from pipeline.training.records import EpochRow

NAMES = ("epochs.csv", "seeds.csv", "variants.csv")
# Entries of a training's record that are in the other tables, or that only another training of the variant needs.
_LEFT_OUT = ("digest", "epochs", "metrics", "outputs", "stacks", "tables")


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
    epochs: list[dict[str, Any]] = []
    seeds: list[dict[str, Any]] = []
    variants: list[dict[str, Any]] = []
    for training in trainings:
        variant = {"variant": training.variant}
        for i, seed in enumerate(training.seeds):
            for epoch in range(training.test_loss.shape[1]):
                values = {name: float(curve[i, epoch]) for name, curve in training.curves.items()}
                epochs.append({**variant, "seed": seed, "epoch": epoch + 1, **values})
            if training.evaluation is not None:
                last = {name: float(training.curves[name][i, -1]) for name in REPEATED}
                found = {name: float(column[i]) for name, column in training.evaluation.items()}
                seeds.append({**variant, "seed": seed, **last, **found})
        record = {name: value for name, value in training.record.items() if name not in (*_LEFT_OUT, "variant")}
        sizes = {"parameters": training.parameters, "flops": training.flops}
        variants.append(variant | {name: _cell(value) for name, value in flatten(sizes | record)})
    return dict(zip(NAMES, map(_csv, (epochs, seeds, variants)), strict=True))


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


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["variant"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def parse(contents: Mapping[str, bytes]) -> Iterator[Training]:
    """The trainings that the tables hold, in their order.

    Args:
        contents: of the tables, by NAMES.

    Raises:
        DamagedError: they are no such tables; with the table and the reason as a clause.
    """
    if lacking := [name for name in NAMES if name not in contents]:
        raise DamagedError(f"{lacking[0]} is missing")
    epochs, seeds, variants = (_by_variant(name, contents[name]) for name in NAMES)
    for variant, (row, *_) in variants.items():
        try:
            found = _training(variant, row, epochs[variant], seeds.get(variant))
        except DamagedError as fault:
            raise DamagedError(f"epochs.csv, variant {variant}: {fault}") from None
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise DamagedError(f"the rows of the variant {variant} do not fit together") from None
        yield found


def _training(variant: str, row: Mapping[str, str], epochs: list[dict[str, str]], evaluated: list[dict[str, str]] | None) -> Training:
    record = _nested({name: _parsed(cell) for name, cell in row.items() if cell})
    sizes = [None if (size := record.pop(name, None)) is None else int(size) for name in ("parameters", "flops")]
    seeds, curves = curves_of(epochs)
    of_seeds = [seed for group in record.get("trainings", ()) for seed in group["seeds"]]
    if not record["config"].keys() or ("trainings" in record and not {*seeds} <= {*of_seeds}):
        raise ValueError
    evaluation = _evaluation(seeds, evaluated) if evaluated else None
    return Training(variant, {"variant": variant, **record}, seeds, curves, sizes[0], sizes[1], evaluation)


def _by_variant(name: str, content: bytes) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
        if "variant" not in (reader.fieldnames or ()):
            raise ValueError
        for row in reader:
            if None in row or None in row.values():
                raise ValueError
            found.setdefault(row.pop("variant"), []).append(row)
    except (ValueError, csv.Error):
        raise DamagedError(f"{name} is not a table with a row per variant") from None
    return found


def _evaluation(seeds: tuple[int, ...], rows: list[dict[str, str]]) -> dict[str, FloatArray]:
    """The columns (seeds,) that the variant has."""
    if tuple(int(row.pop("seed")) for row in rows) != seeds:
        raise ValueError
    columns = [name for name in rows[0] if name not in REPEATED and any(row[name] for row in rows)]
    return {name: np.array([float(row[name]) for row in rows]) for name in columns}


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
