"""The vision transformer's loss and gradient in one CUDA kernel: compiling and launching fused_vit.cu."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from pipeline.kernels.fused_vit_layout import Layout, macros, why_not
from pipeline.params import ModelSettings
from pipeline.system.errors import first_line
from pipeline.system.files import DamagedError, read_sealed, write_sealed

__all__ = ["CACHE", "SOURCE", "FusedVit", "FusedVitError", "Layout", "macros", "why_not"]

SOURCE = Path(__file__).with_suffix(".cu")
CACHE = Path(__file__).with_name("__pycache__")  # where numba's compiled kernels lie, too


class FusedVitError(Exception):
    """The kernel cannot be used on this machine; the message is one sentence that says why."""


@functools.cache
def _compiled(options: tuple[tuple[str, str], ...], shared: int, device: int) -> tuple[Callable[..., None], Path]:
    """A function that launches a kernel by its name, and the file in which the binary is kept if the folder can be written.

    Raises:
        FusedVitError: there is no driver, no compiler or no cuda-core, or the source does not compile.
    """
    try:
        from cuda.bindings import driver, nvrtc
        from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch

        gpu = Device(device)
        gpu.set_current()
        architecture = f"sm_{gpu.arch}"
        key = hashlib.sha256(repr((SOURCE.read_text(), options, architecture, nvrtc.nvrtcVersion())).encode()).hexdigest()
        path = CACHE / f"fused_vit.{key[:32]}.cubin"
        try:
            binary = read_sealed(path)
        except (OSError, DamagedError):
            # NVRTC 13.0, which torch 2.11 brings, takes a generic lambda for a host function without the last; 13.2 writes the same binary.
            given = ProgramOptions(std="c++17", arch=architecture, define_macro=list(options), device_as_default_execution_space=True)
            binary = Program(SOURCE.read_text(), "c++", given).compile("cubin").code
            with suppress(OSError):
                write_sealed(path, binary)
        module = ObjectCode.from_cubin(binary)
        kernels = {name: module.get_kernel(name) for name in ("differentiate", "test", "add_up", "gradient_norm")}
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for name in ("differentiate", "test"):
            (status,) = driver.cuKernelSetAttribute(most, shared, kernels[name].handle, driver.CUdevice(device))
            if status != driver.CUresult.CUDA_SUCCESS:
                raise RuntimeError(f"this GPU has no {shared} bytes of shared memory for a block ({status.name})")
    except Exception as error:
        raise FusedVitError(f"The fused kernel cannot run here ({first_line(error)}).") from error

    def run(name: str, grid: tuple[int, int], threads: int, memory: int, *arguments: Tensor | int) -> None:
        passed = [ctypes.c_int(one) if isinstance(one, int) else one.data_ptr() for one in arguments]
        stream = Stream.from_handle(torch.cuda.current_stream(device).cuda_stream)
        launch(stream, LaunchConfig(grid=grid, block=threads, shmem_size=memory), kernels[name], *passed)

    return run, path


class FusedVit:
    """One compiled shape on one device. All calls launch on torch's current stream and allocate nothing, so a graph can capture them.

    Args:
        settings: a model that `why_not` covers.
        num_seeds: models in the stack.
        batch: examples of one `gradient`.
        device: a CUDA device.

    Attributes:
        binary: where the compiled kernel is kept.

    Raises:
        FusedVitError: there is no driver, compiler or `cuda-core`, or the device is no GPU.
    """

    def __init__(self, settings: ModelSettings, num_seeds: int, batch: int, device: torch.device) -> None:
        if device.type != "cuda":
            raise FusedVitError("The fused kernel needs a GPU.")
        given = macros(settings)
        self._seeds, self._batch, self._size, self._images = num_seeds, batch, given["SIZE"], given["IMAGES"]
        self._threads, self._shared = given["THREADS"], given["SHARED_BYTES"]
        index = torch.cuda.current_device() if device.index is None else device.index
        self._run, self.binary = _compiled(tuple((name, str(value)) for name, value in given.items()), self._shared, index)
        self._groups = -(-batch // self._images)
        self._partial = torch.empty((num_seeds, self._groups, self._size), device=device)

    def gradient(self, images: Tensor, labels: Tensor, index: Tensor, weights: Tensor, gradient: Tensor, loss: Tensor) -> None:
        """The gradient of each seed's mean loss over its batch.

        Args:
            images: (image, height, width) uint8.
            labels: (image,) int64.
            index: (seed, batch) int64, the images of each seed's batch.
            weights: (seed, size) float32.
            gradient: (seed, size) float32, is written; zero where not trained.
            loss: (seed, batch) float32, is written: cross-entropy of each example.
        """
        arguments = images, labels, index, self._batch, weights, self._partial, loss
        self._run("differentiate", (self._groups, self._seeds), self._threads, self._shared, *arguments)
        self._run("add_up", (-(-self._size // 32), self._seeds), 256, 1024, self._partial, self._groups, gradient)

    def test(self, images: Tensor, labels: Tensor, weights: Tensor, loss: Tensor, predicted: Tensor) -> None:
        """Tests all images with each seed's weights: writes `loss` (seed, image) float32 and `predicted` (seed, image) int64."""
        arguments = images, labels, len(labels), weights, loss, predicted
        self._run("test", (-(-len(labels) // self._images), self._seeds), self._threads, self._shared, *arguments)

    def norm(self, gradient: Tensor, norm: Tensor) -> None:
        """Writes the L2 norm of each seed's `gradient` (seed, size) float32 to `norm` (seed,) float64, summed in a fixed order."""
        self._run("gradient_norm", (1, self._seeds), 1024, 8 * 1024, gradient, norm)
