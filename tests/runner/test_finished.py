"""Finished seeds: kept one by one, found by their key, and the same whether trained together or one after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.params import BaselineSettings, CaptionerSettings, ModelSettings, TrainSettings, VariantSettings
from pipeline.runner import finished, replay, results
from pipeline.runner.finished import Finished
from pipeline.training.engine import Trainer
from tests.helpers import finish, flip_bit


def origin(code: str = "a" * 64, moment: str = "2024-01-01T00:00:00+00:00") -> dict[str, Any]:
    return {"code_hash": code, "device_name": "a processor (2 cores)", "started": moment, "finished": moment, "parameters": 1, "flops": 2}


def train(trainer: Trainer, **kwargs: Any) -> list[Finished]:
    tables = replay.tables(trainer)
    finish(trainer)
    return finished.of_trainer(trainer, origin(**kwargs), tables)


def test_round_trip(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    (part,) = train(tiny_trainer([3]))
    finished.write(tmp_path, part)
    found, damaged = finished.find(tmp_path, "a" * 64)
    assert damaged == []
    assert list(found) == [3]
    assert found[3].rows == part.rows
    assert found[3].origin == part.origin
    assert found[3].tensors.keys() == part.tensors.keys()
    assert all(np.array_equal(found[3].tensors[name], value) for name, value in part.tensors.items())


def test_a_trace_is_whole_at_first_then_every_tenth_step() -> None:
    steps = finished.kept_steps(1005)
    assert steps[:500].tolist() == list(range(1, 501))
    assert steps[500:].tolist() == list(range(510, 1001, 10))
    assert finished.kept_steps(7).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_the_own_code_is_found_first_then_a_replayed_one_then_the_newest(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    (part,) = train(tiny_trainer([0]))
    a, b, c = "a" * 64, "b" * 64, "c" * 64
    older = Finished(0, part.tensors, part.rows, {**part.origin, "code_hash": a, "finished": "2024-01-01"})
    newer = Finished(0, part.tensors, part.rows, {**part.origin, "code_hash": b, "finished": "2024-02-01"})
    finished.write(tmp_path, older)
    finished.write(tmp_path, newer)
    assert finished.find(tmp_path, a)[0][0].origin["code_hash"] == a
    assert finished.find(tmp_path, c)[0][0].origin["code_hash"] == b
    finished.write(tmp_path, older.replayed({"code_hash": c, "date": "2024-03-01"}))
    assert finished.find(tmp_path, c)[0][0].origin["code_hash"] == a
    assert finished.find(tmp_path, c)[0][0].codes == [a, c]


def test_a_damaged_file_is_told_and_removed(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    for part in train(tiny_trainer([0, 1])):
        finished.write(tmp_path, part)
    path = tmp_path / f"seed-1.{'a' * 12}.done"
    flip_bit(path)
    found, damaged = finished.find(tmp_path, "a" * 64)
    assert list(found) == [0]
    assert len(damaged) == 1
    assert path.name in damaged[0]
    assert not path.exists()


def test_settings_that_differ_in_seeds_alone_share_a_folder(tmp_path: Path, tiny_settings: Callable[..., VariantSettings]) -> None:
    def place(**train: Any) -> Path:
        return finished.folder(tmp_path, tiny_settings(**train), "d" * 64)

    assert place(seeds=(0,)) == place(seeds=(5, 6, 7))
    assert place(epochs=5) != place()
    assert place(learning_rate=0.004) != place()
    assert finished.folder(tmp_path, tiny_settings(), "e" * 64) != place()


def test_a_default_of_a_setting_stays_what_it_was_introduced_with() -> None:
    """An option at its default does not count in the key of a finished seed. With another default, old seeds would pass for new ones."""
    defaults = {
        kind.__name__: {name: field.default for name, field in kind.model_fields.items() if not field.is_required()}
        for kind in (VariantSettings, TrainSettings, ModelSettings, BaselineSettings, CaptionerSettings)
    }
    assert defaults == {
        "VariantSettings": {"scenes": None},
        "TrainSettings": {"beta2": 0.999, "self_critical_epochs": 0, "self_critical_rate": 2e-4},
        "ModelSettings": {"position_std": 1.0, "norm_kind": "layer"},
        "BaselineSettings": {},
        "CaptionerSettings": {},
    }


def test_an_option_at_its_default_does_not_count(tiny_settings: Callable[..., VariantSettings]) -> None:
    """An option that is added later leaves the hashes of earlier trainings as they are."""
    from pydantic import create_model

    from pipeline.params import ModelSettings

    settings = tiny_settings()
    later = create_model("Later", __base__=ModelSettings, new_option=(float, 1.0))
    variant = create_model("LaterVariant", __base__=VariantSettings, model=(later, ...))
    same, other = (
        variant(data=settings.data, train=settings.train, model=later.model_validate(settings.model.model_dump() | own))
        for own in ({}, {"new_option": 2.0})
    )
    assert same.training_hash == settings.training_hash != other.training_hash


def test_a_gpus_origin_says_whether_graphs_ran() -> None:
    shared = {name: name for name in ("code_hash", "git_commit", "git_dirty", "device", "device_name", "attention", "versions", "started")}
    about = {**shared, "finished": "", "replays": [], "stack": [0], "tables": {}}
    parts = [Finished(0, {}, (), about), Finished(1, {}, (), {**about, "graphs": "captured", "finished": "later"})]
    found = results.origins(parts)
    assert found["graphs"] == "captured"
    assert ["graphs" in group for group in found["trainings"]] == [False, True]
    assert "graphs" not in results.origins(parts[:1])
