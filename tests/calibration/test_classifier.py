"""A calibrated classifier applies its map, and keeps scikit-learn's conventions."""

import pickle
from typing import Self

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from veracal.calibration import (
    BetaCalibration,
    CalibratedClassifier,
    HistogramBinning,
    IsotonicCalibration,
    MapFitter,
    PlattScaling,
    Temperature,
    TemperatureScaling,
)
from veracal.data import Scores
from veracal.errors import DataError


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X, np.array(["benign", "malignant"])[1 - y]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def thirds(X: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(X[i::3], y[i::3]) for i in range(3)]


class HasLogits(LogisticRegression):
    """A classifier with logits and a decision function, as ours."""

    def logits(self, X: np.ndarray) -> np.ndarray:
        return X @ self.coef_.T + self.intercept_ + 7.0


@pytest.mark.parametrize(
    ("estimator", "response", "kind"),
    [
        (LogisticRegression(max_iter=1_000), "decision_function", "logits"),
        (HasLogits(max_iter=1_000), "logits", "logits"),
        (GaussianNB(), "predict_proba", "probabilities"),
        (LinearSVC(), "decision_function", "logits"),
        (
            make_pipeline(StandardScaler(), LogisticRegression()),
            "decision_function",
            "logits",
        ),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else v,
)
@pytest.mark.parametrize("frozen", [False, True])
def test_it_asks_for_logits_before_probabilities(
    estimator: object,
    response: str,
    kind: str,
    frozen: bool,
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    (X, y), held, (new, _) = thirds(*digits)
    estimator = clone(estimator).fit(X, y)
    model = CalibratedClassifier(FrozenEstimator(estimator) if frozen else estimator)
    model.fit(*held)
    assert (model.response_, model.kind_) == (response, kind)
    values = getattr(estimator, response)(new)
    make = Scores.from_logits if kind == "logits" else Scores.from_probabilities
    mapped = (
        TemperatureScaling()
        .fit(make(getattr(estimator, response)(held[0]), held[1]))
        .transform(make(values))
    )
    np.testing.assert_allclose(model.predict_proba(new), mapped.probabilities, atol=1e-12)
    np.testing.assert_array_equal(model.predict(new), estimator.predict(new))
    assert (hasattr(model, "logits"), hasattr(model, "decision_function")) == (
        kind == "logits",
        kind == "logits",
    )
    if kind == "logits":
        np.testing.assert_allclose(
            softmax(model.decision_function(new), axis=1), model.predict_proba(new), atol=1e-12
        )


def test_it_repairs_naive_bayes(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), held, new = thirds(*cancer)
    bayes = GaussianNB().fit(X, y)
    at = np.arange(len(new[1])), (new[1] == "malignant").astype(int)
    before = -bayes.predict_log_proba(new[0])[at].mean()
    for method in (TemperatureScaling(), PlattScaling("scalar"), BetaCalibration()):
        model = CalibratedClassifier(bayes, method).fit(*held)
        assert -model.predict_log_proba(new[0])[at].mean() < 0.6 * before


def test_two_classes_have_a_decision_function_of_one_dimension(
    cancer: tuple[np.ndarray, np.ndarray],
) -> None:
    (X, y), held, (new, _) = thirds(*cancer)
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    model = CalibratedClassifier(linear).fit(*held)
    assert isinstance(model.map_, Temperature)
    np.testing.assert_allclose(
        model.decision_function(new), linear.decision_function(new) * model.map_.inverse
    )
    assert set(model.predict(new)) == {"benign", "malignant"}
    assert model.score(new, linear.predict(new)) == 1
    assert model.n_features_in_ == 30


def test_maps_that_give_probabilities_have_no_logits(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    (X, y), held, (new, _) = thirds(*digits)
    linear = LogisticRegression(max_iter=1_000).fit(X, y)
    model = CalibratedClassifier(linear, IsotonicCalibration()).fit(*held)
    assert not hasattr(model, "decision_function") and not hasattr(model, "logits")
    with pytest.raises(AttributeError):
        model.decision_function(new)


def test_the_estimator_is_left_as_it_was(digits: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), held, (new, _) = thirds(*digits)
    linear = LogisticRegression(max_iter=1_000).fit(X, y)
    coef = linear.coef_.copy()
    method = HistogramBinning()
    model = CalibratedClassifier(linear, method).fit(*held)
    np.testing.assert_array_equal(linear.coef_, coef)
    assert not hasattr(method, "map_") and hasattr(model.method_, "map_")
    assert "CalibratedClassifier" in model._repr_html_()  # and no warning
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))


def test_it_can_be_searched_when_frozen(digits: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), held, _ = thirds(*digits)
    frozen = FrozenEstimator(LogisticRegression(max_iter=1_000).fit(X, y))
    model = CalibratedClassifier(frozen, PlattScaling())
    search = GridSearchCV(
        model, {"method__form": ["scalar", "vector"]}, scoring="neg_log_loss", cv=2
    )
    search.fit(*held)
    assert search.best_params_["method__form"] in ("scalar", "vector")
    assert search.best_estimator_.estimator.estimator is not None


def test_what_is_not_fitted_is_refused(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    with pytest.raises(NotFittedError):
        CalibratedClassifier(LogisticRegression()).fit(X, y)
    fitted = GaussianNB().fit(X, y)
    with pytest.raises(NotFittedError):
        CalibratedClassifier(fitted).predict(X)
    with pytest.raises(NotFittedError):
        clone(CalibratedClassifier(fitted)).fit(X, y)


def test_the_response_can_be_chosen(digits: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), held, (new, _) = thirds(*digits)
    linear = LogisticRegression(max_iter=1_000).fit(X, y)
    queried = CalibratedClassifier(linear, response="predict_proba").fit(*held)
    assert queried.kind_ == "probabilities"
    own = CalibratedClassifier(linear).fit(*held)
    np.testing.assert_allclose(own.predict_proba(new), queried.predict_proba(new), atol=1e-6)
    with pytest.raises(ValueError, match="logits"):
        CalibratedClassifier(linear, response="logits").fit(*held)
    with pytest.raises(ValueError, match="response"):
        CalibratedClassifier(linear, response="transform").fit(*held)  # type: ignore[arg-type]


def test_votes_of_pairs_are_no_logits(digits: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), held, _ = thirds(*digits)
    pairs = SVC(decision_function_shape="ovo").fit(X, y)
    with pytest.raises(ValueError, match="each of 10 classes, got shape"):
        CalibratedClassifier(pairs).fit(*held)


def test_records_of_the_fit_may_lack_a_class(digits: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), (held, labels), (new, _) = thirds(*digits)
    forest = RandomForestClassifier(20, random_state=0).fit(X, y)
    few = labels < 3
    for method in (TemperatureScaling(), PlattScaling(), IsotonicCalibration()):
        model = CalibratedClassifier(forest, method).fit(held[few], labels[few])
        p = model.predict_proba(new)
        assert p.shape == (len(new), 10) and np.isfinite(p).all()
        np.testing.assert_array_equal(model.classes_, np.arange(10))


@pytest.mark.parametrize("wrong", [10, -1, 0.5, "3", np.nan, None])
def test_labels_the_estimator_does_not_know(
    wrong: object, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    (X, y), (held, labels), _ = thirds(*digits)
    bayes = GaussianNB().fit(X, y)
    mixed = labels.astype(object)
    mixed[4] = wrong
    with pytest.raises(DataError, match="in record 5"):
        CalibratedClassifier(bayes).fit(held, mixed)


@pytest.mark.parametrize("kind", ["bool", "f8", "U1", "i1"])
def test_labels_of_every_type(kind: str, cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    labels = (y == "malignant").astype(int).astype(kind)
    model = CalibratedClassifier(GaussianNB().fit(X[::2], labels[::2]))
    predicted = model.fit(X[1::2], labels[1::2]).predict(X)
    assert predicted.dtype == labels.dtype and (predicted == labels).mean() > 0.9


class FitsBoth(CalibratedClassifier):
    """Fits the classifier first, since scikit-learn's checks use their own records."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        self.estimator = clone(self.estimator).fit(X, y)
        return super().fit(X, y)


@pytest.mark.parametrize("method", [None, IsotonicCalibration()], ids=repr)
def test_scikit_learns_checks_pass(method: MapFitter | None) -> None:
    reason = "the class above replaces its classifier"
    check_estimator(
        FitsBoth(LogisticRegression(), method),
        expected_failed_checks={
            "check_estimators_overwrite_params": reason,
            "check_dont_overwrite_parameters": reason,
        },
        on_skip=None,  # one check needs another array library
    )


def test_it_says_that_it_is_not_private(digits: tuple[np.ndarray, np.ndarray]) -> None:
    assert CalibratedClassifier.private_ is False
    assert "not private" in (CalibratedClassifier.__doc__ or "")
