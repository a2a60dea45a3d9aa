"""Sums over rows in single precision, of many models at once and a few at a time.

Models are columns: what each of them has of its own, a step length say, then multiplies
along the memory, and sums over coordinates add whole rows.
"""

import numpy as np

from veracal._types import Floats

_MARGINS = 1 << 17  # numbers held at a time: they stay in a processor's second cache
_NARROWEST = 32  # columns of a block
_FAR = 30.0  # a margin beyond which single precision tells no chance from 0 or 1


class Light:
    """Rows in float32 that all models share.

    Parameters
    ----------
    rows : array of shape (n, d)
        Each multiplied by its sign.
    """

    def __init__(self, rows: Floats) -> None:
        self.rows: Floats = np.ascontiguousarray(rows, dtype=np.float32)
        self.turned: Floats = np.ascontiguousarray(self.rows.T)

    def blocks(self, models: int, *, times: int = 1) -> list[slice]:
        """Some columns at a time; fewer by a factor, where more is held of each."""
        n = max(1, len(self.rows))
        width = max(_NARROWEST, _MARGINS // (n * times))
        return [slice(at, min(at + width, models)) for at in range(0, models, width)]

    def pulls(self, weights: Floats) -> Floats:
        r"""Sums :math:`\sum_i \sigma(-z_i) a_i`, of shape (d, m)."""
        found = np.empty_like(weights)
        for part in self.blocks(weights.shape[1]):
            np.matmul(self.turned, self.chances(weights[:, part]), out=found[:, part])
        return found

    def chances(self, weights: Floats) -> Floats:
        r"""Chances :math:`\sigma(-z_i)` of shape (n, m), for a block of models."""
        z: Floats = self.rows @ weights
        np.clip(z, -_FAR, _FAR, out=z)  # faster than what overflows or becomes subnormal
        np.exp(z, out=z)
        z += 1
        return np.divide(1, z, out=z)

    def bent(self, bends: Floats, vectors: Floats) -> Floats:
        r"""Sums :math:`\sum_i h_i (a_i \cdot v) a_i`, of shape (d, m)."""
        found = np.empty_like(vectors)
        for part in self.blocks(vectors.shape[1]):
            z = self.rows @ vectors[:, part]
            z *= bends[:, part]
            np.matmul(self.turned, z, out=found[:, part])
        return found


def dots(one: Floats, other: Floats) -> Floats:
    """Products of the columns of two arrays, of shape (m,)."""
    found: Floats = np.einsum("ij,ij->j", one, other)
    return found


def lengths(vectors: Floats) -> Floats:
    """Norms of columns, of shape (m,)."""
    found: Floats = np.sqrt(dots(vectors, vectors))
    return found
