"""The engine: all seeds of a group as one stack, from initial weights to the last epoch.

Everything random for seed s (initial weights, order of the images, dropout) is a function of s and the epoch, never of a
generator's running state. So a run does not depend on its neighbours, and a resumed one needs no generator state.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.params import VariantSettings
from pipeline.system.errors import UserError
from pipeline.training.optimizers import Optimizer, make_optimizer
from pipeline.training.pretrained import start
from pipeline.training.records import EpochRow
from pipeline.training.stack import Stack, derive_seed
from pipeline.training.step import Trace, TrainingStep, batch_sizes, make_driver
from pipeline.training.tasks import learning

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def subset(seed: int, num_images: int, size: int) -> Tensor:
    """The indices (size,) of a seed's random subset of the training images. A smaller subset is part of a larger one."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "subset"))
    return torch.randperm(num_images, generator=generator)[:size]


def epoch_order(seed: int, epoch: int, num_images: int, *, train_images: int | None = None, epoch_images: int | None = None) -> Tensor:
    """The indices of the training images that a seed sees in an epoch, in order; the same on every device.

    Args:
        num_images: size of the training set.
        train_images: size of the seed's subset; None means all images.
        epoch_images: length of the order; the images repeat in new random orders until it is reached. None means `num_images`.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, f"order/{epoch}"))
    available, length = train_images or num_images, epoch_images or num_images
    rounds = [torch.randperm(available, generator=generator) for _ in range(math.ceil(length / available))]
    order = torch.cat(rounds)[:length]
    return order if train_images is None else subset(seed, num_images, train_images)[order]


def set_reproducible(device: torch.device) -> None:
    """Makes arithmetic bitwise repeatable from now on in this process.

    On CUDA it sets deterministic algorithms and no TF32. On the CPU it sets one thread, because threads split sums. The CPU's kernels
    are deterministic anyway; setting torch's option there would import its compiler, which takes seconds.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no memory is read here before it is written
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # Under vmap torch's memory-efficient attention keeps no row sums, and without them its backward pass fails (torch 2.11). A test of
    # stored weights, too, has to take the kernel that trained them.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cudnn.benchmark = False


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees; without effect where the C library has no `mallopt`.

    A training step on the CPU frees and allocates the same few megabytes again and again. By default glibc returns them to the
    kernel, which then has to clear every page again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 2**25)  # bytes; the largest value that glibc accepts


class Trainer:
    """Trains one group of seeds of one variant.

    Args:
        settings: the variant.
        data: what `pipeline.training.tasks.load` returns for it; it is copied to the device once.
        seeds: the group.
        device: "cpu" or "cuda".

    Attributes:
        epoch: epochs done.
        rows: by epoch, then by seed.
        failed: maps a seed to the epoch in which its loss stopped being finite; such a seed gets no further rows. Empty if
            settings.train.divergence is `record`, because such a loss then counts as a result.
        driver: runs the steps.
        engine: what `pipeline.training.fused.make_trainer` says of it: "fused", or "torch: WHY".
        learning: the task (`pipeline.training.tasks.Learning`).
        num_steps: steps of the whole training.
    """

    engine = "torch"
    stack: Stack

    def __init__(self, settings: VariantSettings, data: Any, seeds: Sequence[int], device: torch.device) -> None:
        self.settings = settings
        self.seeds = list(seeds)
        self.device = device
        self.driver = make_driver(device)
        self.learning = self._begin(data)
        train = settings.train
        if train.pretrained is not None:
            self.stack.load(start(train.pretrained, seeds, self.stack.state()))
        if (wanted := train.train_images or 1) > (available := self.learning.num_examples):
            held = f" besides the {train.validation:,} held out for validation" if train.validation else ""
            raise UserError(f"train_images is {wanted:,}, but there are {max(available, 0):,} training images{held}.")
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
        self._steps = self._make_steps(batch_sizes(self._epoch_examples, train.batch_size))

    def _begin(self, data: Any) -> Any:
        """Makes the stack, and the task that it learns."""
        self.stack = Stack(self.settings.model, self.seeds, self.device)
        return learning(self.settings)(self.settings, data, self.seeds, self.stack, self.driver, self.device)

    def _make_steps(self, sizes: set[int]) -> dict[int, Any]:
        """The step for each size of a batch."""
        losses, count = self.learning.losses, self.learning.num_examples
        return {size: TrainingStep(self.stack, self.optimizer, losses, self._total, self.trace, size, count) for size in sizes}

    @property
    def is_fused(self) -> bool:
        return self.engine == "fused"

    @property
    def done(self) -> bool:
        return self.epoch >= self.settings.train.epochs or len(self.failed) == len(self.seeds)

    def _mean(self, steps: Tensor) -> Tensor:
        """Of (seed, step), over the steps."""
        return steps.double().mean(1)

    def run_epoch(self) -> list[EpochRow]:
        """Trains and tests one epoch. Returns the rows of the seeds that are still finite."""
        self.epoch += 1
        self._prepare(self.epoch)
        self._synchronize()
        start = time.perf_counter()
        train_loss = self._train_epoch().tolist()  # waits for the device, so that `seconds` covers the whole epoch
        seconds = time.perf_counter() - start
        test_loss, accuracy = self.test()
        done = self.epoch * self._steps_per_epoch
        norm = self._mean(self.trace.gradient_norm[:, done - self._steps_per_epoch : done])
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

    def run_steps(self, count: int, after: Callable[[], object] | None = None) -> None:
        """Runs only the first steps of a training, for their `trace`, and calls `after` after each. The trainer has to be new."""
        self._prepare(1)
        epochs = (self._batches(epoch) for epoch in range(1, self.settings.train.epochs + 1))
        batches = itertools.islice(itertools.chain.from_iterable(epochs), count)
        if after is None:
            self._run(batches)
            return
        for index in batches:
            self._run([index])
            after()

    def test(self) -> tuple[list[float], list[float]]:
        """Tests the models as they are now: mean cross-entropy and accuracy of each seed."""
        losses, shares = self.learning.test()
        return losses.tolist(), shares.tolist()

    def orders(self, seed: int) -> Iterator[Tensor]:
        """The indices of the examples that a seed sees, epoch by epoch."""
        for epoch in range(1, self.settings.train.epochs + 1):
            yield self._order_of(seed, epoch)

    def _prepare(self, epoch: int) -> None:
        self.learning.begin(epoch)
        for step in self._steps.values():
            self.driver.prepare(step)

    def _train_epoch(self) -> Tensor:
        """Trains one epoch. Returns the mean loss of each seed (seed,), float64."""
        self._total.zero_()
        self._run(self._batches(self.epoch))
        return self._total / self._epoch_examples

    def _batches(self, epoch: int) -> Iterator[Tensor]:
        """The indices of the examples of each step of an epoch, (seed, batch)."""
        yield from self._order(epoch).to(self.device).split(self.settings.train.batch_size, dim=1)

    def _order(self, epoch: int) -> Tensor:
        """The indices of an epoch's examples (seed, example), on the CPU."""
        return torch.stack([self._order_of(seed, epoch) for seed in self.seeds])

    def _order_of(self, seed: int, epoch: int) -> Tensor:
        train, available = self.settings.train, self.learning.num_examples
        return epoch_order(seed, epoch, available, train_images=train.train_images, epoch_images=train.epoch_images)

    def _run(self, batches: Iterable[Tensor]) -> None:
        for index in batches:
            step = self._steps[index.shape[1]]
            step.index.copy_(index)
            self.driver.run(step)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state(self) -> dict[str, Tensor]:
        """Copies, on the CPU, of all tensors that the rest of the training depends on."""
        tensors = {f"{prefix}.{name}": value for prefix, part in self._parts().items() for name, value in part.state().items()}
        return {name: value.to("cpu", copy=True).contiguous() for name, value in tensors.items()}

    def load(self, tensors: Mapping[str, Tensor], *, epoch: int, rows: Sequence[EpochRow], failed: Mapping[int, int]) -> None:
        """Restores the point at which `state`, `epoch`, `rows` and `failed` were taken; training on from there gives the same bits."""
        for prefix, part in self._parts().items():
            part.load({name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")})
        self.epoch, self.rows, self.failed = epoch, list(rows), dict(failed)

    def _parts(self) -> dict[str, Stack | Optimizer | Trace]:
        return {"model": self.stack, "optimizer": self.optimizer, "trace": self.trace}
