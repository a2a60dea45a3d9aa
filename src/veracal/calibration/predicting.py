"""Predictions of a fitted classifier with a map behind it."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal._types import Array, Floats
from veracal.calibration.maps import Map
from veracal.data import Scores
from veracal.data.rows import MappedRows
from veracal.data.score_values import Kind
from veracal.data.scoring import logits_of


def _gives_logits(model: "MappedPredictions") -> bool:
    """Tell whether the map gives logits; raises what scikit-learn expects if not.

    Before a fit nobody knows, and whoever asks is told that there was none.
    """
    if not model._may_give_logits:
        check_is_fitted(model)
    if "gives_" in vars(model) and model.gives_ != "logits":
        raise AttributeError(f"{model.map_.kind!r} maps give probabilities, and no logits.")
    return True


class MappedPredictions:
    """Whatever predicts by ``map_`` of the logits of ``estimator_``, row by row.

    Attributes
    ----------
    estimator_ : classifier
    map_ : Map
    classes_ : array of shape (k,)
        In the order of the estimator's.
    gives_ : 'logits' or 'probabilities'
        What the map makes of logits.
    """

    classes_: Array
    estimator_: Any
    gives_: Kind
    map_: Map
    _may_give_logits = True  # whether the methods for logits are there before a fit

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row after the map, the first of equal ones."""
        scores = self._mapped(X)
        labels: Array = self.classes_[scores.predictions]
        return labels

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Mapped probabilities of shape (n, k)."""
        return self._mapped(X).probabilities

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the mapped probabilities, of shape (n, k)."""
        return self._mapped(X).log_probabilities

    @available_if(_gives_logits)  # type: ignore[untyped-decorator]
    def logits(self, X: ArrayLike) -> Floats:
        """Mapped logits of shape (n, k), where the map gives logits."""
        return self._mapped(X).logits

    @available_if(_gives_logits)  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Floats:
        """Mapped logits of shape (n, k), or for two classes their difference, of shape (n,)."""
        logits = self._mapped(X).logits
        if logits.shape[1] > 2:
            return logits
        with np.errstate(over="ignore"):
            most = np.finfo(np.float64).max
            return np.clip(logits[:, 1] - logits[:, 0], -most, most)

    def _mapped(self, X: Any) -> Scores:
        """Mapped scores of rows."""
        check_is_fitted(self)
        if not isinstance(X, MappedRows):
            X = validate_data(self, X, reset=False, **rows_for(self.estimator_))
        logits = logits_of(self.estimator_, X, len(self.classes_))
        return self.map_.transform(Scores.from_logits(logits))


def rows_for(model: Any) -> dict[str, Any]:
    """What scikit-learn is to check of rows for a model: numbers, or whatever it takes."""
    if getattr(model, "any_rows", False) is True:
        return {"dtype": None, "allow_nd": True}
    return {"dtype": [np.float64, np.float32]}
