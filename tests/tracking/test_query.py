"""The runs of a commit."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest

from pipeline.stages.sync import sync
from pipeline.tracking import RUNS_OF_COMMIT, newest_runs
from tests.tracking.trainings import (
    KEYS,
    METRICS,
    SEED_EVALUATION,
    SEEDS,
    Tracker,
    make_rows,
    make_run,
    track,
    write_training,
)


def test_the_newest_runs_of_a_commit(project: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained there, with nothing uncommitted, finished, the newest: once through our query, once through the documented filter."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    commit, other = "1" * 40, "2" * 40
    trainings = [
        ("base", "2026-01-02T03:04:05+00:00", {"git_commit": commit, "git_dirty": False}),
        ("base", "2026-01-03T03:04:05+00:00", {"git_commit": commit, "git_dirty": False, "config_hash": "9" * 64}),
        ("base", "2026-01-04T03:04:05+00:00", {"git_commit": commit, "git_dirty": True}),
        ("base", "2026-01-05T03:04:05+00:00", {"git_commit": other, "git_dirty": False}),
        ("wide", "2026-01-02T03:04:05+00:00", {"git_commit": commit, "git_dirty": False}),
        ("gone", "2026-01-02T03:04:05+00:00", {"git_commit": None, "git_dirty": None}),
    ]
    for number, (variant, started, known) in enumerate(trainings):
        directory = project / f"side{number}" / "runs" / variant
        run = make_run(variant, f"000{number}" * 8) | known | {"started": started}
        write_training(directory, run)
        if variant == "wide":
            assert track(run, directory)
            assert {run.variant for run in newest_runs(commit)} == {"base", "wide"}
        with chdir(directory.parents[1]):
            sync()
    tracker = Tracker(make_run("base", "fedc" * 8) | {"git_commit": commit, "git_dirty": False, "started": "2026-01-06T03:04:05+00:00"})
    for row in make_rows():
        if row.seed == 3 or row.epoch < 3:
            tracker.epoch(row)
    assert tracker.close("FAILED")

    found = newest_runs(commit)
    assert [(run.dataset, run.variant, run.seed) for run in found] == [("digits", v, s) for v in ("base", "wide") for s in sorted(SEEDS)]
    for run in found:
        assert run.record["training_id"][:4] == {"base": "0001", "wide": "0004"}[run.variant]
        rows = [row for row in make_rows() if row.seed == run.seed]
        expected = {key: [row[column] for row in rows] for column, key in enumerate(KEYS, start=2)}
        assert run.curves == expected
        assert {key: run.metrics[key] for key in KEYS} == {key: values[-1] for key, values in expected.items()}
        assert run.record["config"] == make_run()["config"]
        assert run.metrics["parameters"] == METRICS["parameters"]
        assert run.metrics["evaluation.shift_1"] == SEED_EVALUATION["shift_1"][SEEDS.index(run.seed)]
        assert run.record["config_hash"] == ("9" if run.variant == "base" else "c") * 64
    assert newest_runs("3" * 40) == []
    assert {run.record["training_id"][:4] for run in newest_runs(other)} == {"0003"}

    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    filter_string = f"attributes.status = 'FINISHED' and tags.kind = 'seed' and tags.commits LIKE '%{commit}%'"
    assert RUNS_OF_COMMIT.format(commit=commit) == filter_string
    newest: dict[tuple[str, str], str] = {}
    for run in client.search_runs(experiments, filter_string, order_by=["attributes.start_time DESC"]):
        newest.setdefault((run.data.tags["variant"], run.data.tags["seed"]), run.info.run_id)
    assert newest == {(run.variant, str(run.seed)): run.run_id for run in found}

    # Seeds whose parent was deleted by hand are no training; `sync` logs it anew.
    [parent] = client.search_runs(experiments, "tags.kind = 'parent' and tags.variant = 'wide'")
    client.delete_run(parent.info.run_id)
    assert {run.variant for run in newest_runs(commit)} == {"base"}
    with chdir(project / "side4"):
        sync()
    again = newest_runs(commit)
    assert [(run.variant, run.seed, run.curves) for run in again] == [(run.variant, run.seed, run.curves) for run in found]
    assert not {run.run_id for run in again if run.variant == "wide"} & {run.run_id for run in found}

    # `make train` ends a training whose record its stage is to write; until then there is the one before.
    tracker = Tracker(make_run("wide", "ba98" * 8) | {"git_commit": commit, "git_dirty": False, "started": "2026-01-06T03:04:05+00:00"})
    for row in make_rows():
        tracker.epoch(row)
    assert tracker.close("FINISHED")
    assert newest_runs(commit) == again
