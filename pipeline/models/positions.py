"""Fixed position tables, and the interpolation of learned ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def sinusoidal_table(num_positions: int, dim: int) -> Tensor:
    """One-dimensional sinusoids (Vaswani et al. 2017, section 3.5): sine in the even, cosine in the odd channels.

    PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)).

    Returns:
        (num_positions, dim) float32, computed in float64.
    """
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    angle = position / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)  # (position, dim / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


def sincos2d_table(grid: int, dim: int) -> Tensor:
    """Two-dimensional sinusoids: the first half of the channels encodes the row, the second the column (He et al. 2022, MAE).

    Each half holds all sines, then all cosines, with frequencies 10000^(-4i/d).

    Returns:
        (grid * grid, dim) float32 in row-major order of the patches, computed in float64.
    """
    frequency = 10000 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angle = torch.arange(grid, dtype=torch.float64)[:, None] * frequency  # (grid, dim / 4)
    half = torch.cat([angle.sin(), angle.cos()], dim=1)  # (grid, dim / 2)
    row = half[:, None].expand(grid, grid, -1)
    column = half[None].expand(grid, grid, -1)
    return torch.cat([row, column], dim=-1).flatten(0, 1).float()


def interpolated(position: Tensor, grid: int, *, has_cls: bool) -> Tensor:
    """Learned vectors for another grid of patches, interpolated bilinearly from the trained ones (Dosovitskiy et al. 2021, section 3.2).

    Vectors stay at the positions of their patches' centres in the image. Beyond the outermost centres the outermost vectors are used.

    Args:
        position: (seed, token, dim), patches of a square grid row by row. The class token's vector, if any, comes first and stays.
        grid: patches along one side of the new grid.
        has_cls: whether there is a class token.

    Returns:
        (seed, token, dim).
    """
    own, patches = position[:, : int(has_cls)], position[:, int(has_cls) :]
    side = math.isqrt(patches.shape[1])
    square = patches.mT.unflatten(2, (side, side))  # (seed, dim, row, column)
    scaled = F.interpolate(square, (grid, grid), mode="bilinear", align_corners=False)
    return torch.cat([own, scaled.flatten(2).mT], dim=1)
