"""`python -m benchmarks --gpu`: what it says without a GPU, and its timings and tables with a kernel that torch computes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import gpu
from pipeline.data.datasets import Dataset
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.training.fused import FusedTrainer
from tests.torch_vit import TorchVit

CPU = torch.device("cpu")
MAKE = functools.partial(FusedTrainer, kernel=TorchVit)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--gpu needs an NVIDIA GPU that torch can use, and there is none here \(.+\)\.$") as caught:
        command.main(["--gpu", "--out", str(tmp_path)])
    assert caught.value.status == 2


@pytest.mark.usefixtures("one_thread")
def test_times_and_tables(study: Params, blobs: Callable[[int, int], Dataset], tmp_path: Path) -> None:
    dataset, said = blobs(400, 30), list[str]()
    listed = gpu.subjects(dataset, CPU, make=MAKE, rounds=2, quick=True)
    assert [name for name in listed if name.startswith(("torch", "fused"))] == ["torch-1", "torch-2", "fused-1", "fused-2"]
    chosen = {name: listed[name] for name in ("torch-1", "fused-1", "fused-2")}
    chosen["absent"] = gpu.Subject("a peer", 1, lambda: __import__("no_such_peer"))
    found = gpu.time_subjects(chosen, 2, said.append, 60.0)
    assert {name: len(entry["epoch_seconds"]) for name, entry in found.items()} == {"torch-1": 2, "fused-1": 2, "fused-2": 2, "absent": 0}
    networks = gpu.covered(study, torch.device("cuda"))
    named = [variant for _, variants in networks for variant in variants]
    assert {"base", "sinusoidal"} <= set(named)
    assert not {"cnn", "best", "lab"} & set(named)
    few = [(model, variants) for model, variants in networks if model.patch == 14][:1]
    variants = gpu.time_variants(few, dataset, CPU, MAKE, time.perf_counter() + 60)
    assert variants[0]["fused"] > 0
    assert variants[0]["torch"] > 0
    facts = {"machine": "A GPU", "date": "2026-01-02", "commit": "c" * 40, "dirty": False, "versions": {"torch": "2"}, "data": "mnist"}
    gpu.write(tmp_path / "a-gpu", {**facts, "rounds": 2, "subjects": found, "variants": variants})
    page = (tmp_path / "a-gpu-gpu.md").read_text()
    median = 1000 * sum(found["fused-1"]["epoch_seconds"]) / 2
    assert f"| this project, fused engine, one seed | {median:,.1f} (" in page
    assert "| a peer | ModuleNotFoundError: " in page
    assert f"| {few[0][1][0]}" in page
