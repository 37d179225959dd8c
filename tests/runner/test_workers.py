"""Which device computes, and what happens to a worker that a GPU fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import UserError
from pipeline.runner import checkpoint, finished, workers
from pipeline.runner.progress import TrainingProgress
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


def run(
    monkeypatch: pytest.MonkeyPatch, job: workers.Job, tasks: list[workers.Task], answer: Answer, before: Sequence[workers.Message] = ()
) -> list[workers.Message]:
    """The messages of `workers.run`, with a thread for each worker.

    Args:
        answer: to a task, or the status that the worker dies with.
        before: messages before the answer to a replay.
    """

    class Worker(threading.Thread):
        def __init__(self, *, target: Any, args: Any, daemon: bool) -> None:
            super().__init__(target=self.work, args=args, daemon=daemon)
            self.exitcode = 0

        def work(self, card: str, pipe: Any) -> None:
            while (assignment := pipe.recv()) is not None:
                job, task = assignment.job, assignment.task
                for message in before if task.replay else ():
                    pipe.send(message)
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


def test_a_stack_that_the_memory_does_not_hold_is_halved(monkeypatch: pytest.MonkeyPatch, job: workers.Job) -> None:
    def answer(job: workers.Job, task: workers.Task) -> workers.Message:
        full = len(task.seeds) > 2
        return workers.Broken(task.seeds, "", False, "memory", "CUDA out of memory") if full else workers.Done(task.seeds, {})

    messages = run(monkeypatch, job, [workers.Task([0, 1, 2, 5, 7]), workers.Task([9])], answer)
    assert sorted(message.seeds for message in messages if isinstance(message, workers.Done)) == [[0, 1], [2], [5, 7], [9]]
    first, second = (message for message in messages if isinstance(message, workers.Again))
    assert first.groups == [[0, 1, 2], [5, 7]]
    assert first.reason == "The GPU's memory does not hold a stack of 5 seeds; it is cut into 3 and 2."
    assert second.groups == [[0, 1], [2]]


@pytest.mark.parametrize("crash", [False, True])
def test_a_worker_that_the_gpu_fails_starts_once_more_without_graphs_and_kernel(
    monkeypatch: pytest.MonkeyPatch, job: workers.Job, crash: bool
) -> None:
    cause = "AcceleratorError: CUDA error: an illegal memory access was encountered"

    def answer(job: workers.Job, task: workers.Task) -> workers.Message | int:
        if job.plain:
            return workers.Done(task.seeds, {})
        return -11 if crash else workers.Broken(task.seeds, "a traceback", False, "computation", cause)

    again, *done = run(monkeypatch, job, [workers.Task([0, 1]), workers.Task([2])], answer)
    said = "its process ended with status -11" if crash else cause
    expected = f"The training failed on the GPU ({said}); it starts once more, without CUDA graphs and the fused attention."
    assert again == workers.Again([0, 1], [[0, 1]], expected)
    assert done == [workers.Done([0, 1], {}), workers.Done([2], {})]


@pytest.mark.parametrize("gpu", ["memory", "computation"])
def test_what_a_new_start_cannot_mend_ends_the_training(monkeypatch: pytest.MonkeyPatch, job: workers.Job, gpu: str) -> None:
    def fail(tasks: list[workers.Task], device: str = "cuda") -> str:
        chosen = workers.Job(job.settings, job.arrays, job.folder, device, job.origin)
        with pytest.raises(UserError) as caught:
            run(monkeypatch, chosen, tasks, lambda job, task: workers.Broken(task.seeds, f"{len(task.seeds)} failed", False, gpu, ""))
        return str(caught.value)

    assert fail([workers.Task([0, 1])]) == ("1 failed" if gpu == "memory" else "2 failed")
    assert fail([workers.Task([0, 1], replay=True)]) == "2 failed"
    assert fail([workers.Task([0, 1])], device="cpu") == "2 failed"
    checkpoint.path_of(job.folder, [0, 1], job.origin["code_hash"]).touch()
    assert fail([workers.Task([0, 1])]) == "2 failed"


def test_a_stack_that_parted_in_its_replay_may_be_halved(monkeypatch: pytest.MonkeyPatch, job: workers.Job) -> None:
    """Only a replay needs the stack that trained."""

    def answer(job: workers.Job, task: workers.Task) -> workers.Message:
        return workers.Broken(task.seeds, "", False, "memory") if len(task.seeds) > 1 else workers.Done(task.seeds, {})

    task = workers.Task([0, 1], replay=True)
    messages = run(monkeypatch, job, [task], answer, before=[workers.Replayed([0, 1], "the learning rates are others")])
    assert [type(message) for message in messages] == [workers.Replayed, workers.Again, workers.Done, workers.Done]


@pytest.mark.parametrize("status", [-9, 1])
def test_a_killed_worker_is_not_started_again(monkeypatch: pytest.MonkeyPatch, job: workers.Job, status: int) -> None:
    with pytest.raises(UserError, match=f"ended with status {status} "):
        run(monkeypatch, job, [workers.Task([0, 1])], lambda job, task: status)


def test_faults_of_a_gpu_are_told_from_others() -> None:
    kinds = {
        "memory": [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")],
        "computation": [torch.AcceleratorError("an illegal memory access"), RuntimeError("Triton Error [CUDA]: device-side assert")],
        None: [RuntimeError("The size of tensor a (3) must match"), ZeroDivisionError("division by zero")],
    }
    for kind, errors in kinds.items():
        assert [workers._gpu_fault(error) for error in errors] == [kind] * len(errors)


def test_progress_counts_the_epochs_of_the_groups_that_take_a_groups_place() -> None:
    progress = TrainingProgress("tiny", [[0, 1, 2]], 4)
    progress.started([0, 1, 2], 0)
    progress.again([0, 1, 2], [[0, 1], [2]])
    progress.started([0, 1], 0)
    for epoch in range(4):
        progress.epoch([0, 1], epoch + 1, [])
    assert progress.screen.work_left() == 4  # of one seed, in epochs


def test_a_kill_after_the_last_epoch_does_not_forget_that_graphs_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_trainer: Callable[..., Trainer]
) -> None:
    """A process that trains no epoch has captured no graph; only the checkpoint knows. The CPU computes in the place of a GPU."""
    captured, other = tiny_trainer(), tiny_trainer()
    captured.driver.graphs = "captured"
    trainers = iter([captured, other])
    monkeypatch.setattr("pipeline.training.engine.Trainer", lambda *arguments: next(trainers))
    monkeypatch.setattr(workers, "_facts", lambda job: workers.Facts("fused-triton", 1, 2, "A GPU"))
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
