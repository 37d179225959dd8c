"""A study's results as a user sees them: one `Training` per variant, and tidy pandas frames.

    from pipeline.study import load
    load(".").epochs                    # of a folder; load("HEAD~3") of a commit; load("HEAD", store="mlflow.db") of its MLflow runs

The stages write the files, and everything that shows results reads them here and nowhere else.
"""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.measures import MEASURES
from pipeline.params import Params, nearest
from pipeline.study import tables
from pipeline.study.effects import ShareEstimate
from pipeline.study.git import commit_of, root_of
from pipeline.study.statistics import Summary, summarize
from pipeline.study.training import Arrays, Training
from pipeline.system.errors import UserError
from pipeline.system.files import DamagedError
from pipeline.system.paths import ARRAYS, PREDICTIONS, TABLES, Files, mend
from pipeline.system.provenance import mapping

CLAIMS = "reports/claims.csv"
CLAIM_COLUMNS = ("claim", "verdict", "comparison", "n", "effect", "low", "high", "level", "shown", "fixed", "digest")


@dataclass(frozen=True)
class Study:
    """All results of one place.

    Attributes:
        trainings: by variant, in the order of the tables, which is that of params.yaml.
        left_out: variants that MLflow does not hold whole.
    """

    files: Files
    trainings: Mapping[str, Training]
    left_out: tuple[str, ...] = ()

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """A row for each variant, seed and epoch (from 1), with the columns of epochs.csv."""
        return _stacked(tables.epoch_columns(training) for training in self.trainings.values())

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """A row for each variant and seed: after the last epoch, and what the evaluation found."""
        return _stacked(_seed_columns(training) for training in self.trainings.values())

    @cached_property
    def variants(self) -> pd.DataFrame:
        """A row for each variant: its settings by dotted key, its model's size, and where it comes from."""
        return pd.DataFrame(
            [
                {"variant": one.variant, "num_seeds": len(one.seeds), "test_accuracy": one.accuracy.mean()}
                | {"parameters": one.parameters, "flops": one.flops, **one.options, **one.origin_of(one.seeds)}
                for one in self.trainings.values()
            ]
        )

    def summary(self, measure: str = "late accuracy") -> pd.DataFrame:
        """What the pages say of a measure: a row for each variant that has it, with n, mean, sd, and low and high of the 95 % interval.

        In the measure's own unit: an accuracy is a fraction. reports' reference page names the measures.
        """
        rows = [
            {"variant": variant, "n": one.n, "mean": one.mean, "sd": one.sd if one.n > 1 else np.nan}
            | ({"low": one.interval.low, "high": one.interval.high} if one.interval else {})
            for variant, training in self.trainings.items()
            if (one := summarized(training, measure))
        ]
        return pd.DataFrame(rows, columns=["variant", "n", "mean", "sd", "low", "high"])

    @cached_property
    def claims(self) -> pd.DataFrame:
        """A row for each claim with its verdict, as in reports/claims.csv. Empty where an older report lacks that file."""
        if (content := self.files.read(CLAIMS).get(CLAIMS)) is None:
            return pd.DataFrame(columns=CLAIM_COLUMNS)
        later = ("fixed", "digest")  # older reports do not have them
        words = ("claim", "verdict", "comparison", "shown", *later)
        try:
            found = pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(words, str))
            if not {*CLAIM_COLUMNS} - {*later} <= {*found.columns}:
                raise ValueError
        except ValueError:
            raise UserError(f"{CLAIMS} is damaged: {mend('report')}.") from None
        return found.assign(**{name: found.get(name, "") for name in later}).fillna(dict.fromkeys(("shown", *later), ""))

    @property
    def preview(self) -> str | None:
        """What params.yaml says of results that are of no full study; else None."""
        said = mapping(b"".join(self.files.read("params.yaml").values())).get("preview")
        return said if isinstance(said, str) else None


def load(source: str | os.PathLike[str] = ".", *, store: str | None = None) -> Study:
    """The results of a folder, or of a commit of the repository that the working directory lies in.

    With `store`, they come from the MLflow runs of the trainings that its tables name. `epochs`, `seeds` and `variants` are those of
    the files to the last bit, and no predictions are there.

    Args:
        source: a folder that holds tables/, such as "." or "build/demo", or what git takes for a commit, such as "HEAD~3".
        store: an MLflow store: a server's address, such as "http://127.0.0.1:5000", or a SQLite file, such as "mlflow.db" or
            "sqlite:///mlflow.db"; with "" that of MLFLOW_TRACKING_URI, else the source's own. What an evaluation after that commit
            found is there, too.

    Raises:
        UserError: there are no results, a file is damaged, or the store cannot be read.
    """
    if Path(source).is_dir():
        root, name, mended = Path(source), "", mend("evaluate")
        files = Files(root)
    else:
        root, name = root_of(Path.cwd()), f" of the commit {source}"
        files, mended = Files(root, commit_of(root, str(source))), "compare another commit"
    contents = {Path(path).name: content for path, content in files.read(f"{TABLES}/*.csv").items()}
    if not contents:
        more = "" if name else "; `dvc repro evaluate` writes tables/ of what is trained"
        raise UserError(f"{'The commit ' if name else ''}{source} holds no results in {TABLES}/{more}.")
    try:
        trainings = {training.variant: training for training in tables.parse(contents)}
    except DamagedError:
        raise UserError(f"{TABLES}/{name} is damaged: {mended}.") from None
    if store is not None:
        from pipeline.tracking import read as tracking

        held = tracking.trainings([one.id for one in trainings.values() if one.id], store or tracking.address(root))
        whole = {variant: tables.training(*held[one.id]) for variant, one in trainings.items() if one.id in held}
        return Study(files, whole, tuple(variant for variant in trainings if variant not in whole))
    if not name:
        path = Path(source) / PREDICTIONS
        trainings = {variant: replace(one, stored=partial(_stored, path / f"{variant}.npz")) for variant, one in trainings.items()}
    return Study(files, trainings)


def _stored(path: Path) -> Arrays | None:
    """All arrays of an npz file; None without one. Raises UserError where it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
        raise UserError(f"{path} is damaged: {mend('evaluate')}.") from None


def load_current(params: Params) -> Study:
    """The results in the working directory of the variants that params name, checked against it; one that was not trained is left out.

    Raises:
        UserError: no variant was trained, one not with these settings, or its files are damaged; names the command that mends it.
    """
    study = load()
    trainings = {variant: study.trainings[variant] for variant in params.variants if variant in study.trainings}
    if not trainings:
        raise UserError(f"{TABLES}/ has no results of any variant that params.yaml names: run `dvc repro`.")
    for variant, training in trainings.items():
        settings = params.resolve(variant)
        trained = (settings.train.seeds, settings.train.epochs)
        if not settings.trained_as(training.record["config"]) or (training.seeds, training.test_loss.shape[1]) != trained:
            raise UserError(f"{variant} was trained with other settings than params.yaml now has: run `dvc repro`.")
    return replace(study, trainings=trainings)


def load_dataset() -> dict[str, Any] | None:
    """`data/arrays/dataset.json` as the prepare stage writes it, or None where the data are not here."""
    path = ARRAYS / "dataset.json"
    try:
        return json.loads(path.read_bytes()) if path.exists() else None
    except ValueError:
        raise UserError(f"{path} is damaged: {mend('prepare')}.") from None


def summarized(training: Training, measure: str) -> Summary | None:
    """A measure's finite values; None without one.

    Raises:
        UserError: there is no such measure.
    """
    if measure not in MEASURES:
        raise UserError(f"There is no measure {measure!r}{nearest(measure, MEASURES)}.")
    values = MEASURES[measure].per_seed(training)
    if values is None or not np.isfinite(values).any():
        return None
    kept = values[np.isfinite(values)]
    found = summarize(kept, limits=MEASURES[measure].limits)
    return replace(found, interval=ShareEstimate((int(kept.sum()),), (found.n,)).interval()) if MEASURES[measure].share else found


def _seed_columns(training: Training) -> dict[str, Any]:
    last = {name: curve[:, -1] for name, curve in training.curves.items() if name != "seconds"}
    return {"variant": training.variant, "seed": training.seeds, **last, **dict(sorted((training.evaluation or {}).items()))}


def _stacked(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    frames = [pd.DataFrame(part) for part in parts]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
