"""Seeds on disk: finished ones kept one by one and found by their key; checkpoints whole or not at all, bitwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.params import (
    BaselineSettings,
    CaptionerSettings,
    ModelSettings,
    Params,
    ScenesSettings,
    TrainSettings,
    VariantSettings,
    flatten,
    recorded,
)
from pipeline.params.data import Settings
from pipeline.params.variant import FROZEN, REMOVED
from pipeline.runner import replay, seeds
from pipeline.runner.seeds import Checkpoint, Finished
from pipeline.system.errors import UserError
from pipeline.system.files import DamagedError, read_sealed, write_sealed
from pipeline.training.engine import Trainer
from tests.helpers import ROOT, assert_bitwise, finish, of_this_study


def origin(code: str = "a" * 64, moment: str = "2024-01-01T00:00:00+00:00") -> dict[str, Any]:
    return {"code_hash": code, "device_name": "a processor (2 cores)", "started": moment, "finished": moment, "parameters": 1, "flops": 2}


def train(trainer: Trainer, **kwargs: Any) -> list[Finished]:
    tables = replay.tables(trainer)
    finish(trainer)
    return seeds.of_trainer(trainer, origin(**kwargs), tables)


def test_round_trip_of_what_has_the_settings(
    tmp_path: Path, tiny_trainer: Callable[..., Trainer], tiny_settings: Callable[..., VariantSettings]
) -> None:
    parts = train(tiny_trainer([0, 3]))
    for part in parts:
        seeds.write(tmp_path, part)
    found, damaged = seeds.find(tmp_path, "a" * 64, tiny_settings(seeds=(3, 5)))
    assert damaged == []
    assert list(found) == [0, 3]
    for part in parts:
        np.testing.assert_equal(vars(found[part.seed]), vars(part))
    assert not seeds.find(tmp_path, "a" * 64, tiny_settings(learning_rate=0.004))[0]


def test_a_trace_is_whole_at_first_then_every_tenth_step() -> None:
    steps = seeds.kept_steps(1005)
    assert steps[:500].tolist() == list(range(1, 501))
    assert steps[500:].tolist() == list(range(510, 1001, 10))
    assert seeds.kept_steps(7).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_the_own_code_is_found_first_then_a_replayed_one_then_the_newest(tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    (part,) = train(tiny_trainer([0]))
    a, b, c = "a" * 64, "b" * 64, "c" * 64
    older = Finished(0, part.tensors, part.rows, {**part.origin, "code_hash": a, "finished": "2024-01-01"})
    newer = Finished(0, part.tensors, part.rows, {**part.origin, "code_hash": b, "finished": "2024-02-01"})
    seeds.write(tmp_path, older)
    seeds.write(tmp_path, newer)
    assert seeds.find(tmp_path, a)[0][0].origin["code_hash"] == a
    assert seeds.find(tmp_path, c)[0][0].origin["code_hash"] == b
    replayed = older.replayed({"code_hash": c, "date": "2024-03-01"}, {"flops": 3})
    seeds.write(tmp_path, replayed)
    found = seeds.find(tmp_path, c)[0][0]
    assert (found.origin["code_hash"], found.codes, found.origin["flops"]) == (a, [a, c], 3)
    assert older.with_what(replayed).origin["flops"] == replayed.with_what(older).origin["flops"] == 3  # the code's that replayed
    # Of one training the store may have a later moment, which is that of its group, and no weights.
    stored = Finished(0, {}, part.rows, {**older.origin, "finished": "2024-05-01", "replays": [{"code_hash": "d" * 64}]})
    (both,) = seeds.best([older, stored], a).values()
    assert (both.has_weights, both.codes) == (True, [a, "d" * 64])


OPTIONS = [
    (kind, name)
    for kind in (TrainSettings, ModelSettings, CaptionerSettings, BaselineSettings, ScenesSettings)
    for name, field in kind.model_fields.items()
    if not field.is_required()
]


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
def test_another_default_is_another_key(kind: type[Settings], name: str, study: Params, request: pytest.FixtureRequest) -> None:
    """An option that is left out counts with the value that it then has, not with whatever its default is."""
    frozen = {name: value for one, values in FROZEN.items() if issubclass(kind, one) for name, value in values.items()}
    assert name in frozen, f"give {kind.__name__}.{name} a line in FROZEN, with its default"
    of = study.resolve("caption" if kind in (CaptionerSettings, ScenesSettings) else "cnn" if kind is BaselineSettings else "base")
    before = next(part for part in (of.data, of.train, of.model, of.scenes) if isinstance(part, kind))
    written = {option: value for option, value in before.model_dump().items() if option != name}
    value, field = frozen[name], kind.model_fields[name]

    def set_default(value: Any) -> None:
        field.default = value
        kind.model_rebuild(force=True)

    request.addfinalizer(lambda: set_default(value))
    others = {None: "other-01234567", "layer": "batch", "full": "none", "none": "standard", False: True}
    set_default(others[value] if isinstance(value, str | bool | None) else value / 2 if isinstance(value, float) else value + 1)
    after = kind.model_validate(written, context={"shape": of.model.shape})
    section = next(section for section, part in of if part is before)
    changed = of.model_copy(update={section: after})
    assert changed.training_hash != of.training_hash == of.model_copy(update={section: before}).training_hash
    assert not changed.trained_as(of.model_dump(mode="json"))
    # A record that lacks the option is of the time before it, whatever the default is now.
    record = of.model_dump(mode="json")
    del record[section][name]
    assert recorded(record, "the record").training_hash == of.training_hash


@of_this_study
def test_every_option_counts_in_the_key_and_the_keys_are_what_they_were(study: Params) -> None:
    stored = {path.stem: seeds.settings_of(seeds.read_record(path)).training_hash for path in (ROOT / "store/trainings").iterdir()}
    keys = dict(line.split() for line in (ROOT / "tests/golden/training_hashes.txt").read_text().splitlines())
    assert stored == keys, "finished seeds would not be found again"
    assert {variant: study.resolve(variant).training_hash for variant in stored} == keys
    for of in (study.resolve(variant) for variant in ("base", "caption", "cnn")):
        flat = dict(flatten(of.model_dump(mode="json")))
        for name in flat.keys() - {"train.seeds", "scenes"}:
            assert not of.trained_as(of.model_dump(mode="json") | {(at := name.split("."))[0]: dict(of)[at[0]].model_dump() | {at[1]: "?"}})


def test_an_option_that_is_gone(study: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainings are kept where it had the value that remains; else a sentence names it."""
    of = study.resolve("base")
    record = of.model_dump(mode="json")
    record["model"]["gone"] = 3
    with pytest.raises(UserError, match=r"model\.gone: there is no such key"):
        recorded(record, "a record")
    monkeypatch.setitem(REMOVED, ModelSettings, {"gone": 3})
    assert recorded(record, "a record") == of
    monkeypatch.setitem(REMOVED, ModelSettings, {"gone": 4})
    with pytest.raises(UserError, match=r"model\.gone: there is no such key"):
        recorded(record, "a record")


def test_a_gpus_origin_says_whether_graphs_ran() -> None:
    shared = {name: name for name in ("code_hash", "git_commit", "git_dirty", "device", "device_name", "attention", "versions", "started")}
    about = {**shared, "finished": "", "replays": [], "stack": [0], "tables": {}}
    parts = [Finished(0, {}, (), about), Finished(1, {}, (), {**about, "graphs": "captured", "finished": "later"})]
    found = seeds.origins(parts)
    assert found["graphs"] == "captured"
    assert ["graphs" in group for group in found["trainings"]] == [False, True]
    assert "graphs" not in seeds.origins(parts[:1])


CODE = "c" * 64
HERE: dict[str, Any] = {
    "device_name": "A processor (2 cores)", "attention": "fused-cpu", "versions": {"python": "3.11.2", "torch": "2.15.0"},
}  # fmt: skip
ORIGIN = {"started": "then", **HERE}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path, [0, 1], CODE)


def test_round_trip_is_bitwise_and_one_file_is_kept(checkpoint: Checkpoint, tmp_path: Path, tiny_trainer: Callable[..., Trainer]) -> None:
    trainer, other = tiny_trainer(), tiny_trainer()
    assert checkpoint.restore(other, **HERE) == {}
    for _ in range(2):
        trainer.run_epoch()
        checkpoint.save(trainer, ORIGIN)
    assert list(tmp_path.iterdir()) == [checkpoint.path]
    trainer.run_epoch()
    assert checkpoint.restore(other, **HERE) == ORIGIN
    assert other.epoch == 2
    other.run_epoch()
    assert_bitwise(other, trainer)


def test_a_stack_of_a_hundred_has_a_name_that_a_folder_takes_and_no_other_stack_has(tmp_path: Path) -> None:
    stacks = [range(1000, 1100), [*range(1000, 1050), *range(1051, 1100), 1099], range(1000, 1099)]
    paths = {Checkpoint(tmp_path, list(stack), CODE).path for stack in stacks}
    assert len(paths) == 3
    for path in paths:
        path.touch()


def test_what_another_processor_software_or_engine_computed_leaves_the_trainer_at_the_start(
    checkpoint: Checkpoint, tiny_trainer: Callable[..., Trainer]
) -> None:
    trainer, resumed = tiny_trainer(), tiny_trainer()
    trainer.run_epoch()
    before = resumed.state()
    others: list[dict[str, Any]] = [
        {"device_name": "Another (2 cores)"},
        {"versions": {"python": "3.11.2", "torch": "2.16.0"}},
        {"versions": {"torch": "2.15.0", "cuda": "13.0"}},
        {"engine": "fused"},
        {"attention": "sdpa"},
    ]
    for other in others:
        checkpoint.save(trainer, ORIGIN | other)
        with pytest.raises(DamagedError):
            checkpoint.restore(resumed, **HERE)
        assert resumed.epoch == 0
        assert all(torch.equal(resumed.state()[name], value) for name, value in before.items())
    checkpoint.save(trainer, ORIGIN | {"device_name": "A processor (64 cores)"})  # the number of cores does not affect results
    checkpoint.restore(resumed, **HERE)
    assert resumed.epoch == 1


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sealed file in the place of a checkpoint: its seal is the same."""
    path = tmp_path_factory.mktemp("sealed") / "seed-0.part"
    write_sealed(path, bytes(range(256)) * 8)
    return path


@given(bit=st.integers(0, 8 * (256 * 8 + 32) - 1), cut=st.booleans())
def test_every_flipped_bit_and_every_cut_is_noticed(stored: Path, bit: int, cut: bool) -> None:
    content = bytearray(stored.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    damaged = stored.with_name("damaged.part")
    damaged.write_bytes(content[: bit // 8] if cut else content)
    with pytest.raises(DamagedError):
        read_sealed(damaged)
