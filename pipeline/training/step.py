"""A step with static inputs and outputs, and the two ways to run it: op by op, or as a CUDA graph captured once.

A step reads the indices of its examples from a buffer and writes its results to buffers, so that its launches are the same every
time. A captured step costs the host one launch; the host does not wait for the device before the end of the epoch.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from pipeline.system.errors import UserError, first_line
from pipeline.training.optimizers import Optimizer
from pipeline.training.stack import Stack, no_global_randomness

WARM_UP = 3  # steps before a capture, in which kernels are compiled and libraries allocate their workspaces


class Step(Protocol):
    """Work on the examples whose indices are in `index`, which always holds valid indices."""

    index: Tensor

    def __call__(self) -> None: ...

    def changed(self) -> Iterator[Tensor]:
        """Every tensor that a call changes and a later one reads."""
        ...

    def discard(self) -> None:
        """Drops what a failed call may have left."""
        ...


@dataclass(frozen=True)
class Trace:
    """Loss and gradient norm of every step of a training.

    Attributes:
        loss: (seed, step) float32, mean of the step's batch.
        gradient_norm: (seed, step) float32, L2, before clipping.
        step: () int64, steps done; a tensor, so that a captured step can count.
    """

    loss: Tensor
    gradient_norm: Tensor
    step: Tensor

    @classmethod
    def empty(cls, num_seeds: int, num_steps: int, device: torch.device) -> Trace:
        loss, norm = torch.zeros((2, num_seeds, num_steps), dtype=torch.float32, device=device).unbind()
        return cls(loss.contiguous(), norm.contiguous(), torch.zeros((), dtype=torch.int64, device=device))

    def append(self, loss: Tensor, gradient_norm: Tensor) -> None:
        """Adds those of one step, (seed,) each."""
        # Rehearsing a step before its capture may count past the end of a training of one or two steps.
        place = self.step.clamp(max=self.loss.shape[1] - 1).view(1)
        self.loss.index_copy_(1, place, loss[:, None].float())
        self.gradient_norm.index_copy_(1, place, gradient_norm[:, None])
        self.step.add_(1)

    def state(self) -> dict[str, Tensor]:
        """The three tensors by name; not copies."""
        return {"loss": self.loss, "gradient_norm": self.gradient_norm, "step": self.step}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class Losses(Protocol):
    """Maps the indices of a step's examples (seed, batch) and the step's number () int64 to the loss of each example (seed, batch)."""

    def __call__(self, index: Tensor, step: Tensor) -> Tensor: ...


class TrainingStep:
    """Forward, backward and update on one batch per seed; adds the batch's losses to `total` and the step to `trace`.

    Args:
        losses: computes the loss of each example.
        total: (seed,) float64.
        batch_size: examples per seed.
        num_examples: size of the training set.
    """

    def __init__(
        self, stack: Stack, optimizer: Optimizer, losses: Losses, total: Tensor, trace: Trace, batch_size: int, num_examples: int
    ) -> None:
        self._stack, self._optimizer, self._trace = stack, optimizer, trace
        self._losses, self._total = losses, total
        places = torch.arange(len(total) * batch_size, device=total.device) % num_examples
        self.index = places.view(len(total), batch_size)

    def __call__(self) -> None:
        loss = self._losses(self.index, self._trace.step)
        mean = loss.mean(1)
        # Seeds share no weights, so the gradient of the sum gives each seed its own gradient.
        mean.sum().backward()
        self._trace.append(mean.detach(), self._optimizer.step())
        self._total += loss.detach().sum(1)

    def changed(self) -> Iterator[Tensor]:
        yield from self._stack.state().values()
        yield from self._optimizer.state().values()
        yield from self._trace.state().values()
        yield self._total

    def discard(self) -> None:
        for parameter in self._stack.parameters:
            parameter.grad = None


class Driver:
    """Runs steps op by op, and refuses one that computes something else when it runs again from the same state.

    Attributes:
        note: one sentence for the user on how steps are run; None where there is no choice.
        seconds: wall time of preparations so far.
        graphs: "captured" if steps run as CUDA graphs, else "none".
    """

    def __init__(self, note: str | None = None) -> None:
        self.note = note
        self.seconds = 0.0
        self.graphs = "none"
        self._checked: set[Step] = set()

    def prepare(self, step: Step) -> None:
        """Does what has to happen once before `step` is run; results do not depend on it."""

    def run(self, step: Step) -> None:
        if step in self._checked:
            step()
            return
        with no_global_randomness():
            expected = outcome(step, step)
        step()
        if not all(map(same_bits, step.changed(), expected)):
            raise UserError(
                "The network keeps something between two calls that no checkpoint has (a generator of its own, a counter, a buffer with"
                " `persistent=False`), so a training would not repeat itself: draw from a key as `pipeline.models.dropout.Dropout` does,"
                " and keep what changes in a persistent buffer."
            )
        self._checked.add(step)

    def stop_graphs(self) -> None:
        """Makes all later steps run op by op, because they will compute what no graph can."""


class GraphDriver(Driver):
    """Captures a step as a CUDA graph and replays it; a step that cannot be captured runs op by op, and `note` says why.

    A capture that fails leaves PyTorch's allocator in a state in which later captures fail for another reason. So after one failure
    the process tries no more.
    """

    _failed: ClassVar[str | None] = None  # why a capture failed in this process, after which no step is captured

    def __init__(self) -> None:
        super().__init__()
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()  # shared, because no graph leaves a result in it
        self._graphs: dict[Step, torch.cuda.CUDAGraph] = {}
        self._stopped = False

    def prepare(self, step: Step) -> None:
        if step in self._graphs or self._stopped:
            return
        torch.cuda.synchronize()
        start = time.perf_counter()
        if GraphDriver._failed is None:
            try:
                self._graphs[step] = self._capture(step)
            except (UserError, torch.OutOfMemoryError):  # op by op it would be refused, too, and need as much memory
                raise
            except Exception as error:  # many operations cannot be captured, and each raises its own class of error
                step.discard()
                GraphDriver._failed = first_line(error)
        torch.cuda.synchronize()
        self.seconds += time.perf_counter() - start
        if GraphDriver._failed is None:
            self.graphs = "captured"
            self.note = f"Steps run as CUDA graphs, captured in {self.seconds:.1f} s, which no epoch's time contains."
        else:
            self._graphs.clear()
            self.graphs = "none"
            self.note = f"No CUDA graph, every operation is launched by itself: {GraphDriver._failed}"

    def run(self, step: Step) -> None:
        graph = self._graphs.get(step)
        if graph is None:
            super().run(step)
        else:
            graph.replay()

    def stop_graphs(self) -> None:
        self._stopped = True
        self._graphs.clear()

    def _capture(self, step: Step) -> torch.cuda.CUDAGraph:
        """Captures the step and checks that the graph computes the same; the step's tensors end as they were."""
        # Warm-up and capture share a stream, so that what a library keeps per stream exists before the capture.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), no_global_randomness():
            expected = rehearse(step)
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = self._record(step)
        if not all(map(same_bits, outcome(step, graph.replay), expected)):
            raise RuntimeError("a captured step computes something else than its operations one by one.")
        return graph

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # A capture fails if the garbage collector frees a tensor or a graph during it.
        gc.collect()
        enabled = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                step()  # recorded, not executed
        finally:
            if enabled:
                gc.enable()
        return graph


def rehearse(step: Step) -> list[Tensor]:
    """Runs a step a few times and undoes its changes. Returns the values of the tensors it changes, as they are after one step."""

    def warm_up() -> None:
        for _ in range(WARM_UP):
            step()

    outcome(step, warm_up)
    return outcome(step, step)


def outcome(step: Step, call: Callable[[], object]) -> list[Tensor]:
    """The values, after `call`, of the tensors that a step changes. The changes are undone."""
    before = [tensor.clone() for tensor in step.changed()]
    try:
        call()
        return [tensor.clone() for tensor in step.changed()]
    finally:
        with torch.no_grad():
            for tensor, value in zip(step.changed(), before, strict=True):
                tensor.copy_(value)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, where NaN equals NaN. Waits for the device."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def make_driver(device: torch.device) -> Driver:
    """A driver that uses graphs on CUDA, unless the environment variable LAB_GRAPHS is 0."""
    if device.type != "cuda":
        return Driver()
    if os.environ.get("LAB_GRAPHS") == "0":
        return Driver("No CUDA graph, every operation is launched by itself: LAB_GRAPHS is 0.")
    return GraphDriver()


def batch_sizes(num_examples: int, batch_size: int) -> set[int]:
    """The sizes that occur when examples are cut into batches, of which the last may be smaller."""
    return {min(batch_size, num_examples), num_examples % batch_size or min(batch_size, num_examples)}
