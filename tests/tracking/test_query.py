"""Reading trainings back."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.stages.sync import sync
from pipeline.tracking import runs_of
from pipeline.tracking.query import search
from pipeline.tracking.store import Store
from tests.tracking.trainings import (
    KEYS,
    METRICS,
    SEED_EVALUATION,
    SEEDS,
    Tracker,
    make_rows,
    make_run,
    write_training,
)


def test_the_runs_of_trainings(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those asked for, finished, with a parent that has their record; every number is that of the files."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    base, wide, other = (f"000{number}" * 8 for number in range(3))
    for variant, training in (("base", base), ("wide", wide), ("base", other)):
        run = make_run(variant, training) | {"config_hash": training[:4] * 16}
        write_training(project / f"side-{training[:4]}" / "runs" / variant, run)
        with chdir(project / f"side-{training[:4]}"):
            sync()
    tracker = Tracker(make_run("base", "fedc" * 8))
    for row in make_rows():
        if row.seed == 3 or row.epoch < 3:
            tracker.epoch(row)
    assert tracker.close("FAILED")

    found = runs_of([wide, base, "fedc" * 8, "3333" * 8], uri)
    assert [(run.dataset, run.variant, run.seed) for run in found] == [("digits", v, s) for v in ("base", "wide") for s in sorted(SEEDS)]
    for run in found:
        assert run.record["training_id"] == {"base": base, "wide": wide}[run.variant]
        rows = [row for row in make_rows() if row.seed == run.seed]
        expected = {key: [row[column] for row in rows] for column, key in enumerate(KEYS, start=2)}
        assert run.curves == expected
        assert {key: run.metrics[key] for key in KEYS} == {key: values[-1] for key, values in expected.items()}
        assert run.record["config"] == make_run()["config"]
        assert run.metrics["parameters"] == METRICS["parameters"]
        assert run.metrics["evaluation.shift_1"] == SEED_EVALUATION["shift_1"][SEEDS.index(run.seed)]
        assert run.record["config_hash"] == run.record["training_id"][:4] * 16

    # Seeds whose parent was deleted by hand are no training; `sync` logs it anew.
    store = Store(uri)
    [parent] = search(store, f"tags.kind = 'parent' and tags.`training.id` = '{wide}'")
    store.call("delete_run", parent.info.run_id)
    assert {run.variant for run in runs_of([wide, base], uri)} == {"base"}
    with chdir(project / "side-0001"):
        sync()
    again = runs_of([wide, base], uri)
    assert [(run.variant, run.seed, run.curves) for run in again] == [(run.variant, run.seed, run.curves) for run in found]
    assert not {run.run_id for run in again if run.variant == "wide"} & {run.run_id for run in found}

    # `make train` ends a training whose record its stage is to write; until then it is none.
    tracker = Tracker(make_run("wide", "ba98" * 8))
    for row in make_rows():
        tracker.epoch(row)
    assert tracker.close("FINISHED")
    assert runs_of(["ba98" * 8], uri) == []
