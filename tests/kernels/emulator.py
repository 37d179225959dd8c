"""`FusedVit` on the CPU: the same fused_vit.cu, compiled by g++, with a fiber for each CUDA thread."""

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.kernels import fused_vit
from pipeline.params import ModelSettings
from pipeline.system.files import replacing
from tests.helpers import ROOT

HERE = Path(__file__).parent
CACHE = ROOT / "build" / "emulated-kernels"
WHY_NOT = None if shutil.which("g++") else "the emulator of CUDA kernels needs g++"


def library(settings: ModelSettings) -> ctypes.CDLL:
    """The compiled emulation of a model, from the cache where it is there: its name is a hash of the sources and options."""
    options = [f"-D{name}={value}" for name, value in fused_vit.macros(settings).items()]
    options += ["-std=c++20", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-w", "-DSTACK=131072", f'-DKERNEL="{fused_vit.SOURCE}"']
    sources = [fused_vit.SOURCE, HERE / "emulator.h", HERE / "emulator.cpp"]
    key = hashlib.sha256(b"\0".join([*(path.read_bytes() for path in sources), *(option.encode() for option in options)])).hexdigest()
    path = CACHE / f"{key[:32]}.so"
    if not path.exists():
        with replacing(path) as temporary:
            subprocess.run(["g++", *options, "-o", temporary, HERE / "emulator.cpp"], check=True)
    return ctypes.CDLL(str(path))


class EmulatedVit:
    """See `FusedVit`; all tensors are on the CPU. A call takes tenths of a second for each image."""

    binary = None

    def __init__(self, settings: ModelSettings, num_seeds: int, batch: int, device: torch.device | None = None) -> None:
        self._library = library(settings)
        self._num_seeds, self._batch = num_seeds, batch
        self._partial = torch.full((num_seeds, batch, fused_vit.Layout(settings).size), torch.nan)  # more than the groups need

    def gradient(self, images: Tensor, labels: Tensor, index: Tensor, weights: Tensor, gradient: Tensor, loss: Tensor) -> None:
        tensors = images, labels, index, weights, self._partial, gradient, loss
        self._call("emulated_gradient", tensors[:3], (self._num_seeds, self._batch), tensors[3:])

    def test(self, images: Tensor, labels: Tensor, weights: Tensor, loss: Tensor, predicted: Tensor) -> None:
        self._call("emulated_test", (images, labels), (self._num_seeds, len(labels)), (weights, loss, predicted))

    def run_last_first(self, last: bool) -> None:
        """Whether of the threads that no barrier holds the last runs first. Other results show that a barrier is missing."""
        self._library.emulated_order(int(last))

    def norm(self, gradient: Tensor, norm: Tensor) -> None:
        self._call("emulated_norm", (gradient,), (self._num_seeds, 0), (norm,))

    def _call(self, name: str, before: tuple[Tensor, ...], sizes: tuple[int, int], after: tuple[Tensor, ...]) -> None:
        def pointers(tensors: tuple[Tensor, ...]) -> list[Any]:
            assert all(tensor.is_contiguous() for tensor in tensors)
            return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]

        self._library[name](*pointers(before), *(ctypes.c_int(size) for size in sizes), *pointers(after))
