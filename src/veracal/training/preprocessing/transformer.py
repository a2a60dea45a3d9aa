"""What the transformers here share: a cost known beforehand, and rows that may be on disk."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from veracal._shown import Shown
from veracal._types import Array
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.privacy import Event
from veracal.privacy.answers.models import note_charge
from veracal.privacy.costs.not_private import UNFINISHED
from veracal.training.facts import check_numbers

_ROWS = 65_536  # rows of a file that are in memory at a time


class PrivateTransformer(TransformerMixin, Shown, ABC):  # type: ignore[misc]
    """A transformer that says what it costs before it sees a record.

    A final class states in ``_undeclared`` what it would have to read off the records, learns
    in ``_learn`` and turns rows in ``_apply``, each row by itself.

    Guarantees
    ----------
    ``event()`` returns None where a fit reads nothing off the records, so that it costs
    nothing, an event where it does and is charged, and raises where it would and is not.
    :meth:`fit` infers what was not declared, and ``private_`` is then False.
    :meth:`fit_records` infers nothing, and what :meth:`check_records` lets pass raises no
    error that depends on a record.
    """

    event_: Event | None
    not_private_because_: tuple[str, ...]

    def event(self) -> Event | None:
        """Cost of one fit, known before any record is read; None: it costs nothing.

        Raises
        ------
        ValueError
            If the settings are wrong, or leave something to be read off the records.
        """
        self._check_settings()
        missing = self._undeclared()
        if missing:
            raise ValueError(
                f"Expected settings with a guarantee, got {self!r}: {'; '.join(missing)}."
            )
        return self._cost()

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise unless the settings make sense, private or not."""

    @abstractmethod
    def _undeclared(self) -> tuple[str, ...]:
        """What a fit would have to read off the records in want of a declaration."""

    def _check_form(self, width: int) -> None:
        """Refuse rows of another width than was declared."""

    def _cost(self) -> Event | None:
        """Cost of one fit; None where it reads nothing."""
        return None

    @abstractmethod
    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        """Learn from checked rows; return why the result is not private, if it is not.

        The size is the one a data set declares, None where there is none.
        """

    @abstractmethod
    def _apply(self, rows: Array) -> Array:
        """Turn some rows, each by itself."""

    def longest_row(self) -> float | None:
        """Bound on the norm of a transformed row, where the settings imply one."""
        return None

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit to rows X of shape (n, d); y is not looked at."""
        self._check_settings()
        rows = self._validated(X, reset=True)
        self._check_form(rows.shape[1])
        return self._fitted(rows, None)

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be transformed, by what is public about it."""
        self.event()
        check_numbers(dataset)
        self._check_form(dataset.X.shape[1])

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared size is taken; nothing is inferred."""
        self.check_records(dataset)
        self.n_features_in_ = dataset.X.shape[1]
        return self._fitted(dataset.X, dataset.size)

    def _fitted(self, rows: Array | MappedRows, size: int | None) -> Self:
        """Learn, and write down what may be claimed."""
        cost = self._cost()
        # What an earlier fit claimed must not outlive one that is interrupted.
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        note_charge(self)
        with np.errstate(all="ignore"):  # an error, or a warning, would tell of a record
            reasons = self._undeclared() + self._learn(rows, size)
        self.event_, self.not_private_because_ = cost, reasons
        return self

    @property
    def private_(self) -> bool:
        """Whether nothing was read off the records that ``event_`` does not pay for."""
        check_is_fitted(self)
        return not self.not_private_because_

    def transform(self, X: ArrayLike) -> Array:
        """Turn rows X of shape (n, d) into an array in memory."""
        check_is_fitted(self)
        rows = self._validated(X, reset=False)
        if isinstance(rows, MappedRows):
            return np.concatenate([self._apply(block) for block in rows.windows(_ROWS)])
        return self._apply(rows)

    def _validated(self, X: Any, *, reset: bool) -> Array | MappedRows:
        """Rows, as scikit-learn wants them checked."""
        mapped = MappedRows.of(X) if isinstance(X, np.memmap) else X
        if not isinstance(mapped, MappedRows):
            checked: Array = validate_data(
                self, X, dtype=[np.float64, np.float32], reset=reset, ensure_min_samples=1
            )
            return checked
        for block in mapped.windows(_ROWS):
            check_array(block, dtype=None, estimator=self)
        if reset:
            self.n_features_in_ = mapped.shape[1]
        elif mapped.shape[1] != self.n_features_in_:
            raise ValueError(
                f"Expected {self.n_features_in_} features, got {mapped.shape[1]} in {mapped!r}."
            )
        return mapped


def float_type(rows: Array) -> np.dtype[Any]:
    """Precision of a result: single where the rows are no wider floats, else double."""
    single = rows.dtype.kind == "f" and rows.dtype.itemsize <= np.dtype(np.float32).itemsize
    return np.dtype(np.float32 if single else np.float64)
