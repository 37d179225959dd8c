"""Training loops as the peers' users write them, and the timing of their steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset
from torchvision.transforms import ToTensor

from pipeline.data.datasets import Dataset
from pipeline.models import count_parameters
from pipeline.timing.load import LoadMeter

BATCH_SIZE = 128
EPOCH_STEPS = 469  # ceil(60,000 / 128)
LEARNING_RATE = 0.005
LOADER_PROCESSES = 2
WARMUP = 5  # steps before the clock starts

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Timing:
    """One timing of one implementation.

    Attributes:
        epoch_seconds: an epoch of one seed, scaled from `steps` to EPOCH_STEPS; of several seeds the time of all by their number.
        foreign: share of the machine that other processes used meanwhile, in [0, 1].
        checkpoint_seconds: mean time of writing one seed's checkpoint, or 0 where none is written.
    """

    parameters: int
    seeds: int
    steps: int
    epoch_seconds: float
    foreign: float
    checkpoint_seconds: float = 0.0


class _Pictures(MapDataset[tuple[Tensor, int]]):
    """Images one by one, by way of PIL and ToTensor, as torchvision's MNIST gives them."""

    def __init__(self, dataset: Dataset) -> None:
        self.images = torch.from_numpy(dataset.train_images)
        self.labels = torch.from_numpy(dataset.train_labels)
        self.transform = ToTensor()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index].numpy())), int(self.labels[index])


def loader_epochs(dataset: Dataset) -> Callable[[], Batches]:
    """A DataLoader with two processes; each call starts an epoch."""
    loader = DataLoader(_Pictures(dataset), batch_size=BATCH_SIZE, shuffle=True, num_workers=LOADER_PROCESSES)
    return lambda: iter(loader)


def preloaded_epochs(dataset: Dataset, device: torch.device) -> Callable[[], Batches]:
    """All images as floats on the device; each call shuffles and starts an epoch."""
    images = torch.from_numpy(dataset.train_images)[:, None].float().div(255).to(device)
    labels = torch.from_numpy(dataset.train_labels).long().to(device)

    def epoch() -> Batches:
        for index in torch.randperm(len(labels), device=device).split(BATCH_SIZE):
            yield images[index], labels[index]

    return epoch


def time_training(
    build: Callable[[], nn.Module], epochs: Callable[[], Batches], *, device: torch.device, steps: int, published: bool
) -> Timing:
    """Times training steps of one model, after `WARMUP` of them.

    Args:
        epochs: each call starts an epoch of batches.
        published: whether the loop reads every step's loss and has torch's default Adam, as the thesis's code; else no loss is read,
            and Adam updates all weights in one call.
    """
    torch.use_deterministic_algorithms(False)  # both as users have it, and not as our engine sets it
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.manual_seed(0)
    model = build().to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=not published)
    total: Tensor | float = 0.0

    def train(batches: Batches) -> int:
        nonlocal total
        count = 0
        for images, labels in batches:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() if published else loss.detach()
            count += 1
        float(total)  # waits for the device
        return count

    batches = epochs()
    train(itertools.islice(batches, WARMUP))
    with LoadMeter() as meter:
        begin = time.perf_counter()
        count = train(itertools.islice(batches, steps))
        seconds = time.perf_counter() - begin
    return Timing(count_parameters(model), 1, count, seconds / count * EPOCH_STEPS, meter.foreign)
