"""`python -m benchmarks`: what it refuses, and the GPU's timings and tables with a kernel that torch computes."""

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
def test_times_and_tables(study: Params, blobs: Callable[[int, int], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small network, at which no one looks as long as its rows are there."""
    monkeypatch.setattr(gpu, "THESIS", gpu.THESIS.changed({"patch": 14, "blocks": 1}))
    monkeypatch.setattr(gpu, "VARIANT_SEEDS", 2)
    dataset, said = blobs(400, 30), list[str]()
    listed = gpu.subjects(dataset, CPU, make=MAKE, rounds=2, quick=True)
    ours = [label for label in listed if label.startswith("this project")]
    assert [label.partition(", ")[2] for label in ours] == [
        f"{engine} engine, {many}" for engine in ("torch's", "fused") for many in ("one seed", "2 seeds in a stack")
    ]
    chosen: dict[str, gpu.Begin] = {label: listed[label] for label in ours}
    chosen["a peer"] = lambda: __import__("no_such_peer")
    found = gpu.time_subjects(chosen, 2, said.append, 3600.0)
    assert {label: len(found[label]) for label in ours} == dict.fromkeys(ours, 2)
    networks = gpu.covered(study, torch.device("cuda"))
    named = {variant for _, variants in networks for variant in variants}
    assert {"base", "sinusoidal", "cnn", "best", "lab"} & named == {"base", "sinusoidal"}
    few = [(model, variants) for model, variants in networks if model.patch == 14][:1]
    variants = gpu.time_variants(few, dataset, CPU, MAKE, time.perf_counter() + 3600)
    assert min(variants[0]["fused"], variants[0]["torch"]) > 0
    facts = {"machine": "A GPU", "date": "2026-01-02", "commit": "c" * 40, "dirty": False, "versions": {"torch": "2"}, "data": "mnist"}
    gpu.write(tmp_path / "a-gpu", {**facts, "rounds": 2, "subjects": found, "variants": variants})
    page = (tmp_path / "a-gpu-gpu.md").read_text()
    seconds = found["this project, fused engine, one seed"]
    assert isinstance(seconds, list)
    assert f"| this project, fused engine, one seed | {1000 * sum(seconds) / 2:,.1f} (" in page
    assert "| a peer | ModuleNotFoundError: " in page
    assert f"| {few[0][1][0]}" in page
