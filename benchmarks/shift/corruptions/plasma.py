"""Clouds: random heights by the diamond-square algorithm, many maps at once.

Fournier, Fussell and Carpenter 1982 (https://doi.org/10.1145/358523.358553), on a torus. The
published corruptions draw a height's deviation uniformly from ±s² where s starts at 100 and is
divided by ``decay`` from one grid to the next finer one.
"""

import numpy as np

from veracal._types import Floats

_START = 100.0


def plasma(count: int, side: int, decay: float, rng: np.random.Generator) -> Floats:
    """Draw maps of heights.

    Parameters
    ----------
    count : int
    side : int
        A power of two.
    decay : float
        The larger, the smoother.
    rng : generator

    Returns
    -------
    array of float32 of shape (count, side, side), each map from 0 to 1
    """
    assert side >= 2 and side & (side - 1) == 0
    levels = side.bit_length() - 1
    heights = np.zeros((count, side, side), np.float32)
    spread = _START
    for level, stream in enumerate(rng.spawn(levels)):
        step = side >> level
        _refine(heights, step, np.float32(spread**2), stream)
        spread /= decay
    heights -= heights.min(axis=(1, 2), keepdims=True)
    return heights / heights.max(axis=(1, 2), keepdims=True)


def _refine(heights: Floats, step: int, spread: Floats, rng: np.random.Generator) -> None:
    """Fill the middles of squares with corners ``step`` apart, then those of their sides."""
    half = step // 2
    corners = heights[:, ::step, ::step]
    right, below = np.roll(corners, -1, axis=2), np.roll(corners, -1, axis=1)
    across = np.roll(right, -1, axis=1)
    # All three kinds of middles in one draw, so that a map depends on no other map.
    noise = spread * rng.uniform(-1, 1, (len(heights), 3, *corners.shape[1:]))
    middles = (corners + right + below + across) / 4 + noise[:, 0]
    above, left = np.roll(middles, 1, axis=1), np.roll(middles, 1, axis=2)
    heights[:, half::step, half::step] = middles
    heights[:, ::step, half::step] = (corners + right + middles + above) / 4 + noise[:, 1]
    heights[:, half::step, ::step] = (corners + below + middles + left) / 4 + noise[:, 2]
