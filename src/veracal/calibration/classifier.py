"""Predictions of a fitted classifier with a map behind it.

A fitted classifier with a map behind it, for scikit-learn.
"""

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
from veracal.data import Kind, MappedRows, Scores, logits_of
from veracal.errors import DataError


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
    map_: CalibrationMap
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


Response = Literal["logits", "decision_function", "predict_proba"]
_RESPONSES: tuple[Response, ...] = ("logits", "decision_function", "predict_proba")


class CalibratedClassifier(
    MappedPredictions,
    ClassifierMixin,  # type: ignore[misc]
    MetaEstimatorMixin,  # type: ignore[misc]
    DisplayMixin,
):
    """A fitted classifier whose probabilities are mapped, **not private**.

    ``fit`` leaves the classifier as it is and fits the map alone, so X and y must be records
    the classifier was not fitted on: on its own records it is surer than elsewhere, and the
    map would learn that. To fit the classifier there would be guessing which part of the
    records is for which; one that is not fitted is refused.

    Parameters
    ----------
    estimator : classifier
        Fitted. Inside a search or another meta-estimator, which clone what they are given,
        wrap it in :class:`sklearn.frozen.FrozenEstimator`.
    method : MapFitter, optional
        How the map is fitted; :class:`TemperatureScaling` by default.
    response : 'logits', 'decision_function' or 'predict_proba', optional
        The method of the estimator that is asked; by default the first of them that it has.
        The first two are taken for logits and the last for probabilities: which of them
        numbers are is never guessed from the numbers.

    Attributes
    ----------
    response_ : str
        Method of the estimator that is asked.
    kind_ : 'logits' or 'probabilities'
        What the estimator gives.
    map_ : Map
    method_ : MapFitter
        The fitted one.
    classes_ : array of shape (k,)
        Those of the estimator; records of the fit need not have them all.
    private_ : bool
        False.

    Notes
    -----
    A decision function is taken for logits even where softmax of it is not the estimator's
    own ``predict_proba`` (as with classifiers that learn each class against the rest): the
    map is fitted to what softmax gives. scikit-learn's ``check_estimator`` passes for a
    subclass that fits its estimator first; as it stands the checks cannot be run, because they
    bring records that the estimator was not fitted for.

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
        """Fit the map to records that the classifier has not seen."""
        check_is_fitted(self.estimator)
        labels = column_or_1d(y)
        check_consistent_length(X, labels)
        response = _response(self.estimator, self.response)
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
        """Names of the features of the estimator, if it has any."""
        return cast(Array, self.estimator.feature_names_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return "map_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _mapped(self, X: ArrayLike) -> Scores:
        """Mapped scores of rows."""
        check_is_fitted(self)
        return self.map_.transform(_scores(self.estimator, self.response_, X, None))


def _response(estimator: Any, asked: Response | None) -> Response:
    """Name the method of the estimator that is asked."""
    if asked is not None:
        _checks.one_of(_RESPONSES, response=asked)
    for name in _RESPONSES if asked is None else (asked,):
        if getattr(estimator, name, None) is not None:
            return name
    raise ValueError(
        f"Expected an estimator with {asked or ' or '.join(_RESPONSES)}, got {estimator!r}."
    )


def _codes(labels: Array, classes: Array) -> Ints:
    """Positions of labels among the classes of the estimator."""
    places = {label: place for place, label in enumerate(classes.tolist())}
    codes = np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise DataError(
            "y",
            f"classes of the estimator, {classes.tolist()!r:.80}",
            f"{labels.tolist()[row]!r:.60} in record {row + 1}",
            "Pass labels as the estimator was fitted to them.",
        )
    return codes


def _scores(estimator: Any, response: Response, X: Any, codes: Ints | None) -> Scores:
    """Scores of rows by one method of the estimator, for classes named by position."""
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
