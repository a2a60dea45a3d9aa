"""The logits of a row do not depend on other rows."""

import warnings

import numpy as np
import pytest

from veracal.data.scoring import _positions, compute_logits, scoring_method
from veracal.training import PrivateLogisticRegression

RNG = np.random.default_rng(0)


class Product:
    """One product of single precision, whose rounding follows its shape."""

    def __init__(self, d=300, k=7):
        self.weights = RNG.normal(size=(d, k)).astype(np.float32)
        self.shapes = set()

    def logits(self, X):
        self.shapes.add(np.shape(X))
        return np.asarray(X, dtype=np.float32) @ self.weights


class Fails:
    """Raises for rows with a large number, and is no use without them."""

    def logits(self, X):
        if (X > 5).any():
            raise FloatingPointError("an error about a record")
        return np.stack([X[:, 0], X[:, 1], X.sum(axis=1)], axis=1)


class Margin:
    def decision_function(self, X):
        return X[:, 0]


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 700])
@pytest.mark.parametrize("k", [2, 7, 10, 100])
def test_other_rows_and_positions_change_no_bit(n, k) -> None:
    model, X = Product(k=k), RNG.normal(size=(700, 300)).astype(np.float32)
    whole = compute_logits(model, X, k)
    rows = RNG.permutation(700)[:n]
    assert compute_logits(model, X[rows], k).tobytes() == whole[rows].tobytes()
    assert model.shapes == {(256, 300)}


def test_rows_are_placed_only_at_equivalent_positions() -> None:
    def last_four_differ(rows):
        logits = np.stack([rows[:, 0], rows[:, 1]], axis=1).astype(float)
        logits[252:] = np.nextafter(logits[252:], np.inf)
        return logits

    def company_matters(rows):
        return np.stack([rows[:, 0], rows.mean(axis=1) + rows[0, 1]], axis=1)

    def fails(rows):
        raise FloatingPointError

    def fine(rows):
        return rows[:, :2].astype(float)

    places = {
        f: _positions(f, 3, np.float32, 2)
        for f in (last_four_differ, company_matters, fails, fine)
    }
    np.testing.assert_array_equal(places[last_four_differ], np.arange(252))
    np.testing.assert_array_equal(places[fine], np.arange(256))
    assert places[company_matters].tolist() == places[fails].tolist() == [0]


def test_models_that_mix_rows_score_each_row_alone() -> None:
    class Normalizing:
        def logits(self, X):
            return X[:, :2] - X[:, :2].mean(axis=0)

    X = RNG.normal(size=(20, 3))
    whole = compute_logits(Normalizing(), X, 2)
    assert compute_logits(Normalizing(), X[5:6], 2).tobytes() == whole[5].tobytes()


def test_a_classifier_of_scikit_learn() -> None:
    X = RNG.normal(size=(600, 20))
    model = PrivateLogisticRegression(epsilon=1.0, epochs=2, classes=[0, 1, 2], size=600)
    model.fit(X, RNG.integers(3, size=600))
    whole = compute_logits(model, X, 3)
    np.testing.assert_array_equal(whole, model.logits(X))
    for row in (0, 299, 599):
        assert compute_logits(model, X[row : row + 1], 3).tobytes() == whole[row].tobytes()


def test_a_row_that_is_an_error_has_equal_logits_and_leaves_others_alone() -> None:
    X = RNG.uniform(-1, 1, (300, 4))
    good = compute_logits(Fails(), X, 3)
    X[[7, 299], 2] = 9.0
    with pytest.raises(FloatingPointError):
        compute_logits(Fails(), X, 3)
    logits = compute_logits(Fails(), X, 3, without_errors=True)
    assert (logits[[7, 299]] == 0).all()
    others = np.delete(np.arange(300), [7, 299])
    assert logits[others].tobytes() == good[others].tobytes()


def test_infinite_logits_become_finite_without_a_warning() -> None:
    class Odd:
        def logits(self, X):
            warnings.warn("of a record", stacklevel=1)
            return np.log(X - X) * np.array([1.0, -1.0, 0.0])

    logits = compute_logits(Odd(), np.ones((2, 3)), 3)
    assert np.isfinite(logits).all()
    assert (logits[:, 0] < -1e300).all() and (logits[:, 1] > 1e300).all()
    assert (logits[:, 2] == 0).all()


def test_no_rows_have_no_logits() -> None:
    assert compute_logits(Fails(), np.empty((0, 4)), 3).shape == (0, 3)


def test_a_margin_gives_logits_of_two_classes() -> None:
    logits = compute_logits(Margin(), np.array([[3.0], [-2.0]]), 2)
    np.testing.assert_array_equal(logits, [[0, 3], [0, -2]])
    assert scoring_method(Margin()) == "decision_function"
    with pytest.raises(ValueError, match=r"Expected logits of shape \(256, 3\)"):
        compute_logits(Margin(), np.ones((1, 1)), 3)


def test_probabilities_are_not_enough() -> None:
    class Sure:
        def predict_proba(self, X):
            return np.ones((len(X), 2))

    with pytest.raises(ValueError, match="logits or decision_function"):
        scoring_method(Sure())
