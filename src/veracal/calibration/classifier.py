"""Fitted classifiers whose probabilities pass through a calibration map, for scikit-learn."""

from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import Tags, column_or_1d, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from veracal import _checks
from veracal._display import DisplayMixin
from veracal._types import Array, Floats, Ints
from veracal.calibration.fitters import MapFitter, TemperatureScaling
from veracal.calibration.maps.base import CalibrationMap
from veracal.data import Kind, MappedRows, Scores, compute_logits
from veracal.errors import DataError


def _gives_logits(model: "MappedPredictions") -> bool:
    """Whether the calibration map returns logits; raises ``AttributeError`` if it does not.

    Before the fit this is unknown, and a ``NotFittedError`` is raised.
    """
    if not model._may_give_logits:
        check_is_fitted(model)
    if "gives_" in vars(model) and model.gives_ != "logits":
        raise AttributeError(f"{model.map_.kind!r} maps give probabilities, and no logits.")
    return True


class MappedPredictions:
    """Mixin that predicts by applying ``map_`` to the logits of ``estimator_``, row by row."""

    classes_: Array  # in the order of the estimator's
    estimator_: Any
    gives_: Kind  # what the map returns for logits
    map_: CalibrationMap
    _may_give_logits = True  # whether the methods for logits are there before a fit

    def predict(self, X: ArrayLike) -> Array:
        """Most probable class of each row after the map; ties go to the first class."""
        scores = self._map_rows(X)
        labels: Array = self.classes_[scores.predictions]
        return labels

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Mapped probabilities of shape (n, k)."""
        return self._map_rows(X).probabilities

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the mapped probabilities, of shape (n, k)."""
        return self._map_rows(X).log_probabilities

    @available_if(_gives_logits)  # type: ignore[untyped-decorator]
    def logits(self, X: ArrayLike) -> Floats:
        """Mapped logits of shape (n, k), where the map gives logits."""
        return self._map_rows(X).logits

    @available_if(_gives_logits)  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Floats:
        """Mapped logits of shape (n, k); for two classes their difference, of shape (n,)."""
        logits = self._map_rows(X).logits
        if logits.shape[1] > 2:
            return logits
        with np.errstate(over="ignore"):
            most = np.finfo(np.float64).max
            return np.clip(logits[:, 1] - logits[:, 0], -most, most)

    def _map_rows(self, X: Any) -> Scores:
        """Mapped scores of rows."""
        check_is_fitted(self)
        if not isinstance(X, MappedRows):
            X = validate_data(self, X, reset=False, **rows_for(self.estimator_))
        logits = compute_logits(self.estimator_, X, len(self.classes_))
        return self.map_.transform(Scores.from_logits(logits))


def rows_for(model: Any) -> dict[str, Any]:
    """Arguments of scikit-learn's ``validate_data``: numeric rows, or any rows."""
    if getattr(model, "any_row_shape", False) is True:
        return {"dtype": None, "allow_nd": True}
    return {"dtype": [np.float64, np.float32]}


Response = Literal["logits", "decision_function", "predict_proba"]
_RESPONSES: tuple[Response, ...] = ("logits", "decision_function", "predict_proba")


class CalibratedClassifier(
    MappedPredictions,
    ClassifierMixin,  # type: ignore[misc]
    MetaEstimatorMixin,  # type: ignore[misc]
    DisplayMixin,
):
    """A fitted classifier with a calibration map, **not private**.

    ``fit`` fits only the map, so X and y must be records that the classifier was not trained
    on: a classifier is more confident on its training records than on others. An estimator
    that is not fitted is rejected, because Veracal does not guess which records to train on.

    Parameters
    ----------
    estimator : classifier
        Fitted. Inside a search or another meta-estimator, which clones its estimator, wrap it
        in :class:`sklearn.frozen.FrozenEstimator`.
    method : MapFitter, optional
        Fitter of the calibration map; :class:`TemperatureScaling` by default.
    response : 'logits', 'decision_function' or 'predict_proba', optional
        Method of the estimator that gives the scores; by default the first of these that it
        has. The first two give logits and the last gives probabilities; the kind is never
        guessed from the values.

    Attributes
    ----------
    response_ : str
        Method of the estimator that gives the scores.
    kind_ : 'logits' or 'probabilities'
        Kind of scores that the estimator gives.
    map_ : CalibrationMap
    method_ : MapFitter
        The fitted copy of ``method``.
    classes_ : array of shape (k,)
        Classes of the estimator; not all of them need to occur in the calibration records.
    private_ : bool
        False.

    Notes
    -----
    A decision function is read as logits even where its softmax differs from the estimator's
    own ``predict_proba`` (as for one-vs-rest classifiers): the map is fitted to the softmax.
    scikit-learn's ``check_estimator`` passes for a subclass that fits its estimator first; it
    cannot run on this class, because it brings records that the estimator was not fitted to.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = CalibratedClassifier(GaussianNB().fit(X[::2], y[::2])).fit(X[1::4], y[1::4])
    >>> model.response_, model.kind_, model.map_.inverse < 1
    ('predict_proba', 'probabilities', True)
    """

    private_: ClassVar[bool] = False
    _may_give_logits = False
    kind_: Kind
    method_: MapFitter
    response_: Response

    def __init__(
        self,
        estimator: Any,
        method: MapFitter | None = None,
        *,
        response: Response | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.response = response

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the map to records that the classifier was not trained on."""
        check_is_fitted(self.estimator)
        labels = column_or_1d(y)
        check_consistent_length(X, labels)
        if self.response is not None:
            _checks.one_of(_RESPONSES, response=self.response)
        methods = _RESPONSES if self.response is None else (self.response,)
        response = next(
            (r for r in methods if getattr(self.estimator, r, None) is not None), None
        )
        if response is None:
            raise ValueError(
                f"Expected an estimator with {' or '.join(methods)}, got {self.estimator!r}."
            )
        codes = _codes(labels, self.estimator.classes_)
        scores = _scores(self.estimator, response, X, codes)
        method = TemperatureScaling() if self.method is None else clone(self.method)
        mapped = method.fit_transform(scores)
        self.method_, self.map_, self.response_ = method, method.map_, response
        self.kind_, self.gives_ = scores.kind, mapped.kind
        self.estimator_, self.classes_ = self.estimator, self.estimator.classes_
        return self

    @property
    def n_features_in_(self) -> int:
        """Number of features of the estimator."""
        return cast(int, self.estimator.n_features_in_)

    @property
    def feature_names_in_(self) -> Array:
        """Feature names of the estimator, if it has any."""
        return cast(Array, self.estimator.feature_names_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return "map_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _map_rows(self, X: ArrayLike) -> Scores:
        """Mapped scores of rows."""
        check_is_fitted(self)
        return self.map_.transform(_scores(self.estimator, self.response_, X, None))


def _codes(labels: Array, classes: Array) -> Ints:
    """Index of each label among the classes of the estimator."""
    index = {label: i for i, label in enumerate(classes.tolist())}
    codes = np.array([index.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise DataError(
            "y",
            f"classes of the estimator, {classes.tolist()!r:.80}",
            f"{labels.tolist()[row]!r:.60} in record {row + 1}",
            "Use the labels that the estimator was trained with.",
        )
    return codes


def _scores(estimator: Any, response: Response, X: Any, codes: Ints | None) -> Scores:
    """Scores of rows by one method of the estimator, with classes named by index."""
    k = len(estimator.classes_)
    values = np.atleast_1d(getattr(estimator, response)(X))
    if values.shape not in ((len(values), k), (len(values),) if k == 2 else ()):
        raise ValueError(
            f"Expected {response} to give a column for each of {k} classes, got shape "
            f"{values.shape}. Choose another response, or other settings of the estimator."
        )
    if response == "predict_proba":
        return Scores.from_probabilities(values, codes, name=response)
    return Scores.from_logits(values, codes, name=response)
