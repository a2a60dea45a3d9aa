r"""Standardization of columns by noisy means and standard deviations, from one noisy vector.

Every value is first scaled to [-1, 1] by declared bounds. One record of d columns adds
:math:`(u_1, \dots, u_d, u_1^2, \dots, u_d^2)` to a sum; noise is added to that sum once, and
everything else follows from the noisy sum and a declared number of records.
:class:`MomentTransformer` is the base of all transformers that use such a vector.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

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
from veracal.mechanisms import rounded_gaussian
from veracal.queries import check_protected
from veracal.training.base import ChargedFit, check_size
from veracal.training.preprocessing import (
    BoundedTransformer,
    PrivateTransformer,
    output_dtype,
    scale_to_unit,
)

GRID_UNITS = 2**20  # integer units per 1, in which values are added
MIN_VARIANCE = 1e-4  # in [-1, 1]: a standard deviation of a hundredth of half the range


def scale_symmetric(rows: Array, low: Floats, high: Floats) -> Floats:
    """Scale values to [-1, 1]; see :func:`~.preprocessing.scale_to_unit`."""
    return 2 * scale_to_unit(rows, low, high) - 1


def moment_sums(blocks: Iterable[Array], low: Floats, high: Floats) -> Ints:
    r"""Exact sums of values and of their squares, in units of 1 / U with :math:`U = 2^{20}`.

    With :math:`k = \mathrm{rint}(u U)` for a value u in [-1, 1], a record contributes
    k and :math:`\mathrm{rint}(k^2 / U)`, both integers, so that neither the order nor the
    blocks of the rows change a bit.

    Guarantees
    ----------
    Divided by U, the result, of shape (2, d), differs between neighbors by at most
    :func:`moment_sensitivity` in the L2 norm.
    """
    sums = np.zeros((2, len(low)), dtype=np.int64)
    for block in blocks:
        k = np.rint(scale_symmetric(block, low, high) * GRID_UNITS)
        sums[0] += k.astype(np.int64).sum(axis=0)
        sums[1] += np.rint(k * k / GRID_UNITS).astype(np.int64).sum(axis=0)
    return sums


def moment_sensitivity(width: int, relation: Relation) -> float:
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
    >>> moment_sensitivity(2, "add-remove"), moment_sensitivity(4, "replace-one")
    (2.0, 4.0)
    """
    _checks.one_of(RELATIONS, relation=relation)
    squared = (2 if relation == "add-remove" else 4) * width
    root = math.sqrt(squared)
    return root if int(root) ** 2 == squared else math.nextafter(root, math.inf)


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
        A variance is at least :data:`MIN_VARIANCE`, and no less than the noise on it:
        a smaller estimate would be meaningless.

    Guarantees
    ----------
    The sums are used once, in the noisy vector; everything else is declared. Noise and sums
    are integers, so that the noisy vector is a post-processing of Gaussian noise on the sums.
    """
    noise = rounded_gaussian(noise_std * GRID_UNITS, sums.size, rng=rng)
    units = [int(exact) + draw for exact, draw in zip(sums.flat, noise, strict=True)]
    noisy = np.array([unit / GRID_UNITS for unit in units]).reshape(sums.shape)
    means = np.clip(noisy[0] / size, -1.0, 1.0)
    least = min(1.0, max(MIN_VARIANCE, noise_std / size))
    return means, np.sqrt(np.clip(noisy[1] / size - means**2, least, 1.0))


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
        self._check_declared(dataset)

    def _check_declared(self, dataset: Dataset) -> None:
        """Reject a data set whose unit or size does not fit, or is not declared."""
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


_CELLS = 2**22  # entries of a block


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
    One row changes the vector by at most :func:`moment_sensitivity`, rounding included. The
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
        std = self._noise_std(rows.shape[1])
        self._released = noisy_moments(self._sums(rows), size, std, rng=rng)

    def _noise_std(self, width: int) -> float:
        """Standard deviation of the noise on each sum."""
        return self._multiplier() * moment_sensitivity(width, self.relation)

    def _sums(self, rows: Array | MappedRows) -> Any:
        """Exact sums, which are never stored."""
        step = max(1, _CELLS // rows.shape[1])
        blocks = (rows[start : start + step] for start in range(0, len(rows), step))
        return moment_sums(blocks, self.low_, self.high_)

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
