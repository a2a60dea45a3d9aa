"""Scores of people by any classifier, with a column for each declared class."""

from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from veracal._types import Array, Floats
from veracal.calibration.predicting import MappedPredictions
from veracal.data.labels import Label, encode_labels
from veracal.data.rows import MappedRows
from veracal.errors import DataError
from veracal.multiplicity.engines.base import Kind

_MOST = 0.9 * np.finfo(np.float64).max  # of a logit; the rest is room for sums
_ROUNDING = 1e-5  # that probabilities in float32 may be off
_WAYS: dict[Kind, tuple[str, ...]] = {
    "logit": ("logits", "decision_function"),
    "probability": ("predict_proba", "predict"),
}
_BEST_FIRST = ("logits", "predict_proba", "decision_function", "predict")


def kind_of(model: Any) -> Kind:
    """What the scores of a classifier are, known before it is fitted.

    Logits where the classifier has them (a method ``logits``); else probabilities; else a
    ``decision_function``, taken for logits; else decisions, as probabilities 0 and 1.
    """
    last = model
    while isinstance(last, Pipeline) and last.steps:
        last = last.steps[-1][1]
    if isinstance(last, MappedPredictions):
        return "probability"  # whether its map gives logits is known after the fit alone
    for way in _BEST_FIRST:
        if _gives(model, way):
            return next(kind for kind, ways in _WAYS.items() if way in ways)
    raise ValueError(f"Expected a classifier with {_or(_BEST_FIRST)}, got {model!r}.")


def scores_of(
    model: Any, X: Array | MappedRows, classes: tuple[Label, ...], kind: Kind
) -> Array:
    """Scores of rows by a fitted classifier, of shape (n, k), in the order of ``classes``.

    Parameters
    ----------
    model : classifier
        Fitted. Its ``classes_`` tell which column is whose. A class that it does not know
        has probability zero, or the least logit there is.
    X : array or MappedRows of shape (n, d)
    classes : tuple of str or int
    kind : {"logit", "probability"}
    """
    way = next((way for way in _WAYS[kind] if _gives(model, way)), None)
    if way is None:
        raise ValueError(f"Expected a classifier with {_or(_WAYS[kind])}, got {model!r}.")
    given = np.asarray(getattr(model, way)(X))
    if way == "predict":
        return np.eye(len(classes))[encode_labels(given, classes, "a decision")]
    known = getattr(model, "classes_", None)
    if known is None:
        raise ValueError(f"Expected a fitted classifier with classes_, got {model!r}.")
    return _in_order(given, encode_labels(known, classes, "classes_"), len(classes), kind)


def in_form(scores: Any, people: int, k: int, kind: Kind, where: str) -> Floats:
    """Scores as an engine gives them: finite, of shape (people,) for two classes.

    Parameters
    ----------
    scores : array of shape (people,) or (people, k)
        Those of the second class alone, if there are two; or of every class.
    people, k : int
    kind : {"logit", "probability"}
        Logits beyond the range of floats become the largest ones; probabilities of three and
        more classes are divided by their sum, which rounding may have moved.
    where : str
        Which run this is, as an error tells it.

    Raises
    ------
    DataError
        If they are NaN, or no probabilities, or too few or too many.
    """
    found = _numbers(scores, where)
    alone = k == 2 and found.shape == (people,)
    if not alone and found.shape != (people, k):
        expected = f"shape {(people, k)}" + f" or {(people,)}" * (k == 2)
        raise DataError(
            where, expected, f"shape {found.shape}", "Give one row of scores for each person."
        )
    if np.isnan(found).any():
        first = int(np.argwhere(np.isnan(found))[0][0])
        raise DataError(
            where,
            "scores that are numbers",
            f"NaN for person {first}",
            "Nothing was concluded from this run. Look at what the model does with that row.",
        )
    return _probabilities(found, where) if kind == "probability" else _logits(found)


def _numbers(scores: Any, where: str) -> Floats:
    """Scores as an array of float64."""
    try:
        return np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise DataError(
            where, "an array of scores", f"{type(scores).__name__}", "Return numbers."
        ) from cause


def _logits(found: Floats) -> Floats:
    """Finite logits; of two classes, by how much the second one is ahead."""
    finite = np.clip(found, -_MOST, _MOST)
    if finite.ndim == 1 or finite.shape[1] > 2:
        return finite
    halves: Floats = finite[:, 1] / 2 - finite[:, 0] / 2  # the whole could overflow
    ahead: Floats = 2 * np.clip(halves, -_MOST / 2, _MOST / 2)
    return ahead


def _probabilities(found: Floats, where: str) -> Floats:
    """Probabilities, of two classes those of the second."""
    sums = np.ones(len(found)) if found.ndim == 1 else found.sum(axis=1)
    outside = (found < -_ROUNDING) | (found > 1 + _ROUNDING)
    if outside.any() or np.abs(sums - 1).max(initial=0) > _ROUNDING:
        raise DataError(
            where,
            "probabilities between 0 and 1 that sum to 1",
            f"values from {found.min():g} to {found.max():g}, "
            f"sums from {sums.min():g} to {sums.max():g}",
            "If these are logits, say kind='logit'.",
        )
    kept: Floats = np.clip(found, 0, 1)
    if kept.ndim == 1 or kept.shape[1] == 2:
        return kept.reshape(len(kept), -1)[:, -1]
    whole: Floats = kept / kept.sum(axis=1, keepdims=True)
    return whole


def _in_order(given: Array, places: Array, k: int, kind: Kind) -> Array:
    """Columns of known classes, put where the declared order has them."""
    if kind == "logit" and given.ndim == 1 and len(places) == 2:
        given = np.stack([np.zeros(len(given)), given], axis=1)
    if given.ndim != 2 or given.shape[1] != len(places):
        raise ValueError(
            f"Expected one column of scores for each of {len(places)} classes of the model, "
            f"got shape {given.shape}."
        )
    result = np.full((len(given), k), 0.0 if kind == "probability" else -_MOST)
    result[:, places] = given
    return result


def _gives(model: Any, way: str) -> bool:
    """Tell whether a model has a method, and means by its columns what we do."""
    if way == "decision_function" and _of_pairs(model):
        return False
    return callable(getattr(model, way, None))


def _of_pairs(model: Any) -> bool:
    """Tell whether a decision function has a column for each pair of classes."""
    parameters: dict[str, Any] = getattr(model, "get_params", dict)()
    return any(
        name.split("__")[-1] == "decision_function_shape" and value == "ovo"
        for name, value in parameters.items()
    )


def _or(ways: tuple[str, ...]) -> str:
    return " or ".join(ways)
