"""Similarities of position vectors: against scipy's distances, hand-made grids, and the two fixed tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import distance
from scipy.stats import spearmanr

from pipeline.measures.positions import cosine_similarity, grid_distance, nearness_correlation, similarity_mosaic, table_correlation
from pipeline.models.positions import sinusoidal_table


def test_similarity_and_distance_are_scipys() -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 5))
    assert cosine_similarity(vectors) == pytest.approx(1 - distance.cdist(vectors, vectors, "cosine"))
    assert cosine_similarity(np.stack([vectors, 2 * vectors]))[1] == pytest.approx(cosine_similarity(vectors))
    points = np.array([(r, c) for r in range(3) for c in range(3)], dtype=float)  # row by row
    assert grid_distance(3) == pytest.approx(distance.cdist(points, points))


def _blurred(grid: int, width: float) -> np.ndarray:
    """Vectors whose similarity falls with distance: each is a Gaussian bump on a padded grid, centred on its patch."""
    pad = 3 * grid
    rows, columns = np.mgrid[-pad : grid + pad, -pad : grid + pad]
    return np.stack([np.exp(-((rows - r) ** 2 + (columns - c) ** 2) / (2 * width**2)).ravel() for r in range(grid) for c in range(grid)])


def test_correlation_is_one_where_nearer_is_always_more_alike() -> None:
    assert nearness_correlation(_blurred(4, 2.0), 4) == pytest.approx(1.0)


def test_correlation_is_spearmans_over_the_pairs() -> None:
    vectors = np.random.default_rng(3).normal(size=(16, 8)) + 0.5 * _blurred(4, 1.5)[:, :8]
    similar, near = [], []
    for i in range(16):
        for j in range(i):
            similar.append(float(vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])))
            near.append(-float(np.hypot(i // 4 - j // 4, i % 4 - j % 4)))
    assert nearness_correlation(vectors, 4) == pytest.approx(spearmanr(similar, near).statistic)


def test_mosaic_has_each_patchs_map_at_the_patchs_place() -> None:
    similarity = np.arange(81.0).reshape(9, 9)
    mosaic = similarity_mosaic(similarity, 3)
    assert mosaic.shape == (11, 11)
    assert mosaic[4:7, 8:11].ravel().tolist() == similarity[5].tolist()  # patch 5 is in row 1, column 2
    assert np.isnan(mosaic[3]).all()
    assert np.isnan(mosaic[:, 7]).all()
    assert np.isfinite(mosaic).sum() == 81


def test_table_correlation_is_spearmans_over_the_pairs() -> None:
    rng = np.random.default_rng(7)
    vectors, table = rng.normal(size=(6, 5)), rng.normal(size=(6, 3))
    similar = [
        [np.dot(m[i], m[j]) / np.linalg.norm(m[i]) / np.linalg.norm(m[j]) for i in range(6) for j in range(i)] for m in (vectors, table)
    ]
    assert table_correlation(vectors, table) == pytest.approx(spearmanr(*similar).statistic)


def test_pairs_that_are_equally_far_apart_tie() -> None:
    """Rows of the 1-D table are as alike as their distance says; its float32 numbers must not break these ties."""
    vectors = np.random.default_rng(8).normal(size=(49, 32))
    frequency = 10000 ** -(np.arange(0, 32, 2) / 32)  # Vaswani et al. (2017), section 3.5: sin and cos of position times frequency
    cosine = cosine_similarity(vectors)
    pairs = [(i, j) for i in range(49) for j in range(i)]
    by_distance = [float(np.cos((i - j) * frequency).mean()) for i, j in pairs]
    assert len({round(one, 12) for one in by_distance}) == 48
    expected = spearmanr([cosine[i, j] for i, j in pairs], np.round(by_distance, 12)).statistic
    assert table_correlation(vectors, sinusoidal_table(49, 32).double().numpy()) == pytest.approx(expected, abs=1e-6)
