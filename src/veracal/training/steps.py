"""Steps of a pipeline: what they cost together, and how they are fitted to a data set."""

import warnings
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
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
from veracal.training.made_up import usual_rows
from veracal.training.preprocessing.transformer import PrivateTransformer
from veracal.training.rows_apart import apply_to_all, check_rows_apart, finite, in_form
from veracal.training.structure import (
    all_steps,
    check_structure,
    chooses_columns,
    inner_steps,
    is_absent,
    parts_of,
)

_ROWS = 65_536  # rows that are transformed together
_FORM = 16  # made-up rows that show the form of a step's result
PART = "it is a part of a pipeline, whose statement counts"
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
        Naming the step that learns from the records without stating what that costs, one
        that stands where it cannot or twice, or if steps protect different neighbors.

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
        if is_private_step(step):
            cost = step.event()
            if cost is not None:
                events.append(cost)
        elif not is_row_by_row(step):
            raise ValueError(
                "Expected steps that state their cost or learn nothing from the records, got "
                f"{step!r}{f' as {name!r}' if name else ''}. {_advice(step)}"
            )
    check_structure(estimator)
    return composed(events)


def is_private_step(step: Any) -> bool:
    """Whether a step states its cost and takes whole data sets; a frozen one does neither."""
    return isinstance(step, PrivateStep) and not isinstance(step, FrozenEstimator)


def private_steps(estimator: Any) -> list[tuple[str, Any]]:
    """The steps inside an estimator that state their cost, with their names."""
    found = inner_steps(estimator)
    return [(name, step) for name, step in found if is_private_step(step)]


def composed(events: list[Event]) -> Event | None:
    """Several events on the same records as one; None for none."""
    if len(events) > 1:
        return Composed(tuple(events))
    return events[0] if events else None


def is_taken_at_its_word(step: Any) -> bool:
    """Whether nobody but the user knows that a step turns each row by itself."""
    if isinstance(step, FrozenEstimator):
        return not isinstance(step.estimator, PrivateTransformer)
    return type(step) is FunctionTransformer and step.func is not None


def is_row_by_row(step: Any) -> bool:
    """Whether a transformer of scikit-learn turns each row by itself and learns nothing.

    Guarantees
    ----------
    For ``Normalizer``, ``Binarizer``, ``PolynomialFeatures``, and ``OneHotEncoder`` with
    declared categories it is known. A ``FunctionTransformer`` is the *user's word* that its
    function turns each row by itself and holds nothing of the records; so is a
    ``FrozenEstimator``, of which no fit changes anything, that it was fitted to public
    records or paid for before. Both are tried on made-up rows
    (:func:`veracal.training.rows_apart.check_rows_apart`), which catches mistakes and proves
    nothing.
    """
    if type(step) is FrozenEstimator:
        return not own_reasons(step.estimator)
    if type(step) is OneHotEncoder:
        declared = not isinstance(step.categories, str)
        counts = step.min_frequency is not None or step.max_categories is not None
        quiet = step.handle_unknown in ("ignore", "infrequent_if_exist") and step.drop is None
        return declared and quiet and not counts
    return type(step) in _ROW_BY_ROW


def own_reasons(step: Any) -> list[str]:
    """Why a fitted step is not private, but for being a part of something."""
    return [why for why in getattr(step, "not_private_because_", ()) if why != PART]


def unpaid_reasons(estimator: Any) -> list[str]:
    """What a plain fit read off the records, or may have, in steps that state no cost."""
    reasons = []
    for name, step in all_steps(estimator):
        kind = type(step).__name__
        if chooses_columns(step):
            reasons.append(f"{name}: a function chose the columns by looking at the records")
        if parts_of(step) is not None or is_absent(step) or is_private_step(step):
            continue
        if not is_row_by_row(step):
            reasons.append(f"{name}: {kind} learns from the records and states no cost")
        elif is_taken_at_its_word(step) and not _passes_trial(step):
            reasons.append(f"{name}: {kind} did not pass a trial that it turns rows apart")
    return reasons


def _passes_trial(step: Any) -> bool:
    """Whether a step that was fitted plainly turns made-up rows each by itself."""
    try:
        check_rows_apart(step, usual_rows(step.n_features_in_))
    except Exception:  # whatever a function may raise for rows that it was not made for
        return False
    return True


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
    if is_private_step(step):
        step.fit_records(dataset)
    elif isinstance(step, Pipeline):
        for _, inner in step.steps:
            fit_to(inner, dataset, stand_in)
            dataset, stand_in = both_transformed(inner, dataset, stand_in)
    elif isinstance(step, ColumnTransformer):
        _fit_quietly(step, stand_in)
        for _, inner, columns in step.transformers_:
            fit_to(inner, _columns(dataset, columns), _columns(stand_in, columns))
    elif isinstance(step, FeatureUnion):
        _fit_quietly(step, stand_in)
        for _, inner in step.transformer_list:
            fit_to(inner, dataset, stand_in)
    elif not is_absent(step):
        if not isinstance(step, FrozenEstimator):
            _fit_quietly(step, stand_in)
        if is_taken_at_its_word(step):
            check_rows_apart(step, stand_in.X[:_FORM])


def both_transformed(
    step: Any, dataset: Dataset, stand_in: Dataset, *, alone: bool = False
) -> tuple[Dataset, Dataset]:
    """A data set and its stand-in as a fitted step turns them, in memory.

    Parameters
    ----------
    step : fitted transformer
    dataset, stand_in : Dataset
    alone : bool
        Turn each row by itself. A product of matrices may round a row differently beside
        others, and a function that raises for one row has its block turned row by row; a clip
        rule or a network that jumps must see neither. Steps of ours do neither.

    Guarantees
    ----------
    What is not finite becomes zero, entry by entry, so that no later step can fail for it,
    and so does a row for which a function of the user's raises an error. No warning tells of
    any of that.
    """
    together = 1 if alone and not isinstance(step, PrivateTransformer) else _ROWS
    changed = _transformed(step, dataset, stand_in, together)
    return changed, _transformed(step, stand_in, stand_in, _ROWS)


def _transformed(step: Any, dataset: Dataset, stand_in: Dataset, together: int) -> Dataset:
    """A data set as a fitted step turns it, in the form of its stand-in."""
    if is_absent(step):
        return dataset
    n, form = len(dataset), stand_in.X[:_FORM]
    with np.errstate(all="ignore"):
        if n == 0:  # scikit-learn takes no empty array: learn the width elsewhere
            X = turned(step, form, form)[:0]
        else:
            blocks = (dataset.X[start : start + together] for start in range(0, n, together))
            X = np.concatenate([turned(step, block, form) for block in blocks])
    norm = step.longest_row() if isinstance(step, PrivateTransformer) else None
    X.flags.writeable = False  # or the data set would copy it
    return replace(dataset, X=X, norm=norm, feature_names=())


def turned(step: Any, X: Array, form: Array) -> Array:
    """Rows as a fitted step turns them, with zero for what is not finite after any step.

    What the step makes of made-up rows, ``form``, gives the width and the type of the result.
    """
    if is_absent(step):
        return X
    if isinstance(step, Pipeline):
        for _, inner in step.steps:
            X, form = turned(inner, X, form), turned(inner, form, form)
        return X
    if isinstance(step, ColumnTransformer):
        parts = [(key, inner, _chosen(X, at)) for key, inner, at in step.transformers_]
    elif isinstance(step, FeatureUnion):
        parts = [(key, inner, _chosen(X, slice(None))) for key, inner in step.transformer_list]
    elif isinstance(step, PrivateTransformer):
        return finite(step.transform(X))
    else:
        return apply_to_all(step, X, in_form(step, form))
    weights = step.transformer_weights or {}
    kept = [
        finite(turned(inner, X[:, at], form[:, at]) * weights.get(key, 1.0))
        for key, inner, at in parts
        if not (isinstance(inner, str) and inner == "drop")
    ]
    return np.hstack([np.empty((len(X), 0), kept[0].dtype if kept else float), *kept])


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
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        step.fit(stand_in.X[:])


def _advice(step: Any) -> str:
    """What to use instead of a step that would leak."""
    name = type(step).__name__
    if isinstance(step, FrozenEstimator):
        return f"What is frozen is not private: {'; '.join(own_reasons(step.estimator))}."
    if name in _INSTEAD:
        return f"Use {_INSTEAD[name]}."
    return (
        "Leave it out, fit it to public records and wrap its transform into a "
        "FunctionTransformer, or use a step of veracal.training."
    )
