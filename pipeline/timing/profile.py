"""The time of a step by part of the network, and the memory that a forward pass keeps."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.nn import functional as F
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

import pipeline.models.attention
from pipeline.data.datasets import Dataset
from pipeline.models import VisionTransformer
from pipeline.params import Params
from pipeline.timing import published
from pipeline.timing.steps import LEARNING_RATE, MAX_EPOCHS, batches, build, own_threads, synchronize, train_settings
from pipeline.timing.subjects import Entry
from pipeline.training.optimizers import make_optimizer

GROUPS = ("attention", "linear layers", "layer norm", "activation", "patches and embedding", "class token", "optimizer", "rest")


def saved_bytes(compute: Callable[[], Tensor], weights: Iterable[Tensor] = ()) -> int:
    """Bytes of the tensors that `compute` keeps for the backward pass; each storage counts once, and `weights` do not count."""
    left_out = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor  # keeps it alive, so that no later tensor gets its address

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    total = sum(kept.values())
    del result
    return total


_LABEL = "part: "
_BACKWARD = "autograd::engine::evaluate_function"


def profile(entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int, threads: int = 1) -> dict[str, Any]:
    """The time of a step by part of the network, run eagerly.

    Each operator's own time, and on the CPU that of the Python code around it, counts for the part of the network that called it. A
    backward operator counts for the part of the forward operator whose gradient it computes.

    Args:
        threads: see `own_threads`.

    Returns:
        "seconds": of a step under the profiler, on a GPU of its kernels only; "groups": seconds of each of `GROUPS`; "operators": the
        number of operators that each of them calls per step.
    """
    groups, operators = by_part(record(entry, params, dataset, device, steps, threads), cuda=device.type == "cuda")
    return {
        "seconds": sum(groups.values()) / 1e6 / steps,
        "groups": {group: groups[group] / 1e6 / steps for group in GROUPS},
        "operators": {group: round(operators[group] / steps) for group in GROUPS},
    }


def record(entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int, threads: int = 1) -> list[Any]:
    """The profiler's events (`torch.autograd.profiler_util.FunctionEvent`) of `steps` steps, after one that is not recorded."""
    model = build(entry).to(device).train()
    assert isinstance(model, VisionTransformer)
    if entry.way == "fast":
        train = train_settings(params, entry)
        update: Callable[[], object] = make_optimizer(
            train, list(model.parameters()), num_seeds=1, stacked=False, total_steps=MAX_EPOCHS
        ).step
    else:
        theirs = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

        def update() -> None:
            theirs.step()
            theirs.zero_grad()

    def step(images: Tensor, labels: Tensor) -> None:
        with record_function(f"{_LABEL}rest"):
            F.cross_entropy(model(images), labels).backward()
            with record_function(f"{_LABEL}optimizer"):
                update()

    (warm, *rest) = batches(dataset, entry.batch, steps + 1, device)
    with _labels(model), _no_collection(), own_threads(entry, threads):
        step(*warm)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        with profiler(activities=activities) as recorded:
            for images, labels in rest:
                step(images, labels)
            synchronize(device)
        return list(recorded.events() or [])


@contextlib.contextmanager
def _labels(model: VisionTransformer) -> Iterator[None]:
    """Labels the parts of a model for the profiler while the block runs; the innermost label counts."""
    parts: list[tuple[Any, str, str]] = [
        (model.embedding, "forward", "patches and embedding"),
        (model, "_add_cls", "class token"),
        (model.norm, "forward", "layer norm"),
        (model.head, "forward", "linear layers"),
        (pipeline.models.attention, "attention", "attention"),
        (pipeline.models.attention, "sliced_attention", "attention"),  # includes its projections, because they are one operator
        (published, "weigh", "attention"),
    ]
    for block in model.blocks:
        parts += [
            (block.attention, "forward", "linear layers"),
            (block.norm1, "forward", "layer norm"),
            (block.norm2, "forward", "layer norm"),
            *((layer, "forward", "linear layers" if isinstance(layer, torch.nn.Linear) else "activation") for layer in block.mlp),  # type: ignore[union-attr]
        ]
    with contextlib.ExitStack() as stack:
        for owner, name, label in parts:
            stack.enter_context(_label(owner, name, label))
        yield


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disables garbage collection while the block runs. It would count as a part's time, and is slow with many recorded events."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _label(owner: Any, name: str, label: str) -> Iterator[None]:
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        with record_function(_LABEL + label):
            return original(*arguments, **named)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


def by_part(events: Sequence[Any], *, cuda: bool) -> tuple[Counter[str], Counter[str]]:
    """Microseconds, and operators that no other operator called, by part, over all recorded steps.

    Args:
        cuda: whether to take the time of the kernels instead of the processor's.
    """
    # A GPU's kernels, and the spans of labels on it, are separate events; they are dropped here.
    events = [event for event in events if event.device_type == DeviceType.CPU]
    part_of: dict[int, str] = {}  # by the number that a forward operator shares with its backward function

    def part(event: Any) -> tuple[str, bool]:
        """The part, and whether the event lies in a backward pass."""
        while event is not None:
            if event.name.startswith(_BACKWARD):
                return part_of.get(event.sequence_nr, "rest"), True
            if event.name.startswith(_LABEL):
                return event.name.removeprefix(_LABEL), False
            event = event.cpu_parent
        return "rest", False

    # An operator that needs no gradient has the same number as the next one that does, so the later one has to win.
    for event in sorted(events, key=lambda event: event.time_range.start):
        if event.sequence_nr >= 0 and not event.name.startswith(_LABEL):
            name, backward = part(event)
            if not backward:
                part_of[event.sequence_nr] = name
    times: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    for event in events:
        name, _ = part(event)
        times[name] += _kernel_time(event) if cuda else event.self_cpu_time_total
        if _is_operator(event) and not _is_operator(event.cpu_parent):
            operators[name] += 1
    return times, operators


def _kernel_time(event: Any) -> Any:
    """Microseconds of the kernels that an operator itself launched. A label's list also has its own span, which is not a kernel."""
    return sum(kernel.duration for kernel in event.kernels if kernel.name != event.name)


def _is_operator(event: Any) -> bool:
    return event is not None and event.name.startswith(("aten::", "lab::"))
