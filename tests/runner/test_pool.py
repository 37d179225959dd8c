"""Which device computes, and what happens to a worker that fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.runner import pool, seeds
from pipeline.system.errors import UserError
from pipeline.training.engine import Trainer


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine where a GPU's driver is installed."""
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(pool, "_GPU_DRIVERS", (str(tmp_path / "nvidiactl"),))
    monkeypatch.delenv("LAB_DEVICE", raising=False)
    pool.why_no_gpu.cache_clear()
    yield
    pool.why_no_gpu.cache_clear()


def test_a_gpu_that_torch_cannot_use_is_told(driver: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ones(*size: int, device: str) -> Any:
        raise torch.AcceleratorError("CUDA error: no kernel image is available\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch, "ones", ones)
    assert pool.choose_device() == "cpu"
    assert "no kernel image is available" in capsys.readouterr().err
    monkeypatch.setenv("LAB_DEVICE", "cuda")
    with pytest.raises(UserError):
        pool.choose_device()


def test_a_gpu_that_computes_is_chosen(driver: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: real(*size))
    assert pool.choose_device() == "cuda"
    assert capsys.readouterr() == ("", "")


def test_processes_share_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.setenv("LAB_PROCESSES", "4")
    assert pool.choose_cards("cuda") == ["2", "5"]
    assert pool.choose_cards("cuda", 3) == ["2", "5", "2"]
    assert pool.choose_cards("cpu") == [""] * 4
    assert pool.choose_cards("cpu", 2) == [""] * 2


def test_an_error_stops_all_groups_or_this_one(tmp_path: Path) -> None:
    """A full disk stops all of them (2); where a stack does not fit a GPU or has a fault, others may train (1)."""
    settings: Any = None
    assignment = pool.Assignment(pool.Job(settings, tmp_path, tmp_path, "cuda", {}), pool.Task([0, 1]))
    assert pool._explained(assignment, OSError(28, "No space left on device")).status == 2
    assert pool._explained(assignment, torch.OutOfMemoryError("CUDA out of memory.")).status == 1


def test_a_kill_after_the_last_epoch_does_not_forget_that_graphs_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_trainer: Callable[..., Trainer]
) -> None:
    """A process that trains no epoch has captured no graph; only the checkpoint knows. The CPU computes in the place of a GPU."""
    captured, other = tiny_trainer(), tiny_trainer()
    captured.driver.graphs = "captured"
    trainers = iter([captured, other])
    monkeypatch.setattr("pipeline.training.fused.make_trainer", lambda *arguments: next(trainers))
    monkeypatch.setattr(pool, "_facts", lambda job, engine: {"engine": engine, "device_name": "A GPU", "attention": "sdpa"})
    job = pool.Job(captured.settings, tmp_path, tmp_path, "cuda", {"code_hash": "c" * 64, "versions": {"torch": "2.15.0"}})
    until_killed = pool._train(job, None, [0, 1])
    while not captured.done:
        next(until_killed)
    started, done = pool._train(job, None, [0, 1])
    assert (started.kind, started.epoch, done.kind, done.failed) == ("started", captured.settings.train.epochs, "done", {})
    parts, _ = seeds.read_all(tmp_path)
    assert [part.origin["graphs"] for part in parts] == ["captured"] * 2
