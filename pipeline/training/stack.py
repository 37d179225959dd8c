"""The models of a group of seeds as one: how each is initialised, and how all are called at once.

A group of one seed runs the plain module. A larger group runs `vmap` over weights with a leading seed dimension, so that a GPU
computes one large product where a loop over seeds would launch many small ones.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pipeline.models import build
from pipeline.params import AnyModelSettings


def derive_seed(seed: int, purpose: str) -> int:
    """An independent 63-bit seed, derived from a run's seed for one purpose ("init", "order/3")."""
    digest = hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def initial_model(settings: AnyModelSettings, seed: int) -> nn.Module:
    """The untrained model of a seed, on the CPU; leaves torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "init"))
        return build(settings)


class Stack:
    """The models of a group of seeds; every weight and buffer has a leading seed dimension.

    Args:
        settings: the architecture.
        seeds: one model each.
        device: where the weights live.
    """

    def __init__(self, settings: AnyModelSettings, seeds: Sequence[int], device: torch.device) -> None:
        models = [initial_model(settings, seed) for seed in seeds]
        self.module = models[0].to(device)
        self.single = len(seeds) == 1
        if self.single:
            self.parameters: list[Tensor] = list(self.module.parameters())
        else:
            parameters, self._buffers = torch.func.stack_module_state([model.to(device) for model in models])
            self._parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            self.parameters = list(self._parameters.values())
            self.module = copy.deepcopy(self.module).to("meta")

    def train(self, mode: bool) -> None:
        self.module.train(mode)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Maps the models' inputs, (seed, batch, ...) each, to logits (seed, batch, ...)."""
        if self.single:
            return self.module(*(one[0] for one in inputs))[None]
        return torch.func.vmap(self._call)(self._parameters, self._buffers, *inputs)

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
