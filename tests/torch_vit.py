"""The fused kernel's face, computed by torch: an independent source, and a stand-in where no GPU is."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.kernels.fused_vit import Layout
from pipeline.models import build
from pipeline.params import ModelSettings
from pipeline.training.classification import pixels


class TorchVit:
    """The face of `FusedVit`, computed seed by seed with the project's model and torch's autograd."""

    binary: Path | None = None

    def __init__(self, settings: ModelSettings, num_seeds: int, batch: int, device: torch.device) -> None:
        self._layout, self._model = Layout(settings), build(settings).to(device)
        self._table = dict(self._model.named_buffers()).get("position", torch.zeros(0))[None]
        self._names = [name for name, _ in self._model.named_parameters()]

    def gradient(self, images: Tensor, labels: Tensor, index: Tensor, weights: Tensor, gradient: Tensor, loss: Tensor) -> None:
        for place, chosen in enumerate(index):
            state = {name: value[0].clone() for name, value in self._layout.unpack(weights[place : place + 1]).items()}
            with torch.enable_grad():
                trained = [state[name].requires_grad_() for name in self._names]
                losses = F.cross_entropy(self._call(state, images[chosen]), labels[chosen], reduction="none")
                grads = dict(zip(self._names, torch.autograd.grad(losses.mean(), trained), strict=True))
            gradient[place] = self._layout.pack({name: value[None] for name, value in grads.items()}, self._table)[0] * self._layout.trained
            loss[place] = losses.detach()

    def norm(self, gradient: Tensor, out: Tensor) -> None:
        for place, one in enumerate(gradient):
            out[place] = one.double().norm()

    def test(self, images: Tensor, labels: Tensor, weights: Tensor, loss: Tensor, predicted: Tensor) -> None:
        for place, one in enumerate(weights):
            logits = self._call({name: value[0] for name, value in self._layout.unpack(one[None]).items()}, images)
            loss[place] = F.cross_entropy(logits, labels, reduction="none")
            predicted[place] = logits.argmax(1)

    def _call(self, state: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(self._model, state, (pixels(images, 1),))
        return logits
