"""Columns standardized by noisy means and spreads."""

from typing import Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from veracal._types import Array, Floats
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.privacy import Relation, Unit
from veracal.training.preprocessing.bounds import (
    Bounds,
    bounds_of_columns,
    check_bounds,
    observed_bounds,
)
from veracal.training.preprocessing.by_moments import MomentTransformer
from veracal.training.preprocessing.moments import (
    moment_sensitivity,
    moment_sums,
    noisy_moments,
    unit_values,
)
from veracal.training.preprocessing.transformer import float_type

_CELLS = 2**22  # numbers of a block


class PrivateStandardizer(OneToOneFeatureMixin, MomentTransformer):  # type: ignore[misc]
    r"""Subtract noisy means and divide by noisy standard deviations; charged.

    Values are clipped to declared bounds and placed in [-1, 1]. Their sums and sums of
    squares get Gaussian noise, once, rounded to the grid on which they are exact. All means and
    spreads follow from that vector and the declared size
    (:mod:`veracal.training.preprocessing.moments`).

    Parameters
    ----------
    bounds : (low, high), or one such pair for each column, optional
        Values outside are clipped. None: read off the records, so not private.
    noise_multiplier : float > 0, optional
        Noise on the vector, divided by the most that one row moves it.
    epsilon : float > 0, optional
        The noise is found for it. With neither, epsilon is 1.
    delta : float in (0, 1)
    size : int, optional
        Declared number of records. None: counted, so not private under add-remove.
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional
        Whom epsilon protects; by default one row.
    random_state : int, Generator or None
        None, fresh secret entropy, is the only private choice.

    Attributes
    ----------
    mean_, scale_ : arrays of shape (d,)
        Noisy, in the units of the columns.
    event_ : Event
    private_ : bool
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate

    Guarantees
    ----------
    One row moves the vector by at most :func:`~.moments.moment_sensitivity`, roundings
    included, and the event says how much noise that meets: it is stated in units of the
    sensitivity, so that it depends on no width. The real number of records enters nowhere
    but the sums. Sums are integers of a public grid, and the noise on them is Gaussian noise
    rounded to that grid, sampled exactly. A transformed value depends on its own value and on
    what was released.

    Examples
    --------
    >>> scaler = PrivateStandardizer(bounds=(0, 100), noise_multiplier=2.0, size=1000)
    >>> scaler.event()
    Gaussian(noise=2.0, sensitivity=1.0, relation='add-remove')
    >>> scaler.fit(np.full((1000, 1), 40.0)).private_
    True
    """

    _covers = "the means and spreads of the columns"

    def __init__(
        self,
        bounds: Bounds | None = None,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        size: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.bounds = bounds
        self.noise_multiplier = noise_multiplier
        self.epsilon = epsilon
        self.delta = delta
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.bounds is not None:
            check_bounds(self.bounds)

    def _undeclared(self) -> tuple[str, ...]:
        if self.bounds is None:
            return ("the bounds of the columns were read off the records; declare bounds=...",)
        return ()

    def _check_form(self, width: int) -> None:
        if self.bounds is not None:
            bounds_of_columns(self.bounds, width)

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be transformed, by what is public about it."""
        super().check_records(dataset)
        self._check_declared(dataset)

    def _release(self, rows: Array | MappedRows, size: int, rng: np.random.Generator) -> None:
        width = rows.shape[1]
        self.low_, self.high_ = (
            observed_bounds(rows)
            if self.bounds is None
            else bounds_of_columns(self.bounds, width)
        )
        std = self._noise_std(width)
        self._released = noisy_moments(self._sums(rows), size, std, rng=rng)

    def _noise_std(self, width: int) -> float:
        """Standard deviation of the noise on each sum."""
        return self._multiplier() * moment_sensitivity(width, self.relation)

    def _sums(self, rows: Array | MappedRows) -> Any:
        """Exact sums, which never leave the fit."""
        step = max(1, _CELLS // rows.shape[1])
        blocks = (rows[start : start + step] for start in range(0, len(rows), step))
        return moment_sums(blocks, self.low_, self.high_)

    def _apply(self, rows: Array) -> Array:
        means, spreads = self._released
        units = unit_values(rows, self.low_, self.high_)
        result: Array = ((units - means) / spreads).astype(float_type(rows))
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
