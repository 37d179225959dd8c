"""Random affine maps of training images, on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models.dropout import mix

# MNIST's digits are scaled into 20 x 20 of the 28 x 28 pixels, centred by mass: 10 % larger and 2 pixels aside, they still fit.
MAX_SCALE = 0.1
MAX_SHIFT = 2.0  # pixels
MAX_ROTATION = 10.0  # degrees; about as far as one hand's slant differs from another's, and no digit becomes another

_NUM_DRAWS = 4  # numbers an image


@torch.no_grad()
def affine(images: Tensor, key: Tensor, step: Tensor) -> Tensor:
    """Every image rotated and scaled about its centre, then shifted, by random amounts of its own.

    Args:
        images: (seed, batch, height, width) or (seed, batch, channel, height, width), float in [0, 1]; height equals width.
        key: (seed,) int64, of which the low 32 bits count.
        step: () int64.

    Returns:
        Like `images`. The amounts depend on the seed's key, the step and the place in the batch alone: they are the same alone
        and in a stack, on any device.
    """
    return warp(images, draw(key, step, images.shape[1]))


def draw(key: Tensor, step: Tensor, batch_size: int) -> Tensor:
    """Uniform numbers in [-1, 1), (seed, batch, 4): rotation, scale, shift to the right, shift down, each as a share of its largest.

    Counter-based, as dropout's are: a hash of key, step and place.
    """
    index = torch.arange(batch_size * _NUM_DRAWS, device=key.device).view(batch_size, _NUM_DRAWS)
    bits = mix(mix(index + key[:, None, None]) + step)
    return (bits >> 8).float() * 2**-23 - 1  # 24 bits: all that float32 holds


def warp(images: Tensor, draws: Tensor) -> Tensor:
    """The map that the numbers (seed, batch, 4) of `draw` stand for; bilinear, with zeros beyond the border.

    Rotation is clockwise as an image is looked at (y points down). Its draw is a share of the tangent of half the largest angle: cosine
    and sine of an angle are rational in that, so every device gets the same bits, and below 10 degrees the angle is as good as
    proportional to the draw (to 0.1 % of the largest).
    """
    size = images.shape[-1]
    rotation, scale, right, down = draws.flatten(0, 1).unbind(1)  # each (image,)
    tangent = rotation * math.tan(math.radians(MAX_ROTATION) / 2)
    square = tangent * tangent
    magnification = (1 + square) * (1 + scale * MAX_SCALE)
    # The inverse map, from a pixel of the result to where it comes from, in pixels from the centre.
    cosine, sine = (1 - square) / magnification, 2 * tangent / magnification
    place = torch.arange(size, device=images.device) - (size - 1) / 2
    x = place - MAX_SHIFT * right[:, None]  # (image, column)
    y = place - MAX_SHIFT * down[:, None]  # (image, row)
    source_x = (cosine[:, None] * x)[:, None, :] + (sine[:, None] * y)[:, :, None]  # (image, row, column)
    source_y = (cosine[:, None] * y)[:, :, None] - (sine[:, None] * x)[:, None, :]
    # grid_sample counts half sides from the centre.
    grid = torch.stack([source_x, source_y], dim=3) * (2 / size)
    flat = F.grid_sample(images.reshape(len(grid), -1, size, size), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return flat.clamp_(0, 1).view(images.shape)  # bilinear weights may add to a little more than 1
