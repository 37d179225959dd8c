"""Brings an MLflow store up to date from the store: every finished training, whole and once.

`make sync` is `python -m pipeline.stages.sync` in the folder that holds store/; the report stage calls `sync`.
"""

import argparse
import csv
import io
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from pipeline import params
from pipeline.evaluation.records import Records
from pipeline.measures import MEASURES, NotFormed, late
from pipeline.params import Params
from pipeline.runner.seeds import SUFFIX, load_weights, read_record, settings_of
from pipeline.study import Training, tables
from pipeline.study.statistics import summarize
from pipeline.system import environment
from pipeline.system.errors import UserError, run_command
from pipeline.system.paths import TABLES, TRAININGS
from pipeline.system.provenance import git
from pipeline.tracking import registry
from pipeline.tracking.record import CURRENT, Finished, record
from pipeline.tracking.store import Store, display_name, experiment_name, fault, store_uri, study_name, training_lock
from pipeline.tracking.views import show

csv.field_size_limit(2**31 - 1)  # the origins of many seeds, with all their replays, are one cell
SERVED = "base"  # the variant whose first seed is in the model registry: one small model, not a choice by test accuracy


def main(argv: list[str]) -> None:
    description = "Brings the MLflow store up to date from store/, without doubles."
    argparse.ArgumentParser(prog="python -m pipeline.stages.sync", description=description).parse_args(argv)
    sync()


def sync(*, register: bool = True) -> None:
    """Logs every finished training that the store has not, or has otherwise, and prints a line for each.

    Args:
        register: whether the baseline's network goes into the model registry, which takes some twenty seconds of a core.

    Raises:
        UserError: the store cannot be used, or files of a training are damaged (all others have been logged by then).
    """
    paths = sorted(TRAININGS.glob(f"*{SUFFIX}"))
    if not paths:
        print(f"There is no finished training in {TRAININGS}/ yet: run `make demo` or `dvc repro` first.")
        return
    study, uri, found = None, store_uri(), defaultdict(list)
    with suppress(UserError):  # trainings are recorded without params.yaml, too
        study = params.load()
    commit, held = _checked_out()
    damaged, recorded = list[UserError](), dict[str, Finished]()
    for path in paths:
        try:
            training = _read(path, held, study)
            recorded[training.run["training_id"]] = training
        except UserError as error:
            damaged.append(error)
    try:
        with training_lock("sync", 600):  # another one beside this would log what both have not found
            store = Store(uri)
            for one in store.runs(experiment.experiment_id for experiment in store.experiments()):
                found[one.data.tags.get("training.id", "")].append(one)
            for id, training in recorded.items():
                variant = training.run["variant"]
                labels = {CURRENT: "true", **_places(study, variant)}
                with training_lock(id, 60):
                    run_id, new = record(store, training, found[id], labels=labels, commits=[commit] if id in held else [])
                if new:
                    print(f"{variant}: {len(training.run['seeds'])} seeds logged")
                if register and variant == SERVED and _register(store, run_id, training):
                    print(f"{variant}: its first seed is registered as {study_name()}")
            _tidy(store, found, recorded)
            for dataset in dict.fromkeys(training.run["dataset"] for training in recorded.values()):
                show(store, store.experiment(dataset), study)
    except Exception as error:
        raise fault(error, uri, "run `make sync` again") from None
    print(f"{len(recorded)} training{'s' * (len(recorded) != 1)} of {TRAININGS}/ in {display_name(uri)}.")
    if damaged:
        raise UserError(" ".join(map(str, damaged)))


def _checked_out() -> tuple[str, set[str]]:
    """The commit that is checked out, and the ids of the trainings that its tables name; neither without git or tables."""
    with suppress(OSError):  # without git
        asked = ("rev-parse", "HEAD"), ("show", f"HEAD:./{TABLES}/variants.csv")
        head, table = (git(*words, cwd=Path.cwd(), text=True).stdout for words in asked)
        return head.strip(), {line.get("training_id", "") for line in csv.DictReader(io.StringIO(table))}
    return "", set()


def _read(path: Path, held: Collection[str], study: Params | None) -> Finished:
    """A training from its files. Raises UserError where one of them is damaged."""
    run = read_record(path)
    columns, metrics = dict[str, list[float]](), dict[str, Any]()
    evaluation = Records().read(path.stem)
    if evaluation and evaluation.has_seeds_of(run["outputs"]["weights"]) and evaluation.inputs["data"] == run["data_digest"]:
        columns, metrics = {name: list(map(float, column)) for name, column in evaluation.columns.items()}, evaluation.metrics
    training = tables.training(run, columns)
    summary = _late(training) | {f"evaluation.{name}": fmean(column) for name, column in columns.items()}
    summary |= {"evaluation.ensemble_accuracy": metrics.get("ensemble_accuracy"), **_measured(study, training)}
    # A DVC experiment begins with the results of the commit that it was made from.
    return Finished(run, columns, summary, None if run["training_id"] in held else experiment_name())


def _late(training: Training) -> dict[str, float | None]:
    """What the pages say of the training: late accuracy with its spread and 95 % interval over the seeds, and late test error.

    A captioner's is that of validation scenes, and no column for a classifier's.
    """
    of = summarize(late(training.test_accuracy), limits=(0, 1))
    name, error = ("late_scene_accuracy", "late_scene_error") if training.is_captioner else ("late_accuracy", "late_test_error")
    spread = {f"{name}_sd": of.sd, f"{name}_low": of.interval.low, f"{name}_high": of.interval.high} if of.interval else {}
    return {name: of.mean, **spread, error: 1 - of.mean}


def _measured(study: Params | None, training: Training) -> dict[str, float]:
    """The mean over the seeds of each measure by which the study's experiments and claims ask for the variant."""
    asked = [(of.measure, of.variants) for of in study.experiments.values()] if study else []
    asked += [(part.measure, part.variants) for claim in study.claims.values() for part in claim.comparisons] if study else []
    found = {}
    for name in sorted({name for name, variants in asked if training.variant in variants and name in MEASURES}):
        with suppress(NotFormed):
            if (values := MEASURES[name].per_seed(training)) is not None and np.isfinite(values).all():
                found[f"measure.{''.join(one if one.isalnum() or one in '.:/-' else '_' for one in name)}"] = float(values.mean())
    return found


def _places(study: Params | None, variant: str) -> dict[str, str]:
    """The tag with the experiments of a variant, for filters such as `tags.experiments LIKE '%,positions,%'`."""
    names = [name for name, of in study.experiments.items() if variant in of.variants] if study else []
    return {"experiments": f",{','.join(names)}," if names else ","} if study else {}


def _tidy(store: Store, found: Mapping[str, list[Any]], recorded: Mapping[str, Finished]) -> None:
    """Has the views show these trainings and none of their variants' earlier ones; what a kill left running is set to KILLED.

    A server may have runs of other machines, whose locks cannot be seen from here, so only a SQLite store is looked through.
    """
    shown = {(one.run["dataset"], one.run["variant"]) for one in recorded.values()}
    for id, runs in found.items():
        for run in runs if id not in recorded else ():
            tags, status = run.data.tags, run.info.status
            if status == "RUNNING" and store.path is not None:
                with suppress(TimeoutError), training_lock(id):
                    status = "KILLED"
                    store.set_terminated(run.info.run_id, status=status)
            # A training that runs now is shown beside the finished one; a DVC experiment always is.
            replaced = (run.data.params.get("data.dataset"), tags.get("variant")) in shown and status != "RUNNING"
            if replaced and tags.get(CURRENT) == "true" and "dvc.experiment" not in tags:
                store.set_tag(run.info.run_id, CURRENT, "false")


def _register(store: Store, run_id: str, training: Finished) -> bool:
    """Puts the first seed's network into the model registry. False if it is there already or cannot be put there."""
    run = training.run
    seed, alias = run["seeds"][0], f"{run['variant']}-{run['dataset']}"
    weights = run["outputs"]["weights"][str(seed)]
    if run["config"].get("scenes") or registry.is_registered(store, run_id, weights, alias):
        return False
    try:
        settings = settings_of(run)
        stacked = load_weights(TRAININGS / f"{run['variant']}{SUFFIX}", [seed])
    except UserError as error:
        print(f"{run['variant']}: not registered, {error}")
        return False
    from pipeline.models import build

    shape = settings.model.shape
    with environment.variables(LAB_ATTENTION="sdpa"):  # an exported graph runs where our kernels are not known
        network = build(settings.model)
        network.load_state_dict({name: value[0] for name, value in stacked.items()})
        images = np.random.default_rng(0).random((2, shape.channels, shape.size, shape.size), dtype=np.float32)
        tags = {name: str(run[name]) for name in ("variant", "dataset", "training_id")} | {"weights": weights, "seed": str(seed)}
        tags |= {name: repr(value) for name, value in training.summary.items() if name.startswith("late_")}
        registry.register(store, run_id, network.eval(), images, tags, alias)
    return True


if __name__ == "__main__":
    run_command(main)
