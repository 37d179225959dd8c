"""Completes an MLflow store from the files in runs/: evaluations, short trainings, and what was missed while it was down.

`make sync` is `python -m pipeline.stages.sync` in the folder that holds runs/; the report stage calls `sync`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError

from pipeline import environment, params
from pipeline.errors import UserError, run_command
from pipeline.evaluation.records import Evaluation, Records
from pipeline.measures import late
from pipeline.runner.results import RUN, WEIGHTS, epoch_rows, load_weights, read_run, settings_of
from pipeline.stages import bring
from pipeline.study import history
from pipeline.study.files import ARRAYS, CHECKPOINTS, PREDICTIONS, REPEATED, RUNS, TABLES
from pipeline.study.git import Repository
from pipeline.study.statistics import summarize
from pipeline.tracking import registry
from pipeline.tracking.query import search
from pipeline.tracking.recorder import EPOCH_KEYS, REQUIRED, Added, Recorder, TimedRow, commit_tags, milliseconds, training_lock
from pipeline.tracking.store import Store, StoreBusy, database_path, experiment_name, explain, locked, open_or_rebuild, store_uri
from pipeline.tracking.views import CURRENT

SERVED = "base"  # the variant whose first seed is in the model registry: one small model, not a choice by test accuracy
PICTURES = CHECKPOINTS / "figures"  # VARIANT.png, which the report stage draws


class _Training(NamedTuple):
    run: dict[str, Any]
    rows: list[TimedRow]
    evaluation: Evaluation | None  # None until the evaluate stage has run on this training
    file: Path  # run.json
    pictures: list[Path]


def main(argv: list[str]) -> None:
    description = "Completes the MLflow store from runs/ and predictions/, without doubles."
    argparse.ArgumentParser(prog="python -m pipeline.stages.sync", description=description).parse_args(argv)
    if Path("params.yaml").exists():
        bring.check_lock()
        bring.runs(params.load().variants)
    trained = [path.parent.name for path in sorted(RUNS.glob(f"*/{RUN}"))]
    bring.files([*(PREDICTIONS / f"{variant}.npz" for variant in trained), RUNS / SERVED / WEIGHTS])
    sync()


def sync(*, register: bool = True) -> None:
    """Adds what the store lacks of every finished training in runs/, and prints a line for each. A damaged store is made anew.

    What a kill left running in a SQLite store is set to KILLED.

    Args:
        register: whether the baseline's network goes into the model registry, which takes some twenty seconds of a core.

    Raises:
        UserError: the store cannot be used, or files of a training are damaged (all others have been logged by then).
    """
    directories = sorted(path.parent for path in RUNS.glob("*/run.json"))
    if not directories:
        print(f"There is no finished training in {RUNS}/ yet: run `make demo` or `dvc repro` first.")
        return
    places = _places()
    address = store_uri()
    damaged: list[str] = []
    logged = []
    try:
        store = open_or_rebuild(address)
        commit, held = _checked_out()
        for directory in directories:
            try:
                training = _read(directory)
            except (UserError, OSError, ValueError, KeyError, TypeError) as error:
                print(f"{directory.name}: left out, {error}", flush=True)
                damaged.append(str(directory))
                continue
            try:
                with locked(training_lock(training.run), 0):
                    added = _complete(store, training, places, commit if training.run["training_id"] in held else None, register)
                    print(f"{directory.name}: {added}", flush=True)
                    logged.append(training.run)
            except StoreBusy:
                print(f"{directory.name}: another process logs it at the moment; run `make sync` again afterwards", flush=True)
        if experiment_name() is None:  # those are shown beside the study
            _show_current(store, logged)
        stopped = _end_given_up(store, {run["training_id"] for run in logged})
        commits = complete_commits(store)
    except Exception as error:
        raise UserError(f"{explain(error, address)}; mend that, then run `make sync` again.") from None
    for name in stopped:
        print(f"{name}: set to killed, because no process trains it; a training that goes on sets it to running again", flush=True)
    for variant, found in commits:
        print(f"{variant}: in commit {found[:10]} by now", flush=True)
    if damaged:
        raise UserError(f"Damaged files in {', '.join(damaged)}: restore them with `dvc checkout` or `git checkout`.")


def _checked_out() -> tuple[str | None, set[str]]:
    """The commit that is checked out, and the ids of the trainings that its tables name; (None, none) without git or commits."""
    try:
        repository = Repository.around(Path.cwd())
        commit = repository.commit("HEAD").id
    except UserError:
        return None, set()
    return commit, history.named(repository, commit)


def _show_current(store: Store, runs: Collection[Mapping[str, Any]]) -> None:
    """Has the views show these trainings, and none of their variants' earlier ones.

    Args:
        runs: what run.json holds of each.
    """
    current = {run["training_id"] for run in runs}
    begun = {(store.experiment(run["dataset"]), run["variant"]): milliseconds(run["started"]) for run in runs}
    for run in search(store, "tags.kind = 'parent'"):
        tags = run.data.tags
        start = begun.get((run.info.experiment_id, tags["variant"]))
        # A training that runs now is shown beside the finished one; a DVC experiment always is.
        if start is None or "dvc.experiment" in tags or (run.info.status == "RUNNING" and run.info.start_time > start):
            continue
        shown = "true" if tags["training.id"] in current else "false"
        if tags.get(CURRENT) != shown:
            store.call("set_tag", run.info.run_id, CURRENT, shown)


def _end_given_up(store: Store, finished: Collection[str]) -> list[str]:
    """Ends what a kill left running and no process goes on with, at its last epoch.

    A server may have runs of other machines, whose locks cannot be seen from here, so only a SQLite store is looked through.

    Args:
        finished: ids of the trainings in runs/.

    Returns:
        The names of the parent runs.
    """
    left: dict[str, list[Any]] = defaultdict(list)
    if database_path(store.uri) is not None:
        for run in search(store, "attributes.status = 'RUNNING'"):
            if (id := run.data.tags.get("training.id")) is not None and id not in finished:
                left[id].append(run)
    ended = []
    for id, runs in left.items():
        with suppress(StoreBusy), locked(training_lock({"training_id": id}), 0):
            for run in runs:
                points = store.call("get_metric_history", run.info.run_id, EPOCH_KEYS[0])
                last = max((point.timestamp for point in points), default=run.info.start_time)
                store.call("set_terminated", run.info.run_id, status="KILLED", end_time=last)
            ended += [run.info.run_name for run in runs if run.data.tags.get("kind") == "parent"]
    return ended


def complete_commits(store: Store) -> list[tuple[str, str]]:
    """Gives runs that began with uncommitted edits the commit that holds them, where there is one by now.

    Returns:
        Variant and commit of each training that has got one.
    """
    runs: dict[str, list[Any]] = defaultdict(list)
    for run in search(store, "tags.`git.dirty` = 'true'"):
        runs[run.data.tags["training.id"]].append(run)
    if not runs:
        return []
    try:
        found = history.holders(Repository.around(Path.cwd()), runs.keys())
    except UserError:  # no git
        return []
    for id, commit in found.items():
        for run in runs[id]:
            for key, value in commit_tags(commit).items():
                store.call("set_tag", run.info.run_id, key, value)
    return [(runs[id][0].data.tags["variant"], commit) for id, commit in found.items()]


def _complete(store: Store, training: _Training, places: Mapping[str, Mapping[str, str]], commit: str | None, register: bool) -> Added:
    # An experiment begins with the results of the commit that it was made from.
    recorder = Recorder(store, training.run, experiment=experiment_name() if commit is None else None)
    recorder.add(training.rows)
    recorder.counts(training.run["metrics"])
    recorder.summary(_late(training))
    if (evaluation := training.evaluation) is not None:
        means = {name: fmean(column) for name, column in evaluation.columns.items() if name not in REPEATED}
        recorder.summary(means | {"ensemble_accuracy": evaluation.metrics.get("ensemble_accuracy")}, "evaluation.")
        last = {row.row.seed: row.row for row in training.rows}
        for i, seed in enumerate(training.run["seeds"]):
            values = {name: getattr(last[seed], name) for name in REPEATED}
            recorder.summary(values | {name: column[i] for name, column in evaluation.columns.items()}, "evaluation.", seed=seed)
    recorder.files([training.file])
    recorder.files(training.pictures, "figures")
    if (place := places.get(training.run["variant"])) is not None:
        recorder.label(place)
    recorder.finish("FINISHED", milliseconds(training.run["finished"]))
    if commit is not None:
        recorder.belongs_to(commit)
    if register and training.run["variant"] == SERVED:
        recorder.added.models += _register(store, recorder.parent_id, training)
    return recorder.added


def _register(store: Store, run_id: str, training: _Training) -> bool:
    """Puts the first seed's network into the model registry. False if it is there already or cannot be put there."""
    run, directory = training.run, training.file.parent
    try:
        settings = settings_of(run)
        weights = {"weights": run["outputs"][WEIGHTS]}
    except (UserError, KeyError):  # of an older form, which this code cannot build
        return False
    alias = f"{run['variant']}-{run['dataset']}"
    if settings.task != "classification" or registry.name_registered(store, weights, alias):
        return False
    try:
        stacked = load_weights(directory, settings)
    except (UserError, SafetensorError) as error:
        print(f"{run['variant']}: not registered, {error}", flush=True)
        return False
    from pipeline.models import build

    shape = settings.model.shape
    with environment.variables(LAB_ATTENTION="sdpa"):  # an exported graph runs where our kernels are not known
        network = build(settings.model)
        network.load_state_dict({name: value[0] for name, value in stacked.items()})
        images = np.random.default_rng(0).random((2, shape.channels, shape.size, shape.size), dtype=np.float32)
        tags = weights | {name: str(run[name]) for name in ("variant", "dataset", "training_id")} | {"seed": str(run["seeds"][0])}
        tags |= {name: repr(value) for name, value in _late(training).items() if value is not None}
        registry.register(store, run_id, network.eval(), images, tags, alias)
    return True


def _places() -> dict[str, dict[str, str]]:
    """By variant, the tags that say where it stands in params.yaml: experiments, and their sources ("thesis", "this project").

    Nothing if params.yaml cannot be read. The trainings are recorded all the same.
    """
    try:
        study = params.load()
    except UserError:
        return {}
    places = {}
    for variant in study.variants:
        experiments = {name: of for name, of in study.experiments.items() if variant in of.variants}
        # "thesis, 2.3.1, against its published code; notes" names two documents.
        sources = dict.fromkeys(part.split(",")[0].strip() for of in experiments.values() for part in of.source.split(";"))
        places[variant] = {"experiments": _listed(experiments), "sources": _listed(sources)}
    return places


def _listed(names: Collection[str]) -> str:
    """For filters such as `tags.experiments LIKE '%,positions,%'`: a comma before and after each name."""
    return f",{','.join(names)}," if names else ""


def _late(training: _Training) -> dict[str, float | None]:
    """What the pages say of the training: late accuracy with its spread and 95 % interval over the seeds, and late test error."""
    curves = [[timed.row.test_accuracy for timed in training.rows if timed.row.seed == seed] for seed in training.run["seeds"]]
    found = summarize(late(np.array(curves)))
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    return {
        "late_accuracy": found.mean,
        "late_accuracy_sd": found.sd if found.interval else None,
        "late_accuracy_low": low,
        "late_accuracy_high": high,
        "late_test_error": 1 - found.mean,
    }


def _read(directory: Path) -> _Training:
    """The files of a training. Raises UserError, OSError, ValueError, KeyError or TypeError when one is damaged."""
    run = read_run(directory)
    if missing := sorted({*REQUIRED, "finished", "epochs", "metrics"} - run.keys()):
        raise ValueError(f"run.json has no {missing[0]}")
    rows, ended, started = [], 0.0, milliseconds(run["started"])
    # The file has no clock times: a seed's epochs are laid end to end from the start of the training.
    for row in epoch_rows(run):
        ended = row.seconds if row.epoch == 1 else ended + row.seconds
        rows.append(TimedRow(row, started + round(1000 * ended)))
    picture = PICTURES / f"{directory.name}.png"
    # One that was drawn before this training shows an earlier one.
    is_current = picture.exists() and picture.stat().st_mtime >= (directory / RUN).stat().st_mtime
    evaluation = Records(ARRAYS, RUNS, PREDICTIONS, TABLES).read(directory.name)
    if evaluation is not None and evaluation.inputs["weights"] != run["outputs"][WEIGHTS]:
        evaluation = None  # of earlier weights
    return _Training(run, rows, evaluation, directory / RUN, [picture] if is_current else [])


if __name__ == "__main__":
    run_command(main)
