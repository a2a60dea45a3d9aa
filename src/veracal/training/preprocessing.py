"""Preprocessing from declared facts: column bounds, row norms and categories.

:class:`PrivateTransformer` is the base of all transformers: its cost is known before a fit, and
its rows may be on disk. Transformers whose settings are declared read no record and cost
nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from veracal import _checks
from veracal._display import DisplayMixin
from veracal._types import Array, Floats
from veracal.accounting import UNFINISHED, Event
from veracal.data import Dataset, MappedRows
from veracal.queries import record_charge
from veracal.training.base import check_numeric

_ROWS = 65_536  # rows of a file that are in memory at a time


class PrivateTransformer(TransformerMixin, DisplayMixin, ABC):  # type: ignore[misc]
    """A transformer whose cost is known before it reads a record.

    A final class is a data class of its settings. It states in ``_undeclared`` what it would
    have to read from the records, learns in ``_learn``, and transforms rows in ``_apply``, each
    row independently of the others. By default it reads and learns nothing.

    Guarantees
    ----------
    ``event()`` returns None if a fit reads nothing from the records and therefore costs
    nothing, an event if it reads records at a cost, and raises if it would read them without
    one. :meth:`fit` infers what was not declared, and ``private_`` is then False.
    :meth:`fit_records` infers nothing, and records that pass :meth:`check_records` raise no
    error that depends on a record.
    """

    event_: Event | None
    not_private_because_: tuple[str, ...]

    def event(self) -> Event | None:
        """Cost of one fit, known before any record is read; None if it costs nothing.

        Raises
        ------
        ValueError
            If the settings are wrong, or leave something to be read from the records.
        """
        self._check_settings()
        missing = self._undeclared()
        if missing:
            raise ValueError(
                f"Expected settings with a guarantee, got {self!r}: {'; '.join(missing)}."
            )
        return self._cost()

    def _check_settings(self) -> None:
        """Raise unless the settings are valid, private or not."""

    def _undeclared(self) -> tuple[str, ...]:
        """What a fit would have to read from the records because it is not declared."""
        return ()

    def _check_kind(self, dataset: Dataset) -> None:
        """Reject records of a type that the transformer does not take, by shape and type alone."""
        check_numeric(dataset)

    def _check_form(self, width: int) -> None:
        """Reject rows whose width differs from the declared one."""

    def _cost(self) -> Event | None:
        """Cost of one fit; None if it reads nothing."""
        return None

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        """Learn from checked rows; a data set may declare their number.

        Returns
        -------
        tuple of str
            The reasons why the result is not private.
        """
        return ()

    @abstractmethod
    def _apply(self, rows: Array) -> Array:
        """Transform rows, each independently of the others."""

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row, if the settings imply one."""
        return None

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit to rows X of shape (n, d); y is not used."""
        self._check_settings()
        rows = self._validate(X, reset=True)
        self._check_form(rows.shape[1])
        return self._fit_rows(rows, None)

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be transformed, by public facts alone."""
        self.event()
        self._check_kind(dataset)
        self._check_form(dataset.X.shape[1])

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, with its declared size; nothing is inferred."""
        self.check_records(dataset)
        self.n_features_in_ = dataset.X.shape[1]
        return self._fit_rows(dataset.X, dataset.size)

    def _fit_rows(self, rows: Array | MappedRows, size: int | None) -> Self:
        """Learn from the rows, and record what the fit may claim."""
        cost = self._cost()
        # The claims of an earlier fit must not remain if this one is interrupted.
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        record_charge(self)
        with np.errstate(all="ignore"):  # an error or a warning would reveal a record
            reasons = self._undeclared() + self._learn(rows, size)
        self.event_, self.not_private_because_ = cost, reasons
        return self

    @property
    def private_(self) -> bool:
        """Whether ``event_`` covers everything that was read from the records."""
        check_is_fitted(self)
        return not self.not_private_because_

    def transform(self, X: ArrayLike) -> Array:
        """Transform rows X of shape (n, d) into an array in memory."""
        check_is_fitted(self)
        rows = self._validate(X, reset=False)
        if isinstance(rows, MappedRows):
            return np.concatenate([self._apply(block) for block in rows.windows(_ROWS)])
        return self._apply(rows)

    def _validate(self, X: Any, *, reset: bool) -> Array | MappedRows:
        """Rows, validated as scikit-learn requires."""
        rows = MappedRows.of(X) if isinstance(X, np.memmap) else X
        if not isinstance(rows, MappedRows):
            checked: Array = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)
            return checked
        for block in rows.windows(_ROWS):
            check_array(block, dtype=None, estimator=self)
        if reset:
            self.n_features_in_ = rows.shape[1]
        elif rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"Expected {self.n_features_in_} features, got {rows.shape[1]} in {rows!r}."
            )
        return rows


def output_dtype(rows: Array) -> np.dtype[Any]:
    """Precision of a result: single if the rows are floats of at most 32 bits, else double."""
    single = rows.dtype.kind == "f" and rows.dtype.itemsize <= np.dtype(np.float32).itemsize
    return np.dtype(np.float32 if single else np.float64)


Pair = tuple[float, float]
Bounds = Pair | Sequence[Pair]


def check_bounds(bounds: Any, name: str = "bounds") -> Floats:
    """Bounds as an array of shape (columns, 2), with one row if one pair is for all columns.

    Raises
    ------
    ValueError
        Unless all are finite, and the lower of each pair is below the upper.
    """
    try:
        pairs = np.atleast_2d(np.asarray(bounds, dtype=np.float64))
    except (TypeError, ValueError):
        pairs = np.empty(0)
    valid = pairs.ndim == 2 and pairs.shape[1] == 2 and np.isfinite(pairs).all()
    # Halves, since the distance of the bounds may overflow.
    if not valid or not (pairs[:, 1] / 2 - pairs[:, 0] / 2 >= np.finfo(np.float64).tiny).all():
        raise ValueError(
            f"Expected {name} to be one (low, high) of finite numbers, low < high, or one such "
            f"pair for each column, got {name}={bounds!r}."
        )
    return pairs


def broadcast_bounds(bounds: Any, width: int) -> tuple[Floats, Floats]:
    """Lower and upper bounds, each of shape (width,)."""
    pairs = check_bounds(bounds)
    if len(pairs) not in (1, width):
        raise ValueError(
            f"Expected one pair of bounds for each of {width} columns, or one for all, got "
            f"{len(pairs)} pairs."
        )
    low, high = np.broadcast_to(pairs, (width, 2)).T
    return low, high


def observed_bounds(rows: Array | MappedRows) -> tuple[Floats, Floats]:
    """Minimum and maximum of each column: read from the records, so *not private*.

    A constant column gets bounds around its value.
    """
    blocks = [
        np.asarray(rows[start : start + _ROWS], dtype=np.float64)
        for start in range(0, len(rows), _ROWS)
    ]
    low = np.min([block.min(axis=0) for block in blocks], axis=0)
    high = np.max([block.max(axis=0) for block in blocks], axis=0)
    constant = high / 2 - low / 2 < np.finfo(np.float64).tiny
    margin = np.maximum(np.abs(low) * 1e-6, 1e-6)
    return np.where(constant, low - margin, low), np.where(constant, high + margin, high)


def scale_to_unit(rows: Array, low: Floats, high: Floats) -> Floats:
    r"""Scale values from bounds to [0, 1]: :math:`(x - low) / (high - low)`, clipped.

    Guarantees
    ----------
    Every entry is in [0, 1] and depends on its own value alone: a value beyond a bound, even an
    infinite one, counts as the bound, and NaN counts as the midpoint.
    """
    values = np.clip(rows.astype(np.float64), low, high) / 2  # halves, whose distance is finite
    shares = (values - low / 2) / (high / 2 - low / 2)
    return np.where(np.isnan(shares), 0.5, np.clip(shares, 0.0, 1.0))


_SLACK = 2e-6  # for norms that are computed too low, and for rounding up in float32
_MIN_NORM, _MAX_NORM = 1e-100, 1e100


def shorten_rows(rows: Floats, norm: float) -> Floats:
    r"""Scale down rows that are longer than a norm: :math:`x \min(1, c / \lVert x \rVert)`.

    Guarantees
    ----------
    Given finite rows, every row of the result is finite and no longer than ``norm``, rounding
    included, and depends on its own row alone. Norms are computed for rows divided by their
    largest entry, so that finite rows do not overflow.
    """
    target = norm * (1 - _SLACK)
    peaks = np.abs(rows).max(axis=1, keepdims=True, initial=0.0).astype(np.float64)
    unit = rows / np.where(peaks > 0, peaks, 1.0)
    lengths = np.linalg.norm(unit, axis=1, keepdims=True)  # from 1 to the square root of d
    lengths = np.where(lengths > 0, lengths, 1.0)
    long = peaks > target / lengths
    # Selected instead of multiplied, since a factor may underflow for a huge row.
    result: Floats = np.where(long, unit * (target / lengths), rows).astype(rows.dtype)
    return result


@dataclass(eq=False, repr=False)
class NormClipper(OneToOneFeatureMixin, PrivateTransformer):  # type: ignore[misc]
    """Scale down rows that are longer than a declared norm, without counting them.

    Parameters
    ----------
    norm : float from 1e-100 to 1e100
        Maximum Euclidean norm of a row.

    Attributes
    ----------
    private_ : bool
        Always True: nothing is read from the records.

    Guarantees
    ----------
    A fit reads no record. No row of the result is longer than ``norm``, rounding included,
    and each depends on its own row alone.

    Examples
    --------
    >>> NormClipper(1.0).fit_transform([[3.0, 4.0], [0.3, 0.4]]).round(3)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """

    norm: float = 1.0

    def _check_settings(self) -> None:
        _checks.positive(norm=self.norm)
        if not _MIN_NORM <= self.norm <= _MAX_NORM:
            raise ValueError(
                f"Expected norm between {_MIN_NORM:g} and {_MAX_NORM:g}, "
                f"got norm={self.norm!r}."
            )

    def _apply(self, rows: Array) -> Array:
        return shorten_rows(rows.astype(output_dtype(rows)), self.norm)

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row."""
        return float(self.norm)


@dataclass(eq=False, repr=False)
class BoundedTransformer(OneToOneFeatureMixin, PrivateTransformer):  # type: ignore[misc]
    """A transformer of columns with declared bounds, ``low_`` and ``high_`` once it is fitted."""

    bounds: Bounds | None = None

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.bounds is not None:
            check_bounds(self.bounds)

    def _undeclared(self) -> tuple[str, ...]:
        if self.bounds is None:
            return ("the bounds of the columns were read from the records; declare bounds=...",)
        return ()

    def _check_form(self, width: int) -> None:
        if self.bounds is not None:
            broadcast_bounds(self.bounds, width)

    def _set_bounds(self, rows: Array | MappedRows) -> None:
        """Set the bounds of the columns, which are read from the rows if none are declared."""
        self.low_, self.high_ = (
            observed_bounds(rows)
            if self.bounds is None
            else broadcast_bounds(self.bounds, rows.shape[1])
        )


@dataclass(eq=False, repr=False)
class BoundedScaler(BoundedTransformer):
    r"""Scale columns from declared bounds to a common range.

    .. math:: to_0 + (to_1 - to_0) \frac{\min(\max(x, low), high) - low}{high - low}

    Parameters
    ----------
    bounds : (low, high), or one such pair for each column, optional
        Values outside are clipped. The bounds must be known without the records: from the
        definition of the column, or a public data set. None: read from the records, so not
        private.
    to : (low, high)
        Range of the result.

    Attributes
    ----------
    low_, high_ : arrays of shape (d,)
    private_ : bool
    not_private_because_ : tuple of str

    Guarantees
    ----------
    With declared bounds a fit reads no record, and each value of the result depends on one
    value alone and lies in ``to``.

    Examples
    --------
    >>> BoundedScaler(bounds=(0, 100)).fit_transform([[25.0], [50.0], [1000.0]]).ravel()
    array([0.25, 0.5 , 1.  ])
    """

    to: Pair = field(default=(0.0, 1.0), kw_only=True)

    def _check_settings(self) -> None:
        super()._check_settings()
        pairs = check_bounds(self.to, "to")
        if pairs.shape != (1, 2) or not math.isfinite(float(self.to[1]) - float(self.to[0])):
            raise ValueError(f"Expected one (low, high) for to, got to={self.to!r}.")

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        self._set_bounds(rows)
        return ()

    def _apply(self, rows: Array) -> Array:
        dtype = output_dtype(rows)
        # The ends of the range in the result's precision, rounded towards the inside.
        low, high = np.asarray(self.to[0], dtype), np.asarray(self.to[1], dtype)
        if float(low) < self.to[0]:
            low = np.nextafter(low, dtype.type(np.inf))
        if float(high) > self.to[1]:
            high = np.nextafter(high, dtype.type(-np.inf))
        shares = scale_to_unit(rows, self.low_, self.high_)
        scaled = (self.to[0] + (self.to[1] - self.to[0]) * shares).astype(dtype)
        result: Array = np.clip(scaled, low, high)
        return result

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row."""
        return float(np.sqrt(self.n_features_in_) * np.abs(self.to).max())


_ENCODING: dict[str, Any] = {"handle_unknown": "ignore", "sparse_output": False}


@dataclass(eq=False, repr=False)
class DeclaredOneHot(PrivateTransformer):
    """One-hot columns over declared categories, by scikit-learn's ``OneHotEncoder``.

    Parameters
    ----------
    categories : sequence of sequences, one for each column, optional
        All categories of each column, numbers in ascending order. None: read from the records,
        so not private. Numbers are compared in single precision, unless two categories are
        equal in it, so that records of both precisions have the same encoding.

    Attributes
    ----------
    encoder_ : OneHotEncoder
    categories_ : list of arrays, one for each column
    private_ : bool
    not_private_because_ : tuple of str

    Guarantees
    ----------
    With declared categories a fit reads no record: the encoder is fitted to a row of
    the first categories. An undeclared value raises no error and becomes zeros in all columns
    of its feature.

    Examples
    --------
    >>> DeclaredOneHot([["no", "yes"]]).fit_transform([["yes"], ["perhaps"]])
    array([[0., 1.],
           [0., 0.]])
    """

    categories: Sequence[Sequence[Any]] | None = None

    def _check_settings(self) -> None:
        for column in () if self.categories is None else self.categories:
            values = [] if isinstance(column, str) else list(column)
            kinds = {isinstance(value, str) for value in values}
            if len(kinds) != 1 or any(value != value for value in values):
                raise ValueError(
                    "Expected categories to be one sequence for each column, all text or all "
                    f"numbers, none missing, got {column!r} in categories={self.categories!r}."
                )
            if len(set(values)) < len(values) or (
                kinds == {False} and values != sorted(values)
            ):
                raise ValueError(
                    "Expected different categories, numbers in ascending order, got "
                    f"{column!r} in categories={self.categories!r}."
                )

    def _undeclared(self) -> tuple[str, ...]:
        if self.categories is None:
            return ("the categories were read from the records; declare categories=...",)
        return ()

    def _check_form(self, width: int) -> None:
        if self.categories is not None and len(self.categories) != width:
            raise ValueError(
                f"Expected categories of {width} columns, got {len(self.categories)}."
            )

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        if self.categories is None:
            self.encoder_ = OneHotEncoder(**_ENCODING).fit(rows[:])
        else:
            dtype = self._compared_dtype(rows.dtype)
            columns = [np.asarray(list(column), dtype) for column in self.categories]
            first = np.asarray([[column[0] for column in columns]], dtype)
            self.encoder_ = OneHotEncoder(categories=columns, **_ENCODING).fit(first)
        self.categories_ = self.encoder_.categories_
        return ()

    def _compared_dtype(self, rows: np.dtype[Any]) -> np.dtype[Any]:
        """The type in which categories are compared, from the declaration and the rows' type."""
        if rows.kind not in "fiu":
            return np.dtype(object)
        with np.errstate(over="ignore"):
            columns = [np.asarray(list(one), np.float64) for one in self.categories or ()]
            single = [column.astype(np.float32) for column in columns]
        if rows.kind in "iu" and all((column % 1 == 0).all() for column in columns):
            return np.dtype(np.int64)
        distinct = all(len(np.unique(c)) == len(c) and np.isfinite(c).all() for c in single)
        return np.dtype(np.float32 if distinct else np.float64)

    def _apply(self, rows: Array) -> Array:
        dtype = self.encoder_.categories_[0].dtype
        if self.categories is not None and dtype.kind == "f" and rows.dtype.kind in "fiu":
            with np.errstate(over="ignore"):
                rows = rows.astype(dtype)
            # NaN matches no category, and raises no error.
            rows = np.where(np.isinf(rows), np.nan, rows)
        encoded: Array = self.encoder_.transform(rows)
        return encoded

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row: one entry of 1 for each feature."""
        return float(np.sqrt(self.n_features_in_))

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the columns: feature and category."""
        check_is_fitted(self)
        if input_features is None and "feature_names_in_" in vars(self):
            input_features = self.feature_names_in_
        names: Array = self.encoder_.get_feature_names_out(input_features)
        return names

    def _validate(self, X: Any, *, reset: bool) -> Array | MappedRows:
        """Rows of numbers or text; NumPy must not truncate text to a fixed length."""
        if isinstance(X, np.memmap | MappedRows):
            return super()._validate(X, reset=reset)
        rows: Array = validate_data(
            self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset
        )
        return rows if rows.dtype.kind in "fiu" else rows.astype(object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = True  # like any other undeclared value
        return tags
