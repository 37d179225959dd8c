"""Brings an MLflow store up to date from the store: every finished training, whole and once.

`make sync` is `python -m pipeline.stages.sync` in the folder that holds store/; the report stage calls `sync`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from pipeline import environment, params
from pipeline.errors import UserError, run_command
from pipeline.evaluation.records import Records
from pipeline.files import write_changed
from pipeline.measures import late
from pipeline.params import Params
from pipeline.provenance import git
from pipeline.runner.seeds import SUFFIX, epoch_rows, load_weights, read_record, settings_of
from pipeline.study.files import CHECKPOINTS, REPEATED, TABLES, TRAININGS
from pipeline.study.statistics import summarize
from pipeline.tracking import registry
from pipeline.tracking.record import CURRENT, Finished, described, milliseconds, record
from pipeline.tracking.store import Store, database_path, display_name, experiment_name, explain, store_uri, study_name, training_lock
from pipeline.tracking.views import show

SERVED = "base"  # the variant whose first seed is in the model registry: one small model, not a choice by test accuracy
PICTURES = CHECKPOINTS / "figures"  # VARIANT.png, which the report stage draws


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
    study, uri = _study(), store_uri()
    commit, held = _checked_out()
    damaged, recorded = [], {}
    try:
        store = Store(uri)
        found = defaultdict(list)
        for one in store.runs(experiment.experiment_id for experiment in store.experiments()):
            found[one.data.tags.get("training.id")].append(one)
        for path in paths:
            try:
                training, is_held = _read(path, held)
            except (UserError, OSError, ValueError, KeyError, TypeError) as error:
                print(f"{path.stem}: left out, {error}", flush=True)
                damaged.append(str(path))
                continue
            id, picture = training.run["training_id"], _picture(path)
            labels = _places(study, path.stem) | {CURRENT: "true"}
            with training_lock(id, 60):
                run_id, new = record(store, training, found[id], labels=labels, commits=[commit] if is_held else [], picture=picture)
            recorded[id] = training
            if new:
                print(f"{path.stem}: {len(training.run['seeds'])} seeds logged", flush=True)
            if register and path.stem == SERVED and _register(store, run_id, training):
                print(f"{path.stem}: its first seed is registered as {study_name()}", flush=True)
        _tidy(store, found, recorded)
        for dataset in dict.fromkeys(training.run["dataset"] for training in recorded.values()):
            show(store, store.experiment(dataset), study)
    except Exception as error:
        raise UserError(f"{explain(error, uri)}; mend that, then run `make sync` again.") from None
    print(f"{len(recorded)} training{'s' * (len(recorded) != 1)} of {TRAININGS}/ are in {display_name(uri)}.", flush=True)
    if damaged:
        raise UserError(f"Damaged files in {', '.join(damaged)}: restore them with `git checkout`.")


def _study() -> Params | None:
    """params.yaml; None if it cannot be read. The trainings are recorded all the same."""
    with suppress(UserError):
        return params.load()
    return None


def _checked_out() -> tuple[str, set[str]]:
    """The commit that is checked out, and the ids of the trainings that its tables name; neither without git or tables."""
    asked: list[Any] = []
    with suppress(OSError):  # without git
        asked = [git(*words, cwd=Path.cwd(), text=True) for words in (("rev-parse", "HEAD"), ("show", f"HEAD:./{TABLES}/variants.csv"))]
    if not asked or any(one.returncode for one in asked):
        return "", set()
    return asked[0].stdout.strip(), {line.get("training_id", "") for line in csv.DictReader(io.StringIO(asked[1].stdout))}


def _read(path: Path, held: Collection[str]) -> tuple[Finished, bool]:
    """A training from its files, and whether the commit that is checked out holds it.

    Raises UserError, OSError, ValueError, KeyError or TypeError when a file is damaged or of an older form.
    """
    run = read_record(path)
    rows, seeds = epoch_rows(run), run["seeds"]
    curves = np.array([[row.test_accuracy for row in rows if row.seed == seed] for seed in seeds])
    evaluation = Records().read(path.stem)
    columns, summary = {}, _late(curves, "word" if run["config"].get("scenes") else "")
    if evaluation is not None and evaluation.inputs["weights"] == run["outputs"]["weights"]:  # else of an earlier training
        last = {row.seed: row for row in rows}
        columns = {name: [getattr(last[seed], name) for seed in seeds] for name in REPEATED} | dict(evaluation.columns)
        summary |= {f"evaluation.{name}": fmean(column) for name, column in columns.items() if name not in REPEATED}
        summary["evaluation.ensemble_accuracy"] = evaluation.metrics.get("ensemble_accuracy")
    is_held = run["training_id"] in held  # an experiment begins with the results of the commit that it was made from
    experiment = None if is_held else experiment_name()
    record = CHECKPOINTS / "records" / path.stem / "run.json"  # MLflow logs files
    write_changed(record, json.dumps(run, indent=2) + "\n")
    training = Finished(run, rows, columns, summary, record, experiment)
    try:
        described(training)
    except KeyError as error:
        raise ValueError(f"run.json has no {error}") from None
    return training, is_held


def _late(curves: np.ndarray, of: str) -> dict[str, float | None]:
    """What the pages say of the training: late accuracy with its spread and 95 % interval over the seeds, and late test error.

    Args:
        curves: test accuracy (seeds, epochs).
        of: "word" for a captioner, whose accuracy is that of the next word and no column for a classifier's.
    """
    found, name = summarize(late(curves)), f"late_{of}_accuracy" if of else "late_accuracy"
    spread = {}
    if found.interval:
        low, high = max(found.interval.low, 0.0), min(found.interval.high, 1.0)  # a share ends there
        spread = {f"{name}_sd": found.sd, f"{name}_low": low, f"{name}_high": high}
    return {name: found.mean, **spread, "late_word_error" if of else "late_test_error": 1 - found.mean}


def _picture(path: Path) -> Path | None:
    """The variant's curves, unless they were drawn before this training."""
    picture = PICTURES / f"{path.stem}.png"
    return picture if picture.exists() and picture.stat().st_mtime >= path.stat().st_mtime else None


def _places(study: Params | None, variant: str) -> dict[str, str]:
    """The tags that say where a variant stands in params.yaml: experiments, and their sources ("thesis", "this project")."""
    if study is None or variant not in study.variants:
        return {}
    experiments = {name: of for name, of in study.experiments.items() if variant in of.variants}
    # "thesis, 2.3.1, against its published code; notes" names two documents.
    sources = dict.fromkeys(part.split(",")[0].strip() for of in experiments.values() for part in of.source.split(";"))
    return {"experiments": _listed(experiments), "sources": _listed(sources)}


def _listed(names: Collection[str]) -> str:
    """For filters such as `tags.experiments LIKE '%,positions,%'`: a comma before and after each name."""
    return f",{','.join(names)}," if names else ""


def _tidy(store: Store, found: Mapping[str, list[Any]], recorded: Mapping[str, Finished]) -> None:
    """Has the views show these trainings and none of their variants' earlier ones; what a kill left running is set to KILLED.

    A server may have runs of other machines, whose locks cannot be seen from here, so only a SQLite store is looked through.
    """
    begun = {(one.run["dataset"], one.run["variant"]): milliseconds(one.run["started"]) for one in recorded.values()}
    for id, runs in found.items():
        if id in recorded or id is None:
            continue
        if database_path(store.uri) is not None and any(run.info.status == "RUNNING" for run in runs):
            with suppress(TimeoutError), training_lock(id):
                for run in runs:
                    store.call("set_terminated", run.info.run_id, status="KILLED")
                print(f"{runs[0].data.tags.get('variant')}: set to killed, because no process trains it", flush=True)
        for run in runs:
            tags = run.data.tags
            start = begun.get((run.data.params.get("data.dataset"), tags.get("variant")))
            # A training that runs now is shown beside the finished one; a DVC experiment always is.
            runs_now = run.info.status == "RUNNING" and start is not None and run.info.start_time > start
            if start is not None and tags.get(CURRENT) == "true" and "dvc.experiment" not in tags and not runs_now:
                store.call("set_tag", run.info.run_id, CURRENT, "false")


def _register(store: Store, run_id: str, training: Finished) -> bool:
    """Puts the first seed's network into the model registry. False if it is there already or cannot be put there."""
    run = training.run
    try:
        settings = settings_of(run)
    except UserError:  # of an older form, which this code cannot build
        return False
    alias, weights = f"{run['variant']}-{run['dataset']}", {"weights": run["outputs"]["weights"][str(run["seeds"][0])]}
    if settings.task != "classification" or registry.is_registered(store, run_id, weights, alias):
        return False
    try:
        stacked = load_weights(TRAININGS / f"{run['variant']}{SUFFIX}", run["seeds"][:1])
    except UserError as error:
        print(f"{run['variant']}: not registered, {error}", flush=True)
        return False
    from pipeline.models import build

    shape = settings.model.shape
    with environment.variables(LAB_ATTENTION="sdpa"):  # an exported graph runs where our kernels are not known
        network = build(settings.model)
        network.load_state_dict({name: value[0] for name, value in stacked.items()})
        images = np.random.default_rng(0).random((2, shape.channels, shape.size, shape.size), dtype=np.float32)
        tags = weights | {name: str(run[name]) for name in ("variant", "dataset", "training_id")} | {"seed": str(run["seeds"][0])}
        tags |= {name: repr(value) for name, value in training.summary.items() if name.startswith("late_")}
        registry.register(store, run_id, network.eval(), images, tags, alias)
    return True


if __name__ == "__main__":
    run_command(main)
