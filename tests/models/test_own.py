"""A model of one's own: its options, what the engine does with parameters that it does not train, and what it refuses."""

import itertools
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

import pipeline
from pipeline.data.datasets import Dataset
from pipeline.models import build
from pipeline.params import ARCHITECTURES, NetworkSettings, VariantSettings, parse, recorded
from pipeline.params.architectures import Architecture
from pipeline.runner import pool
from pipeline.system.errors import UserError
from pipeline.system.provenance import loaded_code
from pipeline.training import stack
from pipeline.training.engine import Trainer
from tests.helpers import finish

Forward = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tiny_trainer: Callable[..., Trainer]) -> Callable[..., Trainer]:
    """Trains models that call `forward(model, logits)` at their end."""

    def make(seeds: list[int], forward: Forward, prepare: Callable[[nn.Module], object] = lambda module: None, **train: Any) -> Trainer:
        class Own(nn.Module):
            def __init__(self, settings: Any) -> None:
                super().__init__()
                self.inner = build(settings)
                prepare(self)

            def forward(self, images: Tensor) -> Tensor:
                return forward(self, self.inner(images))

        monkeypatch.setattr(stack, "build", Own)
        return tiny_trainer(seeds, **train)

    return make


@pytest.mark.parametrize(
    ("seeds", "said", "given"),
    [
        ([0], "global generator", [lambda _, x: F.dropout(x, 0.5)]),
        ([0, 1], "global generator", [lambda _, x: F.dropout(x, 0.5)]),  # a stack under vmap
        ([0], "global generator", [lambda _, x: x * float(np.random.rand())]),  # noqa: NPY002
        ([0, 1], "global generator", [lambda _, x: x * float(np.random.rand())]),  # noqa: NPY002
        ([0], "global generator", [lambda _, x: x * random.random()]),
        ([0, 1], "global generator", [lambda _, x: x * random.random()]),
        ([0], "global generator", [lambda model, x: x if model.training else F.dropout(x, 0.5)]),
        ([0, 1], "global generator", [lambda model, x: x if model.training else F.dropout(x, 0.5)]),
        ([0], "initial weights", [lambda _, x: x, lambda _: np.random.rand()]),  # noqa: NPY002
        ([0], "two calls", [lambda of, x: x + torch.randn(x.shape, generator=of.kept), lambda of: setattr(of, "kept", torch.Generator())]),
        ([0], "two calls", [lambda of, x: x / (1 + next(of.kept)), lambda of: setattr(of, "kept", itertools.count())]),
        ([0], "two calls", [lambda of, x: x * of.kept.add_(1), lambda of: of.register_buffer("kept", torch.zeros(1), persistent=False)]),
    ],
)
def test_what_a_training_could_not_repeat_is_refused(seeds: list[int], said: str, given: list[Any], own: Callable[..., Trainer]) -> None:
    """Numbers of a generator that no seed sets, and what a model keeps between two calls: no checkpoint has it."""
    with pytest.raises(UserError, match=said):
        own(seeds, *given).run_epoch()


@pytest.mark.parametrize(("seeds", "optimizer"), [([0], "adam"), ([0, 1], "adam"), ([0], "radam"), ([0], "sgd")])
def test_frozen_and_spare_parameters_stay_as_they_are(
    seeds: list[int], optimizer: str, tiny_trainer: Callable[..., Trainer], own: Callable[..., Trainer]
) -> None:
    """Those without a gradient are not even decayed, as in torch."""

    def prepare(module: nn.Module) -> None:
        module.frozen = nn.Parameter(torch.ones(10), requires_grad=False)
        module.spare = nn.Parameter(torch.full((3,), 2.0))

    options = {"epochs": 1, "weight_decay": 0.1, "optimizer": optimizer}
    plain, trainer = tiny_trainer(seeds, **options), own(seeds, lambda model, x: x * model.frozen, prepare, **options)
    finish(plain)
    finish(trainer)
    state = trainer.stack.state()
    assert (state["frozen"] == 1).all()
    assert (state["spare"] == 2).all()
    assert all(torch.equal(state[f"inner.{name}"], value) for name, value in plain.stack.state().items())


def test_what_an_own_model_raises_names_its_line(tmp_path: Path, blobs: Callable[[int, int], Dataset], own: Callable[..., Trainer]) -> None:
    """Not that of torch's function which raises it."""
    place = Path(pipeline.__file__).parent / "models" / "own.py"
    code: dict[str, Any] = {}
    exec(compile("\n\ndef forward(model, x):\n    return x @ x\n", str(place), "exec"), code)
    job = pool.Job(own([0], code["forward"]).settings, tmp_path, tmp_path, "cpu", {"code_hash": loaded_code()["classification"]})
    *_, last = pool.messages(pool.Assignment(job, pool.Task([0])), lambda job: blobs(96, 32))
    assert "pipeline/models/own.py, line 4, RuntimeError" in str(last.error)


class MixerSettings(NetworkSettings):
    architecture: Literal["mixer"]
    hidden: int
    depth: int = 1
    kernel: Annotated[tuple[int, ...], Field(strict=False)] = (3, 3)


def test_an_option_that_came_later_keeps_the_key(raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With options alone: docs/own_study.md's network of its own is built and trained in tests/commands/test_study.py."""
    module = types.ModuleType("pipeline.models.own_mixer")
    vars(module).update(MixerSettings=MixerSettings)
    monkeypatch.setitem(sys.modules, "pipeline.models.own_mixer", module)
    monkeypatch.setitem(ARCHITECTURES, "mixer", Architecture("Mixer", "", "", "pipeline.models.own_mixer:MixerSettings"))
    variants = {"base": {}, "mixer": {"architecture": "mixer", "hidden": 6}, "deep": {"from": "mixer", "depth": 3}}
    study = parse(raw_params | {"variants": variants, "experiments": {}})
    before, deep = study.resolve("mixer"), study.resolve("deep")
    assert before.model == MixerSettings(architecture="mixer", hidden=6)
    old = before.model_dump(mode="json")
    del old["model"]["depth"], old["model"]["kernel"]
    assert not before.trained_as(old)
    monkeypatch.setattr(MixerSettings, "frozen", {"depth": 1, "kernel": (3, 3)})
    assert before.trained_as(old)
    assert recorded(old, "here") == before
    assert before.training_hash != deep.training_hash
    assert recorded(deep.model_dump(mode="json"), "here") == VariantSettings.model_validate_json(deep.to_json()) == deep
