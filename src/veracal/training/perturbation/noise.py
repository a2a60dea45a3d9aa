"""Noise of which only the length matters."""

import numpy as np

from veracal import _checks
from veracal._types import Floats


def spherical_gamma(
    d: int, scale: float, *, rng: np.random.Generator, size: int | None = None
) -> Floats:
    r"""Vectors of density proportional to :math:`e^{-\lVert b \rVert / s}`.

    In polar coordinates :math:`db = r^{d-1} dr\, du`, so that the length has density
    proportional to :math:`r^{d-1} e^{-r/s}`, which is Gamma of shape d and scale s, and the
    direction is uniform on the sphere and independent of it (Chaudhuri, Monteleoni and
    Sarwate 2011, Section 4, https://www.jmlr.org/papers/v12/chaudhuri11a.html). A normal
    vector divided by its length is such a direction.

    Parameters
    ----------
    d : int
        Number of entries.
    scale : float > 0
        The scale s.
    rng : Generator
    size : int, optional
        How many vectors. None: one, of shape (d,).

    Returns
    -------
    array of shape (d,) or (size, d)

    Guarantees
    ----------
    The log density at two points differs by at most their distance divided by s: added to
    a vector of L2 sensitivity D, it is (D / s)-differentially private.
    """
    _checks.whole(d=d)
    _checks.positive(scale=scale)
    count = 1 if size is None else size
    directions = rng.standard_normal((count, d))
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    directions[lengths[:, 0] == 0, 0] = 1.0  # a draw of zeros still needs a direction
    lengths[lengths == 0] = 1.0
    vectors: Floats = directions / lengths * rng.gamma(d, scale, (count, 1))
    return vectors[0] if size is None else vectors
