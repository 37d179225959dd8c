"""One finished training into MLflow, whole or not at all: what is half there, or different, is deleted and logged again.

A training is one parent run with a nested run per seed. The parent is FINISHED last, and its tag `sha256.record` is the digest of all that
was logged, so a second call adds nothing.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.params import flatten
from pipeline.tracking.gpus import SYSTEM
from pipeline.tracking.store import Store
from pipeline.training.records import EpochRow

EPOCH_KEYS = ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "epoch_seconds")  # in the order of EpochRow, from train_loss on
CURRENT = "current"  # the tag of a parent run that says whether the views show it
COMMITS = "commits"  # the tag with the commits that hold a training, separated by spaces
_RECORD = "sha256.record"
_COUNTS = ("n", "diverged", "parameters", "flops")  # of run.json's `metrics`, what is not the last point of a curve
_BATCH = 1000  # MLflow's limit of metrics in one log_batch
_MAX_TAG = 8000  # characters, MLflow's limit
_MAX_COMMITS = 190  # so many fit into a tag

Point = tuple[str, float, int, int]  # key, value, milliseconds since 1970, epoch


@dataclass(frozen=True)
class Finished:
    """A finished training.

    Attributes:
        run: what run.json says.
        rows: all epochs of all seeds, each seed's in order.
        columns: what the evaluation found, by name a number of each seed, in the order of run["seeds"].
        summary: numbers of the training as a whole; None and what is not there are left out.
        file: run.json.
        experiment: the DVC experiment that it is of.
    """

    run: Mapping[str, Any]
    rows: Sequence[EpochRow]
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    summary: Mapping[str, float | None] = field(default_factory=dict)
    file: Path | None = None
    experiment: str | None = None


class Run(NamedTuple):
    """What MLflow is to hold of one run."""

    name: str
    start: int
    end: int
    tags: dict[str, str]
    points: list[Point]


def record(
    store: Store,
    training: Finished,
    found: Iterable[Any],
    *,
    labels: Mapping[str, str],
    commits: Collection[str] = (),
    picture: Path | None = None,
) -> tuple[str, bool]:
    """Has the store hold the training once and whole.

    Args:
        found: all runs of the store with its training.id.
        labels: tags of the parent that may change later.
        commits: that hold the training's files; those that the store has stay.
        picture: its curves, for the page of the parent.

    Returns:
        Id of the parent run, and whether it was logged now.
    """
    found = list(found)
    parent, seeds = described(training)
    content = [parent, seeds, sorted(params_of(training.run).items()), training.file and _sha256(training.file)]
    digest = hashlib.sha256(repr(content).encode()).hexdigest()
    whole = [one for one in found if _is_whole(one, found, digest, set(seeds))]
    kept = [] if whole else _system_points(store, found)
    for one in found:
        if not whole or whole[0].info.run_id not in (one.info.run_id, one.data.tags.get("mlflow.parentRunId")):
            store.discard(one)
    known = [commit for one in found if _is_parent(one) for commit in one.data.tags.get(COMMITS, "").split()]
    own = parent.tags.get("git.commit")
    listed = list(dict.fromkeys([*known, *([own] if own else []), *commits]))
    labels = {**labels, COMMITS: " ".join(listed[-_MAX_COMMITS:])} if listed else labels
    if whole:
        id, there = whole[0].info.run_id, whole[0].data.tags
    else:
        there = {**labels, _RECORD: digest}
        id = _write(store, training, parent._replace(tags=parent.tags | there, points=parent.points + kept), seeds)
    for key, value in labels.items():
        if there.get(key) != value:
            store.call("set_tag", id, key, value)
    if picture is not None and there.get(key := f"sha256.figures/{picture.name}") != (drawn := _sha256(picture)):
        store.call("log_artifact", id, str(picture), artifact_path="figures")
        store.call("set_tag", id, key, drawn)  # last, so that the file of a tag has always arrived
    return id, not whole


def described(training: Finished) -> tuple[Run, dict[int, Run]]:
    """What MLflow is to hold of a training: the parent run, and by seed the others."""
    run, start = training.run, milliseconds(training.run["started"])
    seeds: dict[int, Run] = {}
    ended: dict[int, int] = {}
    for i, seed in enumerate(run["seeds"]):
        clock, points = float(start), list[Point]()
        for row in (row for row in training.rows if row.seed == seed):
            clock += 1000 * row.seconds  # run.json has no clock times: a seed's epochs are laid end to end
            ended[row.epoch] = max(round(clock), ended.get(row.epoch, 0))
            points += points_of(row.epoch, row[2:], round(clock))
        end = round(clock)
        points += [(f"evaluation.{name}", float(column[i]), end, 0) for name, column in training.columns.items()]
        seeds[seed] = Run(name_of(training.run, training.experiment, seed), start, end, tags_of(run, training.experiment, seed), points)
    points, end = [], milliseconds(run["finished"])
    for epoch in sorted(ended):
        points += mean_points(epoch, [row for row in training.rows if row.epoch == epoch], ended[epoch])
    numbers = {name: run["metrics"].get(name) for name in _COUNTS} | dict(training.summary)
    points += [(name, float(value), end, 0) for name, value in numbers.items() if value is not None]
    return Run(name_of(run, training.experiment), start, end, tags_of(run, training.experiment), points), seeds


def points_of(epoch: int, values: Iterable[float], ended: int) -> list[Point]:
    """The points of an epoch, from values in the order of EPOCH_KEYS."""
    return [(key, float(value), ended, epoch) for key, value in zip(EPOCH_KEYS, values, strict=True)]


def mean_points(epoch: int, rows: Sequence[EpochRow], ended: int) -> list[Point]:
    """The points of the parent, from the rows of all seeds."""
    return points_of(epoch, [fmean(map(float, column)) for column in zip(*(row[2:] for row in rows), strict=True)], ended)


def params_of(run: Mapping[str, Any]) -> dict[str, str]:
    """The settings as MLflow's params."""
    return {key: str(value) for key, value in flatten(run["config"])} | {"variant": run["variant"]}


def name_of(run: Mapping[str, Any], experiment: str | None, seed: int | None = None) -> str:
    """The name of a run. Without a seed: of the parent."""
    return (f"{experiment}: " if experiment else "") + run["variant"] + ("" if seed is None else f", seed {seed}")


def tags_of(run: Mapping[str, Any], experiment: str | None, seed: int | None = None) -> dict[str, str]:
    """The tags that a run has from its beginning. A seed has what trained it, the parent what trained the last ones."""
    groups = run.get("trainings", ()) if seed is not None else ()
    run = {**run, **next((group for group in groups if seed in group["seeds"]), {})}
    tags = {
        "training.id": run["training_id"], "kind": "parent" if seed is None else "seed", "variant": run["variant"],
        "dvc.stage": run["stage"], "config.hash": run["config_hash"], "code.hash": run["code_hash"], "data.digest": run["data_digest"],
        "device": run["device"], "device.name": run["device_name"], "attention": run["attention"],
        **({"engine": run["engine"]} if "engine" in run else {}),  # earlier versions recorded none
        **{f"versions.{name}": version for name, version in run["versions"].items()},
        "mlflow.source.name": f"dvc repro {run['stage']}", "mlflow.source.type": "LOCAL",
    }  # fmt: skip
    if experiment:
        tags["dvc.experiment"] = experiment
    if (commit := run["git_commit"]) and not run["git_dirty"]:
        tags |= {"git.dirty": "false", "git.commit": commit, "mlflow.source.git.commit": commit}
        tags |= {COMMITS: commit} if seed is not None else {}
    elif commit:
        tags |= {"git.dirty": "true", "git.base": commit, "git.edits": "; ".join(run.get("git_edits", ()))[:_MAX_TAG]}
    return tags | ({"mlflow.note.content": _note(run)} if seed is None else {"seed": str(seed)})


def _note(run: Mapping[str, Any]) -> str:
    return (
        f"**{run['variant']}** on {run['dataset']}: {len(run['seeds'])} seeds, {run['config']['train']['epochs']} epochs each, on "
        f"{run['device_name']}.\n\nThe curves of this run are means over its seeds; each seed is a run below it. The `late_` numbers are "
        "means over the late epochs, as on the pages, with the 95 % interval over the seeds. "
        f"Reproduce it in the study's folder with `make repro`, or this training alone with `.venv/bin/dvc repro {run['stage']}`."
    )


def create(store: Store, run: Mapping[str, Any], name: str, start: int, tags: dict[str, str], parent: str | None = None) -> str:
    """A run without points; gives its id."""
    if parent is not None:
        tags = tags | {"mlflow.parentRunId": parent}
    with suppress(KeyError, OSError):  # the user of a container may have no name
        tags = tags | {"mlflow.user": getpass.getuser()}
    # A look-up needs the tags, so the run is created with them.
    return str(store.call("create_run", store.experiment(run["dataset"]), start_time=start, tags=tags, run_name=name).info.run_id)


def log(store: Store, id: str, points: Sequence[Point], params: Mapping[str, str] | None = None) -> None:
    """Adds points and params to a run; the same again adds nothing."""
    from mlflow.entities import Metric, Param

    wanted = [Param(key, value) for key, value in (params or {}).items()]
    for first in range(0, max(len(points), 1), _BATCH):
        store.call(
            "log_batch", id, metrics=[Metric(*point) for point in points[first : first + _BATCH]], params=wanted if not first else []
        )


def _write(store: Store, training: Finished, parent: Run, seeds: Mapping[int, Run]) -> str:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    run, params = training.run, params_of(training.run)
    id = create(store, run, parent.name, parent.start, parent.tags)
    log(store, id, parent.points, params)
    # MLflow allows a digest 36 characters; the tag data.digest has it in full.
    source = json.dumps({"uri": "data/arrays"})
    dataset = Dataset(name=run["dataset"], digest=run["data_digest"][:32], source_type="local", source=source)
    store.call("log_inputs", id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
    for seed, one in seeds.items():
        child = create(store, run, one.name, one.start, one.tags, id)
        log(store, child, one.points, params | {"seed": str(seed)})
        store.call("set_terminated", child, end_time=one.end)
    if training.file is not None:
        store.call("log_artifact", id, str(training.file))
        store.call("set_tag", id, f"sha256.{training.file.name}", _sha256(training.file))
    store.call("set_terminated", id, end_time=parent.end)
    return id


def _system_points(store: Store, found: Iterable[Any]) -> list[Point]:
    """What the training's own log has of the GPUs, which no file of it holds."""
    histories = [
        store.call("get_metric_history", one.info.run_id, key) for one in found for key in one.data.metrics if key.startswith(SYSTEM)
    ]
    return [(one.key, one.value, one.timestamp, one.step) for history in histories for one in history]


def _is_parent(run: Any) -> bool:
    return bool(run.data.tags.get("kind") == "parent")


def _is_whole(run: Any, found: Iterable[Any], digest: str, seeds: set[int]) -> bool:
    """Whether it is the parent of a training that was logged whole, with all its seeds."""
    if not _is_parent(run) or run.info.status != "FINISHED" or run.data.tags.get(_RECORD) != digest:
        return False
    children = [one for one in found if one.data.tags.get("mlflow.parentRunId") == run.info.run_id]
    return len(children) == len(seeds) and all(one.info.status == "FINISHED" for one in children)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def milliseconds(moment: str) -> int:
    """An ISO 8601 moment in MLflow's unit."""
    return round(1000 * datetime.fromisoformat(moment).timestamp())


def now() -> int:
    return time.time_ns() // 1_000_000
