"""How alike the position vectors of two patches are."""

import numpy as np
from scipy import stats

from pipeline.measures.definitions import FloatArray


def cosine_similarity(vectors: FloatArray) -> FloatArray:
    """Cosine of the angle between every two vectors.

    Args:
        vectors: (..., patches, dim); a vector of length zero has similarity 0 with every other and with itself.

    Returns:
        (..., patches, patches), in [-1, 1].
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = vectors / np.where(length > 0, length, 1.0)
    similarity: FloatArray = np.clip(unit @ np.swapaxes(unit, -1, -2), -1.0, 1.0)
    return similarity


def table_correlation(vectors: FloatArray, table: FloatArray) -> float:
    """Spearman's rank correlation, over all pairs of patches, of the vectors' cosine similarity with that of a fixed table's rows.

    1: the vectors order all pairs as the table does; 0: as vectors drawn at random, or as vectors that are all alike.

    Args:
        vectors: (patches, dim), finite, the class token's row left out; vectors of length zero are like nothing.
        table: (patches, any), for the same patches.

    Raises:
        ValueError: there are not as many rows as vectors, or fewer than three pairs of patches.
    """
    if len(vectors) != len(table) or len(vectors) < 3:
        raise ValueError(f"needs as many vectors as rows, at least 3, not {len(vectors)} for {len(table)}")
    return _over_pairs(cosine_similarity(vectors), cosine_similarity(table))


def _over_pairs(first: FloatArray, second: FloatArray) -> float:
    """Spearman's rank correlation of two symmetric matrices (patches, patches), over all pairs; 0 where either is constant."""
    pairs = np.triu_indices(len(first), k=1)
    first, second = (np.round(values[pairs], 6) for values in (first, second))  # equal pairs have to tie, also of float32 tables
    if (first == first[0]).all() or (second == second[0]).all():
        return 0.0  # nothing that could be ordered
    return float(stats.spearmanr(first, second).statistic)


def similarity_mosaic(similarity: FloatArray, grid: int) -> FloatArray:
    """The (patches, patches) matrix as a picture: tile (r, c) maps the similarity of patch (r, c) with every patch.

    Returns:
        (side, side) with side = grid * (grid + 1) - 1; the lines between tiles are NaN.
    """
    tiles = similarity.reshape(4 * (grid,))  # (tile row, tile column, row, column)
    tiles = np.pad(tiles, 2 * [(0, 0)] + 2 * [(0, 1)], constant_values=np.nan)
    return tiles.swapaxes(1, 2).reshape(2 * (grid * (grid + 1),))[:-1, :-1]
