r"""Means and spreads of the channels of features from one noisy vector.

Of a record with features :math:`x_{cp}` of channel c at place p, two vectors are taken, the
means :math:`m_c` of its channels and the means :math:`q_c` of their squares, all in units of a
public guess at the size of the channel. Each is shortened to a declared norm, and summed:

.. math:: S = \Big( \sum_i \frac{m_i}{\max(A, \lVert m_i \rVert)}, \;
    \sum_i \frac{q_i}{\max(B, \lVert q_i \rVert)} \Big).

Noise is added to that one vector, once, and all else follows from it and a declared number of
records (Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660, whose code takes A and B from
the records, which is not private).
"""

import math

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data.rows import MappedRows
from veracal.privacy import Relation
from veracal.privacy.answers.grid import Grid, dense_contributions
from veracal.privacy.answers.rounded_noise import rounded_gaussian
from veracal.privacy.budget import RELATIONS

_CELLS = 2**22  # numbers of a block


def channel_grid(channels: int) -> Grid:
    """Public grid of vectors of norm 1: as fine as squared norms fit into 62 bits.

    Examples
    --------
    >>> channel_grid(64), channel_grid(2**20)
    (Grid(bits=24), Grid(bits=21))
    """
    return Grid(min(24, (62 - math.ceil(math.log2(channels))) // 2))


def channel_moments(
    rows: Array, channels: int, typical: float | Floats = 1.0
) -> tuple[Floats, Floats]:
    """Means of the channels of each record, and of their squares.

    Parameters
    ----------
    rows : array of shape (n, channels, ...) or (n, channels · places)
    channels : int
    typical : float or array of shape (channels,)
        Units of the channels.

    Returns
    -------
    means, squares : arrays of float64, of shape (n, channels)
        NaN throughout for a record in which either is not finite.

    Examples
    --------
    >>> means, squares = channel_moments(np.array([[[1.0, 3.0], [0.0, 2.0]]]), 2)
    >>> means.tolist(), squares.tolist()
    ([[2.0, 1.0]], [[5.0, 2.0]])
    """
    with np.errstate(all="ignore"):  # a warning would tell of a record
        values = np.reshape(rows, (len(rows), channels, -1)).astype(np.float64)
        values /= np.broadcast_to(typical, channels)[:, None]
        means = values.mean(axis=2)
        # Not by einsum, which adds up a single record in another order than several.
        squares = np.square(values, out=values).mean(axis=2)
    broken = ~(np.isfinite(means) & np.isfinite(squares)).all(axis=1)
    means[broken] = squares[broken] = np.nan
    return means, squares


def channel_sums(
    rows: Array | MappedRows,
    channels: int,
    mean_norm: float,
    square_norm: float,
    typical: float | Floats = 1.0,
) -> Ints:
    """Exact sums of clipped means and clipped squares, in units of :func:`channel_grid`.

    Each record's vectors are put on the grid and shortened as integers, so that neither the
    order nor the blocks of the rows change a bit of the sums.

    Parameters
    ----------
    rows : array or MappedRows of shape (n, channels, ...) or (n, channels · places)
    channels : int
    mean_norm, square_norm : float > 0
        Declared norms, to which longer vectors are shortened.
    typical : float or array of shape (channels,)
        Units of the channels, also declared.

    Returns
    -------
    array of int64 of shape (2, channels)

    Guarantees
    ----------
    Times the step of the grid, it moves by at most :func:`channel_sensitivity` in the L2 norm
    between neighbors: norms are compared in integers, and entries are cut off toward zero, so
    that squares stay above zero. A record with moments that are not finite adds nothing.
    """
    sums, grid = np.zeros((2, channels), dtype=np.int64), channel_grid(channels)
    step = max(1, _CELLS // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), step):
        means, squares = channel_moments(rows[start : start + step], channels, typical)
        for place, (vectors, norm) in enumerate(((means, mean_norm), (squares, square_norm))):
            with np.errstate(all="ignore"):  # what overflows is shortened
                units = dense_contributions(vectors / norm, 2**grid.bits, grid, power=2)
            sums[place] += units.sum(axis=0)
    return sums


def channel_sensitivity(relation: Relation) -> float:
    r"""Most that the sums move between neighbors, in the L2 norm.

    A record adds a vector of norm 1 at most to either sum, so one that comes or goes moves
    both together by at most :math:`\sqrt 2`. One that takes the place of another moves the
    sum of means by at most 2. Squares are not negative, so vectors u and v of them have
    :math:`\lVert u - v \rVert^2 \le \lVert u \rVert^2 + \lVert v \rVert^2 \le 2`, and both
    sums together move by at most :math:`\sqrt{4 + 2}`.

    Parameters
    ----------
    relation : {"add-remove", "replace-one"}

    Examples
    --------
    >>> [round(channel_sensitivity(one), 3) for one in ("add-remove", "replace-one")]
    [1.414, 2.449]
    """
    _checks.one_of(RELATIONS, relation=relation)
    return math.nextafter(math.sqrt(2 if relation == "add-remove" else 6), math.inf)


def noisy_channel_moments(
    sums: Ints,
    size: int,
    noise_std: float,
    *,
    mean_norm: float,
    square_norm: float,
    least_variance: float,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    r"""Means and standard deviations of channels, from sums with noise.

    .. math:: \tilde m = A \tilde S_1 / n, \qquad
        \tilde v = \max(v_{least}, B \tilde S_2 / n - \tilde m^2)

    Parameters
    ----------
    sums : array of shape (2, channels)
        Of :func:`channel_sums`.
    size : int
        The *declared* number of records n.
    noise_std : float
        Of the Gaussian noise on every entry of the sums, in units of 1. It is rounded to the
        grid of the sums, and sampled exactly.
    mean_norm, square_norm : float > 0
        The norms A and B.
    least_variance : float > 0
        Public floor; where the noise on a variance is more than that, its standard deviation
        is the floor: below it nothing is known.

    Returns
    -------
    means, standard deviations : arrays of shape (channels,)
        In units of the channels.

    Guarantees
    ----------
    The sums are used once, in the noisy vector; everything else is declared.
    """
    grid = channel_grid(sums.shape[1])
    drawn = rounded_gaussian(noise_std / grid.step, sums.size, rng=rng)
    units = (int(exact) + noise for exact, noise in zip(sums.flat, drawn, strict=True))
    noisy = grid.values(units).reshape(sums.shape) / size
    means = noisy[0] * mean_norm
    least = max(least_variance, noise_std / size * square_norm)
    return means, np.sqrt(np.maximum(noisy[1] * square_norm - means**2, least))
