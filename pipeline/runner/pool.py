"""The processes that train: on CUDA one per card, each with a whole stack, on the CPU one per core, each with one seed on one thread.

The calling process only coordinates, so neither MLflow nor a terminal can hold up a step. Results travel by checkpoint, messages
by pipe. A worker ends with its parent. When a worker dies, the caller decides whether the others go on.
"""

import contextlib
import datetime
import functools
import gc
import itertools
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.params import VariantSettings, shown
from pipeline.runner import seeds
from pipeline.runner.seeds import Finished
from pipeline.system.errors import UserError, disk_sentence, first_line, place
from pipeline.system.files import DamagedError
from pipeline.system.processes import die_with_parent
from pipeline.system.provenance import device_name, loaded_code, same_processor
from pipeline.training.records import EpochRow

_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux inside Windows
_SWITCHES = {"LAB_DEVICE": ("cpu", "cuda"), "LAB_ATTENTION": ("sdpa",), "LAB_GRAPHS": ("0", "1"), "REPLAY": ("0", "1")}


@dataclass(frozen=True)
class Job:
    """What a worker needs to train any group of a variant.

    Attributes:
        folder: where checkpoints and finished seeds of these settings lie.
        origin: what is known of a training before it starts, from `provenance.origin`.
        claims: digests of the claims that speak of the variant; each seed keeps those of the moment at which it began to train.
        variant: its name to the caller.
    """

    settings: VariantSettings
    arrays: Path
    folder: Path
    device: str
    origin: dict[str, Any]
    claims: tuple[str, ...] = ()
    variant: str = ""


@dataclass(frozen=True)
class Task:
    """Seeds that train together.

    Attributes:
        finished: what another version of the code has finished of them, to be replayed; none, or all.
        first: the variant's first seed, which is tested in place of those whose weights are not here.
    """

    seeds: list[int]
    finished: tuple[Finished, ...] = ()
    first: Finished | None = None

    @property
    def replay(self) -> bool:
        return bool(self.finished)


class Assignment(NamedTuple):
    """What a worker does at one time: a group of a variant."""

    job: Job
    task: Task


@dataclass(frozen=True)
class Message:
    """What is told of a group of seeds.

    Attributes:
        kind: "same": it is finished, and today's code computes the same; "other": it does not, and trains it next; "started": it begins
            to train; "epoch": it has finished one; "done": it has finished; "gone": its process or node is gone, and another one goes on
            from the last epoch; "broken": an error ends the work on it.
        epoch: the last one that it has finished.
        rows: those of the epoch; of "started" those of an earlier process.
        note: what is worth a line, as a sentence; of "other" a clause.
        facts: of "started" what only a process with torch can say: `engine`, `attention` (the kernel that runs), `parameters` (trained
            scalars), `flops` (of an image's forward pass) and `device_name`.
        failed: of "done", by seed, the epoch in which its loss stopped being finite.
        error: of "broken"; its status is 1 where other groups may be computed all the same.
        checkpoint_seconds: of "epoch".
    """

    kind: Literal["same", "other", "started", "epoch", "done", "gone", "broken"]
    seeds: list[int]
    epoch: int = 0
    rows: list[EpochRow] = field(default_factory=list)
    note: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    error: UserError | None = None
    checkpoint_seconds: float = 0.0

    @property
    def is_last(self) -> bool:
        """Whether the group's work ends with it, and without an error."""
        return self.kind in ("same", "done")


Handle = Callable[[Assignment, Message], None]
# Works through groups of seeds in their order, on this machine or a cluster, and hands on every message in the order of arrival. After
# one that is broken the others go on, unless its handling raises.
Engine = Callable[[Sequence[Assignment], Handle], None]


# --- the device ---


def choose_device() -> str:
    """`cuda` where there is a GPU that torch can use, else `cpu`; the environment variable LAB_DEVICE decides otherwise.

    One sentence tells of a GPU that is there and cannot be used (too old a driver, a torch without code for it).

    Raises:
        UserError: LAB_DEVICE names a device that is not there or cannot be used, or another of this project's variables says nothing
            that is known.
    """
    for name, choices in _SWITCHES.items():
        if (value := os.environ.get(name, "")) not in ("", *choices):
            raise UserError(f"{name} is {value!r}, but has to be {' or '.join(choices)}, or unset.")
    wanted = os.environ.get("LAB_DEVICE", "")
    # Without a driver there is nothing to ask torch, whose import takes seconds.
    if wanted == "cpu" or (not wanted and not any(Path(driver).exists() for driver in _GPU_DRIVERS)):
        return "cpu"
    reason = why_no_gpu()
    if reason is None:
        return "cuda"
    if wanted:
        raise UserError(f"LAB_DEVICE is cuda, but torch cannot use a GPU here ({reason}); unset it or set it to cpu.")
    print(f"The CPU computes, because torch cannot use this machine's GPU: {reason}", file=sys.stderr)
    return "cpu"


@functools.cache
def why_no_gpu() -> str | None:
    """Why torch cannot compute on a GPU here, in torch's words; None where it can.

    `torch.cuda.is_available` does not suffice: where the driver is too old it says False without a reason, and of a GPU that torch has
    no code for it says True.
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
    """CPU workers: the cores this process may use, or LAB_PROCESSES, which the Makefile's JOBS sets. The results do not depend on it."""
    wanted = os.environ.get("LAB_PROCESSES", "")
    return count_of(wanted) if wanted else len(os.sched_getaffinity(0))


def count_of(text: str) -> int:
    """A number of processes. Raises UserError where the text is no such number."""
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise UserError(f"JOBS (or LAB_PROCESSES) is {shown(text)}, but has to be a whole number from 1 to 9999.")
    return int(text)


def choose_cards(device: str, jobs: int | None = None) -> list[str]:
    """The GPU that each training process sees, as CUDA_VISIBLE_DEVICES names it; empty on the CPU.

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
    """The seeds that share a stack: all of them on CUDA where the model allows it, one each on the CPU, where a stack gains nothing."""
    return [list(seeds)] if device == "cuda" and stackable else [[seed] for seed in seeds]


# --- the coordinating process ---


def run_all(assignments: Sequence[Assignment], handle: Handle, *, cards: Sequence[str]) -> None:
    """An `Engine` of as many processes as there are `cards`: one that is done with a group takes the next.

    Args:
        cards: for each process the GPU that it sees, as CUDA_VISIBLE_DEVICES names it; empty for all of them, and on the CPU.
    """
    context = multiprocessing.get_context("spawn")
    waiting, idle, processes = deque(assignments), list(reversed(cards)), list[BaseProcess]()
    busy: dict[Connection, tuple[BaseProcess, str, Assignment]] = {}
    try:
        while waiting or busy:
            begun = []
            while waiting and idle:
                ours, theirs = context.Pipe()
                processes.append(context.Process(target=_work, args=(idle[-1], theirs), daemon=True))
                processes[-1].start()
                theirs.close()
                busy[ours] = processes[-1], idle.pop(), waiting.popleft()
                begun.append(ours)
            for ours in begun:  # when all are starting, because it waits until one reads
                with contextlib.suppress(BrokenPipeError):  # of a process that has just died; the next read notices it
                    ours.send(busy[ours][-1])
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                process, card, assignment = busy[pipe]
                message = _receive(pipe, process, assignment)
                # The next group goes out first, because handling a message takes time, MLflow included.
                following = waiting.popleft() if message.is_last and waiting else None
                if message.is_last:
                    with contextlib.suppress(BrokenPipeError):  # of a process that has just died; the next read notices it
                        pipe.send(following)
                if message.kind == "broken":
                    process.kill()  # with a broken CUDA context it may not end by itself
                    process.join()
                if following is not None:
                    busy[pipe] = process, card, following
                elif message.is_last or message.kind == "broken":
                    del busy[pipe]
                    idle.append(card)
                handle(assignment, message)
    finally:
        for one in processes:
            one.terminate()
        for one in processes:
            one.join()


def _receive(pipe: Connection, process: BaseProcess, assignment: Assignment) -> Message:
    """The next message of a training process; a broken one where it has died."""
    try:
        message: Message = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        said = f"A training process ended with status {process.exitcode} (out of memory?); run the same command again, and it goes on."
        return Message("broken", assignment.task.seeds, error=UserError(said, status=1))
    return message


# --- a training process ---


def _work(card: str, pipe: Connection) -> None:
    """Works on what comes through the pipe until None comes."""
    die_with_parent(getattr(multiprocessing.parent_process(), "pid", 0))
    if card:
        os.environ["CUDA_VISIBLE_DEVICES"] = card
    from pipeline.training import tasks
    from pipeline.training.engine import keep_freed_memory

    keep_freed_memory()
    load = functools.lru_cache(maxsize=1)(tasks.load)
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        while (assignment := pipe.recv()) is not None:
            for message in messages(assignment, lambda job: load(job.settings.task, job.arrays)):
                pipe.send(message)


def messages(assignment: Assignment, data_of: Callable[[Job], Any]) -> Iterator[Message]:
    """Replays or trains a group in this process. What a message reports is in the job's folder by then; an error is the last message.

    Args:
        data_of: gives the data of a job's training and test.
    """
    job, task = assignment.job, assignment.task
    try:
        if loaded_code()[job.settings.task] != job.origin["code_hash"]:
            raise UserError("The code was changed while this command ran, so its trainings would name other code: run it again.")
        prepare(job.device)
        data = data_of(job)
        if task.replay:
            yield (replayed := _replay(job, data, task))
        if not task.replay or not replayed.is_last:
            yield from _train(job, data, task.seeds)
    except Exception as error:
        yield Message("broken", task.seeds, error=error if isinstance(error, UserError) else _explained(assignment, error))


def prepare(device: str) -> None:
    """Makes this process train reproducibly from now on, with the memory of the groups before free."""
    import torch

    from pipeline.training.engine import set_reproducible

    set_reproducible(torch.device(device))
    if device == "cuda":
        gc.collect()  # a trainer is a cycle, which holds its graphs and their memory
        torch.cuda.empty_cache()


def _explained(assignment: Assignment, error: Exception) -> UserError:
    """What an error in the work on a group means to the user."""
    if sentence := disk_sentence(error):
        return UserError(sentence)
    hint = (
        ". Where its memory is full, lower train.batch_size or ask for fewer seeds at a time; LAB_ATTENTION=sdpa trains without this"
        " project's kernel, LAB_GRAPHS=0 without CUDA graphs, LAB_DEVICE=cpu on the processor."
    ) * (assignment.job.device == "cuda")
    return UserError(f"Training seeds {assignment.task.seeds} failed in {place(error)}{first_line(error)}{hint}", status=1)


def _replay(job: Job, data: Any, task: Task) -> Message:
    """Keeps the finished seeds where today's code computes the same."""
    import torch

    from pipeline.runner import replay
    from pipeline.training.fused import make_trainer

    parts, name = task.finished, device_name(job.device)
    trainer = make_trainer(job.settings, data, task.seeds, torch.device(job.device))
    facts = _facts(job, trainer.engine)
    exact = all(same_processor(part.origin["device_name"], name) and part.origin["attention"] == facts["attention"] for part in parts)
    difference = replay.first_difference(trainer, parts, task.first, exact=exact)
    if difference is None:
        record = {**job.origin, "date": now(), "device_name": name, "exact": exact}
        for part in parts:
            seeds.write(job.folder, part.replayed(record, {size: facts[size] for size in ("parameters", "flops")}))
    return Message("other" if difference else "same", task.seeds, note=difference)


def _train(job: Job, data: Any, group: list[int]) -> Iterator[Message]:
    import torch

    from pipeline.runner import replay
    from pipeline.training.fused import make_trainer

    trainer = make_trainer(job.settings, data, group, torch.device(job.device))
    tables = replay.tables(trainer)
    facts = _facts(job, trainer.engine)
    checkpoint = seeds.Checkpoint(job.folder, group, job.origin["code_hash"])
    # A benchmark records no versions.
    here: dict[str, Any] = {name: facts[name] for name in ("device_name", "attention")} | {"versions": job.origin.get("versions", {})}
    warning, kept = None, dict[str, Any]()
    try:
        kept = checkpoint.restore(trainer, **here)
    except DamagedError as fault:
        warning = f"{fault}: seeds {group} start from the beginning."
    about = {"started": now(), "claims": job.claims, **kept, **here}
    yield Message("started", group, trainer.epoch, trainer.rows, warning, facts)
    first = trainer.epoch + 1
    while not trainer.done:
        rows = trainer.run_epoch()
        about["engine"] = trainer.engine
        if job.device == "cuda":
            about["graphs"] = trainer.driver.graphs
        start = time.perf_counter()
        checkpoint.save(trainer, about)
        note = trainer.driver.note if trainer.epoch == first else None
        yield Message("epoch", group, trainer.epoch, rows, note, checkpoint_seconds=time.perf_counter() - start)
    seeds.write(job.folder, *seeds.of_trainer(trainer, {**job.origin, **facts, **about, "finished": now()}, tables))
    checkpoint.path.unlink(missing_ok=True)
    yield Message("done", group, trainer.epoch, failed=trainer.failed)


def now() -> str:
    """The moment in ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _facts(job: Job, engine: str) -> dict[str, Any]:
    from pipeline.models import attention_kernel, build, count_flops, count_parameters

    model = job.settings.model
    return {
        "engine": engine, "attention": "fused-vit" if engine == "fused" else attention_kernel(model, job.device),
        "parameters": count_parameters(build(model)), "flops": count_flops(model), "device_name": device_name(job.device),
    }  # fmt: skip
