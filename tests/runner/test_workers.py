"""Which device computes, and what happens to a worker that a GPU fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import UserError
from pipeline.runner import finished, workers
from pipeline.training.engine import Trainer


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine where a GPU's driver is installed."""
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(workers, "_GPU_DRIVERS", (str(tmp_path / "nvidiactl"),))
    monkeypatch.delenv("LAB_DEVICE", raising=False)
    workers.why_no_gpu.cache_clear()
    yield
    workers.why_no_gpu.cache_clear()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update your GPU driver."),
        torch.AcceleratorError("CUDA error: no kernel image is available for execution on the device\nCompile with TORCH_USE_CUDA_DSA"),
        AssertionError("Torch not compiled with CUDA enabled"),
    ],
    ids=["driver", "no code", "no cuda"],
)
def test_a_gpu_that_torch_cannot_use_is_told(
    driver: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def ones(*size: int, device: str) -> Any:
        raise error

    monkeypatch.setattr(torch, "ones", ones)
    first = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert workers.choose_device() == "cpu"
    assert capsys.readouterr().err == f"The CPU computes, because torch cannot use this machine's GPU: {first}\n"
    monkeypatch.setenv("LAB_DEVICE", "cuda")
    with pytest.raises(UserError) as caught:
        workers.choose_device()
    assert str(caught.value) == f"LAB_DEVICE is cuda, but torch cannot use a GPU here ({first}); unset it or set it to cpu."


def test_a_gpu_that_computes_is_chosen(driver: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: real(*size))
    assert workers.choose_device() == "cuda"
    assert capsys.readouterr() == ("", "")


Answer = Callable[[workers.Job, workers.Task], "workers.Message | int"]


def run(monkeypatch: pytest.MonkeyPatch, job: workers.Job, tasks: list[workers.Task], answer: Answer) -> list[workers.Message]:
    """The messages of `workers.run`, with a thread for each worker; `answer`: to a task, or the status that the worker dies with."""

    class Worker(threading.Thread):
        def __init__(self, *, target: Any, args: Any, daemon: bool) -> None:
            super().__init__(target=self.work, args=args, daemon=daemon)
            self.exitcode = 0

        def work(self, card: str, pipe: Any) -> None:
            while (assignment := pipe.recv()) is not None:
                job, task = assignment.job, assignment.task
                said = answer(job, task)
                if isinstance(said, int):
                    self.exitcode = said
                    pipe.end()
                    return
                pipe.send(said)
                if isinstance(said, workers.Broken):
                    return

        def kill(self) -> None: ...

        terminate = kill

    def pipe() -> tuple[Any, Any]:
        ours, theirs = Pipe()
        # A thread has no own copy of the end that the caller closes.
        return ours, SimpleNamespace(recv=theirs.recv, send=theirs.send, close=lambda: None, end=theirs.close)

    context = SimpleNamespace(Process=Worker, Pipe=pipe)
    monkeypatch.setattr(workers, "multiprocessing", SimpleNamespace(get_context=lambda kind: context))
    messages: list[workers.Message] = []
    workers.run(job, tasks, 1, messages.append)
    return messages


@pytest.fixture
def job(tmp_path: Path) -> workers.Job:
    settings: Any = None
    return workers.Job(settings, tmp_path, tmp_path, "cuda", {"code_hash": "c" * 64})


def test_a_stack_that_the_memory_does_not_hold_is_left_out_and_told(job: workers.Job) -> None:
    """Other trainings may fit, so the status is not that of bad input, which ends them all."""
    for error in (torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")):
        broken = workers._broken(workers.Assignment(job, workers.Task([0, 1])), error)
        assert broken.error.startswith("The GPU's memory does not hold the training of seeds [0, 1] (")
        assert broken.as_error().status == 1


@pytest.mark.parametrize("status", [-9, 1])
def test_a_killed_worker_is_not_started_again(monkeypatch: pytest.MonkeyPatch, job: workers.Job, status: int) -> None:
    with pytest.raises(UserError, match=f"ended with status {status} "):
        run(monkeypatch, job, [workers.Task([0, 1])], lambda job, task: status)


def test_a_kill_after_the_last_epoch_does_not_forget_that_graphs_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_trainer: Callable[..., Trainer]
) -> None:
    """A process that trains no epoch has captured no graph; only the checkpoint knows. The CPU computes in the place of a GPU."""
    captured, other = tiny_trainer(), tiny_trainer()
    captured.driver.graphs = "captured"
    trainers = iter([captured, other])
    monkeypatch.setattr("pipeline.training.fused.make_trainer", lambda *arguments: next(trainers))
    monkeypatch.setattr(workers, "_facts", lambda job, engine: workers.Facts(engine, "sdpa", 1, 2, "A GPU"))
    job = workers.Job(captured.settings, tmp_path, tmp_path, "cuda", {"code_hash": "c" * 64, "versions": {"torch": "2.15.0"}})
    until_killed = workers._train(job, None, [0, 1])
    while not captured.done:
        next(until_killed)
    started, done = workers._train(job, None, [0, 1])
    assert (started.epoch, done.failed) == (captured.settings.train.epochs, {})
    parts, _ = finished.read_all(tmp_path)
    assert [part.origin["graphs"] for part in parts] == ["captured"] * 2


def test_processes_share_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.setenv("LAB_PROCESSES", "4")
    assert workers.choose_cards("cuda") == ["2", "5"]
    assert workers.choose_cards("cuda", 3) == ["2", "5", "2"]
    assert workers.choose_cards("cpu") == [""] * 4
    assert workers.choose_cards("cpu", 2) == [""] * 2
