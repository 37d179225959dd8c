"""The processes that train: on CUDA one for the whole stack, on the CPU one a core, a seed at a time, one thread each.

The calling process only coordinates, so neither MLflow nor a terminal can hold up a step. Results travel by checkpoint, messages
by pipe. A worker ends with its parent; a worker that dies takes the group down with one sentence.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from pipeline.errors import UserError, disk_sentence
from pipeline.params import VariantSettings
from pipeline.provenance import device_name
from pipeline.training.records import EpochRow

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux inside Windows


@dataclass(frozen=True)
class Job:
    """What a worker needs to train any group of a variant."""

    settings: VariantSettings
    arrays: Path
    checkpoints: Path
    device: str


@dataclass(frozen=True)
class Facts:
    """Of a model: the attention kernel that runs, trained scalars, forward FLOPs of an image; and of the device its name."""

    attention: str
    parameters: int
    flops: int
    device_name: str


@dataclass(frozen=True)
class Started:
    """A group begins; `rows` are those of an earlier process, `facts` what only a process with torch can tell of the model."""

    seeds: list[int]
    epoch: int
    rows: list[EpochRow]
    warning: str | None
    facts: Facts


@dataclass(frozen=True)
class Epoch:
    """`note`, once a group: how the steps are driven, where that is worth a line."""

    seeds: list[int]
    epoch: int
    rows: list[EpochRow]
    failed: dict[int, int]
    checkpoint_seconds: float
    note: str | None = None


@dataclass(frozen=True)
class Done:
    seeds: list[int]
    failed: dict[int, int]


@dataclass(frozen=True)
class Broken:
    seeds: list[int]
    error: str
    user_error: bool


Message = Started | Epoch | Done | Broken


def choose_device() -> str:
    """`cuda` where there is a GPU, else `cpu`; the environment variable LAB_DEVICE decides otherwise.

    Raises:
        UserError: LAB_DEVICE names a device that is not there.
    """
    wanted = os.environ.get("LAB_DEVICE", "")
    if wanted not in ("", "cpu", "cuda"):
        raise UserError(f"LAB_DEVICE is {wanted!r}; the choices are cpu and cuda.")
    # Without a driver there is nothing to ask torch, whose import takes seconds.
    if wanted == "cpu" or (not wanted and not any(Path(driver).exists() for driver in _GPU_DRIVERS)):
        return "cpu"
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("LAB_DEVICE is cuda, but torch sees no GPU here; unset it or set it to cpu.")
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def choose_processes() -> int:
    """CPU workers: the cores this process may use, or LAB_PROCESSES. The results do not depend on it."""
    wanted = os.environ.get("LAB_PROCESSES", "")
    if not wanted:
        return len(os.sched_getaffinity(0))
    if not wanted.isdigit() or int(wanted) < 1:
        raise UserError(f"LAB_PROCESSES is {wanted!r}, but has to be a whole number of at least 1.")
    return int(wanted)


def make_groups(seeds: Sequence[int], device: str, *, stackable: bool) -> list[list[int]]:
    """The seeds that share a stack: all of them on CUDA where the model allows it; each its own on the CPU, where a stack gains nothing."""
    return [list(seeds)] if device == "cuda" and stackable else [[seed] for seed in seeds]


def run(job: Job, groups: Sequence[list[int]], processes: int, handle: Callable[[Message], None]) -> None:
    """Trains all groups and passes every message to `handle`, in the order of arrival.

    Raises:
        UserError: a worker died or hit an error; what it had checkpointed is kept.
    """
    context = multiprocessing.get_context("spawn")
    waiting = list(groups)
    with _end_workers() as workers:
        pipes: dict[Connection, BaseProcess] = {}
        for _ in range(min(processes, len(groups))):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(job, theirs), daemon=True)
            worker.start()
            theirs.close()
            workers.append(worker)
            pipes[ours] = worker
            ours.send(waiting.pop(0))
        while pipes:
            for pipe in wait(list(pipes)):
                assert isinstance(pipe, Connection)
                try:
                    message: Message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    pipes[pipe].join()
                    raise UserError(
                        f"A training process ended with status {pipes[pipe].exitcode} (out of memory?); run the same command again:"
                        " it goes on from the last finished epoch.",
                        status=1,
                    ) from None
                handle(message)
                if isinstance(message, Broken):
                    raise UserError(message.error, status=2 if message.user_error else 1)
                if isinstance(message, Done):
                    if waiting:
                        pipe.send(waiting.pop(0))
                    else:
                        pipe.send(None)
                        pipes.pop(pipe).join()


def _work(job: Job, pipe: Connection) -> None:
    """A worker's life: trains the groups that come through the pipe until None comes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    die_with_parent(parent.pid)
    import torch

    from pipeline.data.datasets import load
    from pipeline.training import checkpoint
    from pipeline.training.engine import Trainer, keep_freed_memory, set_reproducible

    seeds: list[int] = []
    try:
        set_reproducible(torch.device(job.device))
        keep_freed_memory()
        dataset = load(job.arrays)
        while (seeds := pipe.recv()) is not None:
            check_size(job.settings, len(dataset.train_labels))
            trainer = Trainer(job.settings, dataset, seeds, torch.device(job.device))
            warning = checkpoint.restore(job.checkpoints, trainer)
            pipe.send(Started(seeds, trainer.epoch, trainer.rows, warning, _facts(job)))
            first = trainer.epoch + 1
            while not trainer.done:
                rows = trainer.run_epoch()
                start = time.perf_counter()
                checkpoint.save(job.checkpoints, trainer)
                note = trainer.driver.note if trainer.epoch == first else None
                pipe.send(Epoch(seeds, trainer.epoch, rows, trainer.failed, time.perf_counter() - start, note))
            pipe.send(Done(seeds, trainer.failed))
    except UserError as error:
        pipe.send(Broken(seeds, str(error), True))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass
    except Exception as error:
        sentence = disk_sentence(error)
        pipe.send(Broken(seeds, sentence or f"Training seeds {seeds} failed:\n{traceback.format_exc()}", sentence is not None))


def check_size(settings: VariantSettings, num_images: int) -> None:
    """Raises UserError where a variant asks for a larger subset than the training set has images."""
    wanted = settings.train.train_images
    if wanted is not None and wanted > num_images:
        raise UserError(
            f"train_images is {wanted:,}, but {settings.data.dataset} has {num_images:,} training images; lower it in params.yaml."
        )


def _facts(job: Job) -> Facts:
    from pipeline.models import attention_kernel, build, count_flops, count_parameters

    model = job.settings.model
    return Facts(attention_kernel(model, job.device), count_parameters(build(model)), count_flops(model), device_name(job.device))


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
