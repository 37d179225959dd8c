"""Captioning in the engine: what a step learns from, what a test counts, and that a training can be repeated to the last bit."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pipeline.captioning import decoding, learning, scenes
from pipeline.captioning.data import SceneData
from pipeline.captioning.grammar import BOS, EOS, PAD, PHRASINGS
from pipeline.captioning.learning import SAMPLES, choose, shifted
from pipeline.captioning.model import CaptionModel
from pipeline.captioning.scenes import compose
from pipeline.captioning.self_critical import advantages, self_critical_losses
from pipeline.data.datasets import load
from pipeline.params import BaselineSettings, DataSettings, Params, ScenesSettings, VariantSettings
from pipeline.runner import replay
from pipeline.training.engine import Trainer
from tests.helpers import assert_bitwise, captioner, finish, resumed

CPU = torch.device("cpu")
SIZES = ScenesSettings(train=48, validation=20, test=10)
CAPTIONER = captioner(encoder_blocks=2, decoder_blocks=1, memory=2, meshed=True, dropout=0.1)
CNN_LSTM = BaselineSettings(architecture="cnn_lstm", widths=(8, 12))


@pytest.fixture(scope="module")
def data(arrays: Path) -> SceneData:
    dataset = load(arrays)
    return SceneData(scenes.draw(dataset, SIZES), dataset)


def settings(study: Params, model: Any = CAPTIONER, **train: Any) -> VariantSettings:
    own = {"seeds": (0,), "epochs": 3, "batch_size": 20, "learning_rate": 0.01, "clip_norm": 1.0, **train}
    return VariantSettings(data=DataSettings(dataset="digits"), train=study.train.model_copy(update=own), model=model, scenes=SIZES)


def trainer(study: Params, data: SceneData, seed: int = 0, **options: Any) -> Trainer:
    return Trainer(settings(study, **options), data, [seed], CPU)


def test_the_loss_of_a_step_is_the_mean_over_its_words(study: Params, data: SceneData) -> None:
    made = trainer(study, data, model=CNN_LSTM)
    made.learning.begin(1)
    index, step = torch.tensor([[3, 47, 3, 20, 11]]), torch.tensor(7)
    losses = made.learning.losses(index, step)
    assert losses.shape == (1, 5)
    chosen = choose(made.learning._keys["reference"], step, 5)[0]
    captions = torch.from_numpy(data.scenes.train.captions)[index[0], chosen].long()
    pictures = compose(torch.from_numpy(data.dataset.train_images), torch.from_numpy(data.scenes.train.cells)[index[0]].long())
    with torch.no_grad():
        before = torch.cat([torch.full((5, 1), BOS), captions[:, :-1]], dim=1)
        logits = made.stack.module(pictures[:, None].float() / 255, before)
    expected = F.cross_entropy(logits.flatten(0, 1), captions.flatten(), ignore_index=PAD)
    assert losses.mean().item() == pytest.approx(expected.item(), rel=1e-5)


def test_another_choice_of_references_is_seen_by_replay(study: Params, data: SceneData, monkeypatch: pytest.MonkeyPatch) -> None:
    before = replay.tables(trainer(study, data))[0]
    monkeypatch.setattr(learning, "choose", lambda key, step, size: (choose(key, step, size) + 1) % len(PHRASINGS))
    after = replay.tables(trainer(study, data))[0]
    assert {name for name in before if before[name] != after[name]} == {"augmentation"}


def test_references_are_chosen_evenly_and_anew_in_every_step() -> None:
    key = torch.tensor([5, 6])
    drawn = torch.stack([choose(key, torch.tensor(step), 100) for step in range(100)])  # (step, seed, place)
    for seed in range(2):
        counts = drawn[:, seed].flatten().bincount(minlength=len(PHRASINGS))
        assert counts.sum() == 10_000
        assert (counts - 2000).abs().max() < 4 * 40  # four standard deviations of a count
    assert 0.15 < (drawn[:, 0] == drawn[:, 1]).double().mean() < 0.25
    assert 0.15 < (drawn[1:] == drawn[:-1]).double().mean() < 0.25
    assert torch.equal(choose(key, torch.tensor(3), 10), drawn[3, :, :10])


def test_a_test_is_of_the_validation_scenes(study: Params, data: SceneData, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes the first reference of each scene, but for the last five, is right about three quarters of twenty."""
    written = torch.from_numpy(data.scenes.validation.captions[:, 0]).long()
    written[15:] = EOS
    seen: list[torch.Tensor] = []

    def write(model: CaptionModel, images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return written

    monkeypatch.setattr(decoding, "greedy", write)
    monkeypatch.setattr(learning, "EVALUATION_BATCH", 20)
    made = trainer(study, data)
    losses, shares = made.test()
    assert shares == [0.75]
    pictures = compose(torch.from_numpy(data.dataset.train_images), torch.from_numpy(data.scenes.validation.cells).long())
    assert torch.equal(torch.cat(seen)[:, 0], pictures.float() / 255)
    captions = torch.from_numpy(data.scenes.validation.captions)[torch.arange(20), torch.arange(20) % len(PHRASINGS)].long()
    with torch.no_grad():
        logits = made.stack.module.eval()(pictures[:, None].float() / 255, shifted(captions))
    expected = F.cross_entropy(logits.flatten(0, 1), captions.flatten(), ignore_index=PAD)
    assert losses == pytest.approx([expected.item()], rel=1e-5)
    monkeypatch.setattr(learning, "EVALUATION_BATCH", 8)
    assert learning.evaluate(made.learning._model, made.learning._images, data.scenes.validation)[0].item() == pytest.approx(losses[0])


@pytest.mark.parametrize("model", [CAPTIONER, CNN_LSTM], ids=["captioner", "cnn_lstm"])
def test_repeat_and_resume_are_bitwise(study: Params, data: SceneData, model: Any) -> None:
    """From an epoch before, and from one inside, the self-critical epochs."""

    def make() -> Trainer:
        return trainer(study, data, model=model, epochs=4, self_critical_epochs=2)

    unbroken, cut = make(), make()
    finish(unbroken)
    assert len(unbroken.rows) == 4
    for epochs in (1, 2):
        for _ in range(epochs):
            cut.run_epoch()
        assert_bitwise(resumed(make, cut), unbroken)


def test_training_does_not_read_the_test_scenes(study: Params, data: SceneData) -> None:
    blind = SceneData(dataclasses.replace(data.scenes, test=None), dataclasses.replace(data.dataset, test_images=None))  # type: ignore[arg-type]
    assert trainer(study, blind, epochs=1).run_epoch()[0][:6] == trainer(study, data, epochs=1).run_epoch()[0][:6]


def test_self_critical_epochs_leave_batch_norm_alone_change_all_weights_and_replay_no_graph(
    study: Params, data: SceneData, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stopped = trainer(study, data, epochs=2, self_critical_epochs=1, self_critical_rate=0.01), list[int]()
    monkeypatch.setattr(made.driver, "stop_graphs", lambda: stopped.append(made.epoch))
    made.run_epoch()
    before = copy.deepcopy(made.stack.state())
    made.run_epoch()
    assert stopped == [2]
    for name, value in made.stack.state().items():
        fixed = any(part in name for part in ("running", "num_batches", "calls", "key"))
        assert torch.equal(value, before[name]) == fixed, name


def test_samples_have_the_models_own_probabilities(study: Params, data: SceneData) -> None:
    made = trainer(study, data)
    model = made.stack.module.eval()
    images = compose(torch.from_numpy(data.dataset.train_images), torch.from_numpy(data.scenes.train.cells[:2]).long())[:, None] / 255
    count, key = 1000, torch.tensor([3])
    drawn = decoding.sample(model, images, count, key, torch.tensor(0)).unflatten(0, (2, count))
    logits, _ = model.step(torch.full((2,), BOS), model.start(images))
    logits[:, [PAD, BOS]] = -torch.inf
    for probability, words in zip(logits.softmax(1), drawn[:, :, 0], strict=True):
        found = words.bincount(minlength=len(probability)) / count
        assert (found - probability).abs().max() < 4.5 * 0.5 / count**0.5
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn, decoding.sample(model, images, count, key, torch.tensor(1)).unflatten(0, (2, count)))
    ended = (drawn == EOS).cumsum(2) - (drawn == EOS).long() > 0
    assert torch.equal(drawn == PAD, ended)


def test_samples_are_rewarded_by_the_references_of_their_own_scene(study: Params, data: SceneData, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a scene is the mean of -(r - mean r) log p, and its gradient reaches every weight."""
    made, rewards = trainer(study, data, self_critical_epochs=2), np.random.default_rng(0).random(3 * SAMPLES)
    made.learning.begin(2)
    seen: list[Any] = []
    monkeypatch.setattr(learning.CiderD, "score", lambda self, captions, of: seen.extend([captions, of]) or rewards)
    losses, model = made.learning.losses(torch.tensor([[3, 47, 20]]), torch.tensor(0)), made.learning._model
    captions, of = seen
    assert of.tolist() == [3] * SAMPLES + [47] * SAMPLES + [20] * SAMPLES
    cells = torch.from_numpy(data.scenes.train.cells)[[3, 47, 20]].long()
    images = compose(torch.from_numpy(data.dataset.train_images), cells)[:, None] / 255
    drawn = decoding.sample(model, images, SAMPLES, made.learning._keys["sample"], torch.tensor(0))
    assert captions.tolist() == drawn.tolist()
    log_p = model(images, shifted(drawn)).log_softmax(-1).gather(-1, drawn[..., None])[..., 0]
    better = torch.tensor(rewards, dtype=torch.float32).view(3, SAMPLES)
    expected = -((better - better.mean(1, keepdim=True)) * (log_p * (drawn != PAD)).sum(1).view(3, SAMPLES)).mean(1)
    torch.testing.assert_close(losses[0], expected)
    for gradient, wanted in zip(*(torch.autograd.grad(loss.sum(), made.stack.parameters) for loss in (losses, expected)), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)
        assert wanted.any()


def test_gradient_is_that_of_the_expected_reward() -> None:
    """With a place behind the end, of probability 0."""
    # All pairs of samples from three captions of one word, each weighted by its probability, stand for infinitely many scenes. A
    # baseline that contains the sample itself takes 1/k off the gradient, here a half.
    logits = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([4.0, 1.0, 2.5], dtype=torch.float64)
    p = logits.softmax(0)
    (expected,) = torch.autograd.grad((p * reward).sum(), logits, retain_graph=True)
    total = torch.zeros(3, dtype=torch.float64)
    for first in range(3):
        for second in range(3):
            pair = torch.tensor([[first, second]])
            better = torch.from_numpy(advantages(reward[pair].numpy()))
            log_p = F.pad(p.log()[pair][..., None], (0, 1), value=-torch.inf)
            loss = self_critical_losses(log_p, torch.tensor([True, False]).expand(1, 2, 2), better).mean()
            assert loss.isfinite()
            total += (p[first] * p[second]).detach() * torch.autograd.grad(loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(-total, expected / 2)
