"""Steps of a pipeline: their total cost, how they are fitted, and the checks they must pass.

:func:`fit_event` composes the costs of all steps inside an estimator. :func:`synthetic_dataset`
creates records of the same form as a data set, to which steps that learn nothing are fitted.
:func:`check_row_independence` tries on synthetic rows whether a user-defined step transforms
each row independently of the others.
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
from veracal.training.base import TrainingData
from veracal.training.preprocessing import PrivateTransformer


def inner_steps(estimator: Any) -> Iterator[tuple[str, Any]]:
    """All elementary steps inside an estimator, with their nested names."""
    for name, step in all_steps(estimator):
        if child_steps(step) is None and not is_absent(step):
            yield name, step


def all_steps(estimator: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """An estimator and all steps inside it, including nested pipelines."""
    yield name, estimator
    for key, step in child_steps(estimator) or ():
        yield from all_steps(step, f"{name}__{key}" if name else key)


def child_steps(estimator: Any) -> list[tuple[str, Any]] | None:
    """The direct children of a composite estimator; None if it is not composite."""
    if isinstance(estimator, Pipeline):
        return [(key, step) for key, step in estimator.steps]
    if isinstance(estimator, ColumnTransformer):
        fitted = vars(estimator).get("transformers_")
        listed = [*estimator.transformers, ("remainder", estimator.remainder, None)]
        return [(key, step) for key, step, _ in (fitted or listed)]
    if isinstance(estimator, FeatureUnion):
        return [(key, step) for key, step in estimator.transformer_list]
    return None


def _check_once(step: Any, seen: set[int]) -> None:
    """Reject an object that occurs twice, since its second fit would undo the first."""
    if is_absent(step):
        return
    if id(step) in seen:
        raise ValueError(
            f"Expected every step once, got {step!r} in two places: the second fit would undo "
            "the first. Use sklearn.base.clone."
        )
    seen.add(id(step))
    if not isinstance(step, ColumnTransformer):  # it fits copies of its steps
        for _, part in child_steps(step) or ():
            _check_once(part, seen)


def chooses_columns(step: Any) -> bool:
    """Whether a function chooses columns by looking at the records."""
    if not isinstance(step, ColumnTransformer):
        return False
    return any(callable(columns) for _, _, columns in step.transformers)


def is_absent(step: Any) -> bool:
    """Whether a step is None or a string such as 'passthrough'."""
    return step is None or isinstance(step, str)


_SYNTHETIC_ROWS = 16


def synthetic_dataset(
    records: Dataset | TrainingData, relation: Relation, classes: Sequence[Label] | None = None
) -> Dataset:
    """Synthetic records of the same form, by default with the same classes.

    They replace the records wherever a step only needs the width of its rows, or is tried
    before anything is charged. They have the same width, type and declared facts. Under
    replace-one, where the number of rows is public, it is the same; under add-remove there are
    a few rows.

    Guarantees
    ----------
    Of the records, numbers of shape (n, ...), only shape and type are used. The result depends
    on no record and, under add-remove, not on the number of records.
    """
    X, classes = records.X, tuple(records.classes if classes is None else classes)
    norm, name = records.norm, records.name if isinstance(records, Dataset) else "data"
    n = len(X) if relation == "replace-one" else max(_SYNTHETIC_ROWS, len(classes))
    base = synthetic_rows(math.prod(X.shape[1:]))
    if norm is not None:
        base *= norm / (2 * np.linalg.norm(base, axis=1, keepdims=True))
    rows = np.abs(base * 100).astype(np.uint8) if X.dtype.kind == "u" else base.astype(X.dtype)
    return Dataset(
        np.resize(rows, (n, rows.shape[1])).reshape(n, *X.shape[1:]),
        np.arange(n) % len(classes),
        classes,
        size=records.size,
        norm=norm,
        name=name,
    )


def synthetic_rows(width: int) -> Floats:
    """A few rows of positive numbers, for which common functions are defined."""
    rng = np.random.default_rng(0)  # public draws
    return rng.uniform(0.1, 0.9, (_SYNTHETIC_ROWS, width))


_BLOCKS = (3, 30, 64, 256)  # block sizes of a trial
_TRIAL_ROWS = 64


def replace_nonfinite(rows: Any) -> Array:
    """A dense array of floats, with zero in place of values that are not finite."""
    dense = np.asarray(rows.toarray() if sparse.issparse(rows) else rows)
    numbers = dense if dense.dtype in (np.float32, np.float64) else dense.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, 0)


def transform_rows(step: Any, rows: Array, like: Array) -> Array:
    """Transform rows by a fitted step that may be a user-defined function.

    The result has the form of ``like``, the step's result for synthetic rows.

    Guarantees
    ----------
    No row raises an error or a warning, and none changes the form of the result. If the rows
    cannot be transformed together, they are transformed one by one; a row that raises an error,
    or has a result of another width, becomes zero.
    """
    together = _try_transform(step, rows, like)
    if together is not None:
        return together
    result = np.zeros((len(rows), like.shape[1]), like.dtype)
    for index, row in enumerate(rows):
        single = _try_transform(step, row[None], like)
        if single is not None:
            result[index] = single[0]
    return result


def _try_transform(step: Any, rows: Array, like: Array) -> Array | None:
    """Transform rows together; None if the step raises or the result has another form."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            result = replace_nonfinite(step.transform(rows)).astype(like.dtype, copy=False)
        except Exception:  # a user-defined function may raise anything
            return None
    return replace_nonfinite(result) if result.shape == (len(rows), like.shape[1]) else None


def transform_synthetic(step: Any, form: Array) -> Array:
    """Transform synthetic rows; errors that the step raises for them are passed on.

    Raises
    ------
    ValueError
        If the result does not have one row for each.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = replace_nonfinite(step.transform(form))
    if result.ndim != 2 or len(result) != len(form):
        raise row_dependence_error(step)
    return result


def check_row_independence(step: Any, form: Array) -> None:
    """Reject a step whose result for a row depends on other rows, tried on synthetic rows.

    All trial rows have the width and type of ``form``, synthetic rows of the step's input form.

    Guarantees
    ----------
    None: the check catches mistakes. Only the author of a step can guarantee that it never
    mixes rows.
    """
    like = transform_synthetic(step, form)
    rng = np.random.default_rng(0)  # public draws
    usual = np.resize(np.asarray(form, dtype=np.float64), (_TRIAL_ROWS, form.shape[1]))
    usual = usual * rng.uniform(0.5, 1.5, usual.shape)
    sizes = rng.choice([0.0, 1e-6, -1e-3, 0.5, -2.0, 30.0, -1e3], usual.shape)
    sizes[40], sizes[41], sizes[50:54] = 1e6, -1e6, sizes[49]  # outliers, and copies
    sparse_rows = np.zeros_like(usual)
    sparse_rows[5], sparse_rows[20, ::2], sparse_rows[60] = 3.0, -1.0, 1e6
    for trial in (usual, -np.abs(usual) - 0.1, sizes, sparse_rows):
        rows = (np.abs(trial) % 256 if form.dtype.kind in "iu" else trial).astype(form.dtype)
        rows.flags.writeable = False
        alone = np.concatenate([transform_rows(step, row[None], like) for row in rows])
        padding = np.resize(rows[:4], (_BLOCKS[-1] - len(rows), rows.shape[1]))
        padded = np.concatenate([rows, padding])
        for size in _BLOCKS:
            starts = range(0, len(rows), size)
            blocks = [transform_rows(step, padded[at : at + size], like) for at in starts]
            together = np.concatenate(blocks)[: len(rows)]
            # They may differ by rounding, row by row.
            exact = together.dtype == np.float64 and rows.dtype != np.float32
            largest = [np.abs(part).max(axis=1, initial=0.0) for part in (rows, alone)]
            allowed = (1e-9 if exact else 1e-5) * np.maximum(*largest) + 1e-12
            if not (np.abs(together - alone).max(axis=1, initial=0.0) <= allowed).all():
                raise row_dependence_error(step)


def row_dependence_error(step: Any) -> ValueError:
    """The error for a step that mixes rows."""
    return ValueError(
        f"Expected a step that transforms each row independently, got {step!r}, whose result "
        "for a row depends on other rows. Use constants that are known without the records."
    )


_TRANSFORMED_ROWS = 65_536  # rows that are transformed together
_FORM_ROWS = 16  # synthetic rows that determine the form of a step's result
PIPELINE_STEP = "it is part of a pipeline, whose statement applies"
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
        """Cost of one fit; None if it costs nothing."""

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by public facts alone."""

    def fit_records(self, dataset: Dataset) -> Any:
        """Fit to a data set."""


def fit_event(estimator: Any) -> Event | None:
    """Cost of one fit of an estimator; None if nothing is read from the records.

    For a Pipeline, ColumnTransformer or FeatureUnion, possibly nested, it is the composition of
    the costs of all steps.

    Raises
    ------
    ValueError
        If a step learns from the records without stating its cost (the message names it), if a
        step is misplaced or repeated, or if steps have different neighboring relations.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from veracal.training import NormClipper, PrivateStandardizer
    >>> scaler = PrivateStandardizer((0, 9), noise_multiplier=3.0)
    >>> fit_event(make_pipeline(scaler, NormClipper()))
    Gaussian(noise=3.0, sensitivity=1.0, relation='add-remove')
    """
    events = []
    for name, step in inner_steps(estimator):
        if is_private_step(step):
            cost = step.event()
            if cost is not None:
                events.append(cost)
        elif not is_row_wise(step):
            replacement = _REPLACEMENTS.get(type(step).__name__)
            if isinstance(step, FrozenEstimator):
                reasons = "; ".join(own_reasons(step.estimator))
                advice = f"The frozen estimator is not private: {reasons}."
            elif replacement is not None:
                advice = f"Use {replacement}."
            else:
                advice = (
                    "Leave it out, fit it to public records and wrap its transform into a "
                    "FunctionTransformer, or use a step of veracal.training."
                )
            raise ValueError(
                "Expected steps that state their cost or learn nothing from the records, got "
                f"{step!r}{f' as {name!r}' if name else ''}. {advice}"
            )
    for _, step in all_steps(estimator):
        if chooses_columns(step):
            raise ValueError(
                f"Expected declared columns, got a function that chooses them in {step!r}: it "
                "would look at the records. Give their indices."
            )
        parts = child_steps(step) or []
        for key, part in parts[:-1] if isinstance(step, Pipeline) else parts:
            if not (is_absent(part) or hasattr(part, "transform")):
                raise ValueError(
                    f"Expected a step that transforms rows, got {part!r} as {key!r}. A "
                    "classifier can only be the last step."
                )
    _check_once(estimator, set())
    return compose_events(events)


def is_private_step(step: Any) -> bool:
    """Whether a step states its cost and takes data sets; a frozen one does neither."""
    return isinstance(step, PrivateStep) and not isinstance(step, FrozenEstimator)


def private_steps(estimator: Any) -> list[tuple[str, Any]]:
    """The steps inside an estimator that state their cost, with their names."""
    return [(name, step) for name, step in inner_steps(estimator) if is_private_step(step)]


def compose_events(events: list[Event]) -> Event | None:
    """Compose events on the same records; None without events."""
    if len(events) > 1:
        return Composed(tuple(events))
    return events[0] if events else None


def is_unverified(step: Any) -> bool:
    """Whether only the user can know that a step transforms each row independently."""
    if isinstance(step, FrozenEstimator):
        return not isinstance(step.estimator, PrivateTransformer)
    return type(step) is FunctionTransformer and step.func is not None


def is_row_wise(step: Any) -> bool:
    """Whether a transformer of scikit-learn is row-wise: independent of other rows, unfitted.

    Guarantees
    ----------
    For ``Normalizer``, ``Binarizer``, ``PolynomialFeatures``, and ``OneHotEncoder`` with
    declared categories this is known. With a ``FunctionTransformer``, the *user declares* that
    its function transforms each row independently and contains nothing of the records; with a
    ``FrozenEstimator``, which no fit changes, that it was fitted to public records or charged
    before. Both are tried on synthetic rows (:func:`check_row_independence`), which catches
    mistakes and proves nothing.
    """
    if type(step) is FrozenEstimator:
        return not own_reasons(step.estimator)
    if type(step) is OneHotEncoder:
        declared = not isinstance(step.categories, str)
        counts = step.min_frequency is not None or step.max_categories is not None
        silent = step.handle_unknown in ("ignore", "infrequent_if_exist") and step.drop is None
        return declared and silent and not counts
    return type(step) in _ROW_WISE


def own_reasons(step: Any) -> list[str]:
    """Why a fitted step is not private, apart from being part of a pipeline."""
    return [why for why in getattr(step, "not_private_because_", ()) if why != PIPELINE_STEP]


def unpaid_reasons(estimator: Any) -> list[str]:
    """What a scikit-learn fit read, or may have read, from the records without a cost."""
    reasons = []
    for name, step in all_steps(estimator):
        kind = type(step).__name__
        if chooses_columns(step):
            reasons.append(f"{name}: a function chose the columns by looking at the records")
        if child_steps(step) is not None or is_absent(step) or is_private_step(step):
            continue
        if not is_row_wise(step):
            reasons.append(f"{name}: {kind} learns from the records and states no cost")
        elif is_unverified(step):
            try:
                check_row_independence(step, synthetic_rows(step.n_features_in_))
            except Exception:  # a function may raise anything for unexpected rows
                reasons.append(f"{name}: {kind} did not pass the check of row independence")
    return reasons


def fit_step(step: Any, dataset: Dataset, synthetic: Dataset) -> None:
    """Fit one step, of any kind, to a data set, in place.

    Steps that learn nothing are fitted to synthetic records of the same form, so that they
    cannot contain anything of the data set.
    """
    if is_private_step(step):
        step.fit_records(dataset)
    elif isinstance(step, Pipeline):
        for _, inner in step.steps:
            fit_step(inner, dataset, synthetic)
            dataset, synthetic = transform_both(inner, dataset, synthetic)
    elif isinstance(step, ColumnTransformer):
        _fit_quietly(step, synthetic)
        for _, inner, columns in step.transformers_:
            fit_step(
                inner, _select_columns(dataset, columns), _select_columns(synthetic, columns)
            )
    elif isinstance(step, FeatureUnion):
        _fit_quietly(step, synthetic)
        for _, inner in step.transformer_list:
            fit_step(inner, dataset, synthetic)
    elif not is_absent(step):
        if not isinstance(step, FrozenEstimator):
            _fit_quietly(step, synthetic)
        if is_unverified(step):
            check_row_independence(step, synthetic.X[:_FORM_ROWS])


def transform_both(
    step: Any, dataset: Dataset, synthetic: Dataset, *, row_wise: bool = False
) -> tuple[Dataset, Dataset]:
    """Transform a data set and its synthetic counterpart by a fitted step, in memory.

    With ``row_wise`` each row is transformed on its own. A matrix product may round a row
    differently next to other rows, and if a function raises for one row, its block is
    transformed row by row; neither may affect a discontinuous clip rule or a network. Veracal's
    own steps do neither.

    Guarantees
    ----------
    Values that are not finite become zero, entry by entry, so that no later step can fail on
    them, and so does a row for which a user-defined function raises an error. No warning is
    issued.
    """
    block = 1 if row_wise and not isinstance(step, PrivateTransformer) else _TRANSFORMED_ROWS
    transformed = _transform_dataset(step, dataset, synthetic, block)
    return transformed, _transform_dataset(step, synthetic, synthetic, _TRANSFORMED_ROWS)


def _transform_dataset(
    step: Any, dataset: Dataset, synthetic: Dataset, block_size: int
) -> Dataset:
    """Transform a data set by a fitted step, in the form of its synthetic counterpart."""
    if is_absent(step):
        return dataset
    n, form = len(dataset), synthetic.X[:_FORM_ROWS]
    with np.errstate(all="ignore"):
        if n == 0:  # scikit-learn rejects empty arrays
            X = transform_block(step, form, form)[:0]
        else:
            blocks = (
                dataset.X[start : start + block_size] for start in range(0, n, block_size)
            )
            X = np.concatenate([transform_block(step, block, form) for block in blocks])
    norm = step.longest_row() if isinstance(step, PrivateTransformer) else None
    X.flags.writeable = False  # otherwise the data set would copy it
    return replace(dataset, X=X, norm=norm, feature_names=())


def transform_block(step: Any, X: Array, form: Array) -> Array:
    """Transform rows by a fitted step, with zero for values that are not finite after any step.

    The step's result for synthetic rows, ``form``, gives the width and the type of the result.
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
        every = _column_indices(X, slice(None))
        parts = [(key, inner, every) for key, inner in step.transformer_list]
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
    """Indices of the columns that a ColumnTransformer specifies."""
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


def _fit_quietly(step: Any, synthetic: Dataset) -> None:
    """Fit to synthetic rows, without the warnings that their values may cause."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        step.fit(synthetic.X[:])
