"""`make train ON=ray`: two nodes of this machine compute the bits of local processes, whatever dies; refusals; groups that are given up.

Tests that need Ray run where requirements-cluster.lock is installed.
"""

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import params
from pipeline.commands import train
from pipeline.data.datasets import load
from pipeline.runner import pool, ray, seeds
from pipeline.system.errors import UserError
from pipeline.system.paths import FINISHED
from pipeline.system.provenance import training_code
from tests.conftest import small_study
from tests.helpers import PATIENCE, lay_out, trains_here, wait_until

DRIVER = """
import functools
from pipeline import params
from pipeline.commands.train import train_all
from pipeline.system.errors import run_command
from pipeline.runner import pool, ray, seeds
run_command(lambda argv: train_all(params.load(), "cpu", functools.partial(ray.run_all, device="cpu")))
"""
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs requirements-cluster.lock")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, arrays: Path, raw_params: dict[str, Any]) -> Path:
    """Two tiny variants on the digits, after their stages before train."""
    raw = small_study(raw_params) | {"variants": {"base": {}, "deep": {"blocks": 2}}, "experiments": {}, "claims": {}}
    raw["train"] |= {"epochs": 12, "batch_size": 64}
    directory = tmp_path_factory.mktemp("study")
    lay_out(directory, raw, arrays)
    return directory


def outcome(directory: Path) -> dict[tuple[str, int], Any]:
    """By folder and seed the bits of all weights and of the trace, and the rows without their seconds."""
    return {
        (place.name, one.seed): ({name: value.tobytes() for name, value in one.tensors.items()}, [row[:-1] for row in one.rows])
        for place in (directory / FINISHED).iterdir()
        for one in seeds.read_all(place)[0]
    }


@pytest.fixture(scope="module")
def local(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """The outcome of a worker's own functions, in this process, in a copy of the study."""
    directory = shutil.copytree(study, tmp_path_factory.mktemp("local") / "study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("LAB_ATTENTION", "sdpa")  # the fused kernel would be compiled anew for the nodes
        train.train_all(params.load(), "cpu", trains_here)
    return outcome(directory)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes of one processor each, which have the packages and none of this project's code; the second may be killed."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        for name, value in ray._ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("PYTHONPATH", raising=False)
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()  # Ray notes the newest cluster in this folder, which only its own command makes
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "temp_dir": folder})
        made.add_node(num_cpus=1, temp_dir=folder)
        yield made
        for node in made.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


@contextlib.contextmanager
def driver(directory: Path, nodes: Any, code: str = DRIVER, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process of its own, which does not outlive the block."""
    given = {**os.environ, **ray._ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_ADDRESS": nodes.address}
    own, pipes = {**given, "LAB_ATTENTION": "sdpa", **environment}, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=directory, env=own, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def trainers(raylet: int) -> list[int]:
    """The processes of a node that train."""
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return [int(pid) for pid in children if "ray::_train" in Path(f"/proc/{pid}/cmdline").read_text()]


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_node_and_driver_killed_the_bits_are_those_of_local_processes(
    study: Path, nodes: Any, local: dict[tuple[str, int], Any], tmp_path: Path
) -> None:
    directory = shutil.copytree(study, tmp_path / "study")
    head, second = (node.all_processes["raylet"][0].process.pid for node in nodes.list_all_nodes())
    with driver(directory, nodes) as process:
        assert process.stdout is not None
        begun: set[str] = set()
        while len(begun) < 2:
            line = process.stdout.readline()
            assert line, process.communicate()
            if "  epoch " in line:
                begun.add(line.split("  epoch ")[0])
        (orphan,) = trainers(second)
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: ended(orphan))
        gone = next(line for line in process.stdout if " its process or node is gone (" in line)
        group = gone.split(":")[0]
        assert group in begun
        assert "  goes on after epoch " in next(line for line in process.stdout if line.startswith(f"{group}  "))
        process.kill()
        assert process.communicate()[1] == ""
    wait_until(lambda: not trainers(head))

    with driver(directory, nodes) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "  goes on after epoch " in out
    assert outcome(directory) == local


@needs_ray
@pytest.mark.slow
def test_a_node_with_other_versions_is_refused(study: Path, nodes: Any, tmp_path: Path) -> None:
    directory = shutil.copytree(study, tmp_path / "study")
    other = DRIVER.replace("run_command(", "real = ray.versions()\nray.versions = lambda: real | {'torch': '1.0'}\nrun_command(", 1)
    with driver(directory, nodes, other) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err + out
    assert err.count("error: Node ") + out.count(": Node ") == 1
    assert f"torch {torch.__version__.split('+')[0]}" in err + out
    assert "torch 1.0" in err + out
    assert not outcome(directory)


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    with pytest.raises(UserError, match=r"uv pip install --require-hashes -r requirements-cluster\.lock") as caught:
        train.main(["--on=ray"])
    assert caught.value.status == 2


def test_a_group_whose_replay_differs_goes_on_from_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, study: Path, arrays: Path
) -> None:
    """The task of a node, in this process and without Ray."""
    monkeypatch.setattr(ray, "_fetch", lambda reference: reference)
    monkeypatch.setattr(ray, "die_with_parent", lambda parent: None)
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    data = [load(arrays)]
    settings = params.load(study / "params.yaml").resolve("base")
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": 2})})
    job = pool.Job(settings, arrays, tmp_path, "cpu", {"code_hash": training_code(), "git_commit": None})

    def told(task: pool.Task, count: int) -> list[pool.Message]:
        """The first messages, whose files are stored."""
        assignment = pool.Assignment(job, task)
        messages = ray._train(assignment, ray._checkpoint(job, task), data, {})
        found = []
        for message, files in itertools.islice(messages, count):
            found.append(message)
            for name, content in files.items():
                (tmp_path / name).write_bytes(content)
        return found

    told(pool.Task([0]), 4)
    (part,), _ = seeds.read_all(tmp_path)
    part.tensors["trace.loss"][3] += 1
    for path in tmp_path.iterdir():
        path.unlink()
    part = replace(part, origin={**part.origin, "code_hash": "a" * 64})
    seeds.write(tmp_path, part)
    told(pool.Task([0]), 2)
    replayed, started, epoch, done = told(pool.Task([0], (part,)), 5)
    assert [one.kind for one in (replayed, started, epoch, done)] == ["other", "started", "epoch", "done"]
    assert str(replayed.note).startswith("step 4 of seed 0: ")
    assert (started.epoch, epoch.epoch, done.failed) == (1, 2, {})
    assert {one.origin["code_hash"] for one in seeds.read_all(tmp_path)[0]} == {"a" * 64, training_code()}
