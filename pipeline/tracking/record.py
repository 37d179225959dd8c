"""One finished training into MLflow, whole or not at all: what is half there, or different, is deleted and logged again.

A training is one parent run with a nested run per seed. The parent is FINISHED last, and its tag `sha256.training` is the digest of all
that was logged, so a second call adds nothing.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate
from statistics import fmean
from typing import Any

from pipeline.params import flatten
from pipeline.tracking.store import Store
from pipeline.training.records import EpochRow

EPOCH_KEYS = ("train_loss", "test_loss", "test_accuracy", "gradient_norm", "epoch_seconds")  # in the order of EpochRow, from train_loss on
CURRENT = "current"  # the tag of a parent run that says whether the views show it
SYSTEM = "system/"  # begins the names of what MLflow shows as system metrics
FILE = "training.json"  # the artifact of a parent run with the training's record and evaluation
_COMMITS = "commits"  # the tag with the commits that hold a training, separated by spaces
RECORD = "sha256.training"  # the tag with the digest of what was logged
_COUNTS = ("n", "diverged", "parameters", "flops")  # of the record's `metrics`, what is not the last point of a curve
_BATCH = 1000  # MLflow's limit of metrics in one log_batch
_MAX_COMMITS = 190  # so many fit into a tag

Point = tuple[str, float, int, int]  # key, value, milliseconds since 1970, epoch


@dataclass(frozen=True)
class Finished:
    """A finished training.

    Attributes:
        run: its record.
        columns: what the evaluation found, by name a number of each seed, in the order of run["seeds"].
        summary: numbers of the training as a whole; None is left out.
        experiment: the DVC experiment that it is of.
    """

    run: Mapping[str, Any]
    columns: Mapping[str, Sequence[float]]
    summary: Mapping[str, float | None]
    experiment: str | None = None


def record(
    store: Store, training: Finished, found: Iterable[Any], *, labels: Mapping[str, str], commits: Collection[str] = ()
) -> tuple[str, bool]:
    """Has the store hold the training once and whole.

    Args:
        found: all runs of the store with its training.id.
        labels: tags of the parent that may change later.
        commits: that hold the training's files; those that the store has stay.

    Returns:
        Id of the parent run, and whether it was logged now.
    """
    found, digest = list(found), hashlib.sha256(json.dumps(asdict(training)).encode()).hexdigest()
    whole = next((one for one in found if _is_whole(one, found, digest, len(training.run["seeds"]))), None)
    known = [commit for one in found if "seed" not in one.data.tags for commit in one.data.tags.get(_COMMITS, "").split()]
    kept = [] if whole else _system_points(store, found)
    for one in found:
        if whole is None or whole.info.run_id not in (one.info.run_id, one.data.tags.get("mlflow.parentRunId")):
            store.discard(one)
    id = whole.info.run_id if whole else _write(store, training, digest, kept)
    there = whole.data.tags if whole else {}
    listed = " ".join(list(dict.fromkeys([*known, *_commit(training.run), *commits]))[-_MAX_COMMITS:])
    for key, value in {**labels, **({_COMMITS: listed} if listed else {})}.items():
        if there.get(key) != value:
            store.set_tag(id, key, value)
    return id, whole is None


def _is_whole(run: Any, found: Iterable[Any], digest: str, seeds: int) -> bool:
    """Whether it is the parent of a training that was logged whole, with all its seeds."""
    of_it = [run, *(one for one in found if one.data.tags.get("mlflow.parentRunId") == run.info.run_id)]
    return run.data.tags.get(RECORD) == digest and len(of_it) == 1 + seeds and all(one.info.status == "FINISHED" for one in of_it)


def _system_points(store: Store, found: Iterable[Any]) -> list[Point]:
    """What the training's own log has of the GPUs, which no file of it holds."""
    histories = [store.get_metric_history(one.info.run_id, key) for one in found for key in one.data.metrics if key.startswith(SYSTEM)]
    return [(one.key, one.value, one.timestamp, one.step) for history in histories for one in history]


def _write(store: Store, training: Finished, digest: str, points: list[Point]) -> str:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    rows = [EpochRow(*row) for row in training.run["epochs"]]
    run, start, end = training.run, milliseconds(training.run["started"]), milliseconds(training.run["finished"])
    where = store.experiment(run["dataset"])
    parent = create(store, where, run, training.experiment)
    numbers = {name: run["metrics"].get(name) for name in _COUNTS} | dict(training.summary)
    log(store, parent, [*points, *_curve(means(rows), start), *_numbers(numbers, end)])
    # MLflow allows a digest 36 characters; the tag data.digest has it in full.
    dataset = Dataset(run["dataset"], run["data_digest"][:32], source_type="local", source=json.dumps({"uri": "data/arrays"}))
    store.log_inputs(parent, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
    for i, seed in enumerate(run["seeds"]):
        child = create(store, where, run, training.experiment, seed, parent)
        curve = _curve([row for row in rows if row.seed == seed], start)
        end_of_it = max(moment for _, _, moment, _ in curve)
        log(store, child, curve + _numbers({f"evaluation.{name}": of[i] for name, of in training.columns.items()}, end_of_it))
        store.set_terminated(child, end_time=end_of_it)
    store.log_dict(parent, {"run": run, "evaluation": training.columns}, FILE)
    store.set_tag(parent, RECORD, digest)
    store.set_terminated(parent, end_time=end)
    return parent


def create(
    store: Store, where: str, run: Mapping[str, Any], experiment: str | None, seed: int | None = None, parent: str | None = None
) -> str:
    """A run with its params and without points, in the MLflow experiment `where`; gives its id.

    Args:
        experiment: the DVC experiment that it is of.
        seed: whose run it is, below `parent`; without it the run is the parent.
    """
    from mlflow.entities import Param

    tags = _tags(run, seed) | ({"dvc.experiment": experiment} if experiment else {}) | ({"mlflow.parentRunId": parent} if parent else {})
    name = (f"{experiment}: " if experiment else "") + run["variant"] + ("" if seed is None else f", seed {seed}")
    # A look-up needs the tags, so the run is created with them.
    id = str(store.create_run(where, start_time=milliseconds(run["started"]), tags=tags, run_name=name).info.run_id)
    params = dict(flatten(run["config"])) | {"variant": run["variant"]} | ({} if seed is None else {"seed": seed})
    store.log_batch(id, params=[Param(key, str(value)) for key, value in params.items()])
    return id


def _tags(run: Mapping[str, Any], seed: int | None) -> dict[str, str]:
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
    if run["git_commit"]:
        tags |= {"git.commit": run["git_commit"], "git.dirty": str(bool(run["git_dirty"])).lower()}
    if seed is not None:
        return tags | {"seed": str(seed)} | ({_COMMITS: " ".join(_commit(run))} if _commit(run) else {})
    note = (
        f"**{run['variant']}** on {run['dataset']}: {len(run['seeds'])} seeds, {run['config']['train']['epochs']} epochs each, on "
        f"{run['device_name']}.\n\nThe curves of this run are means over its seeds; each seed is a run below it. The `late_` numbers are "
        "means over the late epochs, as on the pages, with the 95 % interval over the seeds. "
        f"Reproduce it in the study's folder with `make repro`, or this training alone with `.venv/bin/dvc repro {run['stage']}`."
    )
    return tags | {"mlflow.note.content": note}


def _commit(run: Mapping[str, Any]) -> list[str]:
    """The commit that a training is of, where nothing uncommitted decided it."""
    return [run["git_commit"]] if run["git_commit"] and not run["git_dirty"] else []


def log(store: Store, id: str, points: Sequence[Point]) -> None:
    """Adds points to a run."""
    from mlflow.entities import Metric

    for first in range(0, len(points), _BATCH):
        store.log_batch(id, metrics=[Metric(*point) for point in points[first : first + _BATCH]])


def points_of(row: EpochRow, moment: float) -> list[Point]:
    """The points of an epoch that ended at a moment, in milliseconds since 1970."""
    return [(key, float(value), round(moment), row.epoch) for key, value in zip(EPOCH_KEYS, row[2:], strict=True)]


def means(rows: Sequence[EpochRow]) -> list[EpochRow]:
    """The rows of the parent: means over the seeds, which it calls seed -1."""
    by_epoch = [[row for row in rows if row.epoch == epoch] for epoch in sorted({row.epoch for row in rows})]
    return [EpochRow(-1, of[0].epoch, *(fmean(map(float, column)) for column in list(zip(*of, strict=True))[2:])) for of in by_epoch]


def _curve(rows: Sequence[EpochRow], start: int) -> list[Point]:
    """A record has no clock times: epochs are laid end to end."""
    moments = list(accumulate((1000 * row.seconds for row in rows), initial=float(start)))[1:]
    return [point for row, moment in zip(rows, moments, strict=True) for point in points_of(row, moment)]


def _numbers(numbers: Mapping[str, float | None], moment: int) -> list[Point]:
    return [(name, float(value), moment, 0) for name, value in numbers.items() if value is not None]


def milliseconds(moment: str) -> int:
    """An ISO 8601 moment in MLflow's unit."""
    return round(1000 * datetime.fromisoformat(moment).timestamp())
