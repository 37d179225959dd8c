"""Weights of another training to start from: a file of the store whose name holds a digest of its content, so that settings name bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from pipeline.models.pixels import MEAN, STD
from pipeline.system.errors import UserError
from pipeline.system.files import replacing
from pipeline.system.paths import PRETRAINED

_DIGITS = 8  # of the sha256, at the end of a name


def write(name: str, network: nn.Module, weights: Sequence[Mapping[str, Tensor]], root: Path) -> str:
    """Writes a file under `root`, and returns what `train.pretrained` has to say to start from it.

    Args:
        name: without the digest.
        network: of the weights' architecture. Its last layer with weights, the head, is left out, as it is of other classes, and so are
            the pixels' mean and deviation, as they are of other images.
        weights: weights and buffers by name, of each seed.
    """
    head = [*dict(network.named_parameters())][-1].rpartition(".")[0]
    kept = [name for name in sorted(weights[0]) if name not in (MEAN, STD) and name.rpartition(".")[0] != head]
    content = save({name: torch.stack([one[name] for one in weights]) for name in kept})
    name = f"{name}-{_digest(content)}"
    with replacing(root / _path(name)) as temporary:
        temporary.write_bytes(content)
    return name


def start(name: str, seeds: Sequence[int], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of new networks with the stored weights in place of their own; what the file has not, as the head, stays new.

    Args:
        seeds: seed s takes the stored network number s, modulo their number.
        state: (seed, ...) by name.

    Raises:
        UserError: the file is not here, is not what its name says, or is of another network.
    """
    path = _path(name)
    try:
        content = path.read_bytes()
    except OSError:
        raise UserError(f"train.pretrained: there is no {path}; `make pretrained VARIANT=name` writes such a file.") from None
    if _digest(content) != name[-_DIGITS:]:
        raise UserError(f"{path} is not what its name says: take it from git again.")
    found = load(content)
    for key, value in found.items():
        if key not in state or state[key].shape[1:] != value.shape[1:]:
            raise UserError(f"train.pretrained: {path} is of another network, which has {key} of the shape {tuple(value.shape[1:])}.")
    return {**state, **{key: value[[seed % len(value) for seed in seeds]].to(state[key]) for key, value in found.items()}}


def _path(name: str) -> Path:
    return PRETRAINED / f"{name}.safetensors"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
