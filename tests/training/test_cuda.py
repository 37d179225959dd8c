"""The engine on a GPU: against the CPU, graphs against single operations, resumes, and what a step holds in memory."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from pipeline.data.datasets import Dataset
from pipeline.params import Params, VariantSettings
from pipeline.training.engine import Trainer, set_reproducible
from pipeline.training.fused import FusedTrainer, make_trainer
from pipeline.training.step import GraphDriver
from tests.helpers import assert_bitwise, finish, resumed, variant

pytestmark = pytest.mark.cuda
SEEDS = [0, 1, 2]
OPTIONS: list[dict[str, Any]] = [
    {"attention": "full", "norm": "post", "final_norm": True, "activation": "relu", "dropout": 0.1, "embed": "conv"},
    {"pool": "attention", "cls_insert": "none", "position": "sincos2d"},
    {"cls_insert": "loop", "patch": 2, "pool": "max"},
]

FUSED: list[dict[str, Any]] = [
    {},
    {"attention": "full", "norm": "post", "final_norm": True, "activation": "relu", "memory": 4},
    {"patch": 7, "pool": "concat", "cls_insert": "none", "position": "sinusoidal", "heads": 2},
]


@pytest.fixture(autouse=True)
def _reproducible() -> Iterator[None]:
    set_reproducible(torch.device("cuda"))
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.enable_mem_efficient_sdp(True)


@pytest.fixture(scope="module")
def dataset(blobs: Callable[[int, int], Dataset]) -> Dataset:
    return blobs(1000, 300)


def settings(study: Params, *, batch_size: int = 64, epochs: int = 2, clip_norm: float | None = None, **model: Any) -> VariantSettings:
    train = {"seeds": SEEDS, "epochs": epochs, "batch_size": batch_size, "learning_rate": 0.005, "clip_norm": clip_norm}
    return variant(study, model, **train)


def trained(chosen: VariantSettings, dataset: Dataset, seeds: list[int] = SEEDS) -> Trainer:
    trainer = Trainer(chosen, dataset, seeds, torch.device("cuda"))
    finish(trainer)
    return trainer


def test_fifty_steps_follow_the_cpu(study: Params, dataset: Dataset) -> None:
    """Of several epochs, so that both devices have to take the images in the same order."""
    chosen = settings(study, batch_size=128, epochs=7)

    def losses(seeds: list[int], device: str) -> torch.Tensor:
        trainer = Trainer(chosen, dataset, seeds, torch.device(device))
        trainer.run_steps(50)
        return trainer.trace.loss[:, :50].cpu()

    cpu = torch.cat([losses([seed], "cpu") for seed in SEEDS])
    torch.testing.assert_close(losses(SEEDS, "cuda"), cpu, rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seeds", [[1], SEEDS], ids=["alone", "stack"])
def test_graphs_change_no_bit(
    study: Params, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seeds: list[int]
) -> None:
    chosen = settings(study, **options)
    graphs = trained(chosen, dataset, seeds=seeds)
    assert isinstance(graphs.driver, GraphDriver)
    assert (graphs.driver.note or "").startswith("Steps run as CUDA graphs")
    assert len(graphs.driver._graphs) == 3  # full and last batch of the training; 300 test images are one
    assert graphs.driver.seconds > 0
    monkeypatch.setenv("LAB_GRAPHS", "0")
    eager = trained(chosen, dataset, seeds=seeds)
    assert "LAB_GRAPHS" in (eager.driver.note or "")
    assert_bitwise(graphs, eager)


def test_repeat_and_resume_are_bitwise(study: Params, dataset: Dataset) -> None:
    chosen = settings(study, epochs=3, dropout=0.1)
    unbroken = trained(chosen, dataset)
    first = Trainer(chosen, dataset, SEEDS, torch.device("cuda"))
    first.run_epoch()
    assert_bitwise(resumed(lambda: Trainer(chosen, dataset, SEEDS, torch.device("cuda")), first), unbroken)
    assert_bitwise(trained(chosen, dataset), unbroken)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_does_not_wait_inside_an_epoch(study: Params, dataset: Dataset) -> None:
    trainer = Trainer(settings(study, epochs=2), dataset, SEEDS, torch.device("cuda"))
    trainer.run_epoch()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in trainer._steps.values():
            trainer.driver.run(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(trainer._total.isfinite().all())


def fused(chosen: VariantSettings, dataset: Dataset, seeds: list[int] = SEEDS) -> FusedTrainer:
    trainer = make_trainer(chosen, dataset, seeds, torch.device("cuda"))
    assert isinstance(trainer, FusedTrainer), trainer.engine
    return trainer


@pytest.mark.parametrize("options", FUSED, ids=str)
def test_the_fused_engine_follows_the_cpu(study: Params, dataset: Dataset, options: dict[str, Any]) -> None:
    chosen = settings(study, batch_size=48, epochs=2, **options)
    ours = fused(chosen, dataset)
    finish(ours)
    for place, seed in enumerate(SEEDS):
        theirs = Trainer(chosen, dataset, [seed], torch.device("cpu"))
        theirs.run_steps(21)
        for name in ("loss", "gradient_norm"):
            found, expected = getattr(ours.trace, name)[place, :21].cpu(), getattr(theirs.trace, name)[0, :21]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_a_seed_has_the_same_bits_alone_and_among_a_hundred(study: Params, dataset: Dataset) -> None:
    """And with a clipped gradient, whose norm is a sum over its weights, and after a resume."""
    chosen = settings(study, batch_size=48, clip_norm=1.0)
    many, alone = fused(chosen, dataset, list(range(100))), fused(chosen, dataset, [7])
    finish(many)
    alone.run_epoch()
    again = resumed(lambda: fused(chosen, dataset, [7]), alone)
    assert [row[:6] for row in again.rows] == [row[:6] for row in many.rows if row.seed == 7]
    state = many.state()
    for name, value in again.state().items():
        assert torch.equal(value, state[name] if value.dim() == 0 else state[name][7:8]), name


def test_graphs_change_no_bit_of_the_fused_engine(study: Params, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(study, batch_size=48)
    graphs = fused(chosen, dataset)
    finish(graphs)
    assert graphs.driver.graphs == "captured"
    monkeypatch.setenv("LAB_GRAPHS", "0")
    eager = fused(chosen, dataset)
    finish(eager)
    assert_bitwise(graphs, eager)


def test_a_step_that_cannot_be_captured_runs_and_says_why(study: Params, dataset: Dataset) -> None:
    """In a process of its own, in which nothing can be captured afterwards."""
    with ProcessPoolExecutor(1, get_context("spawn")) as own:
        own.submit(_train_without_capture, settings(study, epochs=1), dataset).result()


def _train_without_capture(chosen: VariantSettings, dataset: Dataset) -> None:
    set_reproducible(torch.device("cuda"))
    expected = trained(chosen, dataset)
    trainer = Trainer(chosen, dataset, SEEDS, torch.device("cuda"))
    step = trainer.optimizer.step

    def waits() -> torch.Tensor:
        norm = step()
        torch.cuda.current_stream().synchronize()  # not allowed during a capture
        return norm

    trainer.optimizer.step = waits  # type: ignore[method-assign]
    finish(trainer)
    assert trainer.driver.graphs == "none"
    assert (trainer.driver.note or "").startswith("No CUDA graph")
    assert_bitwise(trainer, expected)
