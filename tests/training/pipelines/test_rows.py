"""Steps transform rows independently, and read no record without a charge."""

import math
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    PolynomialFeatures,
)

from tests.training.pipelines.steps import (
    ACROSS,
    CODES,
    DECLARED,
    both,
    classifier,
    standardizer,
)
from veracal.data import Dataset
from veracal.queries import Curator
from veracal.training import BoundedScaler, DeclaredOneHot, NormClipper
from veracal.training.pipeline import make_private_pipeline


def test_fitting_a_data_set_fits_each_step_in_turn(data):
    scaler, model = standardizer(random_state=1), classifier(random_state=2)
    pipeline = make_private_pipeline(clone(scaler), NormClipper(0.5), clone(model))
    pipeline.fit_records(data)
    scaler.fit_records(data)
    rows = NormClipper(0.5).fit_transform(scaler.transform(data.X))
    model.fit_records(Dataset(rows, data.y, data.classes, size=300, norm=0.5))
    np.testing.assert_array_equal(pipeline.steps[-1][1].coef_, model.coef_)
    np.testing.assert_array_equal(pipeline.predict(data.X), model.predict(rows))


@pytest.mark.parametrize(
    "step",
    [
        both(),
        ColumnTransformer([("a", standardizer(), slice(0, 2))], remainder="passthrough"),
        ColumnTransformer([("a", "drop", 0), ("b", "passthrough", [True, False, True])]),
        ColumnTransformer(
            [("a", make_pipeline(standardizer(), Binarizer()), [1]), ("b", NormClipper(), [2])],
            transformer_weights={"a": 3.0},
        ),
        FeatureUnion([("a", standardizer()), ("b", DeclaredOneHot(CODES * 3))]),
        FeatureUnion([("a", NormClipper()), ("b", "drop")], transformer_weights={"a": 2.0}),
    ],
    ids=range(6),
)
def test_rows_are_transformed_as_by_scikit_learn(data, step):
    pipeline = make_private_pipeline(clone(step), PolynomialFeatures(2), classifier())
    pipeline.fit_records(data)
    turned = pipeline.transform_dataset(data)
    expected = pipeline[:-1].transform(data.X)
    np.testing.assert_array_equal(
        turned.X, expected.toarray() if hasattr(expected, "toarray") else expected
    )
    assert pipeline.private_ and pipeline.event_ == pipeline.event()


def test_steps_that_cost_nothing_never_see_a_record(data):
    seen = []

    def double(rows):
        seen.append(rows.shape[0])
        return 2 * rows

    pipeline = make_private_pipeline(
        FunctionTransformer(double), PolynomialFeatures(), classifier()
    )
    pipeline.check_records(data)
    assert seen and max(seen) < len(data)  # a few synthetic rows
    pipeline.fit_records(data)
    first = pipeline.steps[1][1]
    other = clone(pipeline).fit_records(data.take(np.arange(2))).steps[1][1]
    assert vars(first).keys() == vars(other).keys()
    assert first.n_output_features_ == other.n_output_features_


@pytest.mark.parametrize("function", ACROSS.values(), ids=ACROSS)
def test_a_function_across_rows_is_rejected_before_a_record_is_read(data, ledger, function):
    pipeline = make_private_pipeline(FunctionTransformer(function), classifier())
    with pytest.raises(ValueError, match="each row independently"):
        Curator(data, ledger).fit(pipeline)
    assert ledger.spent().epsilon == 0


@pytest.mark.parametrize("function", list(ACROSS.values())[3:], ids=list(ACROSS)[3:])
def test_a_function_across_rows_is_not_private_in_a_plain_fit(data, function):
    for step in (
        FunctionTransformer(function),
        ColumnTransformer([("a", make_pipeline(FunctionTransformer(function)), [0, 1])]),
    ):
        pipeline = make_private_pipeline(step, classifier(**DECLARED))
        assert not pipeline.fit(data.X, data.labels).private_
        assert "row independence" in pipeline.not_private_because_[0]


@pytest.mark.parametrize(
    "function",
    [
        None,
        np.log1p,
        np.square,
        lambda X: X @ np.linspace(-1, 1, 3 * 50).reshape(3, 50),
        lambda X: X[:, :1],
        lambda X: np.sort(X, axis=1),
        lambda X: np.array([[math.sqrt(v) for v in row] for row in X]),
        lambda X: X / np.linalg.norm(X, axis=1, keepdims=True),
    ],
    ids=range(8),
)
def test_a_function_of_each_row_passes_the_trial(data, function):
    pipeline = make_private_pipeline(FunctionTransformer(function), classifier(**DECLARED))
    for dtype in (np.float64, np.float32):
        rows = np.abs(data.X).astype(dtype)
        with np.errstate(all="ignore"):
            assert clone(pipeline).fit(rows + 1, data.labels).private_
        records = Dataset(rows, data.y, data.classes, size=300)
        assert clone(pipeline).fit_records(records).private_


def test_columns_chosen_by_a_function_are_rejected_or_reported(data, ledger):
    step = ColumnTransformer([("a", NormClipper(), lambda X: [int(X.mean() > 0)])])
    pipeline = make_private_pipeline(step, classifier(**DECLARED))
    with pytest.raises(ValueError, match="declared columns"):
        Curator(data, ledger).fit(pipeline)
    assert ledger.spent().epsilon == 0
    assert not pipeline.fit(data.X, data.labels).private_
    assert "chose the columns" in pipeline.not_private_because_[0]


def picky(rows):
    """Raise, warn or widen for some values."""
    if (rows > 50).any():
        raise RuntimeError("a value above 50")
    if (rows < -50).any():
        warnings.warn("a value below -50", stacklevel=1)
    return np.hstack([rows, rows]) if (rows == 0.25).any() else 2 * rows


def test_no_error_or_warning_of_a_function_depends_on_a_record(data, ledger):
    rows = np.array(data.X)
    rows[3], rows[5], rows[7] = 60.0, -60.0, 0.25
    wild = Dataset(rows, data.y, data.classes, size=300)
    inside = ColumnTransformer([("a", FunctionTransformer(picky), [0, 1, 2])])
    for step in (FunctionTransformer(picky), inside, make_pipeline(inside)):
        pipeline = make_private_pipeline(clone(step), classifier())
        turned = Curator(wild, ledger).fit(pipeline).transform_dataset(wild).X
        expected = 2 * rows
        expected[[3, 7]] = 0
        np.testing.assert_array_equal(turned, expected)
        assert pipeline.private_


def test_numbers_that_overflow_raise_nothing_and_become_zero(data):
    rows = np.array(data.X)
    rows[0], rows[1] = 1e200, -1e308
    wild = Dataset(rows, data.y, data.classes, size=300)
    logarithm = FunctionTransformer(np.log)
    for steps in (
        (PolynomialFeatures(3), NormClipper()),
        (make_pipeline(PolynomialFeatures(3), Normalizer()), NormClipper()),
        (ColumnTransformer([("a", make_pipeline(logarithm, NormClipper()), [0, 1])]),),
        (logarithm, standardizer()),
    ):
        pipeline = make_private_pipeline(*steps, classifier()).fit_records(wild)
        assert np.isfinite(pipeline.transform_dataset(wild).X).all()
        assert np.isfinite(pipeline.steps[-1][1].coef_).all()


def test_norm_bounds_are_passed_on(data):
    scaled = make_private_pipeline(BoundedScaler((-3, 3), to=(-2, 2)), classifier())
    assert scaled.fit_records(data).transform_dataset(data).norm == 2 * np.sqrt(3)
    clipped = make_private_pipeline(both(), NormClipper(0.25), classifier())
    assert clipped.fit_records(data).transform_dataset(data).norm == 0.25
    widened = make_private_pipeline(NormClipper(0.25), PolynomialFeatures(), classifier())
    assert widened.fit_records(data).transform_dataset(data).norm is None


def test_empty_data_are_supported(data):
    none = data.take(np.arange(0))
    pipeline = make_private_pipeline(both(), PolynomialFeatures(), classifier())
    assert pipeline.fit_records(none).private_
    assert pipeline.transform_dataset(none).X.shape == (0, 21)


def test_replace_one_is_a_relation_too(data):
    swapped = dict(relation="replace-one")
    pipeline = make_private_pipeline(both(**swapped), classifier(**swapped))
    assert pipeline.fit_records(data).private_
    assert pipeline.event_.relation == "replace-one"
    wrong = make_private_pipeline(both(**swapped), classifier(**swapped, size=299))
    with pytest.raises(ValueError, match="size"):
        wrong.check_records(data)
