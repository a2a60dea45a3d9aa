r"""Means and spreads of columns from one noisy vector.

Every value is first placed in [-1, 1] by declared bounds. One record of d columns adds
:math:`(u_1, \dots, u_d, u_1^2, \dots, u_d^2)` to a sum; noise is added to that sum once, and
all else follows from the noisy sum and a declared number of records.
"""

import math
from collections.abc import Iterable

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.privacy import Relation
from veracal.privacy.answers.rounded_noise import rounded_gaussian
from veracal.privacy.budget import RELATIONS
from veracal.training.preprocessing.bounds import share_between

UNITS = 2**20  # in which values are added, as whole numbers
LEAST_VARIANCE = 1e-4  # in [-1, 1]: a spread of a hundredth of half the range


def unit_values(rows: Array, low: Floats, high: Floats) -> Floats:
    """Place values in [-1, 1]; see :func:`~.bounds.share_between`."""
    return 2 * share_between(rows, low, high) - 1


def moment_sums(blocks: Iterable[Array], low: Floats, high: Floats) -> Ints:
    r"""Exact sums of values and of their squares, in millionths or so.

    With :math:`k = \mathrm{rint}(u U)` for a value u in [-1, 1], a record contributes
    k and :math:`\mathrm{rint}(k^2 / U)`, both whole, so that neither the order nor the
    blocks of the rows change a bit.

    Parameters
    ----------
    blocks : iterable of arrays of shape (rows, d)
    low, high : arrays of shape (d,)

    Returns
    -------
    array of int64 of shape (2, d)
    Guarantees
    ----------
    Divided by U, it moves by at most :func:`moment_sensitivity` in the L2 norm between
    neighbors.
    """
    sums = np.zeros((2, len(low)), dtype=np.int64)
    for block in blocks:
        k = np.rint(unit_values(block, low, high) * UNITS)
        sums[0] += k.astype(np.int64).sum(axis=0)
        sums[1] += np.rint(k * k / UNITS).astype(np.int64).sum(axis=0)
    return sums


def moment_sensitivity(width: int, relation: Relation) -> float:
    r"""Most that the sums of values and squares move between neighbors, in the L2 norm.

    A record adds :math:`u^2 + u^4 \le 2` to the squared norm in each of d columns, so one
    that comes or goes moves the sums by at most :math:`\sqrt{2d}`.

    One that takes the place of another moves a column, with :math:`\delta = |u - v|` and
    :math:`s = |u + v|`, by :math:`\delta^2 + (u^2 - v^2)^2 = \delta^2 (1 + s^2)`. Values in
    [-1, 1] have :math:`s + \delta \le 2`, so this is at most
    :math:`f(\delta) = \delta^2 (1 + (2 - \delta)^2)`, whose derivative
    :math:`2\delta(5 - 6\delta + 2\delta^2)` is never negative: at most :math:`f(2) = 4`, and
    the sums move by at most :math:`2\sqrt{d}`, less than twice the other figure.

    Rounding adds nothing. Values lie on the grid before they are squared. The square's
    rounding is off by :math:`r = 1/U` at most for both records together, which adds
    :math:`2 s \delta r + r^2 \le 5 h r` with :math:`h = 2 - \delta \ge s`. If h is 0, both
    values are ends and their squares are whole; otherwise :math:`h \ge r`, and
    :math:`4 - f(2 - h) = h (4 - 5h + 4h^2 - h^3) \ge 2h` leaves room for it.

    Parameters
    ----------
    width : int
        The number of columns d.
    relation : {"add-remove", "replace-one"}

    Examples
    --------
    >>> moment_sensitivity(2, "add-remove"), moment_sensitivity(4, "replace-one")
    (2.0, 4.0)
    """
    _checks.one_of(RELATIONS, relation=relation)
    square = (2 if relation == "add-remove" else 4) * width
    root = math.sqrt(square)
    return root if int(root) ** 2 == square else math.nextafter(root, math.inf)


def noisy_moments(
    sums: Ints, size: int, noise_std: float, *, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    r"""Means and standard deviations in [-1, 1], from sums with noise.

    .. math:: \tilde m = \tilde S_1 / n, \qquad
        \tilde v = \tilde S_2 / n - \tilde m^2 \quad \text{from } v_{least} \text{ to } 1

    Parameters
    ----------
    sums : array of shape (2, d)
        Of :func:`moment_sums`.
    size : int
        The *declared* number of records n.
    noise_std : float
        Of the Gaussian noise on every entry, in units of 1. It is rounded to the grid of the
        sums, whose step is 1 / U, and sampled exactly.

    Returns
    -------
    means, standard deviations : arrays of shape (d,)
        A variance is at least :data:`LEAST_VARIANCE`, and no less than the noise on it:
        below that nothing is known of it.

    Guarantees
    ----------
    The sums are used once, in the noisy vector; everything else is declared. Noise and sums
    are integers, so that the noisy vector is a post-processing of Gaussian noise on the sums.
    """
    drawn = rounded_gaussian(noise_std * UNITS, sums.size, rng=rng)
    units = [int(exact) + noise for exact, noise in zip(sums.flat, drawn, strict=True)]
    noisy = np.array([one / UNITS for one in units]).reshape(sums.shape)
    means = np.clip(noisy[0] / size, -1.0, 1.0)
    least = min(1.0, max(LEAST_VARIANCE, noise_std / size))
    return means, np.sqrt(np.clip(noisy[1] / size - means**2, least, 1.0))
