"""One column for each declared category."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal._types import Array
from veracal.data.rows import MappedRows
from veracal.training.preprocessing.transformer import PrivateTransformer

_ENCODING: dict[str, Any] = {"handle_unknown": "ignore", "sparse_output": False}


class DeclaredOneHot(PrivateTransformer):
    """One-hot columns over declared categories, by scikit-learn's ``OneHotEncoder``.

    Parameters
    ----------
    categories : sequence of sequences, one for each column, optional
        Every category of each column, numbers in ascending order. None: read off the
        records, so not private. Numbers are compared in single precision, unless two
        categories are one there, so that records of both precisions find the same ones.

    Attributes
    ----------
    encoder_ : OneHotEncoder
    categories_ : list of arrays, one for each column
    private_ : bool
    not_private_because_ : tuple of str

    Guarantees
    ----------
    With declared categories a fit reads no record: the encoder is fitted to a row made of
    first categories. An undeclared value raises nothing and becomes zeros in all columns of
    its feature.

    Examples
    --------
    >>> DeclaredOneHot([["no", "yes"]]).fit_transform([["yes"], ["perhaps"]])
    array([[0., 1.],
           [0., 0.]])
    """

    def __init__(self, categories: Sequence[Sequence[Any]] | None = None) -> None:
        self.categories = categories

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
            return ("the categories were read off the records; declare categories=...",)
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
            dtype = _common_type(self.categories, rows.dtype)
            columns = [np.asarray(list(column), dtype) for column in self.categories]
            made_up = np.asarray([[column[0] for column in columns]], dtype)
            self.encoder_ = OneHotEncoder(categories=columns, **_ENCODING).fit(made_up)
        self.categories_ = self.encoder_.categories_
        return ()

    def _apply(self, rows: Array) -> Array:
        wanted = self.encoder_.categories_[0].dtype
        if self.categories is not None and wanted.kind == "f" and rows.dtype.kind in "fiu":
            with np.errstate(over="ignore"):
                rows = rows.astype(wanted)
            rows = np.where(np.isinf(rows), np.nan, rows)  # no category, and raises nothing
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

    def _validated(self, X: Any, *, reset: bool) -> Array | MappedRows:
        """Rows of numbers or text, which numpy must not cut to a fixed length."""
        if isinstance(X, np.memmap | MappedRows):
            return super()._validated(X, reset=reset)
        rows: Array = validate_data(
            self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset
        )
        return rows if rows.dtype.kind in "fiu" else rows.astype(object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = True  # as any other value that was not declared
        return tags


def _common_type(categories: Sequence[Sequence[Any]], found: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which categories are compared, by what is declared and the rows' kind."""
    if found.kind not in "fiu":
        return np.dtype(object)
    with np.errstate(over="ignore"):
        columns = [np.asarray(list(column), np.float64) for column in categories]
        single = [column.astype(np.float32) for column in columns]
    if found.kind in "iu" and all((column % 1 == 0).all() for column in columns):
        return np.dtype(np.int64)
    apart = all(len(np.unique(c)) == len(c) and np.isfinite(c).all() for c in single)
    return np.dtype(np.float32 if apart else np.float64)
