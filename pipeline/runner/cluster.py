"""Trainings on a Ray cluster: a group is a task, and the files that it writes come back with its messages, into the caller's store.

A node has the locked packages and nothing else: code travels as Ray's runtime environment, the data through its object store. The
calling process is the only one that writes to the store, so the cluster needs no shared disk, and may lose any other node.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import platform
import secrets
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import environment
from pipeline.errors import UserError, first_line
from pipeline.files import replacing
from pipeline.params import shown
from pipeline.provenance import PACKAGE, versions
from pipeline.runner.checkpoint import path_of
from pipeline.runner.progress import group_name
from pipeline.runner.schedule import Queue
from pipeline.runner.workers import (
    Assignment,
    Broken,
    Done,
    Epoch,
    Gone,
    Message,
    Replayed,
    Started,
    Task,
    choose_processes,
    die_with_parent,
    messages,
)

MAX_DEATHS = 3  # of a group's processes or nodes, without an epoch between them
_LOOK_SECONDS = 5.0  # how often the cluster is asked for its size
_INSTALL = "`uv pip install --require-hashes -r requirements-cluster.lock`"
_SAME = ("python", "torch", "numpy", "numba")  # they decide the bits, so every node needs the same versions
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "3",  # retries of its connection; a refused token is refused again
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # makes a cluster of this machine listen on 127.0.0.1 only
_ANSWER_SECONDS = 10.0
_CARRIED = ("LAB_GRAPHS", "LAB_ATTENTION")  # a local worker inherits them

_TOKEN = "RAY_AUTH_TOKEN, or the file ~/.ray/auth_token, has to hold that with which the cluster was started"

Files = dict[str, bytes]


def require() -> Any:
    """The module ray. Raises UserError where it is not installed."""
    # Ray reads its environment on import.
    with environment.variables(**_ENVIRONMENT, **({} if _address() else _LOOPBACK)):
        try:
            import ray
        except ImportError:
            raise UserError(f"ON=ray needs the package ray: {_INSTALL} installs it.") from None
    return ray


def _address() -> str:
    """Of the cluster to use; empty for a cluster of this machine."""
    return os.environ.get("RAY_ADDRESS", "")


def run_all(
    queue: Queue[Assignment],
    *,
    handle: Callable[[Assignment, Message], None],
    lost: Callable[[Assignment, UserError], None],
    device: str,
    jobs: int | None = None,
) -> None:
    """Works through the queue on the cluster that RAY_ADDRESS names, else on one of this machine that ends with the work.

    Args:
        queue, handle, lost: as for `workers.run_all`.
        device: "cpu", where a task takes a core, or "cuda", where it takes a GPU.
        jobs: tasks at a time; by default as many as the cluster has cores or GPUs, and on this machine what `choose_processes` says.

    Raises:
        UserError: the cluster does not answer or does not accept the token, or a node has other versions than this machine.
    """
    with _connected(device, jobs) as ray:
        _Driver(ray, queue, handle, lost, device, jobs).work()


@contextlib.contextmanager
def _connected(device: str, jobs: int | None) -> Iterator[Any]:
    """The module ray, connected to a cluster; what this process runs there ends with the block."""
    ray = require()
    ray._private.worker.print_to_stdstream = lambda *lines, **options: None  # otherwise it prints the log of each lost node
    address = _address()
    carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    options: dict[str, Any] = {
        "runtime_env": {"py_modules": [str(PACKAGE)], "excludes": ["__pycache__"], "env_vars": carried},
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
    }
    variables = dict(_ENVIRONMENT)
    with contextlib.ExitStack() as stack:
        if address:
            _reach(address)
        else:
            variables |= {**_LOOPBACK, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            cores = max(jobs or 0, choose_processes())
            options |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}
        stack.enter_context(environment.variables(**variables))
        stack.callback(ray.shutdown)
        try:
            with _silent():
                ray.init(address or "local", **options)
        except ray.exceptions.AuthenticationError:
            raise UserError(f"The Ray cluster at {address} asks for a token: {_TOKEN}.") from None
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            if "AuthenticationError" in repr(error.__cause__):
                raise UserError(f"The Ray cluster at {address} has another token than this machine: {_TOKEN}.") from None
            raise UserError(f"Ray cannot be used at {address or 'this machine'} ({first_line(error.__cause__ or error)}).") from None
        yield ray


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discards standard error, because Ray's compiled part writes there whatever the logging level is."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _reach(address: str) -> None:
    """Raises UserError where nothing answers; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if "/" in address or not (host and port.isdigit()):
        raise UserError(
            f"RAY_ADDRESS is {shown(address)}, but has to be HOST:PORT of the cluster's head, and this machine one of its nodes."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"Nothing answers at RAY_ADDRESS, {address} ({first_line(error)}): `ray start --head` starts a cluster.") from None


class _Driver:
    """Hands groups out to the cluster and stores what comes back.

    Args:
        jobs: tasks at a time; None for as many as the cluster has cores or GPUs.
    """

    def __init__(
        self,
        ray: Any,
        queue: Queue[Assignment],
        handle: Callable[[Assignment, Message], None],
        lost: Callable[[Assignment, UserError], None],
        device: str,
        jobs: int | None,
    ) -> None:
        self._ray, self._queue, self._handle, self._lost, self._jobs = ray, queue, handle, lost, jobs
        self._kind = "GPU" if device == "cuda" else "CPU"
        share = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        self._train = ray.remote(**share, num_returns="streaming", max_retries=0)(_train)
        self._here = {name: version for name, version in versions().items() if name in _SAME}
        self._data: dict[str, Any] = {}  # by kind of task, references to the data in the cluster
        self._running: dict[Any, Assignment] = {}  # by the stream of its messages
        self._deaths: Counter[tuple[Path, tuple[int, ...]]] = Counter()
        self._size, self._asked = 0, -_LOOK_SECONDS

    def work(self) -> None:
        if not self._slots():
            raise UserError(f"The cluster has no {self._kind}: JOBS=n says how many trainings may wait for one that is to come.")
        while self._queue or self._running:
            self._hand_out()
            ready, _ = self._ray.wait(list(self._running), timeout=_LOOK_SECONDS, fetch_local=False)
            for stream in ready:
                assignment = self._running.pop(stream)
                try:
                    message, files = self._ray.get(next(stream))
                except self._ray.exceptions.RayTaskError as error:
                    text = f"Training seeds {assignment.task.seeds} failed on a node before it began: {first_line(error.cause)}"
                    self._lost(assignment, UserError(text, status=1))
                except (self._ray.exceptions.RayError, StopIteration) as error:
                    self._died(assignment, error)
                else:
                    self._take(stream, assignment, message, files)

    def _slots(self) -> int:
        """How many tasks may run at a time."""
        if self._jobs:
            return self._jobs
        if time.monotonic() - self._asked >= _LOOK_SECONDS:
            self._size, self._asked = int(self._ray.cluster_resources().get(self._kind, 0)), time.monotonic()
        return self._size

    def _hand_out(self) -> None:
        while self._queue and len(self._running) < max(self._slots(), 1):
            assignment = self._queue.take()
            job = assignment.job
            kind = job.settings.task
            if kind not in self._data:
                from pipeline.training.tasks import load

                self._data[kind] = self._ray.put(load(kind, job.arrays))
            self._running[self._train.remote(assignment, _stored(assignment), [self._data[kind]], self._here)] = assignment

    def _take(self, stream: Any, assignment: Assignment, message: Message, files: Files) -> None:
        job, seeds = assignment.job, assignment.task.seeds
        if isinstance(message, Broken):
            self._lost(assignment, message.as_error())
            return
        for name, content in files.items():  # with their seals
            with replacing(job.folder / name) as temporary:
                temporary.write_bytes(content)
        if isinstance(message, Done):
            path_of(job.folder, seeds, job.origin["code_hash"]).unlink(missing_ok=True)
        if isinstance(message, Epoch | Done):
            self._deaths.pop((job.folder, tuple(seeds)), None)
        if isinstance(message, Replayed) and message.parted is not None:
            assignment = replace(assignment, task=Task(seeds))
        if not (isinstance(message, Done) or (isinstance(message, Replayed) and message.parted is None)):
            self._running[stream] = assignment  # behind the others, so that each has its turn
        self._hand_out()  # first, because handling a message takes time, MLflow included
        self._handle(assignment, message)

    def _died(self, assignment: Assignment, error: Exception) -> None:
        """Restarts a group whose process or node is gone from what came back, or gives it up after MAX_DEATHS."""
        job, task = assignment.job, assignment.task
        key = job.folder, tuple(task.seeds)
        self._deaths[key] += 1
        cause = type(error).__name__
        if self._deaths[key] < MAX_DEATHS:
            self._queue.put(assignment, math.inf)  # before all others
            if not task.replay:
                reason = f"{group_name(task.seeds)}: its process or node is gone ({cause}); another one goes on from the last epoch."
                self._handle(assignment, Gone(task.seeds, reason))
            return
        del self._deaths[key]
        text = f"Its process or node was lost {MAX_DEATHS} times without an epoch between ({cause}); run the same command again."
        self._lost(assignment, UserError(text, status=1))


def _stored(assignment: Assignment) -> Files:
    """The stored files from which a group's task goes on: the checkpoint, for a replay also the finished seeds."""
    job, task = assignment.job, assignment.task
    paths = [path_of(job.folder, task.seeds, job.origin["code_hash"])]
    if task.replay:
        paths += [path for seed in task.seeds for path in job.folder.glob(f"seed-{seed}.*.done")]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def _train(assignment: Assignment, stored: Files, data: list[Any], wanted: dict[str, str]) -> Iterator[tuple[Message, Files]]:
    """A task on a node: yields each message of a group with the files that were written for it.

    Args:
        stored: as `_stored` gives it.
        data: one reference to the data of training and test, in a list, so that Ray passes the reference and not the data.
        wanted: the versions of the calling process.
    """
    die_with_parent(os.getppid())
    if refusal := _refusal(wanted):
        yield Broken(assignment.task.seeds, refusal, True), {}
        return
    from pipeline.training.engine import keep_freed_memory

    keep_freed_memory()
    job = assignment.job
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in stored.items():
            (folder / file).write_bytes(content)
        moved = replace(job, folder=folder, origin=job.origin | {"versions": versions(job.device)})
        for message in messages(replace(assignment, job=moved), lambda job: _fetch(data[0])):
            # A group whose replay differed is trained next, from the checkpoint that lies there.
            goes_on = isinstance(message, Started) or (isinstance(message, Replayed) and message.parted is not None)
            yield message, {} if goes_on else _taken_from(folder)


def _taken_from(folder: Path) -> Files:
    """Reads and removes the files of a folder."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in files:
        (folder / name).unlink()
    return files


@functools.lru_cache(maxsize=2)
def _fetch(reference: Any) -> Any:
    """The data, kept by each process of a node; the arrays themselves are in memory that all processes of the node share."""
    import ray

    return ray.get(reference)


def _refusal(wanted: dict[str, str]) -> str | None:
    """Why this node must not train, as a sentence; None where it may."""
    import ray

    node = f"Node {platform.node()} ({ray.util.get_node_ip_address()})"
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return f"{node} runs without a token: start Ray with RAY_AUTH_MODE=token on every node."
    found = versions()
    if all(found[name] == version for name, version in wanted.items()):
        return None
    theirs, ours = (", ".join(f"{name} {of[name]}" for name in _SAME) for of in (found, wanted))
    return f"{node} has {theirs}, and this machine has {ours}: other versions compute other bits; {_INSTALL} makes them equal."
