"""Captioning: training a network to say which image is where in a scene."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.captioning import decoding
from pipeline.captioning.data import SceneData
from pipeline.captioning.grammar import BOS, PAD, PHRASINGS, Grammar, grammar_of
from pipeline.captioning.metrics import CiderD
from pipeline.captioning.model import CaptionModel, evaluating
from pipeline.captioning.scenes import Split, compose, scene_of
from pipeline.captioning.self_critical import advantages, self_critical_losses
from pipeline.models.dropout import mix
from pipeline.params import VariantSettings
from pipeline.training.classification import pixels
from pipeline.training.stack import Stack, derive_seed
from pipeline.training.step import Driver

EVALUATION_BATCH = 500  # scenes
SAMPLES = 5  # captions per scene in self-critical training, equal to the beam size of Cornia et al. 2020


class Captioning:
    """See `pipeline.training.tasks.Learning`. A training step uses one random reference of each of its scenes.

    A test uses the validation scenes. The cross-entropy is that of one reference of each scene, all phrasings in turn. A scene counts
    as correct if its greedy caption is true and complete.
    """

    def __init__(
        self, settings: VariantSettings, data: SceneData, seeds: Sequence[int], stack: Stack, driver: Driver, device: torch.device
    ) -> None:
        assert stack.single  # batch norm's running statistics cannot be stacked
        self._stack, self._train, self._driver, self._device = stack, settings.train, driver, device
        self._images = torch.from_numpy(data.dataset.train_images).to(device)
        self._cells, self._captions = _to_device(data.scenes.train, device)
        self._validation, self._grammar = data.scenes.validation, grammar_of(data.scenes.dataset)
        self.num_examples, self.num_tests = len(data.scenes.train), len(self._validation)
        self._keys = {
            purpose: torch.tensor([derive_seed(seed, purpose) for seed in seeds], device=device) for purpose in ("reference", "sample")
        }
        self._references = data.scenes.train.captions
        self._reward: CiderD | None = None
        self._self_critical = False

    @property
    def _model(self) -> CaptionModel:
        assert isinstance(self._stack.module, CaptionModel)
        return self._stack.module

    def begin(self, epoch: int) -> None:
        self._self_critical = epoch > self._train.epochs - self._train.self_critical_epochs
        if self._self_critical:  # the CPU scores the samples, which no graph can do; a captured graph would repeat the earlier steps
            self._driver.stop_graphs()
        # Samples and their gradient have to come from the same network, so batch norm uses its running statistics.
        self._stack.train(not self._self_critical)

    def losses(self, index: Tensor, step: Tensor) -> Tensor:
        images = pixels(compose(self._images, self._cells[index]), 2)
        if self._self_critical:
            return self._critical_losses(images, index, step)
        captions = self._captions[index, choose(self._keys["reference"], step, index.shape[1])].long()
        loss = word_losses(self._stack(images, shifted(captions)), captions)
        # Scaled so that the mean over the examples is the mean over the batch's words, each word counting the same.
        return loss.sum(2) * (index.shape[1] / (captions != PAD).sum((1, 2)))[:, None]

    def _critical_losses(self, images: Tensor, index: Tensor, step: Tensor) -> Tensor:
        if self._reward is None:
            self._reward = CiderD(self._references)
        captions = decoding.sample(self._model, images[0], SAMPLES, self._keys["sample"], step)  # (row, place)
        scenes = index[0].cpu().numpy().repeat(SAMPLES)
        rewards = self._reward.score(captions.to(torch.uint8).cpu().numpy(), scenes).reshape(-1, SAMPLES)
        log_p = -word_losses(self._model(images[0], shifted(captions)), captions).unflatten(0, rewards.shape)
        own = torch.from_numpy(advantages(rewards)).to(self._device, torch.float32)
        return self_critical_losses(log_p, (captions != PAD).unflatten(0, rewards.shape), own)[None]

    def test(self) -> tuple[Tensor, Tensor]:
        losses, greedy = evaluate(self._model, self._images, self._validation)
        right = scenes_right(greedy.cpu().numpy(), self._validation, self._grammar)
        return losses[None], torch.tensor([right.mean()], dtype=torch.float64)

    def draws(self, place: int, num_steps: int) -> Iterator[Tensor]:
        key = self._keys["reference"][[place]]
        for step in range(num_steps):
            yield choose(key, torch.tensor(step), self._train.batch_size).cpu()


def _to_device(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cells (scene, 4) int64 and captions (scene, phrasing, place) uint8."""
    return torch.from_numpy(split.cells).long().to(device), torch.from_numpy(split.captions).to(device)


def choose(key: Tensor, step: Tensor, batch_size: int) -> Tensor:
    """Chooses the reference of each of a step's examples, (seed, batch) int64, by a hash of key (seed,), step () and position."""
    index = torch.arange(batch_size, device=key.device)
    return (mix(mix(index + key[:, None]) + step) * len(PHRASINGS)) >> 32


def shifted(captions: Tensor) -> Tensor:
    """A model's input for captions (..., place): BOS first, and each word one place later."""
    return F.pad(captions[..., :-1], (1, 0), value=BOS)


def word_losses(logits: Tensor, captions: Tensor) -> Tensor:
    """Cross-entropy in nats of each word, 0 after the end: logits (..., place, word), captions (..., place) to (..., place)."""
    loss = F.cross_entropy(logits.flatten(0, -2), captions.flatten(), ignore_index=PAD, reduction="none")
    return loss.view(captions.shape)


@torch.no_grad()
def evaluate(model: CaptionModel, images: Tensor, split: Split) -> tuple[Tensor, Tensor]:
    """Evaluates a model on the scenes of a split.

    Args:
        images: the split's images, on the model's device.

    Returns:
        Mean cross-entropy per word, () float64, of one reference of each scene, all phrasings in turn; and the greedy captions
        (scene, place) int64.
    """
    cells, references = _to_device(split, images.device)
    places = torch.arange(len(split), device=images.device)
    references = references[places, places % len(PHRASINGS)].long()
    total, words = torch.zeros((), dtype=torch.float64, device=images.device), 0
    captions = []
    with evaluating(model):
        for part in places.split(EVALUATION_BATCH):
            scenes, caption = pixels(compose(images, cells[part]), 1), references[part]
            total += word_losses(model(scenes, shifted(caption)), caption).double().sum()
            words += int((caption != PAD).sum())
            captions.append(decoding.greedy(model, scenes))
    return total / words, torch.cat(captions)


def scenes_right(captions: np.ndarray, split: Split, grammar: Grammar) -> np.ndarray:
    """Whether each caption (scene, place) is true and complete, (scene,) bool."""
    meant = [grammar.parse(grammar.decode(caption)) for caption in captions.tolist()]
    return np.array([found == scene_of(labels) for found, labels in zip(meant, split.labels, strict=True)])
