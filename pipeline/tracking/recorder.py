"""One training in MLflow: looks up what the store has and adds only what is missing.

Every method can be repeated, after any failure and by any process, without doubling a run or a point.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.params import flatten
from pipeline.tracking.store import Store, home
from pipeline.tracking.views import CURRENT
from pipeline.training.records import EpochRow

EPOCH_KEYS = ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "epoch_seconds")  # in the order of EpochRow, from train_loss on
# Those `metrics` of run.json that are not the last points of the parent's curves.
_COUNTS = ("n", "diverged", "parameters", "flops")
# The tag with the commits that a run belongs to, separated by spaces: that of the run, if nothing that decides it was uncommitted, and
# those that `sync` found to hold its results.
COMMITS = "commits"
# What the train stage writes into run.json, but for "finished".
REQUIRED = {
    "training_id", "variant", "stage", "config", "config_hash", "code_hash", "data_digest", "dataset", "git_commit", "git_dirty",
    "device", "device_name", "attention", "versions", "seeds", "started",
}  # fmt: skip
_BATCH = 1000  # MLflow's limit of metrics in one log_batch
_MAX_TAG = 8000  # characters, MLflow's limit
_MAX_COMMITS = 190  # so many fit into a tag


class TimedRow(NamedTuple):
    """An epoch and its end, in milliseconds since 1970 (MLflow's unit)."""

    row: EpochRow
    ended: int

    def values(self) -> tuple[float, ...]:
        """In the order of EPOCH_KEYS."""
        return tuple(float(value) for value in self.row[2:])


@dataclass
class Added:
    """How much was missing in the store."""

    runs: int = 0
    points: int = 0
    files: int = 0
    models: int = 0
    finished: int = 0

    def __str__(self) -> str:
        counts = {"run": self.runs, "point": self.points, "file": self.files, "model": self.models}
        new = ", ".join(f"{count} {word}{'s' * (count != 1)}" for word, count in counts.items() if count)
        ended = f"{self.finished} run{'s' * (self.finished != 1)} set to finished" if self.finished else ""
        return ", ".join(part for part in (new and f"{new} added", ended) if part) or "complete"


@dataclass
class _Run:
    id: str
    status: str = "RUNNING"
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # the last value of each
    has_input: bool = False
    steps: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # epochs logged, by EPOCH_KEYS


class Recorder:
    """Writes one training into an open store.

    Args:
        run: what runs/VARIANT/run.json holds; "finished" and "trainings" may be missing.
        experiment: the DVC experiment that it is of.

    Attributes:
        added: what this recorder had to add so far.
    """

    def __init__(self, store: Store, run: Mapping[str, Any], *, experiment: str | None = None) -> None:
        self._store = store
        self._run = run
        self._dvc_experiment = experiment
        self._seeds: list[int] = list(run["seeds"])
        self._epochs = set(range(1, run["config"]["train"]["epochs"] + 1))
        self._experiment = store.experiment(run["dataset"])
        self._rows: dict[int, dict[int, TimedRow]] = defaultdict(dict)  # epoch -> seed -> row
        self._children: dict[int, _Run] = {}
        self.added = Added()
        parent = self._look_up()
        self._parent = parent or self._create(None, start=milliseconds(run["started"]))
        for found in (self._parent, *self._children.values()):
            self._describe(found)

    @property
    def parent_id(self) -> str:
        """MLflow's id of the parent run."""
        return self._parent.id

    def reopen(self) -> None:
        """Marks a training that goes on, after a kill or a failure, as running again."""
        if self._parent.status != "RUNNING":
            self._store.call("update_run", self._parent.id, status="RUNNING")
            self._parent.status = "RUNNING"

    def add(self, rows: Iterable[TimedRow]) -> None:
        """Adds epochs to the seeds' runs, and to the parent the means of every epoch that all seeds have ended."""
        by_seed: dict[int, list[TimedRow]] = defaultdict(list)
        for timed in rows:
            by_seed[timed.row.seed].append(timed)
            self._rows[timed.row.epoch][timed.row.seed] = timed
        for seed, timed_rows in by_seed.items():
            if seed not in self._children:
                first = timed_rows[0]
                self._children[seed] = self._create(seed, start=first.ended - round(1000 * first.row.seconds))
                self._describe(self._children[seed])
            child = self._children[seed]
            self._log_epochs(child, {timed.row.epoch: (timed.values(), timed.ended) for timed in timed_rows})
            if child.status != "FINISHED" and self._covered(child):
                self._terminate(child, "FINISHED", timed_rows[-1].ended)
        means = {}
        for epoch in {timed.row.epoch for timed_rows in by_seed.values() for timed in timed_rows}:
            if set(self._rows[epoch]) >= set(self._seeds):
                of_seeds = [self._rows[epoch][seed] for seed in self._seeds]
                values = tuple(fmean(column) for column in zip(*(timed.values() for timed in of_seeds), strict=True))
                means[epoch] = (values, max(timed.ended for timed in of_seeds))
        self._log_epochs(self._parent, means)

    def counts(self, metrics: Mapping[str, Any]) -> None:
        """Adds to the parent run what `metrics` of run.json counts."""
        self.summary({name: metrics.get(name) for name in _COUNTS})

    def summary(self, values: Mapping[str, Any], prefix: str = "", *, seed: int | None = None) -> None:
        """Adds numbers to the parent run, nested ones under dotted names. None, and numbers that it has, are left out.

        Args:
            seed: adds them to the run of this seed, which has rows.
        """
        run = self._parent if seed is None else self._children[seed]
        flat = {key: float(value) for key, value in flatten(values, prefix) if value is not None}
        new = {key: value for key, value in flat.items() if key not in run.metrics or not _same(value, run.metrics[key])}
        self._log(run, [(key, value, now(), 0) for key, value in new.items()])
        run.metrics |= new

    def belongs_to(self, commit: str) -> None:
        """Notes on every run that the commit holds this training's files."""
        for run in (self._parent, *self._children.values()):
            self._belongs_to(run, commit)

    def _belongs_to(self, run: _Run, commit: str) -> None:
        commits = run.tags.get(COMMITS, "").split()
        if commit not in commits:
            self._set_tag(run, COMMITS, " ".join([*commits, commit][-_MAX_COMMITS:]))

    def label(self, tags: Mapping[str, str]) -> None:
        """Sets tags of the parent run that have another value there."""
        for key, value in tags.items():
            if self._parent.tags.get(key) != value:
                self._set_tag(self._parent, key, value)

    def files(self, paths: Sequence[Path], folder: str | None = None) -> None:
        """Adds files to the parent run, or to a folder of it. A file is sent again only when its content has changed."""
        for path in paths:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            key = f"sha256.{folder}/{path.name}" if folder else f"sha256.{path.name}"
            if self._parent.tags.get(key) == digest:
                continue
            self._store.call("log_artifact", self._parent.id, str(path), artifact_path=folder)
            # Last, so that the file of a tag has always arrived.
            self._set_tag(self._parent, key, digest)
            self.added.files += 1

    def _set_tag(self, run: _Run, key: str, value: str) -> None:
        self._store.call("set_tag", run.id, key, value)
        run.tags = {**run.tags, key: value}

    def finish(self, status: str, ended: int) -> bool:
        """Sets the final status, and says whether the store is complete.

        A run that lacks points is never FINISHED: it stays as it is until `sync` has added them.
        """
        if status != "FINISHED":
            for run in (*self._children.values(), self._parent):
                if run.status == "RUNNING":
                    self._terminate(run, status, ended)
            return True
        whole = set(self._children) >= set(self._seeds) and all(child.status == "FINISHED" for child in self._children.values())
        if whole and self._covered(self._parent) and self._parent.status != "FINISHED":
            self._terminate(self._parent, "FINISHED", ended)
        complete = whole and self._parent.status == "FINISHED"
        # Only now, because a training that was given up belongs to no commit.
        for seed, run in [(None, self._parent), *self._children.items()] if complete else []:
            origin = self._origin(seed)
            if origin["git_dirty"] is False:
                self._belongs_to(run, origin["git_commit"])
        return complete

    def _covered(self, run: _Run) -> bool:
        return all(run.steps[key] >= self._epochs for key in EPOCH_KEYS)

    def _terminate(self, run: _Run, status: str, ended: int) -> None:
        self._store.call("set_terminated", run.id, status=status, end_time=ended)
        run.status = status
        self.added.finished += status == "FINISHED"

    def _log_epochs(self, run: _Run, rows: Mapping[int, tuple[tuple[float, ...], int]]) -> None:
        points = [
            (key, value, ended, epoch)
            for epoch, (values, ended) in sorted(rows.items())
            for key, value in zip(EPOCH_KEYS, values, strict=True)
            if epoch not in run.steps[key]
        ]
        self._log(run, points)
        for key, _, _, epoch in points:
            run.steps[key].add(epoch)

    def _log(self, run: _Run, points: Sequence[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        for start in range(0, len(points), _BATCH):
            self._store.call("log_batch", run.id, metrics=[Metric(*point) for point in points[start : start + _BATCH]])
        self.added.points += len(points)

    def _look_up(self) -> _Run | None:
        """The parent run, if the store has one; the seeds' runs go to `_children`."""
        parent, children, doubles = None, [], set()
        # Ordered by id, too, so that of two doubles made by hand all processes choose the same.
        found = self._store.call(
            "search_runs",
            [self._experiment],
            filter_string=f"tags.`training.id` = '{self._run['training_id']}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            max_results=10_000,
        )
        for entity in found:
            run = _Run(
                id=entity.info.run_id,
                status=entity.info.status,
                tags=entity.data.tags,
                params=entity.data.params,
                metrics=dict(entity.data.metrics),
                has_input=bool(entity.inputs and entity.inputs.dataset_inputs),
            )
            if run.tags.get("kind") == "parent":
                if parent is not None:  # as restoring a deleted experiment brings back what had been deleted before it
                    doubles.add(run.id)
                parent = parent or run
            elif run.tags.get("kind") == "seed" and run.tags["seed"].isdecimal():
                children.append(run)
        if parent is None:
            return None
        for id in [*doubles, *(run.id for run in children if run.tags.get("mlflow.parentRunId") in doubles)]:
            self._store.call("delete_run", id)
        for run in children:
            # The children of a parent that was deleted by hand stay as they are, and new runs are made.
            if run.tags.get("mlflow.parentRunId") == parent.id:
                self._children.setdefault(int(run.tags["seed"]), run)
        for run in (parent, *self._children.values()):
            for key in EPOCH_KEYS:
                if run.status == "FINISHED":
                    run.steps[key] = set(self._epochs)
                elif key in run.metrics:
                    run.steps[key] = {metric.step for metric in self._store.call("get_metric_history", run.id, key)}
        return parent

    def _create(self, seed: int | None, start: int) -> _Run:
        variant = self._run["variant"]
        tags = self._tags(seed)
        name = (f"{self._dvc_experiment}: " if self._dvc_experiment else "") + (variant if seed is None else f"{variant}, seed {seed}")
        # The look-up needs the tags, so the run is created with them.
        created = self._store.call("create_run", self._experiment, start_time=start, tags=tags, run_name=name)
        self.added.runs += 1
        return _Run(created.info.run_id, tags=tags)

    def _describe(self, run: _Run) -> None:
        """Adds params and data set, unless they are there: a killed process may have left a run without them."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        wanted = {key: str(value) for key, value in flatten(self._run["config"])} | {"variant": self._run["variant"]}
        if "seed" in run.tags:
            wanted["seed"] = run.tags["seed"]
        if missing := [Param(key, value) for key, value in wanted.items() if key not in run.params]:
            self._store.call("log_batch", run.id, params=missing)
            run.params = wanted
        if not run.has_input:
            # MLflow allows a digest 36 characters; the tag data.digest has it in full.
            digest, source = self._run["data_digest"][:32], json.dumps({"uri": "data/arrays"})
            dataset = Dataset(name=self._run["dataset"], digest=digest, source_type="local", source=source)
            self._store.call("log_inputs", run.id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
            run.has_input = True

    def _origin(self, seed: int | None) -> dict[str, Any]:
        """The training's record, with what trained this seed; without a seed that is what trained the last ones."""
        groups = self._run.get("trainings", ()) if seed is not None else ()
        return {**self._run, **next((group for group in groups if seed in group["seeds"]), {})}

    def _tags(self, seed: int | None) -> dict[str, str]:
        run = self._origin(seed)
        tags = {
            "training.id": run["training_id"],
            "kind": "parent" if seed is None else "seed",
            "variant": run["variant"],
            "dvc.stage": run["stage"],
            "config.hash": run["config_hash"],
            "code.hash": run["code_hash"],
            "data.digest": run["data_digest"],
            "device": run["device"],
            "device.name": run["device_name"],
            "attention": run["attention"],
            **({"engine": run["engine"]} if "engine" in run else {}),  # earlier versions recorded none
            **{f"versions.{name}": version for name, version in run["versions"].items()},
            "mlflow.source.name": f"dvc repro {run['stage']}",
            "mlflow.source.type": "LOCAL",
        }
        if self._dvc_experiment:
            tags["dvc.experiment"] = self._dvc_experiment
        with suppress(KeyError, OSError):  # the user of a container may have no name
            tags["mlflow.user"] = getpass.getuser()
        if run["git_commit"] and not run["git_dirty"]:
            tags |= commit_tags(run["git_commit"])
        elif run["git_commit"]:
            # `commit_tags` follow as soon as `sync` finds a commit that holds the edits.
            tags |= {"git.dirty": "true", "git.base": run["git_commit"], "git.edits": "; ".join(run.get("git_edits", ()))[:_MAX_TAG]}
        if seed is None:
            tags |= {"mlflow.note.content": self._note(), CURRENT: "true"}
        else:
            tags |= {"seed": str(seed), "mlflow.parentRunId": self._parent.id}
        return tags

    def _note(self) -> str:
        run = self._run
        size = f"{len(self._seeds)} seeds, {len(self._epochs)} epochs each"
        return (
            f"**{run['variant']}** on {run['dataset']}: {size}, on {run['device_name']}.\n\n"
            "The curves of this run are means over its seeds; each seed is a run below it. `late_accuracy` and `late_test_error` are means "
            "over the late epochs, as on the pages, with the 95 % interval over the seeds. "
            f"Reproduce it with `dvc repro {run['stage']}`."
        )


def commit_tags(commit: str) -> dict[str, str]:
    """The tags of a run that a checked out commit reproduces."""
    return {"git.dirty": "false", "git.commit": commit, "mlflow.source.git.commit": commit}


def milliseconds(moment: str) -> int:
    """An ISO 8601 moment in MLflow's unit."""
    return round(1000 * datetime.fromisoformat(moment).timestamp())


def now() -> int:
    return time.time_ns() // 1_000_000


def training_lock(run: Mapping[str, Any]) -> Path:
    """The lock of a training: one process at a time writes its runs."""
    return home() / ".checkpoints" / f"mlflow-{run['training_id']}.lock"


def _same(value: float, stored: float) -> bool:
    """Whether a store gives `stored` for `value`: an SQL store has the largest float in infinity's place."""
    return value == restored(stored) or (math.isnan(value) and math.isnan(stored))


def restored(stored: float) -> float:
    """The value that was logged: infinite where a store has the largest float."""
    return math.copysign(math.inf, stored) if abs(stored) == sys.float_info.max else stored
