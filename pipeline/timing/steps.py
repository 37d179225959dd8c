"""Timed training steps, each network computed in two ways.

As published: `pipeline.timing.published`, torch's Adam with its defaults, and the loss read after every step. On the fast path: this
project's `pipeline.training.engine`. Both train one seed. The images are in memory, so no time of a data loader is included.

On the CPU a step as published has the threads that torch takes by itself, as its author's had. All else has one: a worker of the engine
has one, and growth with the tokens is growth of arithmetic only where no second thread takes a part of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.captioning.grammar import BOS
from pipeline.captioning.model import CaptionModel, State
from pipeline.data.datasets import Dataset
from pipeline.kernels import attention
from pipeline.models import VisionTransformer
from pipeline.params import ModelSettings, Params, TrainSettings, VariantSettings
from pipeline.timing import published
from pipeline.timing.subjects import Entry
from pipeline.training.classification import pixels
from pipeline.training.engine import Trainer
from pipeline.training.stack import initial_model

MAX_EPOCHS = 10_000  # more than the rounds that params allow, including repeated ones
LEARNING_RATE = 0.005  # the thesis's, whatever a study trains with: no step takes another time for it


Work = Callable[[], float]  # each call runs the steps and returns their seconds


@contextlib.contextmanager
def own_threads(entry: Entry, threads: int) -> Iterator[None]:
    """Gives a step as published `threads` threads while the block runs, and all else one."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads if (entry.kind, entry.way) == ("step", "published") else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class PublishedSteps:
    """Training steps of one model in a plain loop, as published. `threads`: see `own_threads`."""

    def __init__(self, entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int, threads: int) -> None:
        self.entry, self.device, self.threads = entry, device, threads
        self.model = build(entry).to(device).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.batches = batches(dataset, entry.batch, steps, device)

    def __call__(self) -> float:
        synchronize(self.device)
        with own_threads(self.entry, self.threads):
            start = time.perf_counter()
            for images, labels in self.batches:
                loss = F.cross_entropy(self.model(images), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                loss.item()
            return time.perf_counter() - start


class FastSteps:
    """Training steps of this project's engine, timed by the engine, as in epochs.csv."""

    def __init__(self, entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int) -> None:
        settings = VariantSettings(data=params.data, train=train_settings(params, entry), model=entry.model)
        few = replace(part(dataset, steps * entry.batch), test_images=dataset.test_images[:1], test_labels=dataset.test_labels[:1])
        self.trainer = Trainer(settings, few, [0], device)

    def __call__(self) -> float:
        rows = self.trainer.run_epoch()
        if not rows:
            raise FloatingPointError("the loss is not finite")
        return rows[0].seconds


def train_settings(params: Params, entry: Entry) -> TrainSettings:
    """The study's training settings for one seed, with epochs of the whole data and more of them than will be timed."""
    whole = {"seeds": (0,), "batch_size": entry.batch, "epochs": MAX_EPOCHS, "train_images": None, "epoch_images": None, "validation": 0}
    return TrainSettings.model_validate(params.train.model_dump() | whole)


class AttentionSteps:
    """Forward and backward passes of only the attention of one block, without the linear layers around it."""

    def __init__(self, entry: Entry, device: torch.device, steps: int) -> None:
        model = entry.model
        assert isinstance(model, ModelSettings)
        shape = (entry.batch, model.num_tokens, model.heads, model.dim // model.heads)
        generator = torch.Generator().manual_seed(0)
        *inputs, self.grad = (torch.randn(shape, generator=generator).to(device) for _ in range(4))
        self.published = entry.way == "published"
        self.inputs = [tensor.requires_grad_() for tensor in (inputs if self.published else [torch.stack(inputs, dim=2)])]
        self.device, self.steps = device, steps

    def __call__(self) -> float:
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.steps):
            torch.autograd.grad(self.forward(), self.inputs, self.grad)
        synchronize(self.device)
        return time.perf_counter() - start

    def forward(self) -> Tensor:
        """(batch, token, head, head_dim)."""
        return (published.looped_weigh if self.published else attention)(*self.inputs, scale=self.inputs[0].shape[-1] ** -0.5)


class DecodingSteps:
    """Captions written word by word, greedily, as the evaluation does; each step writes the first words of a batch's captions."""

    def __init__(self, entry: Entry, device: torch.device, steps: int) -> None:
        model = initial_model(entry.model, 0)
        assert isinstance(model, CaptionModel)
        self.model, self.device, self.words, self.steps = model.to(device).eval(), device, entry.words, steps
        shape, generator = entry.model.shape, torch.Generator().manual_seed(0)
        self.images = torch.rand(entry.batch, shape.channels, 2 * shape.size, 2 * shape.size, generator=generator).to(device)

    @torch.no_grad()
    def __call__(self) -> float:
        state = self.model.start(self.images)
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(self.steps):
            self.write(state)
        synchronize(self.device)
        return time.perf_counter() - start

    def write(self, state: State) -> Tensor:
        """(image, word), without an eye to where a caption ends."""
        written = [torch.full((len(self.images),), BOS, device=self.device)]
        for _ in range(self.words):
            logits, state = self.model.step(written[-1], state)
            written.append(logits.argmax(1))
        return torch.stack(written[1:], dim=1)


def make(entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int, threads: int) -> Work:
    """Work of `steps` steps, not warm: its first call also compiles and allocates. `threads`: see `own_threads`."""
    if entry.kind == "attention":
        return AttentionSteps(entry, device, steps)
    if entry.kind == "decoding":
        return DecodingSteps(entry, device, steps)
    if entry.way == "fast":
        return FastSteps(entry, params, dataset, device, steps)
    return PublishedSteps(entry, params, dataset, device, steps, threads)


def build(entry: Entry) -> nn.Module:
    """The entry's untrained model of seed 0, computed in the entry's way. Networks that are no transformers have one way."""
    model = initial_model(entry.model, 0)
    if entry.way == "fast" or not isinstance(model, VisionTransformer):
        return model
    return published.as_reference(model) if entry.nested else published.as_published(model)


def part(dataset: Dataset, count: int) -> Dataset:
    """The data set with its first `count` training images, repeated if it has fewer."""
    index = np.arange(count) % len(dataset.train_labels)
    return replace(dataset, train_images=dataset.train_images[index], train_labels=dataset.train_labels[index])


def batches(dataset: Dataset, batch: int, steps: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """`steps` batches of images (batch, channel, height, width) in [0, 1] with labels (batch,)."""
    few = part(dataset, steps * batch)
    images = pixels(torch.from_numpy(few.train_images), 1).to(device)
    labels = torch.from_numpy(few.train_labels).long().to(device)
    return list(zip(images.split(batch), labels.split(batch), strict=True))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
