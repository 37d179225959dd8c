"""Trainings that start from stored weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import params
from pipeline.commands import pretrained as command
from pipeline.data.datasets import Dataset
from pipeline.params import Params, VariantSettings
from pipeline.runner import seeds
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED, TRAININGS
from pipeline.training import pretrained
from pipeline.training.engine import Trainer
from pipeline.training.fused import FusedTrainer
from pipeline.training.stack import initial_model
from tests import helpers
from tests.conftest import Repository
from tests.helpers import finish
from tests.torch_vit import TorchVit

CPU = torch.device("cpu")
VIT = {"patch": 14, "blocks": 1, "dim": 16, "heads": 4, "mlp_dim": 16}


def settings(study: Params, model: dict[str, Any] | None, **train: Any) -> VariantSettings:
    made = helpers.variant(study, model or {}, **{"seeds": (0, 1, 2), "epochs": 1, "batch_size": 32, "learning_rate": 0.005} | train)
    return made if model else made.model_copy(update={"model": study.resolve("cnn").model})  # whose batch norms have buffers


@pytest.mark.parametrize(("model", "head", "fused"), [(VIT, "head", False), (VIT, "head", True), (None, "6", False)])
def test_all_but_the_head_starts_where_the_other_training_ended(
    study: Params, blobs: Callable[[int, int], Dataset], tmp_path: Path, monkeypatch: Any, model: Any, head: str, fused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    data, other, plain = blobs(150, 40), blobs(90, 40), settings(study, model)
    before = Trainer(plain, other, [0, 1], CPU)
    finish(before)
    ended = [{name: value[i] for name, value in before.stack.state().items()} for i in range(2)]
    name = pretrained.write("digits-other", initial_model(plain.model, 0), ended, tmp_path)
    chosen = settings(study, model, pretrained=name)
    trainer = FusedTrainer(chosen, data, [0, 1, 2], CPU, TorchVit) if fused else Trainer(chosen, data, [0, 1, 2], CPU)
    state = {key: value.clone() for key, value in trainer.stack.state().items()}
    for i, seed in enumerate((0, 1, 2)):  # there are two networks, so the third seed starts from the first one again
        new = initial_model(plain.model, seed).state_dict()
        for key, value in state.items():
            assert torch.equal(value[i], new[key] if key.startswith(f"{head}.") else ended[seed % 2][key]), key
    finish(trainer)
    alone = Trainer(chosen, data, [2], CPU)  # a seed does not depend on its neighbours, here either
    finish(alone)
    assert alone.rows[0].train_loss == pytest.approx(trainer.rows[2].train_loss, rel=1e-4)
    assert chosen.training_hash != plain.training_hash


def test_a_wrong_file_starts_nothing(study: Params, blobs: Callable[[int, int], Dataset], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    model = initial_model(settings(study, VIT).model, 0)
    name = pretrained.write("other", model, [model.state_dict()], tmp_path)
    path = tmp_path / "store" / "pretrained" / f"{name}.safetensors"

    def refused(pretrained: str, model: Any = VIT) -> str:
        with pytest.raises(UserError) as caught:
            Trainer(settings(study, model, pretrained=pretrained), blobs(90, 40), [0], CPU)
        return str(caught.value)

    assert "another network" in refused(name, VIT | {"dim": 32})
    assert "there is no" in refused("nothing-01234567")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert "not what its name says" in refused(name)


def test_the_command_keeps_the_seeds_that_are_here(
    trained: Repository, study: Params, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained.path)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    command.main([])
    (path,) = (tmp_path / "store" / "pretrained").iterdir()
    assert f"`pretrained: {path.stem}`" in capsys.readouterr().out
    settings = params.load().resolve("base")
    for place, part in enumerate(seeds.load(TRAININGS / "base.safetensors", FINISHED)):
        monkeypatch.chdir(tmp_path)
        new = {name: torch.tensor(value)[None] for name, value in part.weights.items()}
        begun = pretrained.start(path.stem, [place], {name: torch.zeros_like(value) for name, value in new.items()})
        assert {name for name in new if not torch.equal(begun[name], new[name])} == {"head.weight", "head.bias"}
    assert place + 1 == len(settings.train.seeds)
    monkeypatch.chdir(trained.path)
    monkeypatch.setattr(command, "load", lambda: study)
    with pytest.raises(UserError, match="was trained with other settings"):
        command.main([])
