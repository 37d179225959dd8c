"""The processes that train: on CUDA one for the whole stack, on the CPU one per core, each with one seed at a time on one thread.

The calling process only coordinates, so neither MLflow nor a terminal can hold up a step. Results travel by checkpoint, messages
by pipe. A worker ends with its parent. When a worker dies the others are ended, and one sentence says so.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, disk_sentence, first_line
from pipeline.files import DamagedError
from pipeline.params import VariantSettings, shown
from pipeline.provenance import device_name, same_processor
from pipeline.runner.checkpoint import path_of
from pipeline.training.records import EpochRow

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux inside Windows


@dataclass(frozen=True)
class Job:
    """What a worker needs to train any group of a variant.

    Attributes:
        folder: where checkpoints and finished seeds of these settings lie.
        origin: what is known of a training before it starts: what `provenance.origin` says.
        started: the moment, one for all seeds.
        plain: on a GPU, without CUDA graphs and the fused kernel.
    """

    settings: VariantSettings
    arrays: Path
    folder: Path
    device: str
    origin: dict[str, Any]
    started: str = field(default_factory=lambda: now())
    plain: bool = False


@dataclass(frozen=True)
class Task:
    """Seeds that train together. `replay`: they are finished already, by another version of the code."""

    seeds: list[int]
    replay: bool = False


@dataclass(frozen=True)
class Facts:
    """Of a model: the attention kernel that runs, trained scalars, forward FLOPs of an image; and of the device its name."""

    attention: str
    parameters: int
    flops: int
    device_name: str


@dataclass(frozen=True)
class Started:
    """A group begins to train; `rows` are those of an earlier process, `facts` what only a process with torch can tell of the model.

    Attributes:
        warning: why a checkpoint that was there is not used, as a clause.
    """

    seeds: list[int]
    epoch: int
    rows: list[EpochRow]
    warning: str | None
    facts: Facts


@dataclass(frozen=True)
class Epoch:
    """A group has finished an epoch. `note`, with its first: how the steps are driven, where that is worth a line."""

    seeds: list[int]
    epoch: int
    rows: list[EpochRow]
    checkpoint_seconds: float
    note: str | None = None


@dataclass(frozen=True)
class Done:
    """A group has finished, and its seeds are kept. `failed`: by seed, the epoch in which its loss stopped being finite."""

    seeds: list[int]
    failed: dict[int, int]


@dataclass(frozen=True)
class Replayed:
    """A group that was finished by other code. `parted` says where today's code differs; None: it computes the same.

    A group that parted is trained next.
    """

    seeds: list[int]
    parted: str | None


@dataclass(frozen=True)
class Again:
    """A group that the GPU failed before its first checkpoint starts once more, in a new process and as these groups.

    Attributes:
        reason: why, and what is different now, in one sentence.
    """

    seeds: list[int]
    groups: list[list[int]]
    reason: str


@dataclass(frozen=True)
class Broken:
    """An error ends the training.

    Attributes:
        gpu: what of a GPU failed, "memory" or "computation"; None where it is something else.
        cause: the error in a clause, where a GPU failed.
    """

    seeds: list[int]
    error: str
    user_error: bool
    gpu: str | None = None
    cause: str = ""


Message = Started | Epoch | Done | Replayed | Again | Broken


def choose_device() -> str:
    """`cuda` where there is a GPU that torch can use, else `cpu`; the environment variable LAB_DEVICE decides otherwise.

    A GPU that is there and cannot be used (too old a driver, a torch without code for it) is told in one sentence.

    Raises:
        UserError: LAB_DEVICE names a device that is not there or cannot be used.
    """
    wanted = os.environ.get("LAB_DEVICE", "")
    if wanted not in ("", "cpu", "cuda"):
        raise UserError(f"LAB_DEVICE is {wanted!r}; the choices are cpu and cuda.")
    # Without a driver there is nothing to ask torch, whose import takes seconds.
    if wanted == "cpu" or (not wanted and not any(Path(driver).exists() for driver in _GPU_DRIVERS)):
        return "cpu"
    reason = why_no_gpu()
    if reason is None:
        return "cuda"
    if wanted:
        raise UserError(f"LAB_DEVICE is cuda, but torch cannot use a GPU here ({reason}); unset it or set it to cpu.")
    print(f"The CPU computes, because torch cannot use this machine's GPU: {reason}", file=sys.stderr, flush=True)
    return "cpu"


@functools.cache
def why_no_gpu() -> str | None:
    """Why torch cannot compute on a GPU here, in torch's words; None where it can.

    `torch.cuda.is_available` alone would do neither: it says False without a reason where the driver is too old, and True of a GPU
    that torch has no code for.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is in the error, too
            torch.ones(2, device="cuda").sum().item()
    except Exception as error:  # RuntimeError, AssertionError or torch.AcceleratorError
        return first_line(error)
    return None


def choose_processes() -> int:
    """CPU workers: the cores this process may use, or LAB_PROCESSES. The results do not depend on it."""
    wanted = os.environ.get("LAB_PROCESSES", "")
    if not wanted:
        return len(os.sched_getaffinity(0))
    if not re.fullmatch("[1-9][0-9]{0,3}", wanted):
        raise UserError(f"LAB_PROCESSES is {shown(wanted)}, but has to be a whole number from 1 to 9999.")
    return int(wanted)


def make_groups(seeds: Sequence[int], device: str, *, stackable: bool) -> list[list[int]]:
    """The seeds that share a stack: all of them on CUDA where the model allows it; each its own on the CPU, where a stack gains nothing."""
    return [list(seeds)] if device == "cuda" and stackable else [[seed] for seed in seeds]


def run(job: Job, tasks: Sequence[Task], processes: int, handle: Callable[[Message], None]) -> None:
    """Replays or trains all groups and passes every message to `handle`, in the order of arrival.

    Raises:
        UserError: a worker died or hit an error; what it had checkpointed is kept.
    """
    context = multiprocessing.get_context("spawn")
    waiting = list(tasks)
    with _end_workers() as workers:
        pipes: dict[Connection, BaseProcess] = {}
        under_way: dict[Connection, Task] = {}

        def send(pipe: Connection) -> None:
            under_way[pipe] = waiting.pop(0)
            pipe.send(under_way[pipe])

        def start() -> None:
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(job, theirs), daemon=True)
            worker.start()
            theirs.close()
            workers.append(worker)
            pipes[ours] = worker
            send(ours)

        for _ in range(min(processes, len(tasks))):
            start()
        while pipes:
            for pipe in wait(list(pipes)):
                assert isinstance(pipe, Connection)
                try:
                    message: Message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    pipes[pipe].join()
                    message = _died(under_way[pipe].seeds, pipes[pipe].exitcode)
                if isinstance(message, Broken):
                    again = _again(job, under_way[pipe], message)
                    if again is None:
                        handle(message)
                        raise UserError(message.error, status=2 if message.user_error else 1)
                    worker = pipes.pop(pipe)
                    worker.kill()  # a process with a broken CUDA context may not end by itself
                    worker.join()
                    job, message = again
                    waiting[:0] = [Task(group) for group in message.groups]
                    handle(message)
                    start()
                    continue
                handle(message)
                if isinstance(message, Replayed) and message.parted is not None:
                    under_way[pipe] = Task(message.seeds)
                elif isinstance(message, Done | Replayed):
                    if waiting:
                        send(pipe)
                    else:
                        pipe.send(None)
                        pipes.pop(pipe).join()


def _died(seeds: list[int], status: int | None) -> Broken:
    """What a process has left that ended without a word."""
    crashed = status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)  # as a driver's fault ends it, and no lack of memory
    return Broken(
        seeds,
        f"A training process ended with status {status} (out of memory?); run the same command again: it goes on from the last"
        " finished epoch.",
        False,
        "computation" if crashed else None,
        f"its process ended with status {status}",
    )


def _again(job: Job, task: Task, fault: Broken) -> tuple[Job, Again] | None:
    """How to start a group once more that the GPU failed before its first checkpoint; None where the fault stands.

    A stack that the memory does not hold is halved. An error of a computation may be that of a graph or of our kernel, and a process
    cannot mend its CUDA context; so another one does without both.
    """
    seeds = task.seeds
    if job.device != "cuda" or fault.gpu is None or task.replay or path_of(job.folder, seeds, job.origin["code_hash"]).exists():
        return None
    if fault.gpu == "memory":
        half = (len(seeds) + 1) // 2
        if half == len(seeds):
            return None
        sizes = f"{half} and {len(seeds) - half}"
        return job, Again(
            seeds, [seeds[:half], seeds[half:]], f"The GPU's memory does not hold a stack of {len(seeds)} seeds; it is cut into {sizes}."
        )
    if job.plain:
        return None
    reason = f"The training failed on the GPU ({fault.cause}); it starts once more, without CUDA graphs and the fused attention."
    return replace(job, plain=True), Again(seeds, [seeds], reason)


def _work(job: Job, pipe: Connection) -> None:
    """Works on the tasks that come through the pipe until None comes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    die_with_parent(parent.pid)
    if job.plain:
        os.environ |= {"LAB_GRAPHS": "0", "LAB_ATTENTION": "sdpa"}
    import torch

    from pipeline.training.engine import keep_freed_memory, set_reproducible
    from pipeline.training.tasks import load

    seeds: list[int] = []
    task: Task | None = None
    try:
        set_reproducible(torch.device(job.device))
        keep_freed_memory()
        data = load(job.settings.task, job.arrays)
        while (task := pipe.recv()) is not None:
            seeds = task.seeds
            if task.replay and _replay(job, data, seeds, pipe):
                continue
            _train(job, data, seeds, pipe)
    except UserError as error:
        pipe.send(Broken(seeds, str(error), True))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass
    except Exception as error:
        sentence = disk_sentence(error)
        fault, cause = _gpu_fault(error) if job.device == "cuda" else None, first_line(error)
        if fault == "memory":
            sentence = (
                f"The GPU's memory does not hold the training of seeds {seeds} ({cause}): lower train.batch_size, or train on"
                f" the processor with LAB_DEVICE=cpu{', or anew with REPLAY=0' if task is not None and task.replay else ''}."
            )
        error_text = sentence or f"Training seeds {seeds} failed:\n{traceback.format_exc()}"
        if fault == "computation" and not job.plain:
            error_text += "\nLAB_GRAPHS=0 and LAB_ATTENTION=sdpa train without CUDA graphs and without the fused attention."
        pipe.send(Broken(seeds, error_text, sentence is not None, fault, cause))


def _gpu_fault(error: Exception) -> str | None:
    """What of a GPU failed, as `Broken` has it."""
    import torch

    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "ALLOC_FAILED" in text:
        return "memory"
    ours = isinstance(error, torch.AcceleratorError) or any(name in text for name in ("CUDA", "CUBLAS", "cuDNN", "Triton Error"))
    return "computation" if ours else None


def _replay(job: Job, data: Any, seeds: list[int], pipe: Connection) -> bool:
    """Whether the finished seeds are kept: today's code computes the same."""
    import torch

    from pipeline.runner import finished, replay
    from pipeline.training.engine import Trainer

    found, _ = finished.find(job.folder, job.origin["code_hash"])
    parts = [found[seed] for seed in seeds]
    name = device_name(job.device)
    exact = all(same_processor(part.origin["device_name"], name) for part in parts)
    parted = replay.parted(Trainer(job.settings, data, seeds, torch.device(job.device)), parts, exact=exact)
    if parted is None:
        record = {**job.origin, "date": job.started, "device_name": name, "exact": exact}
        for part in parts:
            finished.write(job.folder, part.replayed(record))
    pipe.send(Replayed(seeds, parted))
    return parted is None


def _train(job: Job, data: Any, seeds: list[int], pipe: Connection) -> None:
    import torch

    from pipeline.runner import checkpoint, finished, replay
    from pipeline.training.engine import Trainer

    trainer = Trainer(job.settings, data, seeds, torch.device(job.device))
    tables = replay.tables(trainer)
    facts = _facts(job)
    path = checkpoint.path_of(job.folder, seeds, job.origin["code_hash"])
    warning, started = None, None
    try:
        started = checkpoint.restore(path, trainer)
    except DamagedError as fault:
        warning = str(fault)
    started = started or now()
    pipe.send(Started(seeds, trainer.epoch, trainer.rows, warning, facts))
    first = trainer.epoch + 1
    while not trainer.done:
        rows = trainer.run_epoch()
        start = time.perf_counter()
        checkpoint.save(path, trainer, started=started)
        note = trainer.driver.note if trainer.epoch == first else None
        pipe.send(Epoch(seeds, trainer.epoch, rows, time.perf_counter() - start, note))
    origin = {**job.origin, **asdict(facts), "started": started, "finished": now()}
    if job.device == "cuda":
        origin["graphs"] = trainer.driver.graphs
    for part in finished.of_trainer(trainer, origin, tables):
        finished.write(job.folder, part)
    path.unlink(missing_ok=True)
    pipe.send(Done(seeds, trainer.failed))


def now() -> str:
    """The moment in ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _facts(job: Job) -> Facts:
    from pipeline.models import attention_kernel, build, count_flops, count_parameters

    model = job.settings.model
    return Facts(attention_kernel(model, job.device), count_parameters(build(model)), count_flops(model), device_name(job.device))


def die_with_dvc() -> None:
    """Has a stage that DVC runs end when DVC ends."""
    if "DVC_STAGE" in os.environ:
        die_with_parent(os.getppid())


def die_with_parent(parent: int) -> None:
    """Has the kernel end this process when process `parent`, its parent, ends: a killed `dvc repro` leaves no trainer behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


@contextmanager
def _end_workers() -> Iterator[list[BaseProcess]]:
    """Ends the workers in the list however the block ends."""
    workers: list[BaseProcess] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
