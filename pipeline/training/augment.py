"""Random changes of training images, on the device: affine maps, crops and mirrors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models.dropout import mix
from pipeline.params import TrainSettings
from pipeline.training.stack import derive_seed

# MNIST's digits fill 20 x 20 of the 28 x 28 pixels, centred by mass, so they still fit when 10 % larger and shifted by 2 pixels.
MAX_SCALE = 0.1
MAX_SHIFT = 2.0  # pixels
MAX_ROTATION = 10.0  # degrees; about as much as the slant of handwriting varies, and no digit turns into another

_NUM_DRAWS = 4  # numbers per image


class Augmentation:
    """What `augment`, `crop` and `flip` of a training's settings do to the images of a group of seeds, in this order."""

    def __init__(self, train: TrainSettings, seeds: Sequence[int], device: torch.device) -> None:
        self._affine, self._crop, self._flip = train.augment == "affine", train.crop, train.flip
        self._keys = {
            purpose: torch.tensor([derive_seed(seed, purpose) for seed in seeds], device=device) for purpose in ("augment", "crop", "flip")
        }

    def __call__(self, images: Tensor, step: Tensor) -> Tensor:
        """Images (seed, batch, channel, height, width) in [0, 1] of a step, (), to as many."""
        count = images.shape[1]
        if self._affine:
            images = affine(images, self._keys["augment"], step)
        if self._crop:
            images = move(images, offsets(self._keys["crop"], step, count, self._crop), self._crop)
        if self._flip:
            images = torch.where(mirrored(self._keys["flip"], step, count)[..., None, None, None], images.flip(-1), images)
        return images

    def draws(self, place: int, step: Tensor, batch_size: int) -> Iterator[Tensor]:
        """The random numbers for the images of the seed at `place`, on the CPU."""
        key = {purpose: keys[[place]] for purpose, keys in self._keys.items()}
        if self._affine:
            yield draw(key["augment"], step, batch_size).cpu()
        if self._crop:
            yield offsets(key["crop"], step, batch_size, self._crop).cpu()
        if self._flip:
            yield mirrored(key["flip"], step, batch_size).cpu()


def offsets(key: Tensor, step: Tensor, batch_size: int, most: int) -> Tensor:
    """By how many pixels each image is moved, down and right, uniform from -most to most, (seed, batch, 2) int64."""
    return (_bits(key, step, batch_size, 2) * (2 * most + 1) >> 32) - most


def mirrored(key: Tensor, step: Tensor, batch_size: int) -> Tensor:
    """Whether each image is mirrored, (seed, batch), true for half of them."""
    return _bits(key, step, batch_size, 1)[..., 0] >> 31 == 1


@torch.no_grad()
def move(images: Tensor, offsets: Tensor, most: int) -> Tensor:
    """Images (seed, batch, channel, height, width) moved by whole pixels, see `offsets`, and filled with zeros."""
    seeds, batch, channels, size = images.shape[:4]
    padded = F.pad(images, (most, most, most, most)).flatten(0, 1)
    place = torch.arange(size, device=images.device) + most
    rows, columns = (place - offset[:, None] for offset in offsets.flatten(0, 1).unbind(1))  # (image, row), (image, column)
    image = torch.arange(seeds * batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]].view(images.shape)


@torch.no_grad()
def affine(images: Tensor, key: Tensor, step: Tensor) -> Tensor:
    """Rotates and scales every image about its centre, then shifts it, each by its own random amounts.

    Args:
        images: (seed, batch, height, width) or (seed, batch, channel, height, width), float in [0, 1]; height equals width.
        key: (seed,) int64; only the low 32 bits are used.
        step: () int64.

    Returns:
        Like `images`. The amounts depend only on the seed's key, the step and the position in the batch, so they are the same
        on any device, and for a seed alone or in a stack.
    """
    return warp(images, draw(key, step, images.shape[1]))


def draw(key: Tensor, step: Tensor, batch_size: int) -> Tensor:
    """Uniform numbers in [-1, 1), (seed, batch, 4): rotation, scale, shift to the right, shift down, each as a share of its maximum.

    They are counter-based like dropout's masks: a hash of key, step and position.
    """
    bits = _bits(key, step, batch_size, _NUM_DRAWS)
    return (bits >> 8).float() * 2**-23 - 1  # the upper 24 bits, because float32 holds no more


def _bits(key: Tensor, step: Tensor, batch_size: int, count: int) -> Tensor:
    """Random bits for every image, (seed, batch, count) int64 below 2**32."""
    index = torch.arange(batch_size * count, device=key.device).view(batch_size, count)
    return mix(mix(index + key[:, None, None]) + step)


def warp(images: Tensor, draws: Tensor) -> Tensor:
    """Applies the affine map given by the numbers (seed, batch, 4) of `draw`; bilinear, with zeros beyond the border.

    Rotation is clockwise as seen in the image (y points down). Its draw scales the tangent of half the largest angle, because the
    cosine and sine of an angle are rational functions of that tangent, so that every device computes the same bits. Below 10 degrees
    the angle is proportional to the draw to within 0.1 % of the largest angle.
    """
    size = images.shape[-1]
    rotation, scale, right, down = draws.flatten(0, 1).unbind(1)  # each (image,)
    tangent = rotation * math.tan(math.radians(MAX_ROTATION) / 2)
    square = tangent * tangent
    magnification = (1 + square) * (1 + scale * MAX_SCALE)
    # The inverse map, from a pixel of the result to its source, in pixels from the centre.
    cosine, sine = (1 - square) / magnification, 2 * tangent / magnification
    place = torch.arange(size, device=images.device) - (size - 1) / 2
    x = place - MAX_SHIFT * right[:, None]  # (image, column)
    y = place - MAX_SHIFT * down[:, None]  # (image, row)
    source_x = (cosine[:, None] * x)[:, None, :] + (sine[:, None] * y)[:, :, None]  # (image, row, column)
    source_y = (cosine[:, None] * y)[:, :, None] - (sine[:, None] * x)[:, None, :]
    # grid_sample takes coordinates in units of half a side, from the centre.
    grid = torch.stack([source_x, source_y], dim=3) * (2 / size)
    flat = F.grid_sample(images.reshape(len(grid), -1, size, size), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return flat.clamp_(0, 1).view(images.shape)  # after rounding, bilinear weights may sum to slightly more than 1
