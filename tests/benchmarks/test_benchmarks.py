"""The peers are the networks that they should be, timings are counted and scaled, and pages say what was measured."""

import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from benchmarks import gpu, loops, ours, page, readme, results
from benchmarks.measure import FIRST, FULL, THESIS
from benchmarks.peers import thesis_vit, timm_vit
from benchmarks.readme import ROOT
from pipeline.data.datasets import Dataset
from pipeline.models import VisionTransformer, build, count_parameters
from pipeline.timing.published import LoopedAttention
from pipeline.training.engine import Trainer
from pipeline.training.fused import FusedTrainer
from tests.torch_vit import TorchVit


def test_the_published_model_loops_over_heads_and_class_tokens_and_has_the_thesis_parameters() -> None:
    """What the loops compute is tested in tests/timing."""
    model = thesis_vit(THESIS)
    assert count_parameters(model) == 10_602 + 32 + 32  # the class token and its position
    assert [module.by_image for module in model.modules() if isinstance(module, LoopedAttention)] == [False] * 3
    assert isinstance(model, VisionTransformer)
    assert model.settings.cls_insert == "loop"


def test_timm_equals_our_full_attention_with_the_same_weights() -> None:
    torch.manual_seed(0)
    peer, ours = timm_vit(FULL), build(FULL)
    assert count_parameters(peer) == count_parameters(ours)
    names = {
        "pos_embed": "position", "patch_embed.proj": "embedding.project", "attn.qkv": "attention.qkv", "attn.proj": "attention.out",
        "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2",
    }  # fmt: skip
    state = peer.state_dict()
    for theirs, own in names.items():
        state = {name.replace(theirs, own): value for name, value in state.items()}
    ours.load_state_dict({name: state[name].reshape(value.shape) for name, value in ours.state_dict().items()})
    for norm in (module for module in ours.modules() if isinstance(module, torch.nn.LayerNorm)):
        norm.eps = peer.norm.eps
    images = torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(peer(images), ours(images), rtol=1e-4, atol=1e-5)


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


def test_on_a_gpu_seconds_reach_the_page_and_a_peer_that_is_missing_is_named(blobs: Blobs, tmp_path: Path) -> None:
    """By torch in place of the kernel, of one step a round."""
    torchs = gpu.subjects(blobs(200, 30), CPU, make=gpu.fused, rounds=2, quick=True)  # of a machine on which the kernel does not run
    listed = gpu.subjects(blobs(200, 30), CPU, make=functools.partial(FusedTrainer, kernel=TorchVit), rounds=2, quick=True)
    label = "this project, fused engine, one seed"
    asked = {label: listed[label], "a peer": lambda: __import__("no_such_peer"), "torch": torchs[label]}
    found = gpu.time_subjects(asked, 2, print, 3600.0)
    seconds = found[label]
    assert len(seconds) == 2
    facts = {"machine": "A GPU", "date": "2026-01-02", "commit": "c" * 40, "dirty": False, "versions": {"torch": "2"}, "data": "mnist"}
    gpu.write(tmp_path / "a-gpu", {**facts, "rounds": 2, "subjects": found})
    page = (tmp_path / "a-gpu-gpu.md").read_text()
    assert f"| {label} | {1000 * sum(map(float, seconds)) / 2:,.1f} (" in page
    assert "| a peer | ModuleNotFoundError: " in page
    assert "| torch | RuntimeError: torch: CPU" in page


(NAME,) = re.findall(r"<!-- speed of (\S+) -->", (ROOT / "README.md").read_text(encoding="utf-8"))


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
    rows = [(1, "ours-10", 5.0, True), (2, "ours-10", 9.0, False), (1, "thesis", 24.0, True), (1, "timm-loader", 9.0, False)]
    fixed = {"position": 1, "parameters": 10_666, "seeds": 1, "steps": 60, "checkpoint_seconds": 0.01, "foreign": 0.0}
    table = pd.DataFrame(rows, columns=["round", "implementation", "epoch_seconds", "kept"]).assign(**fixed)[list(results.COLUMNS)]
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
