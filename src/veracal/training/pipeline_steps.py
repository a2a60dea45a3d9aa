"""What estimators are put together from.

Records that nobody has, in the form of a data set's.

Steps that are taken at their word to turn each row by itself, and how they are tried.

Steps of a pipeline: what they cost together, and how they are fitted to a data set.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import sparse
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

from veracal._types import Array, Floats, Ints
from veracal.accounting import Composed, Event, Relation
from veracal.data import Dataset, Label, MappedRows
from veracal.training.preprocessing import PrivateTransformer


def inner_steps(estimator: Any) -> Iterator[tuple[str, Any]]:
    """All that is fitted inside an estimator, with the names that lead to it."""
    for name, step in all_steps(estimator):
        if child_steps(step) is None and not is_absent(step):
            yield name, step


def all_steps(estimator: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """An estimator and all that is inside, pipelines and the like included."""
    yield name, estimator
    for key, step in child_steps(estimator) or ():
        yield from all_steps(step, f"{name}__{key}" if name else key)


def child_steps(estimator: Any) -> list[tuple[str, Any]] | None:
    """What an estimator is put together from; None if it is not."""
    if isinstance(estimator, Pipeline):
        return [(key, step) for key, step in estimator.steps]
    if isinstance(estimator, ColumnTransformer):
        fitted = vars(estimator).get("transformers_")
        listed = [*estimator.transformers, ("remainder", estimator.remainder, None)]
        return [(key, step) for key, step, _ in (fitted or listed)]
    if isinstance(estimator, FeatureUnion):
        return [(key, step) for key, step in estimator.transformer_list]
    return None


def check_structure(estimator: Any) -> None:
    """Refuse steps that stand where they cannot, or twice, and columns chosen by functions."""
    for _, step in all_steps(estimator):
        if chooses_columns(step):
            raise ValueError(
                f"Expected declared columns, got a function that chooses them in {step!r}: it "
                "would look at the records. Give their numbers."
            )
        parts = child_steps(step) or []
        for key, part in parts[:-1] if isinstance(step, Pipeline) else parts:
            if not (is_absent(part) or hasattr(part, "transform")):
                raise ValueError(
                    f"Expected a step that transforms rows, got {part!r} as {key!r}. A "
                    "classifier can only be the last step."
                )
    _check_once(estimator, set())


def _check_once(step: Any, seen: set[int]) -> None:
    """Refuse an object in two places, where its second fit would undo the first."""
    if is_absent(step):
        return
    if id(step) in seen:
        raise ValueError(
            f"Expected every step once, got {step!r} in two places: the second fit would undo "
            "the first. Use sklearn.base.clone."
        )
    seen.add(id(step))
    if not isinstance(step, ColumnTransformer):  # which fits copies
        for _, part in child_steps(step) or ():
            _check_once(part, seen)


def chooses_columns(step: Any) -> bool:
    """Whether a function chooses columns by looking at the records."""
    if not isinstance(step, ColumnTransformer):
        return False
    return any(callable(columns) for _, _, columns in step.transformers)


def is_absent(step: Any) -> bool:
    """Whether a step is one of scikit-learn's words for none."""
    return step is None or isinstance(step, str)


_SYNTHETIC_ROWS = 16


def synthetic_dataset(dataset: Dataset, relation: Relation) -> Dataset:
    """Invent a data set from what is public about another; see :func:`made_up_like`."""
    return synthesize_records(
        dataset.X,
        dataset.classes,
        size=dataset.size,
        norm=dataset.norm,
        relation=relation,
        name=dataset.name,
    )


def synthesize_records(
    X: Array | MappedRows,
    classes: Sequence[Label],
    *,
    size: int | None,
    norm: float | None,
    relation: Relation,
    name: str = "data",
) -> Dataset:
    """Invent records of the same form.

    They stand in for records wherever a step is only to learn how wide its rows are, or is
    tried before anything is charged.

    Parameters
    ----------
    X : array or MappedRows of numbers, of shape (n, ...)
        Of which only the shape and the type are looked at.
    classes, size, norm, name
        As declared.
    relation : {"add-remove", "replace-one"}

    Returns
    -------
    Dataset
        Of the same width, type and declared figures. Under replace-one, where it is public, it
        has as many rows; under add-remove a few.

    Guarantees
    ----------
    It depends on no record and, under add-remove, not on how many there are.
    """
    n = len(X) if relation == "replace-one" else max(_SYNTHETIC_ROWS, len(classes))
    some = synthetic_rows(math.prod(X.shape[1:]))
    if norm is not None:
        some *= norm / (2 * np.linalg.norm(some, axis=1, keepdims=True))
    rows = np.abs(some * 100).astype(np.uint8) if X.dtype.kind == "u" else some.astype(X.dtype)
    return Dataset(
        np.resize(rows, (n, rows.shape[1])).reshape(n, *X.shape[1:]),
        np.arange(n) % len(classes),
        tuple(classes),
        size=size,
        norm=norm,
        name=name,
    )


def synthetic_rows(width: int) -> Floats:
    """A few rows of numbers for which usual functions have a value."""
    rng = np.random.default_rng(0)  # public draws: there is nothing to hide in them
    return rng.uniform(0.1, 0.9, (_SYNTHETIC_ROWS, width))


_BLOCKS = (3, 30, 64, 256)  # rows that are turned together in a trial
_TRIAL_ROWS = 64


def replace_nonfinite(rows: Any) -> Array:
    """A dense array of floats, with zero for what is not finite."""
    dense = np.asarray(rows.toarray() if sparse.issparse(rows) else rows)
    numbers = dense if dense.dtype in (np.float32, np.float64) else dense.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, 0)


def transform_rows(step: Any, rows: Array, like: Array) -> Array:
    """Rows as a step turns them that may be anybody's function.

    Parameters
    ----------
    step : fitted transformer
    rows : array of shape (n, d)
    like : array of shape (m, width)
        What the step makes of made-up rows: the form that the result must have.

    Returns
    -------
    array of shape (n, width)

    Guarantees
    ----------
    No row raises an error or a warning, and none changes the form of the result. Rows that
    cannot be turned together are turned one by one; those that raise an error by themselves,
    or would be wider or narrower than the others, become zero.
    """
    together = _try_transform(step, rows, like)
    if together is not None:
        return together
    result = np.zeros((len(rows), like.shape[1]), like.dtype)
    for place, row in enumerate(rows):
        alone = _try_transform(step, row[None], like)
        if alone is not None:
            result[place] = alone[0]
    return result


def _try_transform(step: Any, rows: Array, like: Array) -> Array | None:
    """Rows as a step turns them together; None if it raises or gives another form."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            result = replace_nonfinite(step.transform(rows)).astype(like.dtype, copy=False)
        except Exception:  # whatever a function of the user's may raise for a record
            return None
    return replace_nonfinite(result) if result.shape == (len(rows), like.shape[1]) else None


def transform_synthetic(step: Any, form: Array) -> Array:
    """Made-up rows as a step turns them; what it raises for them is told.

    Raises
    ------
    ValueError
        If the result is not one row for each.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = replace_nonfinite(step.transform(form))
    if result.ndim != 2 or len(result) != len(form):
        raise row_dependence_error(step)
    return result


def check_row_independence(step: Any, form: Array) -> None:
    """Refuse a step that lets one row change another's result, tried on made-up rows.

    Parameters
    ----------
    step : fitted transformer
    form : array of shape (m, d)
        Made-up rows that it is meant for; their width and type are taken for all others.

    Raises
    ------
    ValueError
        If rows get another result in company than alone, in one of a few hundred trials.

    Guarantees
    ----------
    None: it catches mistakes. That a step never mixes rows is the word of who wrote it.
    """
    like = transform_synthetic(step, form)
    for rows in _trial_rows(form):
        alone = np.concatenate([transform_rows(step, row[None], like) for row in rows])
        company = np.resize(rows[:4], (_BLOCKS[-1] - len(rows), rows.shape[1]))
        many = np.concatenate([rows, company])
        for size in _BLOCKS:
            starts = range(0, len(rows), size)
            blocks = [transform_rows(step, many[at : at + size], like) for at in starts]
            if not _agree(np.concatenate(blocks)[: len(rows)], alone, rows):
                raise row_dependence_error(step)


def _trial_rows(form: Array) -> list[Array]:
    """Sets of made-up rows: usual, negative, of all sizes, and mostly zero."""
    rng = np.random.default_rng(0)  # public draws: there is nothing to hide in them
    usual = np.resize(np.asarray(form, dtype=np.float64), (_TRIAL_ROWS, form.shape[1]))
    usual = usual * rng.uniform(0.5, 1.5, usual.shape)
    sizes = rng.choice([0.0, 1e-6, -1e-3, 0.5, -2.0, 30.0, -1e3], usual.shape)
    sizes[40], sizes[41], sizes[50:54] = 1e6, -1e6, sizes[49]  # outliers, and copies
    sparse_rows = np.zeros_like(usual)
    sparse_rows[5], sparse_rows[20, ::2], sparse_rows[60] = 3.0, -1.0, 1e6
    sets = [usual, -np.abs(usual) - 0.1, sizes, sparse_rows]
    return [_cast(rows, form.dtype) for rows in sets]


def _cast(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Rows in another type, that nobody may write to."""
    whole = dtype.kind in "iu"
    result = (np.abs(rows) % 256 if whole else rows).astype(dtype)
    result.flags.writeable = False
    return result


def _agree(together: Array, alone: Array, rows: Array) -> bool:
    """Whether two results differ by roundings at most, row by row."""
    exact = together.dtype == np.float64 and rows.dtype != np.float32
    sizes = [np.abs(part).max(axis=1, initial=0.0) for part in (rows, alone)]
    allowed = (1e-9 if exact else 1e-5) * np.maximum(*sizes) + 1e-12
    return bool((np.abs(together - alone).max(axis=1, initial=0.0) <= allowed).all())


def row_dependence_error(step: Any) -> ValueError:
    """What to tell of a step that mixes rows."""
    return ValueError(
        f"Expected a step that turns each row by itself, got {step!r}, whose result for a "
        "row depends on the others. Use constants that are known without the records."
    )


_TRANSFORMED_ROWS = 65_536  # rows that are transformed together
_FORM_ROWS = 16  # made-up rows that show the form of a step's result
PIPELINE_STEP = "it is a part of a pipeline, whose statement counts"
_ROW_WISE = (FunctionTransformer, Normalizer, Binarizer, PolynomialFeatures)
_REPLACEMENTS = {
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
    >>> from veracal.training import NormClipper, PrivateStandardizer
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
        elif not is_row_wise(step):
            raise ValueError(
                "Expected steps that state their cost or learn nothing from the records, got "
                f"{step!r}{f' as {name!r}' if name else ''}. {_suggest_replacement(step)}"
            )
    check_structure(estimator)
    return compose_events(events)


def is_private_step(step: Any) -> bool:
    """Whether a step states its cost and takes whole data sets; a frozen one does neither."""
    return isinstance(step, PrivateStep) and not isinstance(step, FrozenEstimator)


def private_steps(estimator: Any) -> list[tuple[str, Any]]:
    """The steps inside an estimator that state their cost, with their names."""
    found = inner_steps(estimator)
    return [(name, step) for name, step in found if is_private_step(step)]


def compose_events(events: list[Event]) -> Event | None:
    """Several events on the same records as one; None for none."""
    if len(events) > 1:
        return Composed(tuple(events))
    return events[0] if events else None


def is_unverified(step: Any) -> bool:
    """Whether nobody but the user knows that a step turns each row by itself."""
    if isinstance(step, FrozenEstimator):
        return not isinstance(step.estimator, PrivateTransformer)
    return type(step) is FunctionTransformer and step.func is not None


def is_row_wise(step: Any) -> bool:
    """Whether a transformer of scikit-learn turns each row by itself and learns nothing.

    Guarantees
    ----------
    For ``Normalizer``, ``Binarizer``, ``PolynomialFeatures``, and ``OneHotEncoder`` with
    declared categories it is known. A ``FunctionTransformer`` is the *user's word* that its
    function turns each row by itself and holds nothing of the records; so is a
    ``FrozenEstimator``, of which no fit changes anything, that it was fitted to public
    records or paid for before. Both are tried on made-up rows
    (:func:`check_rows_apart`), which catches mistakes and proves nothing.
    """
    if type(step) is FrozenEstimator:
        return not own_reasons(step.estimator)
    if type(step) is OneHotEncoder:
        declared = not isinstance(step.categories, str)
        counts = step.min_frequency is not None or step.max_categories is not None
        quiet = step.handle_unknown in ("ignore", "infrequent_if_exist") and step.drop is None
        return declared and quiet and not counts
    return type(step) in _ROW_WISE


def own_reasons(step: Any) -> list[str]:
    """Why a fitted step is not private, but for being a part of something."""
    return [why for why in getattr(step, "not_private_because_", ()) if why != PIPELINE_STEP]


def unpaid_reasons(estimator: Any) -> list[str]:
    """What a plain fit read off the records, or may have, in steps that state no cost."""
    reasons = []
    for name, step in all_steps(estimator):
        kind = type(step).__name__
        if chooses_columns(step):
            reasons.append(f"{name}: a function chose the columns by looking at the records")
        if child_steps(step) is not None or is_absent(step) or is_private_step(step):
            continue
        if not is_row_wise(step):
            reasons.append(f"{name}: {kind} learns from the records and states no cost")
        elif is_unverified(step) and not _passes_trial(step):
            reasons.append(f"{name}: {kind} did not pass a trial that it turns rows apart")
    return reasons


def _passes_trial(step: Any) -> bool:
    """Whether a step that was fitted plainly turns made-up rows each by itself."""
    try:
        check_row_independence(step, synthetic_rows(step.n_features_in_))
    except Exception:  # whatever a function may raise for rows that it was not made for
        return False
    return True


def fit_step(step: Any, dataset: Dataset, stand_in: Dataset) -> None:
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
            fit_step(inner, dataset, stand_in)
            dataset, stand_in = transform_both(inner, dataset, stand_in)
    elif isinstance(step, ColumnTransformer):
        _fit_quietly(step, stand_in)
        for _, inner, columns in step.transformers_:
            fit_step(
                inner, _select_columns(dataset, columns), _select_columns(stand_in, columns)
            )
    elif isinstance(step, FeatureUnion):
        _fit_quietly(step, stand_in)
        for _, inner in step.transformer_list:
            fit_step(inner, dataset, stand_in)
    elif not is_absent(step):
        if not isinstance(step, FrozenEstimator):
            _fit_quietly(step, stand_in)
        if is_unverified(step):
            check_row_independence(step, stand_in.X[:_FORM_ROWS])


def transform_both(
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
    together = 1 if alone and not isinstance(step, PrivateTransformer) else _TRANSFORMED_ROWS
    changed = _transform_dataset(step, dataset, stand_in, together)
    return changed, _transform_dataset(step, stand_in, stand_in, _TRANSFORMED_ROWS)


def _transform_dataset(
    step: Any, dataset: Dataset, stand_in: Dataset, together: int
) -> Dataset:
    """A data set as a fitted step turns it, in the form of its stand-in."""
    if is_absent(step):
        return dataset
    n, form = len(dataset), stand_in.X[:_FORM_ROWS]
    with np.errstate(all="ignore"):
        if n == 0:  # scikit-learn takes no empty array: learn the width elsewhere
            X = transform_block(step, form, form)[:0]
        else:
            blocks = (dataset.X[start : start + together] for start in range(0, n, together))
            X = np.concatenate([transform_block(step, block, form) for block in blocks])
    norm = step.longest_row() if isinstance(step, PrivateTransformer) else None
    X.flags.writeable = False  # or the data set would copy it
    return replace(dataset, X=X, norm=norm, feature_names=())


def transform_block(step: Any, X: Array, form: Array) -> Array:
    """Rows as a fitted step turns them, with zero for what is not finite after any step.

    What the step makes of made-up rows, ``form``, gives the width and the type of the result.
    """
    if is_absent(step):
        return X
    if isinstance(step, Pipeline):
        for _, inner in step.steps:
            X, form = transform_block(inner, X, form), transform_block(inner, form, form)
        return X
    if isinstance(step, ColumnTransformer):
        parts = [(key, inner, _column_indices(X, at)) for key, inner, at in step.transformers_]
    elif isinstance(step, FeatureUnion):
        parts = [
            (key, inner, _column_indices(X, slice(None)))
            for key, inner in step.transformer_list
        ]
    elif isinstance(step, PrivateTransformer):
        return replace_nonfinite(step.transform(X))
    else:
        return transform_rows(step, X, transform_synthetic(step, form))
    weights = step.transformer_weights or {}
    kept = [
        replace_nonfinite(transform_block(inner, X[:, at], form[:, at]) * weights.get(key, 1.0))
        for key, inner, at in parts
        if not (isinstance(inner, str) and inner == "drop")
    ]
    return np.hstack([np.empty((len(X), 0), kept[0].dtype if kept else float), *kept])


def _column_indices(X: Array | MappedRows, columns: Any) -> Ints:
    """Numbers of the columns that a ColumnTransformer names in any of its ways."""
    return np.atleast_1d(np.arange(X.shape[1])[columns])


def _select_columns(dataset: Dataset, columns: Any) -> Dataset:
    """Some columns of a data set."""
    chosen, n = _column_indices(dataset.X, columns), len(dataset)
    blocks = [
        dataset.X[start : start + _TRANSFORMED_ROWS][:, chosen]
        for start in range(0, n, _TRANSFORMED_ROWS)
    ]
    X = np.concatenate(blocks) if blocks else np.empty((0, len(chosen)))
    return replace(dataset, X=X, norm=None, feature_names=())


def _fit_quietly(step: Any, stand_in: Dataset) -> None:
    """Fit to made-up rows, of whose odd values nobody need hear."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        step.fit(stand_in.X[:])


def _suggest_replacement(step: Any) -> str:
    """What to use instead of a step that would leak."""
    name = type(step).__name__
    if isinstance(step, FrozenEstimator):
        return f"What is frozen is not private: {'; '.join(own_reasons(step.estimator))}."
    if name in _REPLACEMENTS:
        return f"Use {_REPLACEMENTS[name]}."
    return (
        "Leave it out, fit it to public records and wrap its transform into a "
        "FunctionTransformer, or use a step of veracal.training."
    )
