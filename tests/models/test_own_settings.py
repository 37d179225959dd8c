"""A model of one's own with options that have names: its class lies in its own module, and an entry in the table leads to it."""

from __future__ import annotations

import sys
import types
from typing import Any, Literal

import pytest
from pydantic import model_validator
from torch import Tensor, nn

from pipeline.models import build, count_flops, count_parameters
from pipeline.params import ARCHITECTURES, NetworkSettings, VariantSettings, parse, recorded
from pipeline.params.architectures import Architecture


class MixerSettings(NetworkSettings):
    architecture: Literal["mixer"]
    hidden: int
    depth: int = 1

    @model_validator(mode="after")
    def _possible(self) -> MixerSettings:
        if self.hidden % 2:
            raise ValueError(f"hidden: {self.hidden} is odd")
        return self


class Mixer(nn.Sequential):
    def __init__(self, settings: MixerSettings) -> None:
        size, channels, classes = settings.shape[:3]
        layers = [nn.Linear(settings.hidden, settings.hidden) for _ in range(settings.depth - 1)]
        super().__init__(nn.Flatten(), nn.Linear(channels * size**2, settings.hidden), *layers, nn.Linear(settings.hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = super().forward(images)
        return logits


def multiply_adds(settings: MixerSettings) -> int:
    return settings.hidden * (784 + 10) + (settings.depth - 1) * settings.hidden**2


@pytest.fixture
def raw(raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = types.ModuleType("pipeline.models.own_mixer")
    vars(module).update(Mixer=Mixer, MixerSettings=MixerSettings, multiply_adds=multiply_adds)
    monkeypatch.setitem(sys.modules, "pipeline.models.own_mixer", module)
    own = "pipeline.models.own_mixer"
    entry = Architecture("Mixer", f"{own}:Mixer", f"{own}:multiply_adds", f"{own}:MixerSettings")
    monkeypatch.setitem(ARCHITECTURES, "mixer", entry)
    variants = {"base": {}, "mixer": {"architecture": "mixer", "hidden": 6}, "deep": {"from": "mixer", "depth": 3}}
    return raw_params | {"variants": variants, "experiments": {}}


def test_it_is_built_from_its_options_and_kept_by_them(raw: dict[str, Any]) -> None:
    settings = parse(raw).resolve("deep")
    assert settings.model == MixerSettings(architecture="mixer", hidden=6, depth=3)
    assert count_parameters(build(settings.model)) == 784 * 6 + 6 + 2 * (6 * 6 + 6) + 6 * 10 + 10
    assert count_flops(settings.model) == 2 * (784 * 6 + 2 * 36 + 60)
    again = VariantSettings.model_validate_json(settings.to_json())
    assert (again, again.training_hash) == (settings, settings.training_hash)
    assert recorded(settings.model_dump(mode="json"), "here") == settings
    assert settings.trained_as(settings.model_dump(mode="json"))


def test_an_option_that_came_later_keeps_the_key(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before = parse(raw).resolve("mixer")
    old = before.model_dump(mode="json")
    del old["model"]["depth"]
    assert not before.trained_as(old)
    monkeypatch.setattr(MixerSettings, "frozen", {"depth": 1})
    assert before.trained_as(old)
    assert recorded(old, "here") == before
    assert before.training_hash != parse(raw).resolve("deep").training_hash
