"""Augmentation: scipy's affine map for known draws, and random numbers that know nothing but key, step and place."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

from pipeline.params import Params
from pipeline.training.augment import Augmentation, affine, draw, mirrored, move, offsets, warp
from pipeline.training.stack import derive_seed

KEYS = torch.tensor([5, 2**31 - 1, 2**62 + 12345])
STEP = torch.tensor(17)


def pictures(num_seeds: int, batch: int) -> Tensor:
    """Random pixels with an empty border, as MNIST's have."""
    images = torch.rand((num_seeds, batch, 28, 28), generator=torch.Generator().manual_seed(0))
    images[..., :4, :] = images[..., -4:, :] = images[..., :, :4] = images[..., :, -4:] = 0
    return images


@pytest.mark.parametrize("draws", [(0.0, -1.0, 0.0, 0.0), (-0.7, 0.4, 0.9, -0.3)], ids=str)
def test_is_scipys_affine_map(draws: tuple[float, ...]) -> None:
    """With coordinates in pixels (row, column) about the centre: out = scale R in + shift, and scipy wants its inverse.

    A draw of 1 is 10 degrees, a tenth of the size, or 2 pixels.
    """
    image = pictures(1, 1)
    rotation, scale, right, down = draws
    angle = 2 * math.atan(rotation * math.tan(math.radians(10) / 2))
    # (row, column), rows counted downwards: a positive angle turns what is right of the centre downwards.
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    inverse = np.linalg.inv((1 + scale * 0.1) * turn)
    centre = np.full(2, 13.5)
    shift = 2 * np.array([down, right])
    expected = ndimage.affine_transform(
        image[0, 0].double().numpy(), inverse, centre - inverse @ (centre + shift), order=1, mode="grid-constant", cval=0.0
    )
    ours = warp(image, torch.tensor([[draws]]))[0, 0].double().numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5)
    assert abs(ours - image[0, 0].numpy()).max() > 0.1


def test_draws_are_uniform_and_independent() -> None:
    steps = [draw(KEYS, torch.tensor(step), 500) for step in range(40)]
    numbers = torch.stack(steps).double()  # (step, seed, image, draw)
    assert float(numbers.min()) >= -1
    assert float(numbers.max()) < 1
    for column in numbers.flatten(0, 2).T:
        assert stats.kstest(column.numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-4
    bound = 5 / 20_000**0.5  # five standard errors of a correlation of nothing
    pairs = [
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[:, :, 1:], numbers[:, :, :-1]),
        (numbers[..., 1:], numbers[..., :-1]),
    ]
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < bound


def test_alone_and_in_a_stack_are_bitwise_the_same() -> None:
    images = pictures(3, 20)
    stacked = affine(images, KEYS, STEP)
    for seed in range(3):
        assert torch.equal(affine(images[seed : seed + 1], KEYS[seed : seed + 1], STEP)[0], stacked[seed])
    assert torch.equal(affine(images[:, :7], KEYS, STEP), stacked[:, :7])  # nor does the batch's size matter
    assert not torch.equal(affine(images, KEYS, STEP + 1), stacked)


def test_a_crop_is_the_padded_image_s() -> None:
    images, moved_by = torch.rand(2, 3, 3, 7, 7), torch.tensor([[[2, -1], [0, 0], [-2, 2]], [[1, 1], [-1, 0], [0, -2]]])
    moved = move(images, moved_by, 2)
    for seed in range(2):
        for image in range(3):
            down, right = moved_by[seed, image].tolist()
            for channel in range(3):
                expected = ndimage.shift(images[seed, image, channel].numpy(), (down, right), order=0)
                assert np.array_equal(moved[seed, image, channel].numpy(), expected)


def test_crops_and_mirrors_are_uniform_and_of_a_seed_alone() -> None:
    moved_by, flipped = offsets(KEYS, STEP, 20_000, 3), mirrored(KEYS, STEP, 20_000)
    for seed in range(3):
        for side in range(2):
            counts = torch.bincount(moved_by[seed, :, side] + 3, minlength=7)
            assert len(counts) == 7
            assert stats.chisquare(counts.numpy()).pvalue > 1e-4
        assert stats.binomtest(int(flipped[seed].sum()), 20_000).pvalue > 1e-4
        assert torch.equal(offsets(KEYS[[seed]], STEP, 20_000, 3)[0], moved_by[seed])
    assert not torch.equal(mirrored(KEYS, STEP + 1, 20_000), flipped)


def test_a_training_warps_then_moves_then_mirrors_its_images(study: Params) -> None:
    train = study.train.model_copy(update={"augment": "affine", "crop": 2, "flip": True})
    made, images = Augmentation(train, [3, 8], torch.device("cpu")), pictures(2, 12)[:, :, None]
    found = made(images, STEP)
    for place, seed in enumerate((3, 8)):
        numbers, moved_by, flipped = made.draws(place, STEP, 12)  # which a replay compares
        assert torch.equal(numbers, draw(torch.tensor([derive_seed(seed, "augment")]), STEP, 12))
        moved = move(warp(images[[place]], numbers), moved_by, 2)[0]
        for image, one, mirror in zip(found[place], moved, flipped[0].tolist(), strict=True):
            assert torch.equal(image, one.flip(-1) if mirror else one)
        assert 0 < flipped.sum() < 12
        assert moved_by.abs().amax() == 2
