"""The peers are the networks that they should be, timings are counted and scaled, and pages say what was measured."""

from __future__ import annotations

import functools
import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmarks import __main__ as command
from benchmarks import gpu, loops, ours, page, readme, results
from benchmarks.measure import FIRST, FULL, THESIS, time_one
from benchmarks.peers import thesis_vit, timm_vit
from benchmarks.readme import ROOT
from pipeline.data.datasets import Dataset
from pipeline.models import VisionTransformer, build, count_parameters
from pipeline.params import Params
from pipeline.system.errors import UserError
from pipeline.timing.published import LoopedAttention
from pipeline.training.engine import Trainer
from pipeline.training.fused import FusedTrainer
from tests.torch_vit import TorchVit


def _images(count: int) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def test_the_published_model_loops_over_heads_and_class_tokens_and_has_the_thesis_parameters() -> None:
    """What the loops compute is tested in tests/timing."""
    assert count_parameters(thesis_vit(FIRST)) == 10_602
    model = thesis_vit(THESIS)
    assert count_parameters(model) == 10_602 + 32 + 32  # the class token and its position
    assert [module.by_image for module in model.modules() if isinstance(module, LoopedAttention)] == [False] * 3
    assert isinstance(model, VisionTransformer)
    assert model.settings.cls_insert == "loop"


def test_timm_equals_our_full_attention_with_the_same_weights() -> None:
    torch.manual_seed(0)
    peer, ours = timm_vit(FULL), build(FULL)
    assert count_parameters(peer) == count_parameters(ours)
    with torch.no_grad():
        ours.cls_token.copy_(peer.cls_token[0])
        ours.position.copy_(peer.pos_embed[0])
        ours.embedding.project.weight.copy_(peer.patch_embed.proj.weight.flatten(1))
        ours.embedding.project.bias.copy_(peer.patch_embed.proj.bias)
        ours.norm.load_state_dict(peer.norm.state_dict())
        ours.norm.eps = peer.norm.eps
        ours.head.load_state_dict(peer.head.state_dict())
        for block, source in zip(ours.blocks, peer.blocks, strict=True):
            for norm, other in ((block.norm1, source.norm1), (block.norm2, source.norm2)):
                norm.load_state_dict(other.state_dict())
                norm.eps = other.eps
            block.attention.qkv.load_state_dict(source.attn.qkv.state_dict())
            block.attention.out.load_state_dict(source.attn.proj.state_dict())
            block.mlp[0].load_state_dict(source.mlp.fc1.state_dict())
            block.mlp[2].load_state_dict(source.mlp.fc2.state_dict())
    torch.testing.assert_close(peer(_images(5)), ours(_images(5)), rtol=1e-4, atol=1e-5)


CPU = torch.device("cpu")
Blobs = Callable[[int, int], Dataset]


def test_an_epoch_gives_every_image_once(blobs: Blobs) -> None:
    dataset = blobs(300, 50)
    wanted = sorted(zip(map(bytes, dataset.train_images.reshape(300, -1)), dataset.train_labels.tolist(), strict=True))
    for epochs in (loops.preloaded_epochs(dataset, CPU), loops.loader_epochs(dataset)):
        batches = list(epochs())
        assert [len(labels) for _, labels in batches] == [128, 128, 44]
        seen = torch.cat([pixels for pixels, _ in batches]).mul(255).round().to(torch.uint8).flatten(1)
        assert sorted(zip(map(bytes, seen.numpy()), torch.cat([labels for _, labels in batches]).tolist(), strict=True)) == wanted


@pytest.mark.long
def test_our_engine_is_timed_through_processes_and_alone(arrays: Path) -> None:
    processes = ours.time_processes(THESIS, arrays, 2, processes=1, steps=2)
    assert (processes.seeds, processes.steps, processes.parameters) == (2, 2, 10_666)
    assert processes.checkpoint_seconds > 0
    assert processes.epoch_seconds > 0
    alone = time_one("ours-thread", arrays, 3, 2)
    assert (alone["steps"], alone["seeds"]) == (3, 1)
    assert alone["epoch_seconds"] > 0


MAKE = functools.partial(FusedTrainer, kernel=TorchVit)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--gpu needs an NVIDIA GPU that torch can use, and there is none here \(.+\)\.$") as caught:
        command.main(["--gpu", "--out", str(tmp_path)])
    assert caught.value.status == 2


@pytest.mark.usefixtures("one_thread")
def test_times_and_tables(study: Params, blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


(NAME,) = re.findall(r"<!-- speed of (\S+) -->", (ROOT / "README.md").read_text(encoding="utf-8"))


def _table(*rows: tuple[int, str, float, bool]) -> pd.DataFrame:
    fixed = {"position": 1, "parameters": 10_666, "seeds": 1, "steps": 60, "checkpoint_seconds": 0.01, "foreign": 0.0}
    named = [fixed | dict(zip(("round", "implementation", "epoch_seconds", "kept"), row, strict=True)) for row in rows]
    return pd.DataFrame(named)[list(results.COLUMNS)]


def test_ratio_uses_shared_rounds_only() -> None:
    ratio = results.ratio({1: 8.0, 2: 12.0, 9: 1e6}, {1: 4.0, 2: 4.0, 7: 1e-6})
    assert ratio is not None
    assert ratio[0] == 2.5
    assert 2.0 <= ratio[1] <= ratio[2] <= 3.0
    assert results.ratio({1: 1.0}, {2: 1.0}) is None
    # A round that is slow for both does not widen the interval.
    assert results.ratio({1: 5.0, 2: 6.5, 3: 4.0}, {1: 1.0, 2: 1.3, 3: 0.8}) == pytest.approx((5, 5, 5))


def test_the_committed_readme_and_page_say_what_was_measured() -> None:
    text, base = (ROOT / "README.md").read_text(encoding="utf-8"), ROOT / NAME
    assert readme.updated(text) == text
    table, facts = results.read(base.with_suffix(".csv")), results.read_facts(base.with_suffix(".json"))
    assert page.render(base.name, table, facts) == base.with_suffix(".md").read_text(encoding="utf-8")


def test_what_does_not_count_is_left_out_and_marked() -> None:
    table = _table((1, "ours-10", 5.0, True), (2, "ours-10", 9.0, False), (1, "thesis", 24.0, True), (1, "timm-loader", 9.0, False))
    assert results.by_round(table, "ours-10") == {1: 5.0}
    facts = results.read_facts((ROOT / NAME).with_suffix(".json")) | {"quick": True, "overheads": []}
    text = page.render("some-cpu", table, facts)
    assert "| 24.0 [24.0 .. 24.0] | 2,500 | 4.80 [4.80, 4.80] |  |" in text
    assert "2 of 4 timings do not count" in text


def test_times_are_scaled_to_an_epoch_of_one_seed(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 4.0)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    epochs = loops.preloaded_epochs(blobs(10 * 128, 50), CPU)
    timing = loops.time_training(lambda: thesis_vit(FIRST), epochs, device=CPU, steps=2, published=True)
    assert (timing.steps, timing.parameters, timing.epoch_seconds) == (2, 10_602, 4.0 / 2 * 469)
    monkeypatch.setattr(Trainer, "run_epoch", lambda trainer: [SimpleNamespace(seconds=12.0)])
    epoch = ours.epochs_of(Trainer, ours.variant(THESIS, 2, 2, 3), blobs(3 * 128, 10), CPU)
    assert epoch() == pytest.approx(12.0 / (2 * 3) * 469)


def test_other_files_are_refused_by_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "machine.csv"
    _table((1, "ours-10", 6.0, True)).to_csv(path, index=False)
    assert results.read(path).epoch_seconds.tolist() == [6.0]
    path.write_text("round\n1\n")
    with pytest.raises(UserError, match="damaged"):
        results.read(path)
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        results.read(path)
