"""Classifiers that decide by weighted sums of features."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit, log_softmax
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal._types import Array, Floats
from veracal.data.rows import MappedRows
from veracal.training.estimator import PrivateClassifier

_BLOCK = 256  # rows multiplied together


def margins(X: Array | MappedRows, coef: Floats, intercept: Floats) -> Floats:
    r"""Weighted sums :math:`x_i \cdot w_c + b_c`, of shape (n, k).

    Every product has the same shape, the last one filled up with zeros: whoever stands
    beside a row, its sums have the same bits.
    """
    result = np.empty((len(X), len(coef)), dtype=np.float64)
    padded = np.zeros((_BLOCK, coef.shape[1]), dtype=coef.dtype)
    for start in range(0, len(X), _BLOCK):
        rows = X[start : start + _BLOCK]
        padded[: len(rows)] = rows
        padded[len(rows) :] = 0
        result[start : start + len(rows)] = (padded @ coef.T)[: len(rows)] + intercept
    return result


class LinearClassifier(PrivateClassifier):
    """A private classifier with ``coef_`` and ``intercept_``, in scikit-learn's shapes.

    Two classes have one row of weights, more have one row for each class. ``_one_vs_rest``
    tells whether those rows were learnt apart from each other.
    """

    coef_: Floats
    intercept_: Floats
    _one_vs_rest: bool = False

    def decision_function(self, X: ArrayLike) -> Floats:
        """Weighted sums: of shape (n,) for two classes, (n, k) for more."""
        sums = self._margins(X)
        return sums[:, 0] if sums.shape[1] == 1 else sums

    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`."""
        sums = self._margins(X)
        if sums.shape[1] == 1:
            return np.hstack([np.zeros_like(sums), sums])
        return log_expit(sums) if self._one_vs_rest else sums

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row."""
        sums = self._margins(X)
        chosen = (sums[:, 0] > 0).astype(int) if sums.shape[1] == 1 else sums.argmax(axis=1)
        labels: Array = self.classes_[chosen]
        return labels

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the probabilities of the classes, of shape (n, k)."""
        result: Floats = log_softmax(self.logits(X), axis=1)
        return result

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, of shape (n, k)."""
        return np.exp(self.predict_log_proba(X))

    def _margins(self, X: Any) -> Floats:
        """Weighted sums of checked rows, of shape (n, rows of weights)."""
        check_is_fitted(self)
        if isinstance(X, MappedRows):
            if X.shape[1] != self.n_features_in_:
                raise ValueError(
                    f"Expected {self.n_features_in_} features, got {X.shape[1]} in {X!r}."
                )
            return margins(X, self.coef_, self.intercept_)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return margins(rows, self.coef_, self.intercept_)
