r"""Means and spreads of the channels of features from one noisy vector.

Of a record with features :math:`x_{cp}` of channel c at place p, two vectors are taken, the
means :math:`m_c` of its channels and the means :math:`q_c` of their squares, all in units of a
public guess at the size of the channel. Each is shortened to a declared norm, and summed:

.. math:: S = \Big( \sum_i \frac{m_i}{\max(A, \lVert m_i \rVert)}, \;
    \sum_i \frac{q_i}{\max(B, \lVert q_i \rVert)} \Big).

Noise is added to that one vector, once, and all else follows from it and a declared number of
records (Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660, whose code takes A and B from
the records, which is not private).

Channels of features standardized by noisy means and spreads.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.accounting import RELATIONS, Relation, Unit
from veracal.data import Dataset, MappedRows
from veracal.mechanisms import Grid, dense_contributions, rounded_gaussian
from veracal.training import MomentTransformer, float_type

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


_BLOCK_CELLS = 2**22  # numbers of a block


class PrivateChannelStandardizer(MomentTransformer):
    r"""Subtract noisy means of channels and divide by their noisy spreads; charged.

    For features such as those of :class:`~veracal.neural.scattering.Scattering`, before
    a network is trained on them. Sums of the channel means of all records, and of their mean
    squares, get Gaussian noise, once, and all means and spreads follow from that vector and
    the declared size (:mod:`veracal.neural.channel_standardizer`).

    Parameters
    ----------
    mean_norm : float > 0
        Public norm A to which the vector of a record's channel means is shortened. Take it
        from public pictures of the same kind, never from the records.
    square_norm : float > 0
        Public norm B for the vector of its channels' mean squares.
    noise_multiplier : float > 0, optional
        Noise on both sums together, divided by the most that one record moves them. Under
        add-remove, :math:`8 / \sqrt 2` puts on each the noise that the papers' code does, 8.
    epsilon : float > 0, optional
        The noise is found for it. With neither, epsilon is 1.
    delta : float in (0, 1)
    typical : float > 0, or one for each channel
        Public guesses at the sizes of channels, the units in which means are clipped, and
        squares and the floor in their squares. Noise is in proportion to them: where channels
        differ much, as those of scattering do by their order, one guess for all drowns the
        small ones.
    least_variance : float > 0
        Public floor of the variances.
    channels : int, optional
        Declared number of channels; rows may then be flat. None: the length of the second
        axis, so that every column of flat rows is a channel.
    size : int, optional
        Declared number of records. None: counted, so not private under add-remove.
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional
        Whom epsilon protects; by default one record.
    random_state : int, Generator or None
        None, fresh secret entropy, is the only private choice.

    Attributes
    ----------
    mean_, scale_ : arrays of shape (channels,)
        Noisy means and standard deviations.
    event_ : Event
    private_ : bool
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate

    Guarantees
    ----------
    One record moves the vector of both sums by at most
    :func:`~.channel_moments.channel_sensitivity`, and the event says how much noise that
    meets: one release of both, stated in units of the sensitivity, so that it depends on no
    norm and no width. Norms, floor and size are declared, and the real number of records
    enters nowhere but the sums. A record that is not finite adds nothing to them, and raises
    no error. Sums are integers of a public grid, and the noise on them is Gaussian noise
    rounded to that grid, sampled exactly. A transformed value depends on its own value and on
    what was released.

    Examples
    --------
    >>> scaler = PrivateChannelStandardizer(2.0, 4.0, noise_multiplier=8.0, size=1000)
    >>> scaler.event()
    Gaussian(noise=8.0, sensitivity=1.0, relation='add-remove')
    >>> scaler.fit(np.ones((1000, 3, 4, 4))).transform(np.ones((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    _covers = "the means and spreads of the channels"
    any_rows = True  # of several axes, in a pipeline too

    def __init__(
        self,
        mean_norm: float,
        square_norm: float,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        typical: float | Sequence[float] | Floats = 1.0,
        least_variance: float = 1e-4,
        channels: int | None = None,
        size: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.mean_norm = mean_norm
        self.square_norm = square_norm
        self.noise_multiplier = noise_multiplier
        self.epsilon = epsilon
        self.delta = delta
        self.typical = typical
        self.least_variance = least_variance
        self.channels = channels
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        _checks.positive(
            mean_norm=self.mean_norm,
            square_norm=self.square_norm,
            least_variance=self.least_variance,
        )
        for guess in np.ravel(self.typical):
            _checks.positive(typical=guess)
        if self.channels is not None:
            _checks.whole(channels=self.channels)

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be standardized, by what is public about it."""
        self.event()
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use "
                "fit(X) for arrays."
            )
        self._check_shape(dataset.X)
        self._check_declared(dataset)

    def _check_shape(self, rows: Array | MappedRows) -> None:
        """Refuse rows of another form, by their shape and type alone."""
        if rows.dtype.kind != "f" or rows.ndim < 2 or 0 in rows.shape[1:]:
            raise ValueError(
                "Expected features as floats of shape (n, channels, ...), got "
                f"{rows.dtype} of shape (n, {', '.join(map(str, rows.shape[1:]))}). Make "
                "features of pictures first, by Scattering for one."
            )
        channels, numbers = self._channels(rows), math.prod(rows.shape[1:])
        flat = rows.ndim == 2 and numbers % channels == 0
        if rows.shape[1] != channels and not flat:
            raise ValueError(
                f"Expected rows of {channels} channels, or flat rows of a multiple of that, "
                f"got shape (n, {', '.join(map(str, rows.shape[1:]))}). Declare channels=... "
                "as the features have them."
            )

        if np.ndim(self.typical) and np.shape(self.typical) != (channels,):
            raise ValueError(
                f"Expected one typical size, or one for each of {channels} channels, got "
                f"typical of shape {np.shape(self.typical)}."
            )

    def _channels(self, rows: Array | MappedRows) -> int:
        """How many channels there are."""
        return int(rows.shape[1] if self.channels is None else self.channels)

    def _validated(self, X: Any, *, reset: bool) -> Array | MappedRows:
        """Rows of the right form; what is not finite passes, and counts for nothing."""
        rows = MappedRows.of(X) if isinstance(X, np.memmap) else X
        if not isinstance(rows, MappedRows):
            rows = validate_data(
                self,
                X,
                reset=reset,
                dtype=[np.float64, np.float32],
                allow_nd=True,
                ensure_all_finite=False,
            )
        self._check_shape(rows)
        if reset:
            self.n_features_in_ = rows.shape[1]
        elif self._channels(rows) != len(self.mean_):
            raise ValueError(
                f"Expected rows of {len(self.mean_)} channels, as in the fit, got "
                f"{self._channels(rows)}."
            )
        return rows

    def _release(self, rows: Array | MappedRows, size: int, rng: np.random.Generator) -> None:
        channels, typical = self._channels(rows), np.asarray(self.typical, dtype=np.float64)
        means, spreads = noisy_channel_moments(
            channel_sums(rows, channels, self.mean_norm, self.square_norm, typical),
            size,
            self._multiplier() * channel_sensitivity(self.relation),
            mean_norm=self.mean_norm,
            square_norm=self.square_norm,
            least_variance=self.least_variance,
            rng=rng,
        )
        self.mean_, self.scale_ = means * typical, spreads * typical

    def _apply(self, rows: Array) -> Array:
        values = np.reshape(rows, (len(rows), len(self.mean_), -1))
        kind = float_type(rows)
        mean, scale = self.mean_.astype(kind)[:, None], self.scale_.astype(kind)[:, None]
        result: Array = ((values - mean) / scale).reshape(rows.shape)
        return result

    def transform(self, X: ArrayLike) -> Array:
        """Standardize the channels of rows, which keep their shape and precision."""
        check_is_fitted(self)
        rows = self._validated(X, reset=False)
        step = max(1, _BLOCK_CELLS // math.prod(rows.shape[1:]))
        result = np.empty(rows.shape, float_type(rows[:0]))
        for start in range(0, len(rows), step):
            result[start : start + step] = self._apply(rows[start : start + step])
        return result
