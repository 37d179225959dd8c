"""Times what the claims about speed speak of: single models, side by side in one process, in rounds of random order.

Each network is timed in two ways: as published (`pipeline.timing.published`, torch's Adam as it comes, the loss read after every
step) and on this project's fast path (`pipeline.training.engine`). One seed, on the CPU one thread; the images are in memory, so a
data loader's share is in no number. Nothing here draws or judges: `measure` returns plain numbers for timing/results.json.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.nn import functional as F
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

import pipeline.models.attention
from pipeline.data.datasets import Dataset
from pipeline.kernels import attention, attention_path
from pipeline.models import VisionTransformer
from pipeline.params import ModelSettings, Params, TrainSettings, VariantSettings
from pipeline.provenance import device_name, versions
from pipeline.timing import published
from pipeline.training.engine import Trainer, keep_freed_memory, set_reproducible
from pipeline.training.optimizers import make_optimizer
from pipeline.training.stack import initial_model
from pipeline.training.step import pixels

# What T4, T6 and K3 compare, each as its difference to `base`. Where params.yaml has a variant of the name, they are the same. The
# others, cls-loop and conv-embed, compute the same function as the base at another price, so they are timed and not trained.
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "cls-loop": {"cls_insert": "loop"},
    "conv-embed": {"embed": "conv"},
    "first": {"pool": "first", "cls_insert": "none"},
    "patch-14": {"patch": 14},
    "patch-7": {"patch": 7},
    "patch-2": {"patch": 2},
}
GROUPS = ("attention", "linear layers", "layer norm", "activation", "patches and embedding", "class token", "optimizer", "rest")
# Share of the machine. One core of twenty doing something else does not show in a step; more of them share its caches.
THRESHOLD = 0.05
CPU_GROWTH_BATCH = 16  # 784 tokens as published keep 64 MB an image for the backward pass: 1 GB, where 128 images take 8 GB
PROFILED_STEPS = 3  # one where params ask for few steps: the profiler's bookkeeping takes a second for each
ORDER_SEED = 0
MOST_EPOCHS = 10_000  # params allow no more rounds than that, repeated ones included

Way = Literal["published", "fast", "nested loops"]
Kind = Literal["step", "growth", "attention"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """One thing under the clock.

    Attributes:
        kind: step: a training step at the study's batch size; growth: one at the batch size that 784 tokens allow; attention:
            forward and backward of the attention of one block alone, at that batch size.
        subject: a key of `VARIANTS`, or the number of tokens.
        batch: images a step.
    """

    kind: Kind
    way: Way
    subject: str
    model: ModelSettings
    batch: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.way}/{self.subject}"


class Work(Protocol):
    """Something that can be run again and again."""

    def __call__(self) -> float:
        """Seconds of all its steps."""
        ...


def entries(params: Params, device: torch.device) -> list[Entry]:
    """Everything that is timed, in a fixed order."""
    base, batch = params.base, params.train.batch_size
    # A patch that does not divide the data set's images cannot be timed.
    fitting = {name: change for name, change in VARIANTS.items() if not base.shape.size % int(change.get("patch", base.patch))}
    variants = {name: _changed(base, change) for name, change in fitting.items()}
    ways: tuple[Way, ...] = ("published", "fast")
    listed = [Entry("step", way, name, model, batch) for name, model in variants.items() for way in ways]
    # Both with the class token put in by a loop, as published: then they differ by how patches are cut and heads are visited.
    listed.append(Entry("step", "nested loops", "cls-loop", variants["cls-loop"], batch))
    largest = min(batch, growth_batch(base, max(params.timing.tokens), device))
    for tokens in params.timing.tokens:
        # Without a class token, so that the counts are those of the claim.
        change = {"patch": round(base.shape.size / tokens**0.5), "pool": "first", "cls_insert": "none"}
        model = _changed(base, change)
        listed += [Entry(kind, way, str(tokens), model, largest) for kind in ("growth", "attention") for way in ways]
    return listed


def _changed(base: ModelSettings, change: Mapping[str, Any]) -> ModelSettings:
    return ModelSettings.model_validate({**base.model_dump(), **change}, context={"shape": base.shape})


def growth_batch(model: ModelSettings, tokens: int, device: torch.device) -> int:
    """Images a step, one number for all token counts: `CPU_GROWTH_BATCH`, on a GPU as many as half of its free memory holds."""
    if device.type == "cpu":
        return CPU_GROWTH_BATCH
    free, _ = torch.cuda.mem_get_info(device)
    # As published every head of every block keeps its weights, and a backward pass needs a few more such tensors at a time.
    one_image = 4 * tokens**2 * model.heads * (model.blocks + 2)
    return max(1, 2 ** int(np.log2(max(1, free // 2 // one_image))))


class PublishedSteps:
    """Training steps of one model in a plain loop; the thesis's way, or that of the nested loops."""

    def __init__(self, entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int) -> None:
        self.device = device
        self.model = build(entry).to(device).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=params.train.learning_rate)
        self.batches = batches(dataset, entry.batch, steps, device)

    def __call__(self) -> float:
        synchronize(self.device)
        start = time.perf_counter()
        for images, labels in self.batches:
            loss = F.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()
        return time.perf_counter() - start


class FastSteps:
    """Training steps of this project's engine, timed by itself as in every training's epochs.csv."""

    def __init__(self, entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int) -> None:
        settings = VariantSettings(data=params.data, train=_train_settings(params, entry), model=entry.model)
        few = replace(part(dataset, steps * entry.batch), test_images=dataset.test_images[:1], test_labels=dataset.test_labels[:1])
        self.trainer = Trainer(settings, few, [0], device)

    def __call__(self) -> float:
        rows = self.trainer.run_epoch()
        if not rows:
            raise FloatingPointError("the loss is not finite")
        return rows[0].seconds


def _train_settings(params: Params, entry: Entry) -> TrainSettings:
    """The study's own way of training, one seed, without what makes an epoch longer or shorter, and with no end in sight."""
    whole = {"seeds": (0,), "batch_size": entry.batch, "epochs": MOST_EPOCHS, "train_images": None, "epoch_images": None}
    return TrainSettings.model_validate(params.train.model_dump() | whole)


class AttentionSteps:
    """Forward and backward passes of the attention of one block alone, without the linear layers around it."""

    def __init__(self, entry: Entry, device: torch.device, steps: int) -> None:
        model = entry.model
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


def make(entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int) -> Work:
    """The work of `steps` steps, untouched yet: its first call also compiles and allocates."""
    if entry.kind == "attention":
        return AttentionSteps(entry, device, steps)
    return (FastSteps if entry.way == "fast" else PublishedSteps)(entry, params, dataset, device, steps)


def build(entry: Entry) -> VisionTransformer:
    """The entry's untrained model of seed 0, computed in its way."""
    model = initial_model(entry.model, 0)
    assert isinstance(model, VisionTransformer)
    change = {"published": published.as_published, "nested loops": published.as_nested_loops}
    return change[entry.way](model) if entry.way in change else model


def part(dataset: Dataset, count: int) -> Dataset:
    """The first `count` training images; a data set with fewer is gone through again."""
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


# --- the machine's other work ---


class LoadMeter:
    """Measures, over a `with` block, the share of the machine's processor time that other processes used (Linux's /proc).

    Attributes:
        foreign: that share, in [0, 1], once the block has ended; 0 where there is no /proc.
    """

    foreign = 0.0

    def __enter__(self) -> LoadMeter:
        self._start = (time.perf_counter(), _busy_seconds(), time.process_time())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        now = (time.perf_counter(), _busy_seconds(), time.process_time())
        wall, busy, own = (end - start for end, start in zip(now, self._start, strict=True))
        self.foreign = max(0.0, busy - own) / (wall * (os.cpu_count() or 1))


def _busy_seconds() -> float:
    """Processor seconds since boot in which some core did not idle, time that a hypervisor took away included."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


# --- rounds ---


@dataclass(frozen=True)
class Round:
    """One round: seconds a step of every entry, and the share of the machine that others used meanwhile."""

    seconds: dict[str, float]
    foreign: float
    kept: bool


def run_rounds(
    works: Mapping[str, tuple[Work, int]],
    *,
    rounds: int,
    seconds: float,
    say: Say,
    meter: Callable[[], LoadMeter] = LoadMeter,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Round]:
    """Runs all works once a round, each round in a new random order, until `rounds` undisturbed rounds are there.

    A round in which others used more than `THRESHOLD` of the machine does not count and is repeated, as long as there are not
    more than `rounds` of them and the time suffices. No round starts that would, at the last one's pace, end after `seconds`;
    the first one always runs.

    Args:
        works: by name, with the number of its steps.

    Returns:
        all rounds, those that do not count included.
    """
    generator = random.Random(ORDER_SEED)
    done: list[Round] = []
    start = last = clock()
    while sum(entry.kept for entry in done) < rounds and len(done) < 2 * rounds:
        begin = clock()
        if done and begin + (begin - last) > start + seconds:
            say(f"the {seconds:g} s for timing are used up after {len(done)} rounds")
            break
        last = begin
        order = list(works)
        generator.shuffle(order)
        with meter() as load:
            times = {name: works[name][0]() / works[name][1] for name in order}
        done.append(Round({name: times[name] for name in works}, load.foreign, load.foreign <= THRESHOLD))
        counted = sum(entry.kept for entry in done)
        verdict = f"round {counted} of {rounds}" if done[-1].kept else "does not count"
        say(f"{verdict}: {clock() - begin:.1f} s, others used {load.foreign:.1%} of the machine")
    return done


# --- memory and profile ---


def saved_bytes(compute: Callable[[], Tensor], weights: Iterable[Tensor] = ()) -> int:
    """Bytes of the tensors that `compute` keeps for the backward pass, each storage once, `weights` left out."""
    left_out = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor  # so it stays alive, and no later tensor gets its address

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    total = sum(kept.values())
    del result
    return total


_LABEL = "part: "
_BACKWARD = "autograd::engine::evaluate_function"


def profile(entry: Entry, params: Params, dataset: Dataset, device: torch.device, steps: int) -> dict[str, Any]:
    """Where the time of a step goes, eagerly, operator by operator.

    Every operator's own time, and on the CPU the Python around it, goes to the part of the network that called it; that of a
    backward operator to the part of the forward operator whose gradient it computes.

    Returns:
        "seconds": of a step under the profiler, on a GPU of its kernels alone; "groups": seconds of each of `GROUPS`; "operators":
        how many operators each of them calls a step.
    """
    model = build(entry).to(device).train()
    if entry.way == "fast":
        train = _train_settings(params, entry)
        update: Callable[[], object] = make_optimizer(
            train, list(model.parameters()), num_seeds=1, stacked=False, total_steps=MOST_EPOCHS
        ).step
    else:
        theirs = torch.optim.Adam(model.parameters(), lr=params.train.learning_rate)

        def update() -> None:
            theirs.step()
            theirs.zero_grad()

    def step(images: Tensor, labels: Tensor) -> None:
        with record_function(f"{_LABEL}rest"):
            F.cross_entropy(model(images), labels).backward()
            with record_function(f"{_LABEL}optimizer"):
                update()

    (warm, *rest) = batches(dataset, entry.batch, steps + 1, device)
    cuda = device.type == "cuda"
    with _labels(model), _no_collection():
        step(*warm)
        with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as recorded:
            for images, labels in rest:
                step(images, labels)
            synchronize(device)
        groups, operators = _by_part(recorded.events() or [], cuda=cuda)
    return {
        "seconds": sum(groups.values()) / 1e6 / steps,
        "groups": {group: groups[group] / 1e6 / steps for group in GROUPS},
        "operators": {group: round(operators[group] / steps) for group in GROUPS},
    }


@contextlib.contextmanager
def _labels(model: VisionTransformer) -> Iterator[None]:
    """Names the parts of a model for the profiler while the block lasts; the innermost name counts."""
    parts: list[tuple[Any, str, str]] = [
        (model.embedding, "forward", "patches and embedding"),
        (model, "_add_cls", "class token"),
        (model.norm, "forward", "layer norm"),
        (model.head, "forward", "linear layers"),
        (pipeline.models.attention, "attention", "attention"),
        (pipeline.models.attention, "sliced_attention", "attention"),  # its projections, too: they are one operator
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
    """No garbage collection while the block lasts: it would count as some part's time, and goes through every recorded event."""
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


def _by_part(events: Sequence[Any], *, cuda: bool) -> tuple[Counter[str], Counter[str]]:
    """Microseconds, and operators called from outside of another operator, by part, of all recorded steps."""
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

    # An operator that needs no gradient has the number of the next one that does: the later one is the owner.
    for event in sorted(events, key=lambda event: event.time_range.start):
        if event.sequence_nr >= 0 and not event.name.startswith(_LABEL):
            name, backward = part(event)
            if not backward:
                part_of[event.sequence_nr] = name
    times: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    for event in events:
        name, _ = part(event)
        times[name] += event.self_device_time_total if cuda else event.self_cpu_time_total
        if _is_operator(event) and not _is_operator(event.cpu_parent):
            operators[name] += 1
    return times, operators


def _is_operator(event: Any) -> bool:
    return event is not None and event.name.startswith(("aten::", "lab::"))


# --- all of it ---


def measure(params: Params, dataset: Dataset, device: torch.device, say: Say) -> dict[str, Any]:
    """Everything of timing/results.json; docs of the fields: pipeline/report/timing.py, which reads them.

    Args:
        say: gets a line of progress now and then.
    """
    set_reproducible(device)
    keep_freed_memory()  # as every training does
    settings = params.timing
    listed = entries(params, device)
    # Half of the time stays for rounds that have to be repeated and for what takes longer than its slot.
    slot = settings.seconds / settings.rounds / len(listed) / 2
    works: dict[str, tuple[Work, int]] = {}
    measurements = []
    for entry in listed:
        work, steps, peak = _warm_up(entry, params, dataset, device, slot)
        works[entry.name] = work, steps
        measurements.append(_describe(entry, steps, peak, device, dataset))
    say(f"{len(listed)} measurements are warm; up to {settings.rounds} rounds in at most {settings.seconds:g} s follow")
    rounds = run_rounds(works, rounds=settings.rounds, seconds=settings.seconds, say=say)
    works.clear()  # their memory is needed no more
    profiles = {}
    largest = str(max(settings.tokens))
    profiled = [entry for entry in listed if entry.way != "nested loops"]
    profiled = [entry for entry in profiled if entry.kind == "step" or (entry.kind == "growth" and entry.subject == largest)]
    for entry in profiled:
        steps = PROFILED_STEPS if entry.kind == "step" and settings.steps >= 10 else 1
        profiles[entry.name] = profile(entry, params, dataset, device, steps)
    say(f"{len(profiles)} profiles taken")
    return {
        "machine": {
            "device": device.type,
            "name": device_name(device.type),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "versions": versions(),
        },
        "dataset": {"name": dataset.name, "digest": dataset.digest, "images": len(dataset.train_labels)},
        "settings": {
            **settings.model_dump(mode="json"),
            "batch_size": params.train.batch_size,
            "learning_rate": params.train.learning_rate,
            "threshold": THRESHOLD,
            "order_seed": ORDER_SEED,
        },
        "measurements": measurements,
        "rounds": [{"foreign": _short(entry.foreign), "kept": entry.kept, "seconds": _rounded(entry.seconds)} for entry in rounds],
        "profiles": {
            name: {"seconds": _short(found["seconds"]), "groups": _rounded(found["groups"]), "operators": found["operators"]}
            for name, found in profiles.items()
        },
    }


def _warm_up(entry: Entry, params: Params, dataset: Dataset, device: torch.device, slot: float) -> tuple[Work, int, int]:
    """The work with as many steps as fit into `slot` seconds (one at least), warm; and its steps; and on a GPU its peak of bytes."""
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    work = make(entry, params, dataset, device, 1)
    work()
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0
    steps = max(1, min(params.timing.steps, int(slot / work())))
    if steps > 1:
        work = make(entry, params, dataset, device, steps)
        work()
    return work, steps, peak


def _describe(entry: Entry, steps: int, peak: int, device: torch.device, dataset: Dataset) -> dict[str, Any]:
    model = entry.model
    path = attention_path(device=device, head_dim=model.dim // model.heads, tokens=model.num_tokens)
    described: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "way": entry.way,
        "subject": entry.subject,
        "tokens": model.num_tokens,
        "batch": entry.batch,
        "steps": steps,
        "attention": path if entry.way == "fast" else "loop over heads",
        "model": model.model_dump(mode="json"),
    }
    if entry.kind == "attention":
        described["saved_bytes"] = saved_bytes(AttentionSteps(entry, device, 1).forward)
    elif entry.kind == "growth":
        ((images, _),) = batches(dataset, entry.batch, 1, device)
        built = build(entry).to(device).train()
        described["saved_bytes"] = saved_bytes(lambda: built(images), built.parameters())
    if device.type == "cuda" and entry.kind != "attention":
        described["peak_bytes"] = peak
    return described


def _short(number: float) -> float:
    """Five digits, more than any clock here has."""
    return float(f"{number:.5g}")


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(number) for name, number in numbers.items()}
