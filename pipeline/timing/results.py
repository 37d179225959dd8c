"""The results of the timing stage, and the quantities that claims about speed need.

Reads timing/cpu.json and timing/cuda.json, of a kind of device each: "machine", "dataset", "settings"; "measurements", each with "name"
(KIND/WAY/SUBJECT, of decoding with the number of words behind it: kind is step, growth, attention or decoding, way is published or fast,
subject is one of `timing.subjects` or a token count), "tokens" (of decoding the words, of other networks than transformers 0), "batch",
"steps", "model" and, if known, "saved_bytes" and "peak_bytes"; "rounds": each a process of its own, with "foreign" (share of the machine
used by others), "kept" and "seconds" (of one step, by name); "profiles": by name, "seconds", "groups", "operators" of one step.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from scipy import stats

from pipeline.params import NetworkSettings, Params
from pipeline.study.effects import RankEstimate, mapped
from pipeline.study.statistics import Interval
from pipeline.system.errors import UserError
from pipeline.system.paths import TIMINGS
from pipeline.timing.subjects import Kind, Way, entries

FloatArray = npt.NDArray[np.float64]

MIN_TOKENS = 49  # with fewer, calling the operators takes longer than their computations


@dataclass(frozen=True)
class Timings:
    """The results of the timing stage.

    Attributes:
        rounds: seconds per step by name, of the rounds that count; of all rounds if none counts.
        quiet: whether any round counts.
        changed: names of measurements that were timed with other settings than the study's.
    """

    raw: dict[str, Any]
    measurements: dict[str, dict[str, Any]]
    rounds: list[dict[str, float]]
    quiet: bool
    changed: frozenset[str]

    def subjects(self, way: Way = "published") -> list[str]:
        """The subjects whose training step was timed, in their order."""
        return [entry["subject"] for entry in self.measurements.values() if (entry["kind"], entry["way"]) == ("step", way)]

    def seconds(self, name: str) -> FloatArray:
        """(rounds,): seconds per step. Raises LookupError if nothing of that name was timed."""
        if name not in self.measurements:
            raise LookupError(f"`{name}` was not timed")
        return np.array([entry[name] for entry in self.rounds])

    def median(self, name: str) -> float:
        """Seconds per step, over the rounds. Raises LookupError as `seconds` does."""
        return float(np.median(self.seconds(name)))

    def ratio(self, slower: str, faster: str) -> FloatArray:
        """(rounds,): the ratio of two subjects' step times as published; empty if no round counts. Raises LookupError as `seconds` does,
        or if one was timed with other settings than the study's."""
        return np.divide(*(self._judged([f"step/published/{subject}"])[0] for subject in (slower, faster)))

    def relative(self, slower: str, faster: str) -> tuple[float, Interval | None] | None:
        """The ratio of two measurements' times: Hodges and Lehmann's estimate over the rounds, on logarithms, with its distribution-free
        interval; None if one of them is missing, or of other settings than the study's."""
        if not {slower, faster} <= self.measurements.keys() - self.changed:
            return None
        logs = RankEstimate(np.log(self.seconds(slower) / self.seconds(faster)))
        ends = logs.interval()
        return math.exp(logs.mean), ends and mapped(ends, math.exp)

    def exponent(self, measure: str, subject: str) -> FloatArray:
        """The exponent of a power law in the tokens, fitted from `MIN_TOKENS` on, or in the words that a subject writes.

        (rounds,) for times, empty if no round counts; (1,) for "saved bytes". Raises LookupError as `ratio` does, or of one count.
        """
        grown = [entry for entry in self.growth("attention", "published") if entry["tokens"] >= MIN_TOKENS]
        if measure == "decoding time":
            grown = [entry for entry in self.growth("decoding", "fast") if entry["subject"] == subject]
        if len(grown) < 2:
            what = f"no captions of {subject}" if measure == "decoding time" else f"fewer than two token counts of {MIN_TOKENS} and more"
            raise LookupError(f"{what} were timed; see timing in params.yaml")
        times = self._judged([entry["name"] for entry in grown])
        values = np.array([[entry["saved_bytes"]] for entry in grown], dtype=np.float64) if measure == "saved bytes" else times
        tokens = np.log([entry["tokens"] for entry in grown])
        return np.array([stats.linregress(tokens, column).slope for column in np.log(values).T])

    def growth(self, kind: Kind, way: Way) -> list[dict[str, Any]]:
        """The measurements of a kind and way that grow with the tokens, by rising token count."""
        found = [entry for entry in self.measurements.values() if (entry["kind"], entry["way"]) == (kind, way)]
        return sorted(found, key=lambda entry: entry["tokens"])

    def _judged(self, names: Sequence[str]) -> FloatArray:
        """(name, round): seconds per step, for claims."""
        if other := [name for name in names if name in self.changed]:
            raise LookupError(f"`{other[0]}` was timed with other settings than the study's; run `dvc repro --force --single-item timing`")
        values = np.array([self.seconds(name) for name in names])
        return values if self.quiet else values[..., :0]


def load(params: Params, root: Path = Path()) -> dict[str, Timings]:
    """Of each kind of device that was timed ("cpu", "cuda") the results. Raises UserError where a file is damaged."""
    return {path.stem: _read(path, params) for path in sorted((root / TIMINGS).glob("*.json"))}


def main_device(timed: Mapping[str, Timings]) -> Timings | None:
    """Those whose tables the pages show: a GPU's, as the thesis's, where there are any."""
    return timed.get("cuda") or timed.get("cpu")


def _read(path: Path, params: Params) -> Timings:
    otherwise = params.timed_otherwise()
    own = {entry.name: entry.model for entry in entries(params, 1) if entry.subject not in otherwise}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        measurements = {entry["name"]: entry for entry in raw["measurements"]}
        kept = [entry["seconds"] for entry in raw["rounds"] if entry["kept"]]
        rounds = kept or [entry["seconds"] for entry in raw["rounds"]]
        other = (raw["settings"]["batch_size"], raw["dataset"]["name"]) != (params.train.batch_size, params.data.dataset)
        changed = frozenset(name for name, entry in measurements.items() if other or not _same(own.get(name), entry["model"]))
        if not rounds or raw["machine"]["device"] != path.stem or not all(of[name] > 0 for of in rounds for name in measurements):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged: run `dvc repro --force --single-item timing`.") from None
    return Timings(raw, measurements, rounds, bool(kept), changed)


def _same(own: NetworkSettings | None, timed: dict[str, Any]) -> bool:
    """Whether a measurement was of this network. An option that was added later counts as at its default."""
    try:
        return own is not None and type(own).model_validate(timed, context={"shape": own.shape}) == own
    except ValidationError:
        return False
