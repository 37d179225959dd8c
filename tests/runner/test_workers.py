"""Which device computes, and what happens to a worker that a GPU fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import UserError
from pipeline.runner import workers


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine where a GPU's driver is installed."""
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(workers, "_GPU_DRIVERS", (str(tmp_path / "nvidiactl"),))
    monkeypatch.delenv("LAB_DEVICE", raising=False)
    workers._why_no_gpu.cache_clear()
    yield
    workers._why_no_gpu.cache_clear()


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
