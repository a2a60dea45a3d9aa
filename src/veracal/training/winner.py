"""Predictions of what a search has found."""

from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import ArrayLike
from sklearn.base import MetaEstimatorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from veracal._types import Array, Floats

Method = TypeVar("Method", bound=Callable[..., Any])


def _if_searched(method: str) -> Callable[[Method], Method]:
    """A decorator: the method is there where what is searched has it."""

    def check(search: "Winner") -> bool:
        getattr(search.estimator, method)  # raises what scikit-learn expects
        return True

    decorator: Callable[[Method], Method] = available_if(check)
    return decorator


class Winner(MetaEstimatorMixin):  # type: ignore[misc]
    """Whatever predicts by ``best_estimator_``, of the kind of ``estimator``."""

    estimator: Any
    best_estimator_: Any
    classes_: Array

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row, by the winner."""
        check_is_fitted(self)
        labels: Array = self.best_estimator_.predict(X)
        return labels.astype(self.classes_.dtype, copy=False)

    @_if_searched("predict_proba")
    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, of shape (n, k), by the winner."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.predict_proba(X)
        return result

    @_if_searched("predict_log_proba")
    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the probabilities, of shape (n, k), by the winner."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.predict_log_proba(X)
        return result

    @_if_searched("decision_function")
    def decision_function(self, X: ArrayLike) -> Floats:
        """Scores of the winner, of shape (n,) for two classes, (n, k) for more."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.decision_function(X)
        return result

    @_if_searched("logits")
    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) of the winner, whose softmax are the probabilities."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.logits(X)
        return result
