"""The vision transformer's whole gradient in one CUDA kernel: what it covers, the order of the weights, compiling and launching."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pipeline.params import ModelSettings


class FusedVitError(Exception):
    """The kernel cannot be used on this machine; the message is one sentence that says why."""


def why_not(settings: ModelSettings) -> str | None:
    """What of a model the kernel does not cover, as a clause; None where it covers all."""
    raise NotImplementedError


class Layout:
    """The order of one seed's weights in the kernel, and back.

    Attributes:
        size: floats of one seed; a multiple of four. Some are padding: zeros whose gradient is zero.
        trained: (size,) bool, which of them a training may change.
    """

    size: int
    trained: Tensor

    def __init__(self, settings: ModelSettings) -> None:
        raise NotImplementedError

    def pack(self, state: Mapping[str, Tensor]) -> Tensor:
        """The tensors of `Stack.state()`, (seed, ...) each, to (seed, size) float32."""
        raise NotImplementedError

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """(seed, size) to the tensors of `Stack.state()`, with the same bits."""
        raise NotImplementedError


class FusedVit:
    """One compiled shape on one device. All calls launch on torch's current stream and allocate nothing, so a graph can capture them.

    Args:
        settings: a model that `why_not` covers.
        num_seeds: models in the stack.
        batch: examples of one `gradient`.
        device: a CUDA device.

    Raises:
        FusedVitError: there is no driver, compiler or `cuda-core`, or the gradient is wrong.
    """

    def __init__(self, settings: ModelSettings, num_seeds: int, batch: int, device: torch.device) -> None:
        raise NotImplementedError

    def gradient(self, images: Tensor, labels: Tensor, index: Tensor, weights: Tensor, gradient: Tensor, loss: Tensor) -> None:
        """The gradient of each seed's mean loss over its batch.

        Args:
            images: (image, height, width) uint8.
            labels: (image,) int64.
            index: (seed, batch) int64, the images of each seed's batch.
            weights: (seed, size) float32.
            gradient: (seed, size) float32, is written; zero where not trained.
            loss: (seed, batch) float32, is written: cross-entropy of each example.
        """
        raise NotImplementedError

    def test(self, images: Tensor, labels: Tensor, weights: Tensor, loss: Tensor, predicted: Tensor) -> None:
        """Tests all images with each seed's weights: writes `loss` (seed, image) float32 and `predicted` (seed, image) int64."""
        raise NotImplementedError
