"""Position tables against the formula worked out entry by entry and by hand, and against timm."""

import math

import pytest
import torch
from timm.layers import build_sincos2d_pos_embed, resample_abs_pos_embed
from timm.models import VisionTransformer as TimmTransformer

from pipeline.models import build
from pipeline.models.positions import interpolated, sincos2d_table, sinusoidal_table
from pipeline.params import Params


def test_sinusoidal_table_follows_the_formula() -> None:
    table = sinusoidal_table(50, 32)
    for position in (0, 1, 7, 49):
        for i in range(16):
            angle = position / 10000 ** (2 * i / 32)
            assert math.isclose(table[position, 2 * i].item(), math.sin(angle), abs_tol=1e-6)
            assert math.isclose(table[position, 2 * i + 1].item(), math.cos(angle), abs_tol=1e-6)


def test_sincos2d_table_equals_timm_up_to_the_order_of_the_channels(study: Params) -> None:
    ours = sincos2d_table(7, 32)
    theirs = build_sincos2d_pos_embed([7, 7], dim=32, interleave_sin_cos=False)
    best = (ours.T[:, None] - theirs.T[None]).abs().amax(-1).argmin(1)  # which of timm's channels each of ours is
    assert sorted(best.tolist()) == list(range(32))
    torch.testing.assert_close(ours, theirs[:, best], rtol=0, atol=1e-6)
    by_row = ours.view(7, 7, 32)[..., :16]
    assert torch.equal(by_row, by_row[:, :1].expand(-1, 7, -1))
    table = build(study.base.changed({"position": "sincos2d"})).position
    assert torch.equal(table, torch.cat([torch.zeros(1, 32), ours]))  # the class token has no place on the grid


def test_learned_positions_start_with_the_deviation_asked_for(study: Params) -> None:
    """0.02 is that of timm's; and scaling is all that is done to them, so that nothing else starts otherwise."""
    starts = {}
    for std in (1.0, 0.02):
        torch.manual_seed(0)
        starts[std] = build(study.base.changed({"position_std": std, "dim": 512})).state_dict()
    theirs = TimmTransformer(img_size=28, patch_size=4, in_chans=1, embed_dim=512, depth=1, num_heads=8).pos_embed
    assert abs(starts[0.02]["position"].std() / theirs.std() - 1) < 0.05
    assert torch.equal(starts[0.02].pop("position"), 0.02 * starts[1.0].pop("position"))
    assert all(torch.equal(value, starts[1.0][name]) for name, value in starts[0.02].items())


@pytest.mark.parametrize("grid", [5, 7, 10])
def test_interpolation_equals_timm(grid: int) -> None:
    position = torch.randn(3, 50, 8)
    theirs = [resample_abs_pos_embed(one[None], [grid, grid], interpolation="bilinear", antialias=False) for one in position]
    torch.testing.assert_close(interpolated(position, grid, has_cls=True), torch.cat(theirs))
    torch.testing.assert_close(interpolated(position[:, 1:], grid, has_cls=False), torch.cat(theirs)[:, 1:])
