"""All trainings of one place, and their numbers as tidy pandas frames."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import UserError
from pipeline.measures import MEASURES
from pipeline.params import nearest
from pipeline.study.files import TIMINGS, Files, mend
from pipeline.study.statistics import Summary, summarize
from pipeline.study.training import Training

if TYPE_CHECKING:
    import pandas as pd

CLAIMS = "reports/claims.csv"
CLAIM_COLUMNS = ("claim", "verdict", "comparison", "n", "effect", "low", "high", "level", "shown", "fixed")


@dataclass(frozen=True)
class Study:
    """All results of one place.

    Attributes:
        place: where the results were found, for people.
        prefix: folder that holds tables/, dvc.lock and so on, from the top folder; "" or ending in "/".
        trainings: by variant, in the order of params.yaml.
        left_out: variants that MLflow does not hold whole.
        timed: whether the timings belong to it; no MLflow run holds them.
    """

    place: str
    prefix: str
    trainings: Mapping[str, Training]
    files: Files
    left_out: tuple[str, ...] = ()
    timed: bool = True

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """A row for each variant, seed and epoch (from 1), with the columns of epochs.csv."""
        return _stacked(_epoch_columns(training) for training in self.trainings.values())

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """A row for each variant and seed: after the last epoch, and what the evaluation found."""
        return _stacked(_seed_columns(training) for training in self.trainings.values())

    @cached_property
    def variants(self) -> pd.DataFrame:
        """A row for each variant: its settings by dotted key, its model's size, and where it comes from."""
        import pandas as pd

        return pd.DataFrame([_variant_columns(training) for training in self.trainings.values()])

    def summary(self, measure: str = "late accuracy") -> pd.DataFrame:
        """What the pages say of a measure: a row for each variant that has it, with n, mean, sd, and low and high of the 95 % interval.

        In the measure's own unit: an accuracy is a fraction. reports' reference page names the measures.
        """
        import pandas as pd

        found = {variant: summarized(training, measure) for variant, training in self.trainings.items()}
        return pd.DataFrame(
            [
                {"variant": variant, "n": one.n, "mean": one.mean, "sd": one.sd if one.n > 1 else np.nan}
                | ({"low": one.interval.low, "high": one.interval.high} if one.interval else {})
                for variant, one in found.items()
                if one
            ],
            columns=["variant", "n", "mean", "sd", "low", "high"],
        )

    @cached_property
    def timings(self) -> pd.DataFrame:
        """A row for each round of the timing stage and thing that it timed, by device: seconds of one step. Empty where none was taken."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        columns = ("kind", "way", "subject", "tokens", "batch")
        pattern = f"{self.prefix}{TIMINGS.as_posix()}/*.json"  # one file in commits before those of two devices
        for path, content in self.files.read(self.files.matching(pattern) if self.timed else []).items():
            try:
                raw = json.loads(content)
                rows += [
                    {"device": raw["machine"]["device"]}
                    | {name: entry.get(name) for name in columns}
                    | {"round": i, "foreign": one["foreign"], "kept": one["kept"], "seconds": one["seconds"][entry["name"]]}
                    for i, one in enumerate(raw["rounds"])
                    for entry in raw["measurements"]
                ]
            except (ValueError, LookupError, TypeError, AttributeError):
                raise UserError(f"{path} is damaged: {mend('timing')}.") from None
        return pd.DataFrame(rows, columns=["device", *columns, "round", "foreign", "kept", "seconds"])

    @cached_property
    def claims(self) -> pd.DataFrame:
        """A row for each claim with its verdict, as in reports/claims.csv. Empty where an older report lacks that file."""
        import pandas as pd

        path = f"{self.prefix}{CLAIMS}"
        content = self.files.read([path]).get(path)
        if content is None:
            return pd.DataFrame(columns=CLAIM_COLUMNS)
        try:
            found = pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(("claim", "verdict", "comparison", "shown", "fixed"), str))
            if (
                not content.endswith(b"\n")
                or list(found.columns) not in (list(CLAIM_COLUMNS), list(CLAIM_COLUMNS[:-1]))  # older reports have no `fixed`
                or found[["claim", "verdict", "comparison"]].isna().any(axis=None)
            ):
                raise ValueError
        except ValueError:
            raise UserError(f"{path} is damaged: {mend('report')}.") from None
        return found.assign(**({} if "fixed" in found else {"fixed": ""})).fillna({"shown": "", "fixed": ""})

    @property
    def preview(self) -> str | None:
        """The quotation with which the report begins where the results are of no full study; else None.

        It is read from the report, because params.yaml may have changed since these results were made.
        """
        path = f"{self.prefix}README.md" if self.prefix.startswith("reports/") else f"{self.prefix}reports/README.md"
        lines = self.files.read([path]).get(path, b"").decode("utf-8", "replace").splitlines()
        first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
        return first.removeprefix(">").strip() if first.startswith(">") else None


def summarized(training: Training, measure: str) -> Summary | None:
    """A measure's finite values; None without one. Intervals of shares end at 0 and 1: Student's goes beyond where one seed lies far off.

    Raises:
        UserError: there is no such measure.
    """
    if measure not in MEASURES:
        raise UserError(f"There is no measure {measure!r}{nearest(measure, MEASURES)}.")
    values = MEASURES[measure].per_seed(training)
    if values is None or not np.isfinite(values).any():
        return None
    found = summarize(values[np.isfinite(values)])
    if MEASURES[measure].of_value != "%" or found.interval is None:
        return found
    return replace(found, interval=replace(found.interval, low=max(found.interval.low, 0.0), high=min(found.interval.high, 1.0)))


def _epoch_columns(training: Training) -> dict[str, Any]:
    seeds, epochs = training.test_accuracy.shape
    own = {"variant": training.variant, "seed": np.repeat(training.seeds, epochs), "epoch": np.tile(np.arange(1, epochs + 1), seeds)}
    return own | {name: curve.ravel() for name, curve in training.curves.items()}


def _seed_columns(training: Training) -> dict[str, Any]:
    last = {name: curve[:, -1] for name, curve in training.curves.items() if name != "seconds"}
    group_of = {seed: group for group in training.trainings for seed in group["seeds"]}
    origin = {
        name: [group_of[seed].get(name) for seed in training.seeds] for name in ("code_hash", "git_commit", "device_name", "finished")
    }
    return {"variant": training.variant, "seed": training.seeds, **last, **dict(sorted((training.evaluation or {}).items())), **origin}


def _variant_columns(training: Training) -> dict[str, Any]:
    sizes = {"parameters": training.parameters, "flops": training.flops}
    mean = {"num_seeds": len(training.seeds), "test_accuracy": training.accuracy.mean()}
    return {"variant": training.variant, **mean, **sizes, **training.options, **training.origin}


def _stacked(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    frames = [pd.DataFrame(part) for part in parts]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
