r"""Standardization by one noisy vector of means and squares: of columns, and of feature channels.

Each record contributes 2d integers to one vector of sums, d for means and d for squares, in
steps of a public grid. The vector gets Gaussian noise once, rounded to that grid, and all means
and standard deviations follow from it and a declared number of records (:func:`noisy_moments`).
:class:`MomentTransformer` is the base of both standardizers, which differ in what a record
contributes:

- :class:`PrivateStandardizer`: its values, scaled to [-1, 1] by declared bounds, and their
  squares.
- :class:`PrivateChannelStandardizer`: the means of its channels and of their squares, each a
  vector that is clipped to a declared norm.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.accounting import (
    RELATIONS,
    REPEATABLE,
    Budget,
    Event,
    Gaussian,
    Relation,
    Unit,
    noise_for,
)
from veracal.data import Dataset, MappedRows
from veracal.errors import DataError
from veracal.mechanisms import Grid, clip_vectors_to_grid, rounded_gaussian
from veracal.queries import check_protected
from veracal.training.base import ChargedFit, check_dataset, check_size
from veracal.training.preprocessing import (
    BoundedTransformer,
    PrivateTransformer,
    output_dtype,
    scale_to_unit,
)

_BLOCK_CELLS = 2**22  # numbers in a block of rows


def noisy_moments(
    sums: Ints,
    size: int,
    noise_std: float,
    *,
    grid: Grid,
    least_variance: float,
    mean_norm: float = 1.0,
    square_norm: float = 1.0,
    largest: float = math.inf,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    r"""Means and standard deviations from sums with noise.

    .. math:: \tilde m = A \tilde S_1 / n, \qquad
        \tilde v = \max(v_{least}, B \tilde S_2 / n - \tilde m^2)

    Parameters
    ----------
    sums : array of int64 of shape (2, d)
        Of means and of squares, in steps of the grid.
    size : int
        The *declared* number of records n.
    noise_std : float
        Standard deviation of the Gaussian noise on every entry of the sums, in units of 1. The
        noise is rounded to the grid, and sampled exactly.
    grid : Grid
    least_variance : float > 0
        Public lower bound. If the standard deviation of the noise on a variance is larger, it
        is the lower bound: smaller variances cannot be distinguished.
    mean_norm, square_norm : float > 0
        Public units A and B of the two sums.
    largest : float > 0
        Public bound on means, in absolute value, and on standard deviations.

    Returns
    -------
    means, standard deviations : arrays of shape (d,)

    Guarantees
    ----------
    The sums are used once, in the noisy vector; everything else is declared. Noise and sums
    are integers, so that the noisy vector is a post-processing of Gaussian noise on the sums.
    """
    noise = rounded_gaussian(noise_std / grid.step, sums.size, rng=rng)
    units = (int(exact) + draw for exact, draw in zip(sums.flat, noise, strict=True))
    noisy = grid.values(units).reshape(sums.shape) / size
    means = np.clip(noisy[0] * mean_norm, -largest, largest)
    most = largest**2
    least = min(most, max(least_variance, noise_std / size * square_norm))
    return means, np.sqrt(np.clip(noisy[1] * square_norm - means**2, least, most))


@dataclass(eq=False, repr=False)
class MomentTransformer(ChargedFit, PrivateTransformer):
    """A transformer that is charged for one vector of moments with Gaussian noise.

    A final class computes its attributes from the noisy vector in ``_release``.
    """

    _: KW_ONLY
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    size: int | None = None
    relation: Relation = "add-remove"
    unit: Unit | None = None
    random_state: int | np.random.Generator | None = None

    _exact_noise = True

    def _check_settings(self) -> None:
        super()._check_settings()
        _checks.one_of(RELATIONS, relation=self.relation)
        _checks.positive(delta=self.delta)
        if self.noise_multiplier is not None:
            _checks.positive(noise_multiplier=self.noise_multiplier)
        if self.noise_multiplier is not None and self.epsilon is not None:
            raise ValueError(
                "Expected noise_multiplier or epsilon, got both: one follows from the other."
            )
        Budget(1.0 if self.epsilon is None else self.epsilon, self.delta, self.relation)
        if self.size is not None:
            _checks.whole(size=self.size)
        _random.check_state(self.random_state)

    def _cost(self) -> Event:
        return Gaussian(self._multiplier(), 1.0, self.relation)

    def _multiplier(self) -> float:
        """Noise multiplier: noise divided by sensitivity."""
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        budget = Budget(epsilon, self.delta, self.relation, self.unit or Unit())
        return noise_for(budget, lambda noise: Gaussian(noise, 1.0, self.relation))

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be transformed, by public facts alone."""
        super().check_records(dataset)
        check_protected(dataset, self.relation, self.unit)
        if self.relation == "replace-one":
            check_size(self.size or len(dataset), len(dataset), self.relation)
        elif self.size is None and dataset.size is None:
            raise DataError(
                dataset.name,
                "a declared number of records",
                "none",
                "Give size=... to the standardizer or to the data set: the real number is "
                "private.",
            )

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        reasons: tuple[str, ...] = ()
        declared = size if self.size is None else self.size
        if self.relation == "replace-one":
            check_size(self.size or len(rows), len(rows), self.relation)
            declared = len(rows)
        elif declared is None:
            reasons += ("the number of records was read from them; declare size=...",)
            declared = len(rows)
        rng = _random.generator(self.random_state)
        if not _random.is_secret(rng):
            reasons += (REPEATABLE,)
        self._release(rows, declared, rng)
        return reasons

    @abstractmethod
    def _release(self, rows: Array | MappedRows, size: int, rng: np.random.Generator) -> None:
        """Set the attributes that follow from the noisy vector; exact sums are never stored."""


def _blocks(rows: Array | MappedRows) -> Iterator[Array]:
    """Consecutive blocks of rows that fit into memory."""
    step = max(1, _BLOCK_CELLS // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _root(square: int) -> float:
    """Square root of an integer, rounded up."""
    root = math.sqrt(square)
    return root if int(root) ** 2 == square else math.nextafter(root, math.inf)


# ---------------------------------------------------------------- columns

COLUMN_GRID = Grid(20)  # on which scaled values and their squares are added
MIN_VARIANCE = 1e-4  # in [-1, 1]: a standard deviation of a hundredth of half the range


def scale_symmetric(rows: Array, low: Floats, high: Floats) -> Floats:
    """Scale values to [-1, 1]; see :func:`~.preprocessing.scale_to_unit`."""
    return 2 * scale_to_unit(rows, low, high) - 1


def column_sums(blocks: Iterable[Array], low: Floats, high: Floats) -> Ints:
    r"""Exact sums of values and of their squares, in steps of 1 / U with :math:`U = 2^{20}`.

    With :math:`k = \mathrm{rint}(u U)` for a value u in [-1, 1], a record contributes
    k and :math:`\mathrm{rint}(k^2 / U)`, both integers, so that neither the order nor the
    blocks of the rows change a bit.

    Guarantees
    ----------
    Divided by U, the result, of shape (2, d), differs between neighbors by at most
    :func:`column_sensitivity` in the L2 norm.
    """
    sums, steps = np.zeros((2, len(low)), dtype=np.int64), 2**COLUMN_GRID.bits
    for block in blocks:
        k = np.rint(scale_symmetric(block, low, high) * steps)
        sums[0] += k.astype(np.int64).sum(axis=0)
        sums[1] += np.rint(k * k / steps).astype(np.int64).sum(axis=0)
    return sums


def column_sensitivity(width: int, relation: Relation) -> float:
    r"""L2 sensitivity of the sums of values and squares.

    A record adds :math:`u^2 + u^4 \le 2` to the squared norm in each of d columns, so adding
    or removing one changes the sums by at most :math:`\sqrt{2d}`.

    Replacing a record changes a column, with :math:`\delta = |u - v|` and
    :math:`s = |u + v|`, by :math:`\delta^2 + (u^2 - v^2)^2 = \delta^2 (1 + s^2)`. Values in
    [-1, 1] have :math:`s + \delta \le 2`, so this is at most
    :math:`f(\delta) = \delta^2 (1 + (2 - \delta)^2)`, whose derivative
    :math:`2\delta(5 - 6\delta + 2\delta^2)` is never negative: at most :math:`f(2) = 4`, and
    the sums change by at most :math:`2\sqrt{d}`, less than twice the bound for add-remove.

    Rounding does not increase this. Values lie on the grid before they are squared. The
    square's rounding is off by :math:`r = 1/U` at most for both records together, which adds
    :math:`2 s \delta r + r^2 \le 5 h r` with :math:`h = 2 - \delta \ge s`. If h is 0, both
    values are end points and their squares are integers; otherwise :math:`h \ge r`, and
    :math:`4 - f(2 - h) = h (4 - 5h + 4h^2 - h^3) \ge 2h` exceeds it.

    Examples
    --------
    >>> column_sensitivity(2, "add-remove"), column_sensitivity(4, "replace-one")
    (2.0, 4.0)
    """
    _checks.one_of(RELATIONS, relation=relation)
    return _root((2 if relation == "add-remove" else 4) * width)


@dataclass(eq=False, repr=False)
class PrivateStandardizer(BoundedTransformer, MomentTransformer):
    r"""Subtract noisy means and divide by noisy standard deviations; charged.

    Values are clipped to declared bounds and scaled to [-1, 1]. Their sums and sums of
    squares get Gaussian noise, once, rounded to the grid on which they are exact. All means and
    standard deviations follow from that vector and the declared size
    (:mod:`veracal.training.standardizer`).

    Parameters
    ----------
    bounds : (low, high), or one such pair for each column, optional
        Values outside are clipped. None: read from the records, so not private.
    noise_multiplier : float > 0, optional
        Noise on the vector, divided by its sensitivity to one row.
    epsilon : float > 0, optional
        The noise is computed from it. With neither, epsilon is 1.
    delta : float in (0, 1)
    size : int, optional
        Declared number of records. None: counted, so not private under add-remove.
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional
        The privacy unit that epsilon protects; by default one row.
    random_state : int, Generator or None
        Only None, fresh secret entropy, is private.

    Attributes
    ----------
    mean_, scale_ : arrays of shape (d,)
        Noisy, in the units of the columns.
    event_, private_, not_private_because_, statement_
        The cost, and what may be claimed.

    Guarantees
    ----------
    One row changes the vector by at most :func:`column_sensitivity`, rounding included. The
    event states the noise in units of the sensitivity, so that it does not depend on the number
    of columns. The real number of records is used for nothing but the sums. Sums are integers
    on a public grid, and the noise on them is Gaussian noise rounded to that grid, sampled
    exactly. A transformed value depends on its own value and on the release alone.

    Examples
    --------
    >>> scaler = PrivateStandardizer(bounds=(0, 100), noise_multiplier=2.0, size=1000)
    >>> scaler.event()
    Gaussian(noise=2.0, sensitivity=1.0, relation='add-remove')
    >>> scaler.fit(np.full((1000, 1), 40.0)).private_
    True
    """

    _covers = "the means and standard deviations of the columns"

    def _release(self, rows: Array | MappedRows, size: int, rng: np.random.Generator) -> None:
        self._set_bounds(rows)
        self._released = noisy_moments(
            self._sums(rows),
            size,
            self._noise_std(rows.shape[1]),
            grid=COLUMN_GRID,
            least_variance=MIN_VARIANCE,
            largest=1.0,
            rng=rng,
        )

    def _noise_std(self, width: int) -> float:
        """Standard deviation of the noise on each sum."""
        return self._multiplier() * column_sensitivity(width, self.relation)

    def _sums(self, rows: Array | MappedRows) -> Ints:
        """Exact sums, which are never stored."""
        return column_sums(_blocks(rows), self.low_, self.high_)

    def _apply(self, rows: Array) -> Array:
        means, stds = self._released
        units = scale_symmetric(rows, self.low_, self.high_)
        result: Array = ((units - means) / stds).astype(output_dtype(rows))
        return result

    @property
    def mean_(self) -> Floats:
        """Noisy means, in the units of the columns."""
        check_is_fitted(self)
        share = (self._released[0] + 1) / 2
        return self.low_ * (1 - share) + self.high_ * share

    @property
    def scale_(self) -> Floats:
        """Noisy standard deviations, in the units of the columns."""
        check_is_fitted(self)
        return self._released[1] * (self.high_ / 2 - self.low_ / 2)


# ---------------------------------------------------------------- feature channels


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
    blocks: Iterable[Array],
    channels: int,
    mean_norm: float,
    square_norm: float,
    typical: float | Floats = 1.0,
) -> Ints:
    r"""Exact sums of clipped means and clipped squares, in steps of :func:`channel_grid`.

    From a record with features :math:`x_{cp}` of channel c at position p, two vectors are
    computed, the means :math:`m_c` of its channels and the means :math:`q_c` of their squares,
    in units of ``typical``. Each is clipped to a declared norm, and summed:

    .. math:: S = \Big( \sum_i \frac{m_i}{\max(A, \lVert m_i \rVert)}, \;
        \sum_i \frac{q_i}{\max(B, \lVert q_i \rVert)} \Big)

    (Tramèr and Boneh 2021, https://arxiv.org/abs/2011.11660, whose code computes A and B from
    the records, which is not private). Each vector is rounded to the grid and clipped as
    integers, so that neither the order nor the blocks of the rows change a bit of the sums.

    Parameters
    ----------
    blocks, channels, typical
        Blocks of rows; see :func:`channel_moments`.
    mean_norm, square_norm : float > 0
        Declared norms A and B, to which longer vectors are clipped.

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
    for block in blocks:
        means, squares = channel_moments(block, channels, typical)
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
    return _root(2 if relation == "add-remove" else 6)


@dataclass(eq=False, repr=False)
class PrivateChannelStandardizer(MomentTransformer):
    r"""Subtract noisy channel means and divide by noisy standard deviations; charged.

    For features such as those of :class:`~veracal.neural.Scattering`, before a network is
    trained on them. Sums of the channel means of all records, and of their mean squares, get
    Gaussian noise, once, and all means and standard deviations follow from that vector and the
    declared size (:mod:`veracal.training.standardizer`).

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
    epsilon, delta, size, relation, unit, random_state
        As of :class:`PrivateStandardizer`.

    Attributes
    ----------
    mean_, scale_ : arrays of shape (channels,)
        Noisy means and standard deviations.
    event_, private_, not_private_because_, statement_
        As of :class:`PrivateStandardizer`.

    Guarantees
    ----------
    One record moves the vector of both sums by at most :func:`channel_sensitivity`, and the
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

    mean_norm: float
    square_norm: float
    _: KW_ONLY
    typical: float | Sequence[float] | Floats = 1.0
    least_variance: float = 1e-4
    channels: int | None = None

    _covers = "the means and standard deviations of the channels"
    any_row_shape = True  # of any number of axes, also in a pipeline

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

    def _check_kind(self, dataset: Dataset) -> None:
        check_dataset(dataset)
        self._check_shape(dataset.X)

    def _check_shape(self, rows: Array | MappedRows) -> None:
        """Reject rows by their shape and type alone."""
        shape = f"(n, {', '.join(map(str, rows.shape[1:]))})"
        if rows.dtype.kind != "f" or rows.ndim < 2 or 0 in rows.shape[1:]:
            raise ValueError(
                "Expected features as floats of shape (n, channels, ...), got "
                f"{rows.dtype} of shape {shape}. Compute features of images first, for example "
                "with Scattering."
            )
        channels = self._channels(rows)
        flat = rows.ndim == 2 and rows.shape[1] % channels == 0
        if rows.shape[1] != channels and not flat:
            raise ValueError(
                f"Expected rows of {channels} channels, or flat rows of a multiple of that, "
                f"got shape {shape}. Pass channels=..., the number of channels of the features."
            )
        if np.ndim(self.typical) and np.shape(self.typical) != (channels,):
            raise ValueError(
                f"Expected one typical scale, or one for each of {channels} channels, got "
                f"typical of shape {np.shape(self.typical)}."
            )

    def _channels(self, rows: Array | MappedRows) -> int:
        """Number of channels."""
        return int(rows.shape[1] if self.channels is None else self.channels)

    def _validate(self, X: Any, *, reset: bool) -> Array | MappedRows:
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
        norms = {"mean_norm": self.mean_norm, "square_norm": self.square_norm}
        means, stds = noisy_moments(
            channel_sums(_blocks(rows), channels, **norms, typical=typical),
            size,
            self._multiplier() * channel_sensitivity(self.relation),
            grid=channel_grid(channels),
            least_variance=self.least_variance,
            **norms,
            rng=rng,
        )
        self.mean_, self.scale_ = means * typical, stds * typical

    def _apply(self, rows: Array) -> Array:
        values = np.reshape(rows, (len(rows), len(self.mean_), -1))
        kind = output_dtype(rows)
        mean, scale = self.mean_.astype(kind)[:, None], self.scale_.astype(kind)[:, None]
        result: Array = ((values - mean) / scale).reshape(rows.shape)
        return result

    def transform(self, X: ArrayLike) -> Array:
        """Standardize the channels of rows, which keep their shape and precision."""
        check_is_fitted(self)
        rows = self._validate(X, reset=False)
        result, done = np.empty(rows.shape, output_dtype(rows[:0])), 0
        for block in _blocks(rows):
            result[done : done + len(block)] = self._apply(block)
            done += len(block)
        return result
