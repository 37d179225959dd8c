"""Attention's measures, its saturation and its gradients against loops, autograd, and what is worked out by hand."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from pipeline.evaluation import attention, saturation
from pipeline.models import attention_maps, build
from pipeline.models.attention import FullAttention
from pipeline.params import ModelSettings


def settings_of(raw_params: dict[str, Any], **change: Any) -> ModelSettings:
    return ModelSettings.model_validate(raw_params["base"] | {"patch": 7, "blocks": 2} | change)


def made(settings: ModelSettings) -> torch.nn.Module:
    torch.manual_seed(0)
    module = build(settings).eval()
    with torch.no_grad():  # its images are not all taken for one class, whatever is done to them
        [*module.parameters()][-1].sub_(module(torch.from_numpy(examples()[0])[:, None].float() / 255).mean(0))
    return module.train()


def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (7, 28, 28), dtype=np.uint8), rng.integers(0, 10, 7, dtype=np.uint8)


def test_distance_worked_out_by_hand(raw_params: dict[str, Any]) -> None:
    """Two by two patches of 14 pixels, a class token and memory slots: equal weights reach (0 + 14 + 14 + 14 √2) / 4 pixels."""
    settings = settings_of(raw_params, patch=14, memory=2)
    equal = np.full((2, 1, 3, 5, 7), 1 / 7)
    equal[1, ..., 1:5, :5] = np.eye(5)[1:]  # the second block's patches read themselves
    assert attention.distance(equal, settings) == pytest.approx(np.array([[14 * (2 + math.sqrt(2)) / 4], [0.0]]))
    on_slots = np.zeros((1, 1, 1, 5, 7))
    on_slots[..., 5] = 1
    assert attention.distance(on_slots, settings).tolist() == [[0.0]]


def test_rollout_of_attention_that_is_all_on_a_slot_moves_nothing() -> None:
    only_slot = np.concatenate([np.zeros((2, 1, 1, 2, 2)), np.ones((2, 1, 1, 2, 1))], axis=-1)
    for residual in (True, False):
        np.testing.assert_allclose(attention.rollout(only_slot, residual=residual)[0], np.eye(2))


@pytest.mark.parametrize(
    ("pool", "cls_insert", "read"), [("first", "none", [0]), ("mean", "expand", [1, 2, 3]), ("concat", "none", range(4))]
)
def test_source_row_is_of_what_the_head_reads(raw_params: dict[str, Any], pool: str, cls_insert: str, read: Any) -> None:
    rolled = np.random.default_rng(2).random((3, 4, 4))
    found = attention.source_row(rolled, settings_of(raw_params, pool=pool, cls_insert=cls_insert))
    np.testing.assert_allclose(found, rolled[:, read].mean(1))


def test_ink_correlation_of_what_does_not_vary() -> None:
    ink = np.array([[0.0, 0.1, 0.2], [0.0, 0.0, 0.0], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    looked = np.array([[0.3, 0.3, 0.3 + 1e-9], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.1, math.nan, 0.3]])
    found = attention.ink_correlation(looked, ink)
    np.testing.assert_array_equal(found[:2], 0.0)
    assert found[2] == pytest.approx(1.0)
    assert math.isnan(found[3])


def test_own_ink_correlation_by_loops() -> None:
    rng = np.random.default_rng(8)
    looked, ink = rng.random((6, 9)), rng.random((6, 9))
    rank = [[stats.spearmanr(a, b).statistic for b in ink] for a in looked]
    expected = [rank[i][i] - sum(rank[i][j] for j in range(6) if j != i) / 5 for i in range(6)]
    np.testing.assert_allclose(attention.own_ink_correlation(looked, ink), expected, atol=1e-12)
    blind = np.tile(looked[0], (6, 1))  # the same for all images
    assert attention.own_ink_correlation(blind, ink).mean() == pytest.approx(0.0, abs=1e-15)


def test_the_patches_looked_at_most_are_blanked_by_hand() -> None:
    looked = np.array([[0.1, 0.4, 0.1, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0], [0.2] * 9])
    order = np.array([[9.0, 8, 7, 6, 5, 4, 3, 2, 1]] * 2)
    images = np.arange(1, 73, dtype=np.uint8).reshape(2, 6, 6)
    found = attention.blanked(images, looked, order, 3)  # a fifth of nine is two: patches 1 and 3, and the last two
    gone = np.zeros((2, 6, 6), bool)
    gone[0, 0:2, 2:4] = gone[0, 2:4, 0:2] = gone[1, 4:6, 4:6] = gone[1, 4:6, 2:4] = True
    assert np.array_equal(found, np.where(gone, 0, images))
    coloured = np.stack([images, images], axis=1)
    assert np.array_equal(attention.blanked(coloured, looked, order, 3), np.stack([found, found], axis=1))


def test_deletion_by_hand() -> None:
    """A network that sees one patch of five by five: blanking that one costs all, blanking five of 25 at random a fifth."""
    rng = np.random.default_rng(10)
    images, labels = np.full((2000, 5, 5), 7, np.uint8), np.full(2000, 7, np.uint8)
    seen = rng.integers(0, 25, 2000)

    def predict(blanked: np.ndarray) -> np.ndarray:
        return blanked.reshape(2000, 25)[np.arange(2000), seen]

    def lost(looked: np.ndarray) -> tuple[float, float]:
        return attention.deletion(predict, images, labels, looked, 5)

    looked = np.zeros((2000, 25))
    assert lost(looked) == (0.0, 0.0)  # looks everywhere alike
    assert lost(rng.random((2000, 25))) == pytest.approx((0.0, 0.0), abs=0.03)
    looked[np.arange(2000), seen] = 1.0
    # Another image's map names the one patch by chance, and four patches of equal value at random: a fifth of the time, as random ones.
    assert lost(looked) == pytest.approx((0.8, 0.8), abs=0.02)
    assert lost(1 - looked) == pytest.approx((-0.2, -0.2), abs=0.02)
    assert all(math.isnan(one) for one in lost(looked * math.nan))


def test_another_images_map_is_never_the_images_own() -> None:
    """Of two images each gets the other's map, whatever is drawn."""
    images, labels = np.full((2, 5, 5), 1, np.uint8), np.ones(2, np.uint8)
    looked = np.zeros((2, 25))
    looked[0, :5] = looked[1, -5:] = 1.0

    def predict(blanked: np.ndarray) -> np.ndarray:
        return np.array([blanked[0, 0].all(), blanked[1, -1].all()])

    assert attention.deletion(predict, images, labels, looked, 5)[1] == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"memory": 3, "pool": "mean", "cls_insert": "none"},
        {"pool": "first", "residual": "none"},
        {"attention": "full", "heads": 2, "attention_dropout": 0.5, "dropout": 0.5},
    ],
)
def test_a_probe_holds_what_its_parts_say(change: dict[str, Any], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In many small batches, against one batch and loops; dropout is off."""
    settings, (images, labels) = settings_of(raw_params, **change), examples()
    module, digits = made(settings), images[4:6]
    monkeypatch.setattr(
        attention, "_WEIGHTS_AT_ONCE", 2 * settings.blocks * settings.heads * settings.num_tokens * (settings.num_tokens + settings.memory)
    )
    found, maps, rollout = attention.probe(module, settings, images, labels, digits)

    with torch.no_grad():
        weights = attention_maps(module.eval(), torch.from_numpy(images).float()[:, None] / 255).double().numpy()
    tokens = settings.num_tokens
    assert weights.shape == (settings.blocks, 7, settings.heads, tokens, tokens + settings.memory)
    flat = weights.reshape(-1, tokens + settings.memory)
    assert found["attention_entropy"] == pytest.approx(np.mean([-sum(p * math.log(p) for p in row) for row in flat.tolist()]), abs=1e-6)
    reached = [found[f"attention_distance_{block}"] for block in range(1, settings.blocks + 1)]
    assert reached == pytest.approx(attention.distance(weights, settings).mean(1), rel=1e-5)
    rows = []
    for image in range(7):
        rolled = np.eye(tokens)
        for step in weights[:, image].mean(1)[..., :tokens]:  # Abnar and Zuidema 2020, section 3
            step = step / step.sum(1, keepdims=True)
            rolled = (step if settings.residual == "none" else (step + np.eye(tokens)) / 2) @ rolled
        rows.append(rolled.mean(0) if settings.pool == "mean" else rolled[int(settings.pool == "first")])
    ink = images.reshape(7, 4, 7, 4, 7).mean((2, 4)).reshape(7, 16)
    patches = np.array(rows)[:, int(settings.has_cls) :]
    correlations = [stats.spearmanr(np.round(a, 7), b).statistic for a, b in zip(patches, ink, strict=True)]
    assert found["ink_correlation"] == pytest.approx(np.mean(correlations), abs=1e-6)
    assert found["own_ink_correlation"] == pytest.approx(attention.own_ink_correlation(patches, ink).mean(), abs=1e-6)

    def predict(blanked: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(blanked).float()[:, None] / 255).argmax(1).numpy()

    assert (found["deletion"], found["own_deletion"]) == pytest.approx(attention.deletion(predict, images, labels, patches, 4))
    assert maps.shape == (2, settings.blocks, settings.heads, tokens)
    assert maps.dtype == np.float16
    own = weights[:, 4:6].mean(3) if settings.pool == "mean" else weights[:, 4:6, :, int(settings.pool == "first")]
    np.testing.assert_allclose(maps, own[..., :tokens].swapaxes(0, 1), atol=1e-3)
    assert rollout.dtype == np.float32
    np.testing.assert_allclose(rollout, rows[4:6], atol=1e-6)


CHANGES: list[dict[str, Any]] = [
    {},
    {"memory": 3, "score_scale": False},
    {"attention": "unprojected", "mlp": "none"},
    {"attention": "full", "heads": 2, "pool": "mean", "cls_insert": "none", "attention_dropout": 0.5, "dropout": 0.5},
]


def by_torch(own: Any, name: str, change: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """An attention with a change added to its scores or values, by torch's own with a mask."""
    query, key, value = own._heads(tokens).transpose(1, 3).unbind(2)  # (batch, head, token, channel)
    mask, value = (change, value) if name == "scores" else (None, value + change)
    heads = F.scaled_dot_product_attention(query[:, :, : tokens.shape[1]], key, value, attn_mask=mask, scale=own.scale)
    heads = heads.transpose(1, 2).flatten(2)
    return own.out(heads) if isinstance(own, FullAttention) else heads


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_are_those_at_what_is_added(change: dict[str, Any], raw_params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of two; against zeros that are added to the scores or the values of one block, through torch's own attention."""
    settings, (images, labels) = settings_of(raw_params, **change), examples()
    module = made(settings)
    whole = saturation.measure(module, settings, images, labels)
    of_one = settings.blocks * settings.heads * settings.num_tokens * (settings.num_tokens + settings.memory)
    monkeypatch.setattr(saturation, "_SCORES_AT_ONCE", 2 * of_one)
    assert saturation.measure(module, settings, images, labels) == pytest.approx(whole, rel=1e-10)

    before = {name: value.clone() for name, value in module.state_dict().items()}
    model, attentions = saturation.explicit(module)
    inputs, classes = torch.from_numpy(images).double()[:, None] / 255, torch.from_numpy(labels).long()
    with torch.no_grad():
        torch.testing.assert_close(model(inputs).float(), module.eval()(inputs.float()), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    squares = {"scores": 0.0, "values": 0.0}
    for one in attentions:
        for name in squares:
            model(inputs)
            added = torch.zeros_like(getattr(one, name), requires_grad=True)
            with monkeypatch.context() as patch:
                patch.setattr(one, "forward", functools.partial(by_torch, one.attention, name, added))
                (gradient,) = torch.autograd.grad(F.cross_entropy(model(inputs), classes), added)
            squares[name] += float((gradient**2).sum())
    assert whole["score_gradient"] == pytest.approx(math.sqrt(squares["scores"] / squares["values"]), rel=1e-6)
    largest = attention_maps(module, inputs.float()).amax(-1)
    assert whole["saturated_attention"] == pytest.approx(float((largest > 0.9).double().mean()))


def test_without_the_division_gradients_are_larger_and_less_of_them_gets_through(raw_params: dict[str, Any]) -> None:
    (images, labels), found = examples(), []
    for scaled in (True, False):
        model, attentions = saturation.explicit(made(settings_of(raw_params, patch=4, blocks=3, heads=1, score_scale=scaled)))
        loss = F.cross_entropy(model(torch.from_numpy(images).double()[:, None] / 255), torch.from_numpy(labels).long())
        parts = [torch.autograd.grad(loss, [getattr(one, name) for one in attentions], retain_graph=True) for name in ("scores", "values")]
        found.append([math.sqrt(sum(float((gradient**2).sum()) for gradient in part)) for part in parts])
    (scores, values), (scores_without, values_without) = found
    assert scores_without > scores
    assert scores_without / values_without < scores / values


def test_of_a_diverged_model_there_is_none(raw_params: dict[str, Any]) -> None:
    module, (images, labels) = made(settings := settings_of(raw_params)), examples()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(math.nan)
    found, maps, _ = attention.probe(module, settings, images, labels, images[:1])
    assert np.isnan([*found.values(), *saturation.measure(module, settings, images, labels).values()]).all()
    assert np.isnan(maps).all()
