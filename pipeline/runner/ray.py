"""Trainings on a Ray cluster: a group is a task, and the files that it writes come back with its messages, into the caller's store.

A node has the locked packages and nothing else: code travels as Ray's runtime environment, the data through its object store. The
calling process is the only one that writes to the store, so the cluster needs no shared disk, and may lose any other node.
"""

import contextlib
import functools
import logging
import os
import platform
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.runner import seeds
from pipeline.runner.pool import Assignment, Handle, Job, Message, Task, choose_processes, messages
from pipeline.runner.progress import group_name
from pipeline.system.errors import UserError, first_line
from pipeline.system.files import write_bytes
from pipeline.system.paths import PRETRAINED
from pipeline.system.processes import die_with_parent
from pipeline.system.provenance import PACKAGE, versions

MAX_DEATHS = 3  # of a group's processes or nodes, without an epoch between them
_LOOK_SECONDS = 5.0  # how long a wait lasts, after which the cluster is asked for its size again
_INSTALL = "`uv pip install --require-hashes -r requirements-cluster.lock`"
_SAME = ("python", "torch", "numpy", "numba")  # they decide the bits, so every node needs the same versions
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "3",  # of its connection
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a cluster of this machine listens on 127.0.0.1 only
}
_CARRIED = ("LAB_GRAPHS", "LAB_ATTENTION")  # a local worker inherits them

Files = dict[str, bytes]


def require() -> Any:
    """The module ray. Raises UserError where it is not installed."""
    os.environ |= _ENVIRONMENT  # which it reads on import
    try:
        import ray
    except ImportError:
        raise UserError(f"ON=ray needs the package ray: {_INSTALL} installs it.") from None
    return ray


@contextlib.contextmanager
def _cluster(jobs: int | None) -> Iterator[Any]:
    """The module ray, connected to the cluster that RAY_ADDRESS names, else to one of this machine that ends with the block."""
    ray, address = require(), os.environ.get("RAY_ADDRESS", "")
    carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    environment_there = {"py_modules": [str(PACKAGE)], "excludes": ["__pycache__"], "env_vars": carried}
    options: dict[str, Any] = {"runtime_env": environment_there, "log_to_driver": False, "logging_level": logging.CRITICAL}
    with contextlib.ExitStack() as stack:
        if not address:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            options |= {"num_cpus": max(jobs or 0, choose_processes()), "include_dashboard": False, "_temp_dir": folder}
        stack.callback(ray.shutdown)
        try:
            ray.init(address or "local", **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UserError(f"Ray cannot be used at {address or 'this machine'} ({first_line(error.__cause__ or error)}).") from None
        yield ray


def run_all(assignments: Sequence[Assignment], handle: Handle, *, device: str, jobs: int | None = None) -> None:
    """A `pool.Engine` on a cluster. A group whose process or node dies begins again, before all others, from what came back.

    Args:
        device: "cpu", where a task takes a core, or "cuda", where it takes a GPU.
        jobs: tasks at a time; by default as many as the cluster has cores or GPUs.

    Raises:
        UserError: the cluster does not answer.
    """
    kind, share = ("GPU", {"num_gpus": 1}) if device == "cuda" else ("CPU", {"num_cpus": 1})
    waiting, running, data = deque(assignments), dict[Any, Assignment](), dict[str, Any]()
    deaths: Counter[tuple[Path, tuple[int, ...]]] = Counter()
    with _cluster(jobs) as ray:
        train = ray.remote(**share, num_returns="streaming", max_retries=0)(_train)
        ours = {name: version for name, version in versions().items() if name in _SAME}

        def hand_out() -> None:
            slots = jobs or int(ray.cluster_resources().get(kind, 0))
            if not slots and not running:
                raise UserError(f"The cluster has no {kind}: JOBS=n says how many trainings may wait for one that is to come.")
            while waiting and len(running) < slots:
                assignment = waiting.popleft()
                job = assignment.job
                if job.settings.task not in data:
                    from pipeline.training.tasks import load

                    data[job.settings.task] = ray.put(load(job.settings.task, job.arrays))
                # In a list Ray passes the reference and not the data.
                running[train.remote(assignment, _checkpoint(job, assignment.task), [data[job.settings.task]], ours)] = assignment

        while waiting or running:
            hand_out()
            ready, _ = ray.wait(list(running), timeout=_LOOK_SECONDS, fetch_local=False)
            for stream in ready:
                assignment = running.pop(stream)
                job, task = assignment
                group, files = (job.folder, tuple(task.seeds)), dict[str, bytes]()
                try:
                    message, files = ray.get(next(stream))
                except (ray.exceptions.RayError, StopIteration) as error:
                    deaths[group] += 1
                    cause = getattr(error, "cause", None)
                    message = _death(assignment, first_line(cause if isinstance(cause, Exception) else error), deaths[group])
                    if message.kind == "gone":
                        waiting.appendleft(assignment)
                for name, content in files.items():  # with their seals
                    write_bytes(job.folder / name, content)
                if message.kind in ("epoch", "done"):
                    deaths.pop(group, None)
                if message.kind == "done":
                    seeds.Checkpoint(job.folder, task.seeds, job.origin["code_hash"]).path.unlink(missing_ok=True)
                if message.kind in ("other", "started", "epoch"):
                    running[stream] = assignment  # behind the others, so that each has its turn
                hand_out()  # first, because handling a message takes time, MLflow included
                handle(assignment, message)


def _death(assignment: Assignment, cause: str, times: int) -> Message:
    """What is told of a group whose process or node is gone, or which failed before it began."""
    group = assignment.task.seeds
    if times < MAX_DEATHS:
        return Message("gone", group, note=f"{group_name(group)}: its process or node is gone ({cause}); another one goes on.")
    sentence = f"Its process or node was lost {MAX_DEATHS} times without an epoch between ({cause}); run the command again."
    return Message("broken", group, error=UserError(sentence, status=1))


def _checkpoint(job: Job, task: Task) -> Files:
    """The file from which a group goes on, if there is one, and that of pretrained weights, by their paths on a node."""
    path, start = seeds.Checkpoint(job.folder, task.seeds, job.origin["code_hash"]).path, f"{job.settings.train.pretrained}.safetensors"
    read = {f"seeds/{path.name}": path, str(PRETRAINED / start): PRETRAINED / start}
    return {name: path.read_bytes() for name, path in read.items() if path.exists()}


def _train(assignment: Assignment, stored: Files, data: list[Any], wanted: dict[str, str]) -> Iterator[tuple[Message, Files]]:
    """A task on a node: yields each message of a group with the group's files, where they have changed.

    Args:
        stored: as `_checkpoint` gives it.
        data: one reference to the data of training and test.
        wanted: the versions of the calling process, without which a node must not train.
    """
    die_with_parent(os.getppid())
    found = versions()
    if any(found[name] != version for name, version in wanted.items()):
        theirs, ours = (", ".join(f"{name} {of[name]}" for name in _SAME) for of in (found, wanted))
        text = f"Node {platform.node()} has {theirs}, and this machine {ours}: other versions compute other bits; {_INSTALL} mends it."
        yield Message("broken", assignment.task.seeds, error=UserError(text)), {}
        return
    from pipeline.training.engine import keep_freed_memory

    keep_freed_memory()
    job = assignment.job
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name, "seeds")
        folder.mkdir()
        for file, content in stored.items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_bytes(content)
        moved = replace(job, folder=folder, origin=job.origin | {"versions": versions(job.device)})
        for message in messages(assignment._replace(job=moved), lambda job: _fetch(data[0])):
            written = folder.iterdir() if message.kind in ("same", "epoch", "done") else ()
            yield message, {path.name: path.read_bytes() for path in written}


@functools.lru_cache(maxsize=2)
def _fetch(reference: Any) -> Any:
    """The data, kept by each process of a node; the arrays themselves are in memory that all processes of the node share."""
    import ray

    return ray.get(reference)
