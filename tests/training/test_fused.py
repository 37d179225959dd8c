"""The engine with the fused kernel: beside torch's engine, resumes, neighbours, and which settings get it.

The kernel is computed by torch's autograd here, which is an independent source, and at the end by the emulator.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.data.datasets import Dataset
from pipeline.params import Params, VariantSettings
from pipeline.runner import replay, seeds
from pipeline.training import fused
from pipeline.training.engine import Trainer
from pipeline.training.fused import FusedTrainer, make_trainer
from tests import helpers
from tests.helpers import assert_bitwise, finish, resumed
from tests.kernels.emulator import WHY_NOT, EmulatedVit
from tests.torch_vit import TorchVit

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SEEDS = (3, 1, 4)


class Wrong(TorchVit):
    """A kernel that is wrong by a thousandth in one of the seeds."""

    def gradient(self, *arguments: Any) -> None:
        super().gradient(*arguments)
        arguments[4][-1] *= 1.001


@pytest.fixture(scope="module")
def dataset(blobs: Callable[[int, int], Dataset]) -> Dataset:
    return blobs(150, 40)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "CHUNK", 2)


def variant(study: Params, train: dict[str, Any] | None = None, **model: Any) -> VariantSettings:
    """Three epochs of 150 images in batches of 32: two chunks of two steps, then one of 22 images."""
    chosen = {"seeds": SEEDS, "epochs": 3, "batch_size": 32, "learning_rate": 0.005, **(train or {})}
    return helpers.variant(study, {"patch": 14, "blocks": 1, "dim": 16, "heads": 4, "mlp_dim": 16} | model, **chosen)


def new(settings: VariantSettings, dataset: Dataset, seeds: tuple[int, ...] = SEEDS, kernel: Any = TorchVit) -> FusedTrainer:
    return FusedTrainer(settings, dataset, seeds, CPU, kernel)


def trained(*arguments: Any, **named: Any) -> FusedTrainer:
    trainer = new(*arguments, **named)
    finish(trainer)
    return trainer


@pytest.mark.parametrize(
    ("train", "model"),
    [
        ({"weight_decay": 0.1, "clip_norm": 0.5, "schedule": "cosine", "warmup": 0.2}, {"position": "sinusoidal"}),
        ({"optimizer": "radam", "weight_decay": 0.1, "clip_norm": 2.0}, {"position": "sincos2d", "pool": "mean", "cls_insert": "none"}),
        ({"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "train_images": 100, "epoch_images": 170}, {"attention": "full"}),
    ],
    ids=["adam", "radam", "sgd"],
)
def test_follows_torchs_engine(study: Params, dataset: Dataset, train: dict[str, Any], model: dict[str, Any]) -> None:
    settings = variant(study, train, **model)
    ours, theirs = trained(settings, dataset), [Trainer(settings, dataset, [seed], CPU) for seed in SEEDS]
    state = ours.state()
    for place, (seed, other) in enumerate(zip(SEEDS, theirs, strict=True)):
        finish(other)
        expected = other.state()
        for name in ("trace.loss", "trace.gradient_norm"):
            torch.testing.assert_close(state[name][place], expected[name][0], rtol=2e-4, atol=1e-5)
        assert {name for name in state if name.startswith("model.")} == {name for name in expected if name.startswith("model.")}
        for name in (name for name in expected if name.startswith("model.")):
            torch.testing.assert_close(state[name][place], expected[name][0], rtol=1e-3, atol=2e-4)
        for row, wanted in zip([row for row in ours.rows if row.seed == seed], other.rows, strict=True):
            assert row[1:6] == pytest.approx(wanted[1:6], rel=1e-3)


def test_resumes_and_neighbours_change_no_bit(study: Params, dataset: Dataset) -> None:
    settings = variant(study, {"clip_norm": 1.0})
    whole = trained(settings, dataset)
    first = new(settings, dataset)
    first.run_epoch()
    assert_bitwise(resumed(lambda: new(settings, dataset), first), whole)
    alone = trained(settings, dataset, (4,))
    assert [row[:6] for row in alone.rows] == [row[:6] for row in whole.rows if row.seed == 4]
    cut, passed = new(settings, dataset), list[int]()
    cut.run_steps(9, lambda: passed.append(0))
    assert len(passed) == 9
    assert torch.equal(cut.trace.loss[:, :9], whole.trace.loss[:, :9])
    ill = new(settings, dataset)
    ill.run_epoch()
    ill.stack.weights[1].fill_(float("nan"))
    finish(ill)
    assert ill.failed == {1: 2}
    assert [row[:6] for row in ill.rows] == [row[:6] for row in whole.rows if row.seed != 1 or row.epoch == 1]
    for name, value in whole.state().items():
        assert value.dim() == 0 or torch.equal(alone.state()[name][0], value[2]), name


def test_seeds_of_either_engine_are_replayed_by_the_other(study: Params, dataset: Dataset) -> None:
    settings = variant(study, position="sinusoidal")
    makers: list[Callable[[], Trainer]] = [
        lambda: Trainer(settings, dataset, [3], CPU),
        lambda: new(settings, dataset, (3,)),
    ]
    for made, other in (makers, makers[::-1]):
        trainer = made()
        tables = replay.tables(trainer)
        finish(trainer)
        parts = seeds.of_trainer(trainer, {}, tables)
        assert replay.first_difference(other(), parts, exact=False) is None
        assert replay.first_difference(made(), parts, exact=True) is None


def test_which_engine_settings_get(study: Params, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fused.why_not(study.resolve("base"), CUDA) is None
    assert fused.why_not(study.resolve("base"), CPU) == "CPU"
    assert fused.why_not(study.resolve("cnn"), CUDA) == "no vision transformer but cnn"
    assert fused.why_not(study.resolve("caption"), CUDA) == "no vision transformer but captioner"
    reasons = {"dropout": "dropout 0.1", "batch-norm": "norm_kind batch", "wide-1": "dim 128"}
    assert {name: fused.why_not(study.resolve(name), CUDA) for name in reasons} == reasons
    assert fused.why_not(variant(study, {"augment": "affine"}), CUDA) == "augmentation"
    assert make_trainer(variant(study), dataset, [0], CPU).engine == "torch: CPU"
    monkeypatch.setenv("LAB_ATTENTION", "sdpa")
    assert fused.why_not(study.resolve("base"), CUDA) == "LAB_ATTENTION is sdpa"


def test_a_kernel_that_fails_leaves_the_work_to_torch(study: Params, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    new(variant(study), dataset).check()
    with pytest.raises(ArithmeticError, match=r"^the fused kernel's gradient is 1\.0e-03 of its size from float64's$"):
        new(variant(study), dataset, kernel=Wrong).check()
    monkeypatch.setattr(fused, "why_not", lambda settings, device: None)
    # The real one finds no GPU for tensors of the processor.
    for kernel, why in ((Wrong, "ArithmeticError: the fused kernel's gradient is "), (fused.FusedVit, "")):
        monkeypatch.setattr(fused, "FusedTrainer", functools.partial(FusedTrainer, kernel=kernel))
        trainer = make_trainer(variant(study), dataset, [0], CPU)
        assert trainer.engine.startswith(f"torch: {why}")
        assert trainer.run_epoch()


@pytest.mark.long
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_an_emulated_training_of_base_follows_the_cpu(study: Params, blobs: Callable[[int, int], Dataset]) -> None:
    """Twelve steps of the kernel's own source, two of them of one image; and the same bits for a seed alone."""
    base = study.resolve("base")
    train = {"seeds": (0, 1), "epochs": 2, "batch_size": 3, "epoch_images": 16, "schedule": "cosine", "warmup": 0.2, "clip_norm": 5.0}
    settings = base.model_copy(update={"train": base.train.model_copy(update=train)})
    dataset = blobs(60, 4)
    ours = trained(settings, dataset, (0, 1), kernel=EmulatedVit)
    for seed in (0, 1):
        theirs = Trainer(settings, dataset, [seed], CPU)
        finish(theirs)
        torch.testing.assert_close(ours.trace.loss[seed], theirs.trace.loss[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.trace.gradient_norm[seed], theirs.trace.gradient_norm[0], rtol=1e-4, atol=1e-4)
        found = [row.test_loss for row in ours.rows if row.seed == seed]
        assert found == pytest.approx([row.test_loss for row in theirs.rows], abs=1e-5)
    alone = new(settings, dataset, (1,), kernel=EmulatedVit)
    alone.run_steps(3)
    assert torch.equal(alone.trace.loss[0, :3], ours.trace.loss[1, :3])
