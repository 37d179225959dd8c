"""Replay: changes of the code that must be caught, and changes that must not cost a training."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.data.datasets import load
from pipeline.models.dropout import Dropout
from pipeline.params import Params
from pipeline.runner import replay, seeds
from pipeline.runner.seeds import Finished
from pipeline.training import augment, classification, engine, schedules, stack
from pipeline.training.engine import Trainer
from tests.helpers import finish, variant

Train = Callable[..., list[Finished]]


@pytest.fixture(scope="module")
def trained() -> dict[str, list[Finished]]:
    """What `train` has trained, by its settings."""
    return {}


@pytest.fixture
def train(tiny_trainer: Callable[..., Trainer], trained: dict[str, list[Finished]]) -> Train:
    """Trains two seeds, with the same settings only once; each test has a list of its own."""

    def run(**settings: Any) -> list[Finished]:
        if repr(settings) not in trained:
            trainer = tiny_trainer(**settings)
            tables = replay.tables(trainer)
            finish(trainer)
            trained[repr(settings)] = seeds.of_trainer(trainer, {"code_hash": "a" * 64}, tables)
        return list(trained[repr(settings)])

    return run


LONG = {"epochs": 30}  # 90 steps, of which a replay takes the first 50


@pytest.mark.parametrize("settings", [{}, LONG, {"augment": "affine"}, {"epochs": 1}, {"divergence": "record", "learning_rate": 1e30}])
def test_the_same_code_parts_nowhere(train: Train, tiny_trainer: Callable[..., Trainer], settings: dict[str, Any]) -> None:
    parts = train(**settings)
    assert replay.first_difference(tiny_trainer(**settings), parts, exact=True) is None
    assert replay.first_difference(tiny_trainer(**settings), parts, exact=False) is None


def later_rates(real: Any, settings: Any, total_steps: int) -> torch.Tensor:
    rates: torch.Tensor = real(settings, total_steps)
    rates[-total_steps // 10 :] *= 0.999
    return rates


def another_order(real: Any, seed: int, epoch: int, *args: Any, **kwargs: Any) -> Any:
    places = real(seed, epoch, *args, **kwargs)
    return places.flip(0) if (seed, epoch) == (1, 29) else places


@torch.no_grad()
def another_weight(real: Any, settings: Any, seed: int) -> Any:
    model = real(settings, seed)
    if seed == 1:
        model.head.bias[3] = torch.nextafter(model.head.bias[3], torch.tensor(1.0))
    return model


def another_test(real: Any, evaluator: Any) -> Any:
    losses, predictions = real(evaluator)
    return losses * 1.0000001, predictions


@pytest.mark.parametrize(
    ("settings", "of", "name", "change", "expected"),
    [
        (LONG, schedules, "learning_rates", later_rates, "the learning rates are others"),
        (LONG, engine, "epoch_order", another_order, "the order of the images of seed 1 is another"),
        ({}, stack, "initial_model", another_weight, "the initial weights of seed 1 are others"),
        (LONG | {"augment": "affine"}, augment, "draw", lambda real, key, step, size: real(key, step + (step > 80), size),
         "the augmentation of seed 0 is another"),
        ({}, Dropout, "_keep", lambda real, layer, index: real(layer, index + 1), "step 1 of seed 0: "),
        ({}, classification.Evaluator, "__call__", another_test, "the test of seed 0: loss "),
    ],
)  # fmt: skip
def test_a_change_is_caught(
    train: Train, tiny_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], of: Any, name: str,
    change: Callable[..., Any], expected: str,
) -> None:  # fmt: skip
    parts, real = train(**settings), getattr(of, name)
    monkeypatch.setattr(of, name, lambda *args, **kwargs: change(real, *args, **kwargs))
    assert str(replay.first_difference(tiny_trainer(**settings), parts, exact=True)).startswith(expected)


def test_for_a_seed_without_weights_the_first_one_is_tested(
    train: Train, tiny_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,), (second,) = train(seeds=[0]), train(seeds=[1])  # alone, as on a CPU: a stack may round otherwise
    second = replace(second, tensors={name: value for name, value in second.tensors.items() if name.startswith("trace.")})
    apart = partial(replay.first_difference, parts=[second], first=first, exact=True)
    assert apart(tiny_trainer([1])) is None
    real = classification.Evaluator.__call__
    monkeypatch.setattr(classification.Evaluator, "__call__", lambda one: (real(one)[0] * 1.01, real(one)[1]))
    assert str(apart(tiny_trainer([1]))).startswith("the test of seed 0: loss ")


def test_a_table_of_rates_is_the_same_on_every_processor(tiny_trainer: Callable[..., Trainer]) -> None:
    for settings in ({}, {"optimizer": "radam", "schedule": "cosine"}):
        cpu, gpu, rounded = (tiny_trainer(**settings) for _ in range(3))
        earlier = {"rates": replay._digest([cpu.optimizer.coefficients])}  # in float64
        gpu.optimizer.coefficients = gpu.optimizer.coefficients.float()
        rounded.optimizer.coefficients = rounded.optimizer.coefficients * (1 + 2**-52)  # the last bit, as MKL's roots have it
        (here, *_), *elsewhere = (replay.tables(trainer).values() for trainer in (cpu, gpu, rounded))
        assert all(here in one for one in elsewhere)
        others = partial(replay.other_tables, cpu.settings.train, cpu.num_steps)
        assert here["rates"] != earlier["rates"]
        assert others(here, here | earlier) == []
        changed = tiny_trainer(**{**settings, "learning_rate": 0.00400001})
        changed.optimizer.coefficients = changed.optimizer.coefficients.float()
        assert others(here, next(iter(replay.tables(changed).values()))) == ["rates"]


def test_a_renamed_weight_is_caught(train: Train, tiny_trainer: Callable[..., Trainer]) -> None:
    parts = [
        replace(part, tensors={name.replace("head.bias", "head.shift"): value for name, value in part.tensors.items()}) for part in train()
    ]
    assert replay.first_difference(tiny_trainer(), parts, exact=True) == "the weights have other names: head.bias, head.shift"


def test_the_last_bit_of_a_step_is_caught(train: Train, tiny_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = train()
    part = parts[1]
    loss = part.tensors["trace.loss"].copy()
    loss[6] = torch.nextafter(torch.tensor(loss[6]), torch.tensor(9.0)).numpy()
    parts[1] = Finished(1, {**part.tensors, "trace.loss": loss}, part.rows, part.origin)
    assert str(replay.first_difference(tiny_trainer(), parts, exact=True)).startswith("step 7 of seed 1: ")
    assert replay.first_difference(tiny_trainer(), parts, exact=False) is None


def test_on_another_processor_a_tenth_of_the_steps_may_lie_farther_off(train: Train, tiny_trainer: Callable[..., Trainer]) -> None:
    part, *others = train(**LONG)  # of fifty steps half are compared
    for name, steps, factor, expected in (
        ("loss", slice(2), 2.9, True), ("loss", slice(3), 2.9, False), ("loss", slice(1), 3.1, False), ("loss", slice(25, 50), 9, True),
        ("gradient_norm", slice(2), 9, True), ("gradient_norm", slice(3), 2.9, False),
    ):  # fmt: skip
        values = part.tensors[f"trace.{name}"].copy()
        values[steps] /= 1 + factor * replay.TOLERANCES[name]
        moved = replace(part, tensors=part.tensors | {f"trace.{name}": values})
        found = replay.first_difference(tiny_trainer(**LONG), [moved, *others], exact=False)
        assert (found is None) == expected, (name, steps, factor, found)


OTHER_PROCESSOR = """
import sys
from pathlib import Path
from pipeline.data.datasets import load
from pipeline.params import load_variant
from pipeline.runner import pool
from pipeline.system.provenance import origin
job = pool.Job(load_variant(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), "cpu", origin("cpu"))
assert [*pool.messages(pool.Assignment(job, pool.Task([0])), lambda job: load(job.arrays))][-1].is_last
"""


@pytest.mark.slow
def test_a_processor_that_rounds_otherwise_keeps_what_it_can_check(arrays: Path, study: Params, tmp_path: Path) -> None:
    """The same processor with the code paths of an older one stands for another kind: its bits differ, its training is the same."""
    settings = variant(study, {"patch": 7}, seeds=(0,), epochs=3, batch_size=64)
    (tmp_path / "config.json").write_text(settings.to_json())
    older = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", OTHER_PROCESSOR, str(tmp_path / "config.json"), str(arrays), str(tmp_path)]
    subprocess.run(command, env=os.environ | older, check=True)
    parts, _ = seeds.read_all(tmp_path)
    data, device = load(arrays), torch.device("cpu")
    if torch.backends.cpu.get_cpu_capability() == "AVX512":  # else no older code path draws the same initial weights
        assert replay.first_difference(Trainer(settings, data, [0], device), parts, exact=True) is not None
    assert replay.first_difference(Trainer(settings, data, [0], device), parts, exact=False) is None
