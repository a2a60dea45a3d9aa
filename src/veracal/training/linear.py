"""Classifiers that decide by weighted sums of features."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit, log_softmax
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal._aligned import aligned
from veracal._types import Array, Floats, Ints
from veracal.data.fixed_shape import at_places, places_alike
from veracal.data.rows import MappedRows
from veracal.training.estimator import PrivateEstimator

_BLOCK = 256  # rows multiplied together
_SUMS = 40  # of made-up rows, of which some would show another order of additions
_SATURATED = 700.0  # where a logistic function is 1 to the last of its digits


def margins(X: Array | MappedRows, coef: Floats, intercept: Floats) -> Floats:
    r"""Weighted sums :math:`x_i \cdot w_c + b_c`, of shape (n, k).

    Guarantees
    ----------
    The sums of a row have the same bits, whoever stands beside or before it, on the terms of
    :func:`veracal.data.fixed_shape.at_places`.
    """
    result, done = np.empty((len(X), len(coef)), dtype=np.float64), 0
    block, coef = np.empty((_BLOCK, coef.shape[1]), dtype=coef.dtype), aligned(coef)
    places = _places(coef.shape, coef.dtype)
    for sums in at_places(lambda rows: rows @ coef.T, X, places, block):
        result[done : done + len(sums)] = sums + intercept
        done += len(sums)
    return result


def apart_logits(sums: Floats) -> Floats:
    r"""Logits :math:`\ln\sigma(s)` of classes that were learnt apart from each other.

    Beyond s = 700 float64 soon has no numbers left between them and 0. There
    :math:`700\ln\sigma(700)/s` stands in, which differs by less than 1e-304 and goes on rising:
    the largest sum has the largest logit.

    Examples
    --------
    >>> int(apart_logits(np.array([0.0, 1000.0, 2000.0])).argmax())
    2
    """
    found: Floats = log_expit(np.minimum(sums, _SATURATED))
    return found * (_SATURATED / np.maximum(sums, _SATURATED))


def _places(shape: tuple[int, int], dtype: Any) -> Ints:
    """Places that are alike in a product with made-up weights of a shape.

    Not with the real ones: where those are zero, one order of additions looks like another.
    """
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(shape).astype(dtype)
    tried = max(4, _SUMS // shape[0])
    some = rng.standard_normal((tried + 1, shape[1])).astype(dtype)
    made_up = np.resize(some, (_BLOCK, shape[1]))
    return places_alike(lambda rows: rows @ weights.T, made_up, tried)


class LinearClassifier(PrivateEstimator):
    """A private classifier with ``coef_`` and ``intercept_``, in scikit-learn's shapes.

    Two classes have one row of weights, more have one row for each class. ``_one_vs_rest``
    tells whether those rows were learnt apart from each other.
    """

    coef_: Floats
    intercept_: Floats
    _one_vs_rest: bool = False
    rows_apart = True  # see margins; logits_of need not see to it

    def decision_function(self, X: ArrayLike) -> Floats:
        """Weighted sums: of shape (n,) for two classes, (n, k) for more."""
        sums = self._margins(X)
        return sums[:, 0] if sums.shape[1] == 1 else sums

    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`."""
        sums = self._margins(X)
        if sums.shape[1] == 1:
            return np.hstack([np.zeros_like(sums), sums])
        return apart_logits(sums) if self._one_vs_rest else sums

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
