"""Classification: training a network to predict the class of an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.data.datasets import Dataset, pixel_statistics
from pipeline.models.pixels import fit
from pipeline.params import VariantSettings
from pipeline.training import augment
from pipeline.training.stack import Stack
from pipeline.training.step import Driver, batch_sizes

EVALUATION_BATCH = 500


class Classification:
    """See `pipeline.training.tasks.Learning`. A test measures the share of the test images that are classified correctly."""

    def __init__(
        self, settings: VariantSettings, dataset: Dataset, seeds: Sequence[int], stack: Stack, driver: Driver, device: torch.device
    ) -> None:
        self._stack, self._batch_size = stack, settings.train.batch_size
        self._images = torch.from_numpy(dataset.train_images).to(device)
        self._labels = torch.from_numpy(dataset.train_labels).long().to(device)
        self.num_examples, self.num_tests = len(dataset.train_labels) - settings.train.validation, len(dataset.test_labels)
        self._augmentation = augment.Augmentation(settings.train, seeds, device)
        if settings.model.normalize != "none":
            fit_pixels(settings, dataset, stack.state())
        self._test_images = torch.from_numpy(dataset.test_images).to(device)
        self._test_labels = torch.from_numpy(dataset.test_labels).long().to(device)
        self._evaluator = Evaluator(stack, self._test_images, self._test_labels, num_seeds=len(seeds), driver=driver)

    def begin(self, epoch: int) -> None:
        self._stack.train(True)

    def losses(self, index: Tensor, step: Tensor) -> Tensor:
        images = self._augmentation(pixels(self._images[index], 2), step)
        return _cross_entropy(self._stack(images), self._labels[index])

    def test(self) -> tuple[Tensor, Tensor]:
        losses, predictions = self._evaluator()
        return losses, (predictions == self._test_labels).double().mean(1)

    def draws(self, place: int, num_steps: int) -> Iterator[Tensor]:
        for step in range(num_steps):
            yield from self._augmentation.draws(place, torch.tensor(step), self._batch_size)


class EvaluationStep:
    """Computes loss and predictions of all seeds on one batch, and adds the losses to `total`.

    Args:
        images: uint8, as `Dataset` has them, with `labels` (image,).
        total: (seed,) float64.
        batch_size: images, the same for every seed.

    Attributes:
        predicted: classes (seed, batch) int64 of the last call.
    """

    def __init__(self, stack: Stack, images: Tensor, labels: Tensor, total: Tensor, batch_size: int) -> None:
        self._stack, self._images, self._labels, self._total = stack, images, labels, total
        self.index = torch.arange(batch_size, device=labels.device)
        self.predicted = torch.zeros((len(total), batch_size), dtype=torch.int64, device=labels.device)

    @torch.no_grad()
    def __call__(self) -> None:
        num_seeds = len(self._total)
        images, labels = self._images[self.index], self._labels[self.index]
        logits = self._stack(pixels(images.expand(num_seeds, *images.shape), 2))  # (seed, batch, class)
        self._total += _cross_entropy(logits, labels.expand(num_seeds, -1)).sum(1)
        self.predicted.copy_(logits.argmax(2))

    def changed(self) -> Iterator[Tensor]:
        yield self._total
        yield self.predicted

    def discard(self) -> None:
        pass


class Evaluator:
    """Tests a stack on images.

    Args:
        stack: the models.
        images: uint8, as `Dataset` has them, with `labels` (image,), both on the stack's device.
        num_seeds: models in the stack.
        driver: runs the steps.
    """

    def __init__(self, stack: Stack, images: Tensor, labels: Tensor, *, num_seeds: int, driver: Driver) -> None:
        self._stack = stack
        self._driver = driver
        self._total = torch.zeros(num_seeds, dtype=torch.float64, device=labels.device)
        self._places = torch.arange(len(labels), device=labels.device)
        sizes = batch_sizes(len(labels), EVALUATION_BATCH)
        self._steps = {size: EvaluationStep(stack, images, labels, self._total, size) for size in sizes}

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy (seed,) float64, predicted classes (seed, image) int64."""
        self._stack.train(False)
        for step in self._steps.values():
            self._driver.prepare(step)
        self._total.zero_()
        predictions = []
        for index in self._places.split(EVALUATION_BATCH):
            step = self._steps[len(index)]
            step.index.copy_(index)
            self._driver.run(step)
            predictions.append(step.predicted.clone())
        return self._total / len(self._places), torch.cat(predictions, dim=1)


def evaluate(stack: Stack, images: Tensor, labels: Tensor, *, num_seeds: int) -> tuple[Tensor, Tensor]:
    """Runs an `Evaluator` once and returns its result."""
    return Evaluator(stack, images, labels, num_seeds=num_seeds, driver=Driver())()


def fit_pixels(settings: VariantSettings, dataset: Dataset, state: Mapping[str, Tensor]) -> None:
    """Has models whose pixels are standardised do it by the training images; `state` is theirs, of one or of a stack."""
    if settings.model.normalize != "none":
        seen = dataset.train_images[: len(dataset.train_images) - settings.train.validation]
        mean, std = (torch.tensor(values, dtype=torch.float32) for values in pixel_statistics(seen))
        fit(state, mean, torch.where(std > 0, std, 1))


def pixels(images: Tensor, leading: int) -> Tensor:
    """Maps uint8 (..., height, width) or (..., channel, height, width) to floats in [0, 1] (..., channel, height, width).

    `leading` is the number of the dimensions `...`.
    """
    return (images.unsqueeze(leading) if images.dim() == leading + 2 else images).float() / 255


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (seed, batch, class) and labels (seed, batch) to the loss of each image (seed, batch)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
