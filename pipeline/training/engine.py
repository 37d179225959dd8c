"""The engine: all seeds of a group as one stack, from initial weights to the last epoch.

Whatever is random for seed s (initial weights, order of the images, dropout) is a function of s and of the epoch, never of a
generator's running state: a run does not depend on its neighbours, and a resume needs no generator.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.params import VariantSettings
from pipeline.training.optimizers import Optimizer, make_optimizer
from pipeline.training.records import EpochRow
from pipeline.training.stack import Stack, derive_seed
from pipeline.training.step import Trace, TrainingStep, batch_sizes, make_driver
from pipeline.training.tasks import learning

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def subset(seed: int, num_images: int, size: int) -> Tensor:
    """The places (size,) of a seed's random subset of the training images; a smaller one is part of a larger one."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "subset"))
    return torch.randperm(num_images, generator=generator)[:size]


def epoch_order(seed: int, epoch: int, num_images: int, *, train_images: int | None = None, epoch_images: int | None = None) -> Tensor:
    """The places of the training images that a seed sees in an epoch, in order; the same on every device.

    Args:
        num_images: of the training set.
        train_images: size of the seed's subset; None is all.
        epoch_images: length of the order; the images are gone through in new random orders until it is reached. None is `num_images`.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, f"order/{epoch}"))
    available, length = train_images or num_images, epoch_images or num_images
    rounds = [torch.randperm(available, generator=generator) for _ in range(math.ceil(length / available))]
    order = torch.cat(rounds)[:length]
    return order if train_images is None else subset(seed, num_images, train_images)[order]


def set_reproducible(device: torch.device) -> None:
    """Bitwise repeatable arithmetic from here on in this process.

    On CUDA: deterministic algorithms, no TF32. On the CPU: one thread, because sums are split by threads; the CPU's kernels are
    repeatable by themselves, and asking torch for it there would import its compiler, which takes seconds.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # all that is read here was written
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def keep_freed_memory() -> None:
    """Has this process keep memory that it frees; without effect where the C library has no `mallopt`.

    A training step on the CPU frees and takes the same few megabytes again and again. By default glibc gives them back to the
    kernel, which then clears every page anew.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 2**25)  # bytes; the largest that glibc takes


class Trainer:
    """Trains one group of seeds of one variant.

    Args:
        settings: the variant.
        data: what `pipeline.training.tasks.load` gives for it; it is copied to the device once.
        seeds: the group.
        device: "cpu" or "cuda".

    Attributes:
        epoch: epochs done.
        rows: in order of epochs, then seeds.
        failed: seed to the epoch in which its loss stopped being finite; such a seed gets no further rows. Stays empty where
            settings.train.divergence is `record`: such a loss is then a result like any other.
        driver: how the steps are run.
        learning: what the models learn.
        num_steps: of the whole training.
    """

    def __init__(self, settings: VariantSettings, data: Any, seeds: Sequence[int], device: torch.device) -> None:
        self.settings = settings
        self.seeds = list(seeds)
        self.device = device
        self.stack = Stack(settings.model, seeds, device)
        self.driver = make_driver(device)
        self.learning = learning(settings)(settings, data, seeds, self.stack, self.driver, device)
        train = settings.train
        self._epoch_examples = train.epoch_images or self.learning.num_examples
        self._steps_per_epoch = math.ceil(self._epoch_examples / train.batch_size)
        self.num_steps = train.epochs * self._steps_per_epoch
        self.optimizer = make_optimizer(
            train, self.stack.parameters, num_seeds=len(seeds), stacked=not self.stack.single, total_steps=self.num_steps
        )
        self.trace = Trace.empty(len(seeds), self.num_steps, device)
        self.epoch = 0
        self.rows: list[EpochRow] = []
        self.failed: dict[int, int] = {}
        self._total = torch.zeros(len(seeds), dtype=torch.float64, device=device)
        self._steps = {
            size: TrainingStep(self.stack, self.optimizer, self.learning.losses, self._total, self.trace, size, self.learning.num_examples)
            for size in batch_sizes(self._epoch_examples, train.batch_size)
        }

    @property
    def done(self) -> bool:
        return self.epoch >= self.settings.train.epochs or len(self.failed) == len(self.seeds)

    def run_epoch(self) -> list[EpochRow]:
        """Trains and tests one epoch. Returns the rows of the seeds that are still finite."""
        self.epoch += 1
        self._prepare(self.epoch)
        self._synchronize()
        start = time.perf_counter()
        train_loss = self._train_epoch().tolist()  # waits for the device: the seconds below are the epoch's
        seconds = time.perf_counter() - start
        test_loss, accuracy = self.test()
        done = self.epoch * self._steps_per_epoch
        norm = self.trace.gradient_norm[:, done - self._steps_per_epoch : done].double().mean(1)
        columns = (train_loss, test_loss, accuracy, norm.tolist())
        rows = []
        for seed, train, test, share, size in zip(self.seeds, *columns, strict=True):
            if seed in self.failed:
                continue
            if self.settings.train.divergence == "record" or (math.isfinite(train) and math.isfinite(test)):
                rows.append(EpochRow(seed, self.epoch, train, test, share, size, seconds))
            else:
                self.failed[seed] = self.epoch
        self.rows += rows
        return rows

    def run_steps(self, count: int, after: Callable[[], object] = lambda: None) -> None:
        """Only the first steps of a training, for their `trace`; the trainer has to be new. `after` is called after each."""
        self._prepare(1)
        epochs = (self._batches(epoch) for epoch in range(1, self.settings.train.epochs + 1))
        for index in itertools.islice(itertools.chain.from_iterable(epochs), count):
            self._run_step(index)
            after()

    def test(self) -> tuple[list[float], list[float]]:
        """Mean cross-entropy in a test and share of it that is right, of each seed, now."""
        losses, shares = self.learning.test()
        return losses.tolist(), shares.tolist()

    def orders(self, seed: int) -> Iterator[Tensor]:
        """The places of the examples that a seed sees, epoch by epoch."""
        train, available = self.settings.train, self.learning.num_examples
        for epoch in range(1, train.epochs + 1):
            yield epoch_order(seed, epoch, available, train_images=train.train_images, epoch_images=train.epoch_images)

    def _prepare(self, epoch: int) -> None:
        self.learning.begin(epoch)
        for step in self._steps.values():
            self.driver.prepare(step)

    def _train_epoch(self) -> Tensor:
        """One epoch; the mean loss of each seed (seed,), float64."""
        self._total.zero_()
        for index in self._batches(self.epoch):
            self._run_step(index)
        return self._total / self._epoch_examples

    def _batches(self, epoch: int) -> Iterator[Tensor]:
        """The places of the examples of each step of an epoch, (seed, batch)."""
        train, available = self.settings.train, self.learning.num_examples
        orders = [
            epoch_order(seed, epoch, available, train_images=train.train_images, epoch_images=train.epoch_images) for seed in self.seeds
        ]
        yield from torch.stack(orders).to(self.device).split(train.batch_size, dim=1)

    def _run_step(self, index: Tensor) -> None:
        step = self._steps[index.shape[1]]
        step.index.copy_(index)
        self.driver.run(step)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state(self) -> dict[str, Tensor]:
        """All tensors that the rest of the training depends on, on the CPU."""
        tensors = {f"{prefix}.{name}": value for prefix, part in self._parts().items() for name, value in part.state().items()}
        return {name: value.to("cpu", copy=True).contiguous() for name, value in tensors.items()}

    def load(self, tensors: Mapping[str, Tensor], *, epoch: int, rows: Sequence[EpochRow], failed: Mapping[int, int]) -> None:
        """Goes back to where `state`, `epoch`, `rows` and `failed` were taken; continuing from there is bitwise the same."""
        for prefix, part in self._parts().items():
            part.load({name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")})
        self.epoch, self.rows, self.failed = epoch, list(rows), dict(failed)

    def _parts(self) -> dict[str, Stack | Optimizer | Trace]:
        return {"model": self.stack, "optimizer": self.optimizer, "trace": self.trace}
