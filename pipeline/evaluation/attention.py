"""Where a transformer looks: entropy of its attention, attention rollout, and the correlation of rollout with an image's ink.

Attention weights are arrays (block, image, head, query token, key); a row sums to 1. Memory slots, which are keys without a
token, come last on the key axis. The class token, if there is one, is token 0; patches follow row by row.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from scipy import special, stats
from torch import nn

from pipeline.measures.definitions import FloatArray
from pipeline.models import attention_maps
from pipeline.params import ModelSettings
from pipeline.training.classification import EVALUATION_BATCH, pixels

NUM_IMAGES = 1000  # the first test images; all measures are means over them
BLANKED = 0.2  # share of the patches that deletion blanks
DRAWS = 3  # in deletion: random orders of the patches, and times that each image gets another one's map
_WEIGHTS_AT_ONCE = 2**23  # attention weights held at a time, 64 MiB as float64

Images = npt.NDArray[np.uint8]


def entropy(weights: FloatArray) -> FloatArray:
    """Shannon entropy in nats of every distribution over keys, memory slots too; log(keys) if all are equal. (..., key) to (...)."""
    result: FloatArray = special.entr(np.asarray(weights, dtype=np.float64)).sum(-1)
    return result


def distance(weights: FloatArray, settings: ModelSettings) -> FloatArray:
    """How far attention reaches: distance of the patch that is read from the one that reads, weighted by attention (Dosovitskiy et al.
    2021, appendix D.7).

    Distances are between the centres of patches, in pixels. Class token and memory slots have no place, so they are left out, and a
    row's weights on patches are scaled to sum to 1. (block, image, head, token, key) to (block, image), mean over heads and patches.
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
    weight on slots becomes the identity's row. (block, image, head, token, key) to (image, token, token), whose rows sum to 1.

    Args:
        residual: whether attention has a residual connection; without one the identity is not added.
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
    A rollout or attention weights, (..., token, key), to (..., key).
    """
    if settings.pool == "cls":
        return rolled[..., 0, :]
    patches = rolled[..., int(settings.has_cls) :, :]
    row: FloatArray = patches[..., 0, :] if settings.pool == "first" else patches.mean(-2)
    return row


def patch_ink(images: Images, grid: int) -> FloatArray:
    """The mean pixel value of each patch, (image, grid^2) in [0, 1], row by row.

    Args:
        images: (image, side, side) or (image, channel, side, side), side a multiple of `grid`, the patches along one.
    """
    side = images.shape[-1] // grid
    patches = images.reshape(len(images), -1, grid, side, grid, side)  # (image, channel, row, y, column, x)
    ink: FloatArray = patches.mean((1, 3, 5), dtype=np.float64).reshape(len(images), grid**2) / 255
    return ink


def ink_correlation(looked: FloatArray, ink: FloatArray) -> FloatArray:
    """Spearman's rank correlation, over the patches of each image, of rollout with ink; ties share their mean rank.

    Twice (image, patch), without the class token, to (image,) in [-1, 1]; 0 if either is equal for all patches; NaN for NaN.
    """
    return (_ranks(looked) * _ranks(ink)).sum(1)


def own_ink_correlation(looked: FloatArray, ink: FloatArray) -> FloatArray:
    """How much better each rollout correlates with the ink of its own image than with that of the other images.

    Digits have their ink in the middle, so a map that is the same for all images also correlates with ink. For such a map the mean of
    this measure over the images is 0. Of two images or more, (image, patch) each, to (image,): the rank correlation with the image's own
    ink minus the mean of those with the ink of every other image.
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


def blanked(images: Images, looked: FloatArray, order: FloatArray, grid: int) -> Images:
    """Images with the patches of the largest values set to the background, which is 0: a share of `BLANKED`, and at least one.

    `looked` and `order` are (image, patch); of equal values the one with the smaller `order` counts as larger.
    """
    places = np.lexsort((order, -np.round(looked, 7)), axis=1)[:, : max(1, round(BLANKED * looked.shape[1]))]
    kept = np.ones(looked.shape, np.uint8)
    np.put_along_axis(kept, places, 0, axis=1)
    mask = np.kron(kept.reshape(len(images), grid, grid), np.ones((1, *2 * [images.shape[-1] // grid]), np.uint8))
    return images * (mask if images.ndim == 3 else mask[:, None])


def deletion(
    predict: Callable[[Images], npt.NDArray[np.int64]], images: Images, labels: Images, looked: FloatArray, grid: int
) -> tuple[float, float]:
    """Accuracy lost by blanking the patches with the largest rollout, minus that lost by blanking others.

    All are means over `DRAWS` fixed random orders, which also break ties in the rollout, and as many ways to give every image the
    rollout of another one. Digits lie in the middle, so a map that is the same for all images, and largest there, also loses more than
    random patches; it loses what another image's map loses.

    Args:
        predict: maps images uint8 to classes (image,).
        images: as for `patch_ink`, two or more, with `labels` (image,).
        looked: rollout on patches (image, patch).

    Returns:
        Two differences of fractions: to as many random patches, 0 for a map that is equal for all patches; and to the patches that
        another image's rollout names, 0 for a map that is equal for all images. NaN if `looked` is not finite.
    """
    if not np.isfinite(looked).all():
        return math.nan, math.nan

    def right(looked: FloatArray, order: FloatArray) -> float:
        return float((predict(blanked(images, looked, order, grid)) == labels).mean())

    generator = np.random.default_rng(0)
    orders = generator.random((DRAWS, *looked.shape))
    shifts = generator.integers(1, len(images), DRAWS)
    own = np.array([right(looked, order) for order in orders])
    random = np.array([right(np.zeros_like(looked), order) for order in orders])
    other = np.array([right(np.roll(looked, shift, axis=0), order) for shift, order in zip(shifts, orders, strict=True)])
    return float((random - own).mean()), float((other - own).mean())


@torch.no_grad()
def probe(
    module: nn.Module, settings: ModelSettings, images: Images, labels: Images, digits: Images
) -> tuple[dict[str, float], npt.NDArray[np.float16], npt.NDArray[np.float32]]:
    """Measures the attention of one trained model.

    Args:
        module: a trained vision transformer; it is put into evaluation mode.
        settings: its options.
        images: uint8, as `Dataset` has them, with `labels` (image,).
        digits: images for maps and rollout.

    Returns:
        By column the means over the images: `attention_entropy` in nats, `ink_correlation`, `own_ink_correlation`, `deletion` and
        `own_deletion`, see the functions of these names, and `attention_distance_N` of the N-th block.
        The maps of the digits, weights of `source_row`: (digit, block, head, token). Memory slots are left out, so a row sums to the
        share of attention on tokens.
        The digits' rollout, of `source_row`, too: (digit, token).
    """
    module.eval()
    device = next(module.parameters()).device

    def predict(images: Images) -> npt.NDArray[np.int64]:
        batches = torch.from_numpy(images).to(device).split(EVALUATION_BATCH)
        classes: npt.NDArray[np.int64] = torch.cat([module(pixels(batch, 1)).argmax(1) for batch in batches]).cpu().numpy()
        return classes

    def looks(images: Images) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Attention weights, and the row of their rollout, of some images after the other."""
        for start in range(0, len(images), batch):
            some = torch.from_numpy(images[start : start + batch]).to(device)
            weights: FloatArray = attention_maps(module, pixels(some, 1)).double().cpu().numpy()
            yield weights, source_row(rollout(weights, residual=settings.residual != "none"), settings)

    batch = max(1, _WEIGHTS_AT_ONCE // (settings.blocks * settings.heads * settings.num_tokens * (settings.num_tokens + settings.memory)))
    found = [(entropy(weights).mean((0, 2, 3)), distance(weights, settings), row) for weights, row in looks(images)]
    uncertainty, reach, rows = (np.concatenate(one, axis) for one, axis in zip(zip(*found, strict=True), (0, 1, 0), strict=True))
    looked, ink = rows[:, int(settings.has_cls) :], patch_ink(images, settings.grid)
    columns = {
        "attention_entropy": float(uncertainty.mean()),
        "ink_correlation": float(ink_correlation(looked, ink).mean()),
        "own_ink_correlation": float(own_ink_correlation(looked, ink).mean()),
    }
    columns["deletion"], columns["own_deletion"] = deletion(predict, images, labels, looked, settings.grid)
    columns |= {f"attention_distance_{i}": one for i, one in enumerate(reach.mean(1).tolist(), 1)}
    on_digits = [(source_row(weights, settings)[..., : settings.num_tokens].swapaxes(0, 1), row) for weights, row in looks(digits)]
    maps, rolled = (np.concatenate(one) for one in zip(*on_digits, strict=True))
    return columns, maps.astype(np.float16), rolled.astype(np.float32)
