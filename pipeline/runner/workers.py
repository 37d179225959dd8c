"""The processes that train: on CUDA one per card, each with a whole stack, on the CPU one per core, each with one seed on one thread.

The calling process only coordinates, so neither MLflow nor a terminal can hold up a step. Results travel by checkpoint, messages
by pipe. A worker ends with its parent. When a worker dies, whoever called decides whether the others go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import itertools
import multiprocessing
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, disk_sentence
from pipeline.files import DamagedError
from pipeline.params import VariantSettings, shown
from pipeline.provenance import device_name, same_processor
from pipeline.runner.schedule import Queue
from pipeline.training.records import EpochRow

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux inside Windows


@dataclass(frozen=True)
class Job:
    """What a worker needs to train any group of a variant.

    Attributes:
        folder: where checkpoints and finished seeds of these settings lie.
        origin: what is known of a training before it starts: `code_hash`, `git_commit`, `git_dirty`, `versions`, `device`.
        started: the moment, one for all seeds.
    """

    settings: VariantSettings
    arrays: Path
    folder: Path
    device: str
    origin: dict[str, Any]
    started: str = field(default_factory=lambda: now())


@dataclass(frozen=True)
class Task:
    """Seeds that train together. `replay`: they are finished already, by another version of the code."""

    seeds: list[int]
    replay: bool = False


@dataclass(frozen=True)
class Assignment:
    """What a worker does at a time: a group of a variant."""

    job: Job
    task: Task


@dataclass
class _Worker:
    process: BaseProcess
    card: str
    assignment: Assignment


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
class Broken:
    seeds: list[int]
    error: str
    user_error: bool


Message = Started | Epoch | Done | Replayed | Broken


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
    return count_of("LAB_PROCESSES", wanted) if wanted else len(os.sched_getaffinity(0))


def count_of(name: str, text: str) -> int:
    """A number of processes. Raises UserError, which calls it by `name`, where the text is none."""
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UserError(f"{name} is {shown(text)}, but has to be a whole number from 1 to 9999.")
    return int(text)


def choose_cards(device: str, jobs: int | None = None) -> list[str]:
    """For each process that trains the GPU that it sees, as CUDA_VISIBLE_DEVICES names it; empty on the CPU.

    Args:
        jobs: how many processes; by default one per card, and on the CPU what `choose_processes` says.
    """
    if device == "cpu":
        return [""] * (jobs or choose_processes())
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    cards = visible.split(",")
    return list(itertools.islice(itertools.cycle(cards), jobs or len(cards)))


def make_groups(seeds: Sequence[int], device: str, *, stackable: bool) -> list[list[int]]:
    """The seeds that share a stack: all of them on CUDA where the model allows it; each its own on the CPU, where a stack gains nothing."""
    return [list(seeds)] if device == "cuda" and stackable else [[seed] for seed in seeds]


def run(job: Job, tasks: Sequence[Task], processes: int, handle: Callable[[Message], None]) -> None:
    """Replays or trains all groups of a variant and passes every message to `handle`, in the order of arrival.

    Raises:
        UserError: a worker died or hit an error; what it had checkpointed is kept.
    """

    def lost(assignment: Assignment, error: UserError) -> None:
        raise error

    queue = Queue((Assignment(job, task), 0.0) for task in tasks)  # in the order given
    run_all(queue, [""] * processes, lambda _, message: handle(message), lost)


def run_all(
    queue: Queue[Assignment],
    cards: Sequence[str],
    handle: Callable[[Assignment, Message], None],
    lost: Callable[[Assignment, UserError], None],
) -> None:
    """Works on all that the queue holds, in as many processes as there are `cards`: one that is done with a group takes the next.

    Args:
        queue: `handle` and `lost` may add to it.
        cards: for each process the GPU that it sees, as CUDA_VISIBLE_DEVICES has it; empty for all of them, and on the CPU.
        handle: is given every message, in the order of arrival.
        lost: is told of a group whose process died or failed; unless it raises, another process takes the next group.
    """
    context = multiprocessing.get_context("spawn")
    busy: dict[Connection, _Worker] = {}
    idle = list(reversed(cards))
    with _end_workers() as processes:
        while queue or busy:
            while queue and idle:
                ours, theirs = context.Pipe()
                worker = _Worker(context.Process(target=_work, args=(idle[-1], theirs), daemon=True), idle.pop(), queue.take())
                worker.process.start()
                theirs.close()
                processes.append(worker.process)
                busy[ours] = worker
                ours.send(worker.assignment)
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                assignment = worker.assignment
                message = _receive(pipe, worker.process)
                if isinstance(message, Broken):
                    idle.append(busy.pop(pipe).card)
                    lost(assignment, UserError(message.error, status=2 if message.user_error else 1))
                    continue
                # The next group goes out first: what is done with a message, MLflow included, takes its time.
                if isinstance(message, Done) or (isinstance(message, Replayed) and message.parted is None):
                    following = queue.take() if queue else None
                    with contextlib.suppress(BrokenPipeError):  # a process that has just died is noticed by its end of the pipe
                        pipe.send(following)
                    if following is None:
                        idle.append(busy.pop(pipe).card)
                    else:
                        worker.assignment = following
                handle(assignment, message)


def _receive(pipe: Connection, process: BaseProcess) -> Message:
    """The next message of a process that trains; of one that died that it is broken."""
    try:
        message: Message = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        return Broken(
            [],
            f"A training process ended with status {process.exitcode} (out of memory?); run the same command again:"
            " it goes on from the last finished epoch.",
            False,
        )
    return message


def _work(card: str, pipe: Connection) -> None:
    """Works on what comes through the pipe until None comes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    die_with_parent(parent.pid)
    if card:
        os.environ["CUDA_VISIBLE_DEVICES"] = card
    import torch

    from pipeline.training.engine import keep_freed_memory, set_reproducible
    from pipeline.training.tasks import load

    seeds: list[int] = []
    kind, data = "", None  # of the task that was trained last
    try:
        keep_freed_memory()
        while (assignment := pipe.recv()) is not None:
            job, seeds = assignment.job, assignment.task.seeds
            set_reproducible(torch.device(job.device))
            if job.settings.task != kind:
                data = None  # before the new ones take their memory
                kind, data = job.settings.task, load(job.settings.task, job.arrays)
            if assignment.task.replay and _replay(job, data, seeds, pipe):
                continue
            _train(job, data, seeds, pipe)
    except UserError as error:
        pipe.send(Broken(seeds, str(error), True))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass
    except Exception as error:
        sentence = disk_sentence(error)
        pipe.send(Broken(seeds, sentence or f"Training seeds {seeds} failed:\n{traceback.format_exc()}", sentence is not None))


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


@contextlib.contextmanager
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
