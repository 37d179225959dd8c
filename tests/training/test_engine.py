"""The engine against a plain training loop in torch, stacks against single seeds, and bitwise repeats."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.data.datasets import Dataset
from pipeline.params import Params, VariantSettings
from pipeline.system.errors import UserError
from pipeline.training import classification
from pipeline.training.engine import Trainer, epoch_order, subset
from pipeline.training.stack import initial_model
from tests import helpers
from tests.helpers import assert_bitwise, finish, resumed

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset(blobs: Callable[[int, int], Dataset]) -> Dataset:
    return blobs(300, 120)


def variant(study: Params, train: dict[str, Any] | None = None, **model: Any) -> VariantSettings:
    own = {"seeds": (0, 1, 2), "epochs": 3, "batch_size": 64, "learning_rate": 0.005} | (train or {})
    return helpers.variant(study, {"patch": 7, "blocks": 2} | model, **own)


def trained(settings: VariantSettings, dataset: Dataset, seeds: list[int]) -> Trainer:
    trainer = Trainer(settings, dataset, seeds, CPU)
    finish(trainer)
    return trainer


@pytest.mark.parametrize("norm_kind", ["layer", "batch"])
def test_equals_a_plain_loop(study: Params, dataset: Dataset, norm_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop as anyone would write it: a module, Adam, the epoch's order cut into batches, the last one smaller, as a test's.

    Losses and gradients' norms of the first epoch's steps, too, these as torch's own clipping reports them.
    """
    settings = variant(study, {"seeds": (3,)}, norm_kind=norm_kind)
    model = initial_model(settings.model, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    images, labels = torch.from_numpy(dataset.train_images), torch.from_numpy(dataset.train_labels).long()
    test_images, test_labels = torch.from_numpy(dataset.test_images), torch.from_numpy(dataset.test_labels).long()
    expected, norms = [], []
    for epoch in (1, 2, 3):
        losses = []
        model.train()
        for index in epoch_order(3, epoch, len(labels)).split(64):
            loss = nn.functional.cross_entropy(model(images[index].unsqueeze(1) / 255), labels[index])
            optimizer.zero_grad()
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), math.inf).item())
            optimizer.step()
            losses.append((loss.item(), len(index)))
        if epoch == 1:
            first = [loss for loss, _ in losses]
        model.eval()
        with torch.no_grad():
            logits = model(test_images.unsqueeze(1) / 255)
        train_loss = sum(loss * count for loss, count in losses) / len(labels)
        expected.append(
            (train_loss, nn.functional.cross_entropy(logits, test_labels).item(), (logits.argmax(1) == test_labels).float().mean().item())
        )
    monkeypatch.setattr(classification, "EVALUATION_BATCH", 50)
    trainer = trained(settings, dataset, [3])
    rows, steps = trainer.rows, len(first)
    for row, values in zip(rows, expected, strict=True):
        assert row[2:5] == pytest.approx(values, rel=2e-4)
    assert rows[-1].test_accuracy > rows[0].test_accuracy
    assert trainer.trace.loss[0, :steps].tolist() == pytest.approx(first, rel=1e-4)
    assert trainer.trace.gradient_norm[0, :steps].tolist() == pytest.approx(norms[:steps], rel=1e-3)
    assert rows[0].gradient_norm == pytest.approx(trainer.trace.gradient_norm[0, :steps].double().mean().item())


def test_images_held_out_are_as_if_they_were_not_there(study: Params, dataset: Dataset) -> None:
    number, train = 77, {"epochs": 2, "train_images": 50, "epoch_images": 130, "augment": "affine"}
    settings, held_out = variant(study, train), variant(study, train | {"validation": number})
    without = replace(dataset, train_images=dataset.train_images[:-number], train_labels=dataset.train_labels[:-number])
    one, other = trained(held_out, dataset, [0, 1]), trained(settings, without, [0, 1])
    assert [row[:-1] for row in one.rows] == [row[:-1] for row in other.rows]
    assert all(torch.equal(value, other.state()[name]) for name, value in one.state().items())
    with pytest.raises(UserError, match="held out"):
        Trainer(variant(study, {"validation": len(dataset.train_labels)}), dataset, [0], CPU)


@pytest.mark.parametrize(
    ("seeds", "model", "train"),
    [
        ([0], {"norm_kind": "batch"}, {}),
        ([0, 1, 2], {}, {"schedule": "cosine", "warmup": 0.2, "optimizer": "radam", "clip_norm": 0.5}),
        ([0, 1], {}, {"augment": "affine", "optimizer": "sgd", "momentum": 0.9}),
    ],
)
def test_repeat_and_resume_are_bitwise(
    study: Params, dataset: Dataset, seeds: list[int], model: dict[str, Any], train: dict[str, Any]
) -> None:
    settings = variant(study, train, dropout=0.1, **model)
    unbroken, first = trained(settings, dataset, seeds), Trainer(settings, dataset, seeds, CPU)
    first.run_epoch()
    assert_bitwise(resumed(lambda: Trainer(settings, dataset, seeds, CPU), first), unbroken)
    if len(seeds) > 1:  # whatever way a stack is trained, it follows its seeds
        assert trained(settings, dataset, seeds[-1:]).rows[-1][2:4] == pytest.approx(unbroken.rows[-1][2:4], rel=1e-3)
        assert len({row.train_loss for row in unbroken.rows}) == len(unbroken.rows)


@pytest.mark.parametrize("divergence", ["stop", "record"])
def test_a_loss_that_is_not_finite_ends_its_seed_alone_or_is_a_result(study: Params, dataset: Dataset, divergence: str) -> None:
    settings = variant(study, {"divergence": divergence})
    trainer = Trainer(settings, dataset, [0, 1, 2], CPU)
    trainer.run_epoch()
    with torch.no_grad():
        trainer.stack.parameters[0][1].fill_(math.nan)
    finish(trainer)
    broken = [row for row in trainer.rows if row.seed == 1]
    assert [math.isfinite(row.train_loss) for row in broken] == ([True, False, False] if divergence == "record" else [True])
    assert trainer.failed == ({} if divergence == "record" else {1: 2})
    if divergence == "record":
        assert broken[-1].test_accuracy == pytest.approx(float((dataset.test_labels == 0).mean()))
    assert [row.epoch for row in trainer.rows if row.seed == 2] == [1, 2, 3]
    assert trainer.rows[-1].test_loss == pytest.approx(trained(settings, dataset, [2]).rows[-1].test_loss, rel=1e-3)


def test_orders_are_permutations_that_differ_by_seed_and_epoch() -> None:
    orders = [epoch_order(seed, epoch, 1000) for seed in (0, 1) for epoch in (1, 2)]
    assert all(torch.equal(order.sort().values, torch.arange(1000)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_an_epoch_of_a_subset_shows_as_many_images_as_ever() -> None:
    """A smaller subset is part of a larger one, and gone through again and again: never one image twice more than another."""
    small, large = subset(0, 1000, 30), subset(0, 1000, 300)
    assert set(small.tolist()) < set(large.tolist())
    assert set(small.tolist()) != set(subset(1, 1000, 30).tolist())
    order = epoch_order(0, 1, 1000, train_images=30)
    assert len(order) == 1000
    counts = torch.bincount(order, minlength=1000)
    assert set(counts[small].tolist()) == {33, 34}
    assert counts.sum() == counts[small].sum()
    assert len(set(epoch_order(0, 1, 1000, epoch_images=250).tolist())) == 250
