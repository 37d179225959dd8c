"""What a network reads: pixels in [0, 1], or each channel less its mean over its standard deviation, which lie among its buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MEAN, STD = "pixel_mean", "pixel_std"


def standardize(module: nn.Module, channels: int) -> None:
    """Has a model standardise what it is called with. Its mean is 0 and its deviation 1 until `fit` or stored weights say otherwise."""
    module.register_buffer(MEAN, torch.zeros(channels, 1, 1))
    module.register_buffer(STD, torch.ones(channels, 1, 1))
    module.register_forward_pre_hook(_first_scaled)


def scaled(module: nn.Module, images: Tensor) -> Tensor:
    """Images (..., channel, height, width) in [0, 1] as a model's first layer reads them."""
    named: dict[str, Any] = module._buffers
    return (images - named[MEAN]) / named[STD] if MEAN in named else images


@torch.no_grad()
def fit(state: Mapping[str, Tensor], mean: Tensor, std: Tensor) -> None:
    """Sets what `standardize` has added to models, if it has: (channel,) each, in a state with or without a leading dimension of seeds."""
    for name, values in ((MEAN, mean), (STD, std)):
        if name in state:
            state[name].copy_(values[:, None, None])


def _first_scaled(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return scaled(module, inputs[0]), *inputs[1:]
