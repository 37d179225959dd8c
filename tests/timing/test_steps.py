"""What is timed computes what it should, and the rounds and parts are counted right. No test asserts a speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from pipeline.data.datasets import load
from pipeline.models import VisionTransformer, build
from pipeline.params import ModelSettings, Params, parse
from pipeline.timing import published
from pipeline.timing import steps as timing

CPU = torch.device("cpu")
GROUPS = set(timing.GROUPS)


@pytest.fixture(scope="module")
def small(raw_params: dict[str, Any]) -> Params:
    """The study's model, with small batches and the shortest of timings."""
    return parse(
        raw_params
        | {
            "data": {"dataset": "digits"},
            "variants": {"base": {}},  # others see more images than digits has
            "experiments": {},
            "claims": {},
            "train": raw_params["train"] | {"batch_size": 4},
            "timing": {"rounds": 2, "steps": 2, "seconds": 0.01, "tokens": [4, 16]},
        }
    )


def model(base: ModelSettings, **changes: Any) -> VisionTransformer:
    torch.manual_seed(3)
    built = build(ModelSettings.model_validate(base.model_dump() | changes))
    assert isinstance(built, VisionTransformer)
    return built


@pytest.mark.parametrize(
    "changes",
    [
        {"cls_insert": "loop"}, {"cls_insert": "expand"}, {"cls_insert": "none", "pool": "first"}, {"patch": 14},
        {"attention": "full"}, {"embed": "conv", "norm": "post", "activation": "relu"},
        {"score_scale": False}, {"memory": 5}, {"memory": 3, "attention": "full", "score_scale": False},
        {"residual": "none"}, {"norm": "none"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("change", [published.as_published, published.as_nested_loops])
def test_loops_compute_the_same_network(
    study: Params, changes: dict[str, Any], change: Callable[[VisionTransformer], VisionTransformer]
) -> None:
    """Logits, and the gradient of the class token and of the positions, which every operation between has to pass on."""
    images, labels = torch.rand(3, 1, 28, 28), torch.tensor([1, 0, 7])
    ours, theirs = model(study.base, **changes), change(model(study.base, **changes))
    results = []
    for network in (ours, theirs):
        logits = network(images)
        F.cross_entropy(logits, labels).backward()
        results.append((logits, network.position.grad, network.head.weight.grad))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("by_image", [False, True])
def test_loops_drop_attention_weights_in_training_alone(study: Params, by_image: bool) -> None:
    """With tokens of which each attends to itself alone, an output is the token's value, dropped or divided by 1 - p."""
    attention = published.LoopedAttention(model(study.base, attention_dropout=0.25).blocks[0].attention, by_image=by_image)  # type: ignore[arg-type]
    tokens = torch.randn(400, 1, 32)
    attention.eval()
    whole = attention(tokens)
    attention.train()
    ratio = (attention(tokens) / whole).unflatten(-1, (8, 4))
    dropped = ratio[..., 0] == 0
    torch.testing.assert_close(ratio, (~dropped[..., None] / 0.75).expand_as(ratio))
    assert abs(dropped.float().mean().item() - 0.25) < 0.05
    assert len(dropped.flatten(1).unique(dim=0)) > 50  # heads and images draw masks of their own


def test_both_attentions_under_the_clock_compute_the_same(small: Params) -> None:
    pair = [entry for entry in timing.entries(small, CPU) if entry.kind == "attention" and entry.subject == "16"]
    assert {entry.way for entry in pair} == {"published", "fast"}
    works = {entry.way: timing.AttentionSteps(entry, CPU, 1) for entry in pair}
    expected = F.scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in works["published"].inputs)).transpose(1, 2)
    for work in works.values():
        assert work() > 0
        torch.testing.assert_close(work.forward(), expected, rtol=1e-4, atol=1e-5)


def test_everything_the_claims_speak_of_is_timed(study: Params) -> None:
    listed = timing.entries(study, CPU)
    names = [entry.name for entry in listed]
    assert len(set(names)) == len(names)
    for way in ("published", "fast"):
        assert {f"step/{way}/{variant}" for variant in timing.VARIANTS} <= set(names)
        counts = [entry.model.num_tokens for entry in listed if (entry.kind, entry.way) == ("growth", way)]
        assert counts == [4, 16, 49, 196, 784]
    assert "step/nested loops/cls-loop" in names
    for variant in set(timing.VARIANTS) & set(study.variants):  # what is timed is what the study trains
        assert {entry.model for entry in listed if entry.subject == variant} == {study.resolve(variant).model}


class Clock:
    """Time that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rounds(clock: Clock, cost: float, foreign: list[float], **options: Any) -> list[timing.Round]:
    loads = iter(foreign)

    class Meter:
        def __enter__(self) -> Meter:
            return self

        def __exit__(self, *_: object) -> None:
            self.foreign = next(loads)

    def work() -> float:
        clock.now += cost
        return cost

    works = {"a": (work, 1), "b": (work, 2)}
    return timing.run_rounds(works, meter=Meter, clock=clock, say=lambda line: None, **options)  # type: ignore[arg-type]


def test_disturbed_rounds_are_repeated_and_kept_apart() -> None:
    done = rounds(Clock(), 1.0, [0.0, 0.5, 0.01, 0.3, 0.0], rounds=3, seconds=1e6)
    assert [entry.kept for entry in done] == [True, False, True, False, True]
    assert done[0].seconds == {"a": 1.0, "b": 0.5}


def test_a_machine_that_is_never_quiet_ends_the_rounds() -> None:
    done = rounds(Clock(), 1.0, [0.9] * 100, rounds=3, seconds=1e6)
    assert len(done) == 6
    assert not any(entry.kept for entry in done)


def test_no_round_starts_that_would_end_too_late() -> None:
    done = rounds(Clock(), 1.0, [0.0] * 100, rounds=50, seconds=9.0)  # two seconds a round: the fifth would end at ten
    assert len(done) == 4
    assert len(rounds(Clock(), 100.0, [0.0] * 100, rounds=50, seconds=9.0)) == 1


def test_every_round_has_its_own_order() -> None:
    seen: list[str] = []

    def work(name: str) -> Callable[[], float]:
        def call() -> float:
            seen.append(name)
            return 1.0

        return call

    names = [f"{i}" for i in range(6)]
    works = {name: (work(name), 1) for name in names}
    quiet = lambda: SimpleMeter()  # noqa: E731
    timing.run_rounds(works, rounds=8, seconds=1e6, say=lambda line: None, meter=quiet)  # type: ignore[arg-type]
    orders = [tuple(seen[i : i + 6]) for i in range(0, len(seen), 6)]
    assert all(sorted(order) == names for order in orders)
    assert len(set(orders)) == len(orders) == 8
    first = list(seen)
    seen.clear()
    timing.run_rounds(works, rounds=8, seconds=1e6, say=lambda line: None, meter=quiet)  # type: ignore[arg-type]
    assert seen == first


class SimpleMeter(timing.LoadMeter):
    def __exit__(self, *_: Any) -> None:
        self.foreign = 0.0


def test_own_work_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own, wall = iter([100.0, 101.5]), iter([10.0, 11.0]), iter([0.0, 2.0])
    monkeypatch.setattr(timing, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(wall), process_time=lambda: next(own)))
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 2)
    with timing.LoadMeter() as meter:
        pass
    assert meter.foreign == pytest.approx(0.5 / (2.0 * 2))


def test_saved_bytes_counts_what_backward_needs_once() -> None:
    """exp keeps its result, a product both factors; the weight is no activation, and one storage counts once."""
    weight, x = torch.ones(8, requires_grad=True), torch.rand(8, requires_grad=True)

    def compute() -> torch.Tensor:
        y = (x * weight).exp()  # keeps x, the weight and y
        return y * y.view(2, 4).view(8)  # keeps y again, twice

    assert timing.saved_bytes(compute, [weight]) == 2 * 8 * 4
    assert timing.saved_bytes(compute) == 3 * 8 * 4


def test_saved_bytes_of_the_published_way_hold_every_token_by_token_matrix(study: Params) -> None:
    """What it keeps beyond those matrices, and all that the fused kernel keeps, grows with the tokens and not with their square."""
    images = torch.rand(2, 1, 28, 28)
    beyond, fused = {}, {}
    for patch, tokens in ((4, 49), (2, 196)):
        change = {"patch": patch, "pool": "first", "cls_insert": "none"}
        matrices = 4 * len(images) * study.base.blocks * study.base.heads * tokens**2
        looped, ours = published.as_published(model(study.base, **change)), model(study.base, **change)
        beyond[tokens] = timing.saved_bytes(partial(looped, images), looped.parameters()) - matrices
        fused[tokens] = timing.saved_bytes(partial(ours, images), ours.parameters())
    assert beyond[196] / beyond[49] == pytest.approx(4, rel=0.1)
    if timing.attention_path(device="cpu", head_dim=4, tokens=196) == "fused-cpu":
        assert fused[196] / fused[49] == pytest.approx(4, rel=0.1)


def test_operators_go_to_the_part_that_called_them(small: Params, arrays: Path) -> None:
    dataset = load(arrays)
    for entry in timing.entries(small, CPU):
        if entry.kind != "step" or entry.way == "nested loops" or entry.subject not in ("base", "cls-loop", "first"):
            continue
        found = timing.profile(entry, small, dataset, CPU, 2)
        assert set(found["groups"]) == set(found["operators"]) == GROUPS
        assert sum(found["groups"].values()) == pytest.approx(found["seconds"])
        operators = found["operators"]
        assert all(operators[group] > 0 for group in GROUPS - {"class token"})
        # Forward and backward: one vstack an image, then one stack; one expand and cat; nothing.
        if entry.subject == "first":
            assert operators["class token"] == 0
        elif entry.subject == "base":
            assert 3 <= operators["class token"] <= 12
        else:
            assert operators["class token"] >= 2 * entry.batch
        # As published each head has products of its own: eight times as many calls for the same network.
        blocks, heads = entry.model.blocks, entry.model.heads
        if entry.way == "published":
            assert operators["attention"] >= blocks * heads * 6
        elif timing.attention_path(device="cpu", head_dim=4, tokens=50) == "fused-cpu":
            assert operators["attention"] <= blocks * 6


def test_labels_are_gone_after_a_profile(study: Params) -> None:
    import pipeline.models.attention

    before = pipeline.models.attention.attention, published.weigh
    with timing._labels(model(study.base)):
        assert pipeline.models.attention.attention is not before[0]
    assert (pipeline.models.attention.attention, published.weigh) == before


def test_images_are_gone_through_again_where_there_are_too_few(arrays: Path) -> None:
    dataset = load(arrays)
    count = len(dataset.train_labels)
    few = timing.part(dataset, count + 3)
    assert (few.train_images[count:] == dataset.train_images[:3]).all()
    assert (few.train_labels[count:] == dataset.train_labels[:3]).all()
    ((images, labels),) = timing.batches(dataset, 5, 1, CPU)
    assert images.shape == (5, 1, 28, 28)
    assert 0 <= images.min() < images.max() <= 1
    assert labels.tolist() == dataset.train_labels[:5].tolist()


@pytest.mark.slow
def test_measure_gives_json_with_every_number(small: Params, arrays: Path) -> None:
    lines: list[str] = []
    threads = torch.get_num_threads()
    try:
        results = timing.measure(small, load(arrays), CPU, lines.append)
    finally:
        torch.set_num_threads(threads)
    assert json.loads(json.dumps(results)) == results
    names = [entry.name for entry in timing.entries(small, CPU)]
    assert [entry["name"] for entry in results["measurements"]] == names
    assert 1 <= len(results["rounds"]) <= 4
    for entry in results["rounds"]:
        assert list(entry["seconds"]) == names
        assert all(seconds > 0 for seconds in entry["seconds"].values())
    for entry in results["measurements"]:
        assert 1 <= entry["steps"] <= 2
        assert entry["batch"] == 4
        assert ("saved_bytes" in entry) == (entry["kind"] != "step")
    assert {name.split("/")[0] for name in results["profiles"]} == {"step", "growth"}
    assert len(results["profiles"]) == 2 * (len(timing.VARIANTS) + 1)
    assert results["machine"]["threads"] == 1
    assert any("round" in line for line in lines)
