"""Steps of a pipeline: what they cost together, and how they are fitted to a data set."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
)

from veracal._types import Array, Ints
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.privacy import Composed, Event
from veracal.training.made_up import made_up
from veracal.training.preprocessing.transformer import PrivateTransformer

_ROWS = 65_536  # rows that are transformed together
_ROW_BY_ROW = (FunctionTransformer, Normalizer, Binarizer, PolynomialFeatures)
_INSTEAD = {
    "StandardScaler": "PrivateStandardizer, or BoundedScaler with declared bounds",
    "MinMaxScaler": "BoundedScaler with declared bounds",
    "MaxAbsScaler": "BoundedScaler with declared bounds",
    "RobustScaler": "BoundedScaler with declared bounds",
    "OneHotEncoder": "DeclaredOneHot",
    "OrdinalEncoder": "DeclaredOneHot",
    "LogisticRegression": "PrivateLogisticRegression",
}


@runtime_checkable
class PrivateStep(Protocol):
    """A step that states its cost and takes whole data sets."""

    def event(self) -> Event | None:
        """Cost of one fit; None: it costs nothing."""

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it."""

    def fit_records(self, dataset: Dataset) -> Any:
        """Fit to a data set."""


def event_of(estimator: Any) -> Event | None:
    """What one fit of an estimator costs, a pipeline's being the composition of its steps'.

    Parameters
    ----------
    estimator : estimator, Pipeline, ColumnTransformer or FeatureUnion, nested at will

    Returns
    -------
    Event or None
        None if nothing is read off the records.

    Raises
    ------
    ValueError
        Naming the step that learns from the records without stating what that costs, or if
        steps protect different neighbors.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from veracal.training.preprocessing import NormClipper, PrivateStandardizer
    >>> scaler = PrivateStandardizer((0, 9), noise_multiplier=3.0)
    >>> event_of(make_pipeline(scaler, NormClipper()))
    Gaussian(noise=3.0, sensitivity=1.0, relation='add-remove')
    """
    events = []
    for name, step in inner_steps(estimator):
        if isinstance(step, PrivateStep):
            cost = step.event()
            if cost is not None:
                events.append(cost)
        elif not is_row_by_row(step):
            raise ValueError(
                "Expected steps that state their cost or learn nothing from the records, got "
                f"{step!r}{f' as {name!r}' if name else ''}. {_advice(step)}"
            )
    return composed(events)


def private_steps(estimator: Any) -> list[tuple[str, Any]]:
    """The steps inside an estimator that state their cost, with their names."""
    found = inner_steps(estimator)
    return [(name, step) for name, step in found if isinstance(step, PrivateStep)]


def composed(events: list[Event]) -> Event | None:
    """Several events on the same records as one; None for none."""
    if len(events) > 1:
        return Composed(tuple(events))
    return events[0] if events else None


def inner_steps(estimator: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All that is fitted inside an estimator, with the names that lead to it."""
    if isinstance(estimator, Pipeline):
        parts = [(key, step) for key, step in estimator.steps]
    elif isinstance(estimator, ColumnTransformer):
        fitted = vars(estimator).get("transformers_")
        listed = [*estimator.transformers, ("remainder", estimator.remainder, None)]
        parts = [(key, step) for key, step, _ in (fitted or listed)]
    elif isinstance(estimator, FeatureUnion):
        parts = [(key, step) for key, step in estimator.transformer_list]
    else:
        if not _is_absent(estimator):
            yield name, estimator
        return
    for key, step in parts:
        yield from inner_steps(step, f"{name}__{key}" if name else key)


def is_row_by_row(step: Any) -> bool:
    """Whether a transformer of scikit-learn turns each row by itself and learns nothing.

    A ``FunctionTransformer`` is taken at its function's word here; fitted to a data set, it
    is tried on made-up rows first.
    """
    if type(step) is OneHotEncoder:
        declared = not isinstance(step.categories, str)
        counts = step.min_frequency is not None or step.max_categories is not None
        quiet = step.handle_unknown in ("ignore", "infrequent_if_exist") and step.drop is None
        return declared and quiet and not counts
    return type(step) in _ROW_BY_ROW


def fit_to(step: Any, dataset: Dataset, stand_in: Dataset) -> None:
    """Fit one step to a data set, whatever it is.

    Steps that learn nothing are fitted to made-up records of the same form, so that nothing
    of the data set can be in them.

    Parameters
    ----------
    step : estimator
        Fitted in place.
    dataset : Dataset
    stand_in : Dataset
        Made-up records in the form of the data set's.
    """
    if isinstance(step, PrivateStep):
        step.fit_records(dataset)
    elif isinstance(step, Pipeline):
        for _, inner in step.steps:
            fit_to(inner, dataset, stand_in)
            dataset, stand_in = (transformed(inner, part) for part in (dataset, stand_in))
    elif isinstance(step, ColumnTransformer):
        _fit_quietly(step, stand_in)
        for _, inner, columns in step.transformers_:
            fit_to(inner, _columns(dataset, columns), _columns(stand_in, columns))
    elif isinstance(step, FeatureUnion):
        _fit_quietly(step, stand_in)
        for _, inner in step.transformer_list:
            fit_to(inner, dataset, stand_in)
    elif not _is_absent(step):
        _fit_quietly(step, stand_in)
        _check_rows_apart(step, stand_in.X[:4])


def transformed(step: Any, dataset: Dataset) -> Dataset:
    """A data set as a fitted step turns it, in memory.

    Guarantees
    ----------
    What is not finite becomes zero, entry by entry, so that no later step can fail for it.
    No warning tells of any of that.
    """
    if _is_absent(step):
        return dataset
    n = len(dataset)
    with np.errstate(all="ignore"):
        if n == 0:  # scikit-learn takes no empty array: learn the width elsewhere
            X = turned(step, made_up(dataset, "add-remove").X[:])[:0]
        else:
            blocks = (dataset.X[start : start + _ROWS] for start in range(0, n, _ROWS))
            X = np.concatenate([turned(step, block) for block in blocks])
    norm = step.longest_row() if isinstance(step, PrivateTransformer) else None
    X.flags.writeable = False  # or the data set would copy it
    return replace(dataset, X=X, norm=norm, feature_names=())


def turned(step: Any, X: Array) -> Array:
    """Rows as a fitted step turns them, with zero for what is not finite after any step."""
    if _is_absent(step):
        return X
    if isinstance(step, Pipeline):
        for _, inner in step.steps:
            X = turned(inner, X)
        return X
    if isinstance(step, ColumnTransformer):
        parts = [(key, inner, X[:, _chosen(X, at)]) for key, inner, at in step.transformers_]
    elif isinstance(step, FeatureUnion):
        parts = [(key, inner, X) for key, inner in step.transformer_list]
    else:
        return _finite(step.transform(X))
    weights = step.transformer_weights or {}
    kept = [
        _finite(turned(inner, part) * weights.get(key, 1.0))
        for key, inner, part in parts
        if not (isinstance(inner, str) and inner == "drop")
    ]
    return np.hstack([np.empty((len(X), 0), kept[0].dtype if kept else float), *kept])


def _is_absent(step: Any) -> bool:
    """Whether a step is one of scikit-learn's words for none."""
    return step is None or isinstance(step, str)


def _finite(rows: Any) -> Array:
    """A dense array of floats, with zero for what is not finite."""
    dense = np.asarray(rows.toarray() if sparse.issparse(rows) else rows)
    numbers = dense if dense.dtype in (np.float32, np.float64) else dense.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, 0)


def _chosen(X: Array | MappedRows, columns: Any) -> Ints:
    """Numbers of the columns that a ColumnTransformer names in any of its ways."""
    return np.atleast_1d(np.arange(X.shape[1])[columns])


def _columns(dataset: Dataset, columns: Any) -> Dataset:
    """Some columns of a data set."""
    chosen, n = _chosen(dataset.X, columns), len(dataset)
    blocks = [dataset.X[start : start + _ROWS][:, chosen] for start in range(0, n, _ROWS)]
    X = np.concatenate(blocks) if blocks else np.empty((0, len(chosen)))
    return replace(dataset, X=X, norm=None, feature_names=())


def _fit_quietly(step: Any, stand_in: Dataset) -> None:
    """Fit to made-up rows, of whose odd values nobody need hear."""
    with np.errstate(all="ignore"):
        step.fit(stand_in.X[:])


def _check_rows_apart(step: Any, rows: Array) -> None:
    """Refuse a function that lets one row change another's result, tried on made-up rows."""
    with np.errstate(all="ignore"):
        together = _finite(step.transform(rows))
        alone = np.concatenate([_finite(step.transform(row[None])) for row in rows])
    if together.shape != alone.shape or not np.allclose(together, alone, rtol=1e-9, atol=1e-12):
        raise ValueError(
            f"Expected a step that turns each row by itself, got {step!r}, whose result for a "
            "row depends on the others. Use constants that are known without the records."
        )


def _advice(step: Any) -> str:
    """What to use instead of a step that would leak."""
    name = type(step).__name__
    if name in _INSTEAD:
        return f"Use {_INSTEAD[name]}."
    return (
        "Leave it out, fit it to public records and wrap its transform into a "
        "FunctionTransformer, or use a step of veracal.training."
    )
