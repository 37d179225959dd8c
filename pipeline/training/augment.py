"""Random affine maps of training images, on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models.dropout import mix

# MNIST's digits fill 20 x 20 of the 28 x 28 pixels, centred by mass, so they still fit when 10 % larger and shifted by 2 pixels.
MAX_SCALE = 0.1
MAX_SHIFT = 2.0  # pixels
MAX_ROTATION = 10.0  # degrees; about as much as the slant of handwriting varies, and no digit turns into another

_NUM_DRAWS = 4  # numbers per image


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
    index = torch.arange(batch_size * _NUM_DRAWS, device=key.device).view(batch_size, _NUM_DRAWS)
    bits = mix(mix(index + key[:, None, None]) + step)
    return (bits >> 8).float() * 2**-23 - 1  # the upper 24 bits, because float32 holds no more


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
