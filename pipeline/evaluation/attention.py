"""Where a transformer looks: entropy of its attention, attention rollout, and the correlation of rollout with an image's ink.

Attention weights are arrays (block, image, head, query token, key); a row sums to 1. Memory slots, which are keys without a
token, come last on the key axis. The class token, if there is one, is token 0; patches follow row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from pipeline.measures.definitions import FloatArray
from pipeline.params import ModelSettings

if TYPE_CHECKING:
    from torch import nn

NUM_IMAGES = 1000  # the first test images; all measures are means over them
BLANKED = 0.2  # share of the patches that deletion blanks
DRAWS = 3  # in deletion: random orders of the patches, and times that each image gets another one's map
MAX_CLASSES_MAPPED = 10  # maps that fit side by side on a page
_WEIGHTS_AT_ONCE = 2**23  # attention weights held at a time, 64 MiB as float64


@dataclass(frozen=True)
class Probe:
    """Measures of one trained model's attention.

    Attributes:
        entropy: mean in nats; see `entropy`.
        ink_correlation, own_ink_correlation: means over the images; see the functions of these names.
        deletion, own_deletion: see `deletion`.
        distances: of each block, mean over the images; see `distance`.
        maps: attention weights on one digit of each class, (digit, block, head, token) float16; see `source_row`. Memory slots are left
            out, so a row sums to the share of attention on tokens.
        rollout: on the same digits, (digit, token) float32; see `source_row`.
    """

    entropy: float
    ink_correlation: float
    own_ink_correlation: float
    deletion: float
    own_deletion: float
    distances: tuple[float, ...]
    maps: npt.NDArray[np.float16]
    rollout: npt.NDArray[np.float32]


def entropy(weights: FloatArray) -> FloatArray:
    """Shannon entropy in nats of every distribution over keys, including memory slots; log(keys) if all weights are equal.

    Args:
        weights: (..., key).

    Returns:
        (...).
    """
    result: FloatArray = special.entr(np.asarray(weights, dtype=np.float64)).sum(-1)
    return result


def distance(weights: FloatArray, settings: ModelSettings) -> FloatArray:
    """How far attention reaches: distance of the patch that is read from the one that reads, weighted by attention (Dosovitskiy et al.
    2021, appendix D.7).

    Distances are between the centres of patches, in pixels. Class token and memory slots have no place, so they are left out, and a
    row's weights on patches are scaled to sum to 1.

    Args:
        weights: (block, image, head, token, key).

    Returns:
        (block, image), mean over heads and patches.
    """
    patches = slice(int(settings.has_cls), settings.num_tokens)
    places = settings.patch * np.indices((settings.grid, settings.grid)).reshape(2, -1).astype(np.float64)
    apart = np.hypot(*(places[:, :, None] - places[:, None]))  # (patch, patch)
    chosen = np.asarray(weights, dtype=np.float64)[..., patches, patches]
    reach: FloatArray = ((chosen * apart).sum(-1) / np.maximum(chosen.sum(-1), np.finfo(np.float64).tiny)).mean((2, 3))
    return reach


def rollout(weights: FloatArray, *, residual: bool = True) -> FloatArray:
    """Attention rollout (Abnar and Zuidema 2020, section 3): how much each token's output depends on each input token.

    Weights are averaged over heads, the identity is added for the residual connection, rows are scaled to sum to 1, and the blocks
    are multiplied, the first one rightmost. Memory slots are not input tokens. Their columns are dropped and the rows scaled to sum
    to 1 again before the identity is added, so that a block with much weight on its slots does not count less. A row with all its
    weight on slots becomes the identity's row.

    Args:
        weights: (block, image, head, token, key); keys beyond the number of tokens are memory slots.
        residual: whether attention has a residual connection; without one the identity is not added.

    Returns:
        (image, token, token); rows sum to 1.
    """
    tokens = weights.shape[-2]
    mean = np.asarray(weights, dtype=np.float64).mean(2)[..., :tokens]  # (block, image, token, token)
    total = mean.sum(-1, keepdims=True)
    mixed = np.where(total == 0, np.eye(tokens), mean / np.where(total == 0, 1.0, total))
    if residual:
        mixed = (mixed + np.eye(tokens)) / 2
    result: FloatArray = mixed[0]
    for block in mixed[1:]:
        result = block @ result
    return result


def source_row(rolled: FloatArray, settings: ModelSettings) -> FloatArray:
    """The row of what the head reads: the class token, the first patch, or the mean over patches.

    A head that weighs the patches of each image (`max`, `attention`) or each place (`concat`) counts as one that reads their mean.

    Args:
        rolled: a rollout or attention weights, (..., token, key).
        settings: the model's options; `pool` says what the head reads.

    Returns:
        (..., key).
    """
    patches = rolled[..., int(settings.has_cls) :, :]
    match settings.pool:
        case "cls":
            row = rolled[..., 0, :]
        case "first":
            row = patches[..., 0, :]
        case _:
            row = patches.mean(-2)
    return row


def patch_ink(images: npt.NDArray[np.uint8], grid: int) -> FloatArray:
    """The mean pixel value of each patch.

    Args:
        images: (image, side, side) or (image, channel, side, side), side a multiple of `grid`.
        grid: patches along one side.

    Returns:
        (image, grid^2) in [0, 1], patches row by row.
    """
    side = images.shape[-1] // grid
    patches = images.reshape(len(images), -1, grid, side, grid, side)  # (image, channel, row, y, column, x)
    ink: FloatArray = patches.mean((1, 3, 5), dtype=np.float64).reshape(len(images), grid**2) / 255
    return ink


def ink_correlation(looked: FloatArray, ink: FloatArray) -> FloatArray:
    """Spearman's rank correlation, over the patches of each image, of rollout with ink; ties share their mean rank.

    Args:
        looked: rollout on patches (image, patch), without the class token.
        ink: (image, patch).

    Returns:
        (image,) in [-1, 1]; 0 if either is equal for all patches; NaN for NaN.
    """
    return (_ranks(looked) * _ranks(ink)).sum(1)


def own_ink_correlation(looked: FloatArray, ink: FloatArray) -> FloatArray:
    """How much better each rollout correlates with the ink of its own image than with that of the other images.

    Digits have their ink in the middle, so a map that is the same for all images also correlates with ink. For such a map the mean of
    this measure over the images is 0.

    Args:
        looked, ink: as for `ink_correlation`, of two images or more.

    Returns:
        (image,): the rank correlation with the image's own ink minus the mean of those with the ink of every other image.
    """
    correlation = _ranks(looked) @ _ranks(ink).T  # (rollout's image, ink's image)
    own = np.diagonal(correlation)
    result: FloatArray = own - (correlation.sum(1) - own) / (len(own) - 1)
    return result


def _ranks(values: FloatArray) -> FloatArray:
    """Ranks within each row, with mean 0 and length 1; zeros where all values are equal, NaN for NaN."""
    # Rounded, because values that are equal in exact arithmetic have to tie; in float32 they differ by about 1e-8.
    ranks = stats.rankdata(np.round(values, 7), axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    length = np.linalg.norm(ranks, axis=1, keepdims=True)
    result: FloatArray = ranks / np.where(length == 0, 1.0, length)
    return result


def most_looked_at(looked: FloatArray, order: FloatArray) -> npt.NDArray[np.intp]:
    """The indices of each image's patches with the largest values, a share of `BLANKED` and at least one.

    Args:
        looked: (image, patch).
        order: (image, patch); of equal values the one with the smaller `order` counts as larger.

    Returns:
        (image, number).
    """
    places: npt.NDArray[np.intp] = np.lexsort((order, -np.round(looked, 7)), axis=1)
    return places[:, : max(1, round(BLANKED * looked.shape[1]))]


def blank(images: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], grid: int) -> npt.NDArray[np.uint8]:
    """Images with some of their patches set to the background, which is 0.

    Args:
        images: as for `patch_ink`.
        places: (image, number), indices of patches, which count row by row.
        grid: patches along one side.
    """
    kept = np.ones((len(images), grid**2), np.uint8)
    np.put_along_axis(kept, places, 0, axis=1)
    side = images.shape[-1] // grid
    mask = kept.reshape(len(images), grid, grid).repeat(side, axis=1).repeat(side, axis=2)
    blanked: npt.NDArray[np.uint8] = images * (mask if images.ndim == 3 else mask[:, None])
    return blanked


def deletion(
    predict: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]],
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint8],
    looked: FloatArray,
    grid: int,
) -> tuple[float, float]:
    """Accuracy lost by blanking the patches with the largest rollout, minus that lost by blanking others.

    All are means over `DRAWS` fixed random orders, which also break ties in the rollout, and as many ways to give every image the
    rollout of another one. Digits lie in the middle, so a map that is the same for all images, and largest there, also loses more than
    random patches; it loses what another image's map loses.

    Args:
        predict: maps images uint8 to classes (image,).
        images: as for `patch_ink`, two or more.
        labels: (image,), the true classes.
        looked: rollout on patches (image, patch).
        grid: patches along one side.

    Returns:
        Two differences of fractions: to as many random patches, 0 for a map that is equal for all patches; and to the patches that
        another image's rollout names, 0 for a map that is equal for all images. NaN if `looked` is not finite.
    """
    if not np.isfinite(looked).all():
        return math.nan, math.nan

    def right(looked: FloatArray, order: FloatArray) -> float:
        return float((predict(blank(images, most_looked_at(looked, order), grid)) == labels).mean())

    generator = np.random.default_rng(0)
    orders = generator.random((DRAWS, *looked.shape))
    shifts = generator.integers(1, len(images), DRAWS)
    own = np.array([right(looked, order) for order in orders])
    random = np.array([right(np.zeros_like(looked), order) for order in orders])
    other = np.array([right(np.roll(looked, shift, axis=0), order) for shift, order in zip(shifts, orders, strict=True)])
    return float((random - own).mean()), float((other - own).mean())


def first_of_each_class(labels: npt.NDArray[np.uint8]) -> list[int]:
    """The indices of the first image of class 0, 1, ..., 9; classes without images are left out."""
    return [int(np.argmax(labels == digit)) for digit in range(MAX_CLASSES_MAPPED) if (labels == digit).any()]


def probe(
    module: nn.Module,
    settings: ModelSettings,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint8],
    digits: npt.NDArray[np.uint8],
) -> Probe:
    """Measures the attention of one trained model.

    Args:
        module: a trained vision transformer; it is put into evaluation mode.
        settings: its options.
        images: uint8, as `Dataset` has them; all but maps and rollout are measured on them.
        labels: (image,), their classes.
        digits: images for maps and rollout.
    """
    module.eval()
    keys = settings.num_tokens + settings.memory
    batch = max(1, _WEIGHTS_AT_ONCE // (settings.blocks * settings.heads * settings.num_tokens * keys))
    uncertainty, rows, reach = [], [], []
    for start in range(0, len(images), batch):
        chosen = images[start : start + batch]
        weights = _weights(module, chosen)
        row = _rolled_row(weights, settings)
        uncertainty.append(entropy(weights).mean((0, 2, 3)))  # (image,)
        rows.append(row[:, int(settings.has_cls) :])
        reach.append(distance(weights, settings))
    looked, ink = np.concatenate(rows), patch_ink(images, settings.grid)
    weights = np.concatenate([_weights(module, digits[start : start + batch]) for start in range(0, len(digits), batch)], axis=1)
    against_random, against_others = deletion(lambda blanked: _predictions(module, blanked), images, labels, looked, settings.grid)
    return Probe(
        entropy=float(np.concatenate(uncertainty).mean()),
        ink_correlation=float(ink_correlation(looked, ink).mean()),
        own_ink_correlation=float(own_ink_correlation(looked, ink).mean()),
        deletion=against_random,
        own_deletion=against_others,
        distances=tuple(np.concatenate(reach, axis=1).mean(1).tolist()),
        maps=source_row(weights, settings)[..., : settings.num_tokens].swapaxes(0, 1).astype(np.float16),
        rollout=_rolled_row(weights, settings).astype(np.float32),
    )


def _rolled_row(weights: FloatArray, settings: ModelSettings) -> FloatArray:
    return source_row(rollout(weights, residual=settings.residual != "none"), settings)


def _predictions(module: nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Images uint8, as `Dataset` has them, to classes (image,)."""
    import torch

    from pipeline.training.classification import EVALUATION_BATCH, pixels

    device = next(module.parameters()).device
    with torch.no_grad():
        batches = torch.from_numpy(images).to(device).split(EVALUATION_BATCH)
        classes: npt.NDArray[np.int64] = torch.cat([module(pixels(batch, 1)).argmax(1) for batch in batches]).cpu().numpy()
    return classes


def _weights(module: nn.Module, images: npt.NDArray[np.uint8]) -> FloatArray:
    """Images uint8, as `Dataset` has them, to (block, image, head, token, key)."""
    import torch

    from pipeline.models import attention_maps
    from pipeline.training.classification import pixels

    device = next(module.parameters()).device
    with torch.no_grad():
        weights: FloatArray = attention_maps(module, pixels(torch.from_numpy(images).to(device), 1)).double().cpu().numpy()
    return weights
