"""The choice of the engine, and the one for GPUs in which a kernel computes a whole step's gradients (`pipeline.kernels.fused_vit`).

It has the face of `Trainer`, its orders, optimisers, schedules and records. What differs: a seed's weights are one row of a matrix, and
`CHUNK` steps are one CUDA graph with four launches a step. Whatever depends on the step's number alone (examples, learning rate) is copied
into the graph's inputs beforehand, and losses and norms are taken from its outputs afterwards, all steps at once. A seed's bits depend
neither on the other seeds nor on how steps are cut into chunks.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.kernels import fused_vit
from pipeline.kernels.fused_vit import FusedVit, Layout
from pipeline.params import ModelSettings, VariantSettings
from pipeline.system.errors import first_line
from pipeline.training.classification import Classification, pixels
from pipeline.training.engine import Trainer
from pipeline.training.optimizers import Optimizer
from pipeline.training.records import EpochRow
from pipeline.training.stack import Stack, initial_model

CHUNK = 16
TOLERANCE = 1e-5  # of the kernel's gradient beside float64, as a share of its norm; float32 leaves 1e-7


def why_not(settings: VariantSettings, device: torch.device) -> str | None:
    """Why a training is not for the fused kernel, as a clause; None where it is."""
    if device.type != "cuda":
        return "CPU"
    if os.environ.get("LAB_ATTENTION") == "sdpa":
        return "LAB_ATTENTION is sdpa"
    if not isinstance(settings.model, ModelSettings):
        return f"no vision transformer but {settings.model.architecture}"
    if settings.train.augments:
        return "augmentation"
    if settings.model.normalize != "none":
        return "standardised pixels"
    return fused_vit.why_not(settings.model)


def make_trainer(settings: VariantSettings, data: Any, seeds: Sequence[int], device: torch.device) -> Trainer:
    """A new trainer, see `Trainer`: the fused one where its kernel covers the settings and works here, else torch's, which says why."""
    reason = why_not(settings, device)
    if reason is None:
        try:
            trainer = FusedTrainer(settings, data, seeds, device)
            trainer.check()
        except torch.OutOfMemoryError:  # torch's needs more
            raise
        except Exception as error:  # no driver, no compiler, a launch that fails, a wrong gradient: each has a class of its own
            reason = first_line(error)
        else:
            return trainer
    plain = Trainer(settings, data, seeds, device)
    plain.engine = f"torch: {reason}"
    return plain


def _rounded(sums: Tensor) -> Tensor:
    """To float32, because torch adds up a seed's numbers in an order that depends on the stack."""
    return sums.float().double()


class FusedStack(Stack):
    """The models of a group of seeds as the rows of one matrix.

    Attributes:
        weights: (seed, size) float32, in the kernel's order.
    """

    def __init__(self, settings: ModelSettings, seeds: Sequence[int], device: torch.device) -> None:
        self.layout = Layout(settings)
        self.single = False
        models = [initial_model(settings, seed) for seed in seeds]
        states = [model.state_dict() for model in models]
        table = dict(models[0].named_buffers()).get("position")
        self._table = None if table is None else table[None]  # (1, token, dim)
        self.weights = self.pack({name: torch.stack([state[name] for state in states]) for name in states[0]}).to(device)
        self.parameters = [self.weights]

    def train(self, mode: bool) -> None:
        """Nothing that the kernel covers is another in training."""

    def pack(self, state: Mapping[str, Tensor]) -> Tensor:
        """What `state` returns, to rows like `weights`; fixed position tables are added."""
        return self.layout.pack(state, self._table)

    def state(self) -> dict[str, Tensor]:
        return self.layout.unpack(self.weights)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        self.weights.copy_(self.pack(state))


class FusedClassification(Classification):
    """Classification that the kernel tests."""

    def __init__(self, settings: VariantSettings, data: Any, trainer: FusedTrainer, kernel: FusedVit) -> None:
        super().__init__(settings, data, trainer.seeds, trainer.stack, trainer.driver, trainer.device)
        self.images, self.labels = self._images, self._labels
        self._kernel, self._weights = kernel, trainer.stack.weights
        self._losses = self._weights.new_empty((len(trainer.seeds), self.num_tests))
        self._predicted = torch.empty_like(self._losses, dtype=torch.int64)

    def test(self) -> tuple[Tensor, Tensor]:
        self._kernel.test(self._test_images, self._test_labels, self._weights, self._losses, self._predicted)
        return _rounded(self._losses.double().mean(1)), (self._predicted == self._test_labels).double().mean(1)


class FusedSteps:
    """Several steps, see `pipeline.training.step.Step`.

    Attributes:
        index: the examples (step, seed, batch).
        coefficients, counts: the optimiser's row (step, coefficient) and the number, from 1, (step,) of each step.
        loss, norm: of each example (step, seed, batch) and of each seed's gradient (step, seed), after a call.
    """

    def __init__(
        self, steps: int, batch: int, kernel: FusedVit, stack: FusedStack, optimizer: Optimizer, data: FusedClassification, *, decay: bool
    ) -> None:
        self._kernel, self._stack, self._optimizer, self._data = kernel, stack, optimizer, data
        weights, seeds = stack.weights, len(stack.weights)
        self._gradient = torch.zeros_like(weights)
        self._trained = stack.layout.trained.to(weights.device)
        self._initial = weights.clone() if decay and not bool(self._trained.all()) else None
        self.index = (torch.arange(steps * seeds * batch, device=weights.device) % data.num_examples).view(steps, seeds, batch)
        self.coefficients = optimizer.coefficients[:1].repeat(steps, 1)
        self.counts = torch.ones(steps, device=weights.device)
        self.loss = weights.new_zeros((steps, seeds, batch))
        self.norm = weights.new_zeros((steps, seeds), dtype=torch.float64)

    @torch.no_grad()
    def __call__(self) -> None:
        for index, coefficients, count, loss, norm in zip(self.index, self.coefficients, self.counts, self.loss, self.norm, strict=True):
            self._kernel.gradient(self._data.images, self._data.labels, index, self._stack.weights, self._gradient, loss)
            self._kernel.norm(self._gradient, norm)
            self._optimizer.apply([self._gradient], norm, count, coefficients)
            if self._initial is not None:  # tables that are not trained have no gradient, but decay has moved them
                self._stack.weights.copy_(torch.where(self._trained, self._stack.weights, self._initial))

    def changed(self) -> Iterator[Tensor]:
        yield self._stack.weights
        yield from self._optimizer.state().values()
        yield self.loss
        yield self.norm

    def discard(self) -> None:
        pass


class FusedTrainer(Trainer):
    """See `Trainer`. Raises whatever the kernel's compiler or driver raises.

    Args:
        kernel: makes the kernel; the tests' is emulated.
    """

    engine = "fused"
    stack: FusedStack

    def __init__(
        self, settings: VariantSettings, data: Any, seeds: Sequence[int], device: torch.device, kernel: type[FusedVit] = FusedVit
    ) -> None:
        model = settings.model
        assert isinstance(model, ModelSettings)
        self._model = model
        self._kernels = functools.cache(lambda batch: kernel(model, len(seeds), batch, device))  # by the size of a batch
        self._done = 0  # steps, for the host
        self._ahead: dict[int, Tensor] = {}  # the next epoch's order
        super().__init__(settings, data, seeds, device)

    def check(self) -> None:
        """Compares the gradient of the first and the last seed on a batch with float64's, once for a binary; raises ArithmeticError."""
        kernel, step = self._kernels(self._batch), self._steps[self._batch]
        stamp = None if kernel.binary is None else kernel.binary.with_suffix(".checked")
        if stamp is not None and stamp.exists():
            return
        index, loss, gradient = step.index[0], step.loss[0], torch.full_like(self.stack.weights, float("nan"))
        kernel.gradient(self.learning.images, self.learning.labels, index, self.stack.weights, gradient, loss)
        for place in {0, len(self.seeds) - 1}:
            model = initial_model(self.settings.model, self.seeds[place]).to(self.device, torch.float64)
            images, labels = self.learning.images[index[place]], self.learning.labels[index[place]]
            F.cross_entropy(model(pixels(images, 1).double()), labels).backward()
            grads = {name: value.grad[None].float() for name, value in model.named_parameters() if value.grad is not None}
            expected = (self.stack.pack(grads)[0].cpu() * self.stack.layout.trained).double()  # without fixed tables
            apart = float((gradient[place].double().cpu() - expected).norm() / expected.norm())
            if not apart <= TOLERANCE:
                raise ArithmeticError(f"the fused kernel's gradient is {apart:.1e} of its size from float64's")
        if stamp is not None:
            with contextlib.suppress(OSError):  # of a folder that cannot be written
                stamp.touch()

    def load(self, tensors: Mapping[str, Tensor], *, epoch: int, rows: Sequence[EpochRow], failed: Mapping[int, int]) -> None:
        super().load(tensors, epoch=epoch, rows=rows, failed=failed)
        self._done = int(self.trace.step)

    def _begin(self, data: Any) -> FusedClassification:
        self.stack = FusedStack(self._model, self.seeds, self.device)
        return FusedClassification(self.settings, data, self, self._kernels(self.settings.train.batch_size))

    def _make_steps(self, sizes: set[int]) -> dict[int, FusedSteps]:
        decay = self.settings.train.weight_decay > 0

        def make(steps: int, batch: int) -> FusedSteps:
            return FusedSteps(steps, batch, self._kernels(batch), self.stack, self.optimizer, self.learning, decay=decay)

        self._batch = max(sizes)
        self._chunk = make(CHUNK, self._batch)
        return {size: make(1, size) for size in sizes}

    def _prepare(self, epoch: int) -> None:
        if self._steps_per_epoch >= CHUNK:
            self.driver.prepare(self._chunk)

    def _train_epoch(self) -> Tensor:
        total = super()._train_epoch()  # still under way
        self._ahead = {self.epoch + 1: super()._order(self.epoch + 1)} if self.epoch < self.settings.train.epochs else {}
        return _rounded(total)

    def _mean(self, steps: Tensor) -> Tensor:
        return _rounded(super()._mean(steps))

    def _order(self, epoch: int) -> Tensor:
        return self._ahead[epoch] if epoch in self._ahead else super()._order(epoch)

    def _run(self, batches: Iterable[Tensor]) -> None:
        """Takes chunks of steps while all of their batches are whole, else single steps."""
        left = list(batches)
        while left:
            whole = len(left) >= CHUNK and all(index.shape[1] == self._batch for index in left[:CHUNK])
            step = self._chunk if whole else self._steps[left[0].shape[1]]
            count = len(step.index)
            step.index.copy_(torch.stack(left[:count]))
            step.coefficients.copy_(self.optimizer.coefficients[self._done : self._done + count])
            torch.arange(self._done + 1, self._done + count + 1, out=step.counts)
            self.driver.run(step)
            self.optimizer.count(count)
            loss = step.loss.double()
            self._total += loss.sum((0, 2))
            self.trace.loss[:, self._done : self._done + count] = loss.mean(2).T
            self.trace.gradient_norm[:, self._done : self._done + count] = step.norm.T
            self.trace.step.add_(count)
            self._done += count
            del left[:count]
