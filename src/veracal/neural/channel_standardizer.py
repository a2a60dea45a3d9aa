r"""Standardizes feature channels by one noisy release of their means and mean squares.

From a record with features :math:`x_{cp}` of channel c at position p, two vectors are computed,
the means :math:`m_c` of its channels and the means :math:`q_c` of their squares, all in units
of a public guess of the scale of the channel. Each is clipped to a declared norm, and summed:

.. math:: S = \Big( \sum_i \frac{m_i}{\max(A, \lVert m_i \rVert)}, \;
    \sum_i \frac{q_i}{\max(B, \lVert q_i \rVert)} \Big).

Noise is added to that one vector, once; everything else follows from it and a declared number
of records (Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660, whose code computes A and B
from the records, which is not private).
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
from veracal.mechanisms import Grid, clip_vectors_to_grid, rounded_gaussian
from veracal.training import MomentTransformer, output_dtype

_BLOCK_CELLS = 2**22  # numbers in a block


def channel_grid(channels: int) -> Grid:
    """Public grid for vectors of norm 1: the finest whose squared norms fit into 62 bits.

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

    Rows have shape (n, channels, ...) or (n, channels · positions), and ``typical`` holds the
    units of the channels. Both results have shape (n, channels), and are NaN throughout for a
    record in which either is not finite.

    Examples
    --------
    >>> means, squares = channel_moments(np.array([[[1.0, 3.0], [0.0, 2.0]]]), 2)
    >>> means.tolist(), squares.tolist()
    ([[2.0, 1.0]], [[5.0, 2.0]])
    """
    with np.errstate(all="ignore"):  # a warning would reveal something about a record
        values = np.reshape(rows, (len(rows), channels, -1)).astype(np.float64)
        values /= np.broadcast_to(typical, channels)[:, None]
        means = values.mean(axis=2)
        # einsum would sum a single record in another order than several.
        squares = np.square(values, out=values).mean(axis=2)
    invalid = ~(np.isfinite(means) & np.isfinite(squares)).all(axis=1)
    means[invalid] = squares[invalid] = np.nan
    return means, squares


def channel_sums(
    rows: Array | MappedRows,
    channels: int,
    mean_norm: float,
    square_norm: float,
    typical: float | Floats = 1.0,
) -> Ints:
    """Exact sums of clipped means and clipped squares, in units of :func:`channel_grid`.

    Each record's vectors are rounded to the grid and clipped as integers, so that neither the
    order nor the blocks of the rows change a bit of the sums.

    Parameters
    ----------
    rows, channels, typical
        As of :func:`channel_moments`.
    mean_norm, square_norm : float > 0
        Declared norms, to which longer vectors are clipped.

    Returns
    -------
    array of int64 of shape (2, channels)

    Guarantees
    ----------
    Times the step of the grid, it moves by at most :func:`channel_sensitivity` in the L2 norm
    between neighbors: norms are compared in integers, and entries are rounded toward zero, so
    that squares stay nonnegative. A record with moments that are not finite adds nothing.
    """
    sums, grid = np.zeros((2, channels), dtype=np.int64), channel_grid(channels)
    step = max(1, _BLOCK_CELLS // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), step):
        means, squares = channel_moments(rows[start : start + step], channels, typical)
        for row, (vectors, norm) in enumerate(((means, mean_norm), (squares, square_norm))):
            with np.errstate(all="ignore"):  # overflowing vectors are clipped
                units = clip_vectors_to_grid(vectors / norm, 2**grid.bits, grid, power=2)
            sums[row] += units.sum(axis=0)
    return sums


def channel_sensitivity(relation: Relation) -> float:
    r"""L2 sensitivity of the sums.

    A record adds a vector of norm at most 1 to either sum, so adding or removing one moves both
    together by at most :math:`\sqrt 2`. Replacing one moves the sum of means by at most 2.
    Squares are nonnegative, so vectors u and v of them have :math:`\lVert u - v \rVert^2 \le
    \lVert u \rVert^2 + \lVert v \rVert^2 \le 2`, and both sums together move by at most
    :math:`\sqrt{4 + 2}`.

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
    r"""Means and standard deviations of channels in their units, from sums with noise.

    .. math:: \tilde m = A \tilde S_1 / n, \qquad
        \tilde v = \max(v_{least}, B \tilde S_2 / n - \tilde m^2)

    Parameters
    ----------
    sums : array of shape (2, channels)
        Of :func:`channel_sums`.
    size : int
        The *declared* number of records n.
    noise_std : float
        Standard deviation of the Gaussian noise on every entry of the sums, in units of 1. The
        noise is rounded to the grid of the sums, and sampled exactly.
    mean_norm, square_norm : float > 0
        The norms A and B.
    least_variance : float > 0
        Public lower bound. If the standard deviation of the noise on a variance is larger, it
        is the lower bound: smaller variances cannot be distinguished.

    Guarantees
    ----------
    The sums are used once, in the noisy vector; everything else is declared.
    """
    grid = channel_grid(sums.shape[1])
    noise_values = rounded_gaussian(noise_std / grid.step, sums.size, rng=rng)
    units = (int(exact) + noise for exact, noise in zip(sums.flat, noise_values, strict=True))
    noisy = grid.values(units).reshape(sums.shape) / size
    means = noisy[0] * mean_norm
    lower_bound = max(least_variance, noise_std / size * square_norm)
    return means, np.sqrt(np.maximum(noisy[1] * square_norm - means**2, lower_bound))


class PrivateChannelStandardizer(MomentTransformer):
    r"""Subtract noisy channel means and divide by noisy standard deviations; charged.

    For features such as those of :class:`~veracal.neural.scattering.Scattering`, before a
    network is trained on them. Sums of the channel means of all records, and of their mean
    squares, get Gaussian noise, once, and all means and standard deviations follow from that
    vector and the declared size (:mod:`veracal.neural.channel_standardizer`).

    Parameters
    ----------
    mean_norm : float > 0
        Public norm A to which the vector of a record's channel means is clipped. Choose it from
        public images of the same kind, never from the records.
    square_norm : float > 0
        Public norm B for the vector of its channels' mean squares.
    noise_multiplier : float > 0, optional
        Noise on both sums together, divided by their sensitivity. Under add-remove,
        :math:`8 / \sqrt 2` adds the noise of the papers' code to each, 8.
    epsilon : float > 0, optional
        The noise is computed from it. With neither, epsilon is 1.
    delta : float in (0, 1)
    typical : float > 0, or one for each channel
        Public guesses of the scales of channels. They are the units in which means are clipped,
        and their squares those of the squares and of the lower bound. Noise is proportional to
        them: if channels differ much, as those of scattering do by their order, the noise of a
        common guess exceeds the small ones.
    least_variance : float > 0
        Public lower bound of the variances.
    channels : int, optional
        Declared number of channels; rows may then be flat. None: the length of the second axis,
        so that every column of flat rows is a channel.
    size : int, optional
        Declared number of records. None: counted, so not private under add-remove.
    relation : {"add-remove", "replace-one"}
    unit, random_state
        As of :class:`~veracal.training.PrivateStandardizer`.

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
    One record moves the vector of both sums by at most :func:`~.channel_sensitivity`, and the
    event states the ratio of the noise to it: one release of both, in units of the sensitivity,
    independent of the norms and the width. Norms, lower bound and size are declared, and the
    real number of records affects nothing but the sums. A record that is not finite adds
    nothing to them, and raises no error. Sums are integers of a public grid, and the noise on
    them is Gaussian noise rounded to that grid, sampled exactly. A transformed value depends on
    its own value and on what was released.

    Examples
    --------
    >>> scaler = PrivateChannelStandardizer(2.0, 4.0, noise_multiplier=8.0, size=1000)
    >>> scaler.event()
    Gaussian(noise=8.0, sensitivity=1.0, relation='add-remove')
    >>> scaler.fit(np.ones((1000, 3, 4, 4))).transform(np.ones((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    _covers = "the means and spreads of the channels"
    any_row_shape = True  # of any number of axes, also in a pipeline

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
        """Reject a data set that cannot be standardized, by its public facts."""
        self.event()
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use "
                "fit(X) for arrays."
            )
        self._check_shape(dataset.X)
        self._check_declared(dataset)

    def _check_shape(self, rows: Array | MappedRows) -> None:
        """Reject rows by their shape and type alone."""
        if rows.dtype.kind != "f" or rows.ndim < 2 or 0 in rows.shape[1:]:
            raise ValueError(
                "Expected features as floats of shape (n, channels, ...), got "
                f"{rows.dtype} of shape (n, {', '.join(map(str, rows.shape[1:]))}). Compute "
                "features of images first, for example with Scattering."
            )
        channels, numbers = self._channels(rows), math.prod(rows.shape[1:])
        flat = rows.ndim == 2 and numbers % channels == 0
        if rows.shape[1] != channels and not flat:
            raise ValueError(
                f"Expected rows of {channels} channels, or flat rows of a multiple of that, "
                f"got shape (n, {', '.join(map(str, rows.shape[1:]))}). Pass channels=..., the "
                "number of channels of the features."
            )
        if np.ndim(self.typical) and np.shape(self.typical) != (channels,):
            raise ValueError(
                f"Expected one typical scale, or one for each of {channels} channels, got "
                f"typical of shape {np.shape(self.typical)}."
            )

    def _channels(self, rows: Array | MappedRows) -> int:
        """Number of channels."""
        return int(rows.shape[1] if self.channels is None else self.channels)

    def _validated(self, X: Any, *, reset: bool) -> Array | MappedRows:
        """Check the shape of rows; rows that are not finite pass, and contribute nothing."""
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
        kind = output_dtype(rows)
        mean, scale = self.mean_.astype(kind)[:, None], self.scale_.astype(kind)[:, None]
        result: Array = ((values - mean) / scale).reshape(rows.shape)
        return result

    def transform(self, X: ArrayLike) -> Array:
        """Standardize the channels of rows, which keep their shape and precision."""
        check_is_fitted(self)
        rows = self._validated(X, reset=False)
        step = max(1, _BLOCK_CELLS // math.prod(rows.shape[1:]))
        result = np.empty(rows.shape, output_dtype(rows[:0]))
        for start in range(0, len(rows), step):
            result[start : start + step] = self._apply(rows[start : start + step])
        return result
