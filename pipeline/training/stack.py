"""The models of a group of seeds as one: how each is initialised, and how all are called at once.

A group of one seed runs the plain module. A larger group runs `vmap` over weights with a leading seed dimension, so that a GPU
computes one large product where a loop over seeds would launch many small ones.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.models import build
from pipeline.params import AnyModelSettings
from pipeline.system.errors import UserError


def derive_seed(seed: int, purpose: str) -> int:
    """An independent 63-bit seed, derived from a run's seed for one purpose ("init", "order/3")."""
    digest = hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _global_generators() -> list[object]:
    """The states of the generators that a process has one of: torch's, numpy's and Python's."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 (this one is meant)
    return [*(state.numpy().tobytes() for state in states), numpy["state"]["key"].tobytes(), numpy["state"]["pos"], random.getstate()]


@contextlib.contextmanager
def no_global_randomness() -> Iterator[None]:
    """Raises UserError where the block moves a global generator: its numbers would depend on what else the process has computed."""
    before = _global_generators()
    yield
    if _global_generators() != before:
        raise UserError(
            "The network takes random numbers from a global generator (of torch, numpy or Python), so a training would not repeat itself:"
            " take `pipeline.models.dropout.Dropout`, or random bits of a key as it does, and initial weights from torch."
        )


def initial_model(settings: AnyModelSettings, seed: int) -> nn.Module:
    """The untrained model of a seed, on the CPU; leaves torch's global generator as it was."""
    with no_global_randomness(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "init"))  # torch.manual_seed would move a GPU's, too
        return build(settings)


class Stack:
    """The models of a group of seeds; every weight and buffer has a leading seed dimension. `parameters` are those that are trained.

    Args:
        settings: the architecture.
        seeds: one model each.
        device: where the weights live.
    """

    def __init__(self, settings: AnyModelSettings, seeds: Sequence[int], device: torch.device) -> None:
        models = [initial_model(settings, seed) for seed in seeds]
        self.module = models[0].to(device)
        self.single = len(seeds) == 1
        trained = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        if self.single:
            self.parameters: list[Tensor] = list(trained.values())
        else:
            parameters, self._buffers = torch.func.stack_module_state([model.to(device) for model in models])
            self._parameters = {name: value.detach().requires_grad_(name in trained) for name, value in parameters.items()}
            self.parameters = [self._parameters[name] for name in trained]
            self.module = copy.deepcopy(self.module).to("meta")

    def train(self, mode: bool) -> None:
        self.module.train(mode)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Maps the models' inputs, (seed, batch, ...) each, to logits (seed, batch, ...)."""
        if self.single:
            return self.module(*(one[0] for one in inputs))[None]
        # "different" lets a random operation through to `no_global_randomness`, which says what is wrong with it.
        return torch.func.vmap(self._call, randomness="different")(self._parameters, self._buffers, *inputs)

    def _call(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return torch.func.functional_call(self.module, (dict(parameters), dict(buffers)), inputs)

    def state(self) -> dict[str, Tensor]:
        """Every parameter and persistent buffer, (seed, ...), as in `model.safetensors`."""
        if self.single:
            return {name: value.detach()[None] for name, value in self.module.state_dict().items()}
        tensors = {**self._parameters, **self._buffers}
        return {name: tensors[name].detach() for name in self.module.state_dict()}

    def position(self) -> Tensor | None:
        """The position vectors (seed, token, dim), or None if there are none."""
        if self.single:
            named = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
            return named["position"].detach()[None] if "position" in named else None
        position = {**self._parameters, **self._buffers}.get("position")
        return None if position is None else position.detach()

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores weights and buffers that `state` returned."""
        for name, value in self.state().items():
            value.copy_(state[name])
