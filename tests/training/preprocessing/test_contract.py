"""The contract of all transformers."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from veracal.accounting import Gaussian, Unit
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.errors import DataError
from veracal.training import BoundedScaler, DeclaredOneHot, NormClipper, PrivateStandardizer

CATEGORIES = [[-2.0, 0.0, 1.0]] * 3
DECLARED = [
    BoundedScaler((-2, 2)),
    DeclaredOneHot(CATEGORIES),
    NormClipper(0.5),
    PrivateStandardizer((-2, 2), noise_multiplier=3.0, size=100),
]
UNDECLARED = [BoundedScaler(), DeclaredOneHot(), PrivateStandardizer(size=100)]


@pytest.fixture
def rows(rng):
    return rng.integers(-2, 3, (100, 3)).astype(float)


@parametrize_with_checks(
    [
        BoundedScaler(),
        BoundedScaler((0, 1)),
        DeclaredOneHot(),
        NormClipper(),
        PrivateStandardizer(),
    ]
)
def test_scikit_learn_checks_pass(estimator, check):
    if check.func.__name__ == "check_array_api_input":
        return  # requires a global setting
    check(estimator)


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_declared_transformers_have_a_cost_and_are_private(transformer, rows):
    charged = isinstance(transformer, PrivateStandardizer)
    assert transformer.event() == (Gaussian(3.0) if charged else None)
    fitted = clone(transformer).fit(rows)
    assert fitted.private_ and fitted.not_private_because_ == ()
    assert fitted.event_ == transformer.event()


@pytest.mark.parametrize("transformer", UNDECLARED, ids=repr)
def test_undeclared_transformers_have_no_cost(transformer, rows):
    with pytest.raises(ValueError, match="read from the records; declare"):
        transformer.event()
    fitted = clone(transformer).fit(rows)
    assert not fitted.private_ and "declare" in fitted.not_private_because_[0]
    with pytest.raises(ValueError, match="declare"):
        clone(transformer).fit_records(Dataset(rows, np.zeros(100, int), ("a", "b")))


@pytest.mark.parametrize("transformer", DECLARED[:3], ids=repr)
def test_a_fit_that_costs_nothing_learns_the_same_from_any_records(transformer, rows):
    one, other = clone(transformer).fit(rows), clone(transformer).fit(rows[:1] * 0 + 7)
    np.testing.assert_array_equal(one.transform(rows), other.transform(rows))


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_each_row_is_transformed_independently(transformer, rows):
    fitted = clone(transformer).fit(rows)
    together = fitted.transform(rows)
    alone = np.vstack([fitted.transform(row[None]) for row in rows])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_rows_on_disk_are_transformed_as_in_memory(transformer, rows, tmp_path, dtype):
    np.save(tmp_path / "x.npy", rows.astype(dtype))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    usual = clone(transformer)
    if isinstance(usual, PrivateStandardizer):
        usual.set_params(random_state=0)
    there = clone(usual).fit(mapped)
    expected = usual.fit(rows.astype(dtype)).transform(rows.astype(dtype))
    np.testing.assert_array_equal(there.transform(mapped), expected)
    np.testing.assert_array_equal(there.transform(MappedRows.of(mapped)), expected)
    assert there.transform(mapped).dtype == expected.dtype
    with pytest.raises(ValueError, match="features"):
        there.transform(MappedRows.of(np.load(_wide(tmp_path), mmap_mode="r")))


def _wide(folder):
    np.save(folder / "wide.npy", np.zeros((4, 5)))
    return folder / "wide.npy"


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_a_data_set_is_fitted_as_its_rows_are(transformer, rows):
    data = Dataset(rows, np.zeros(len(rows), int), ("a", "b"), size=100)
    if isinstance(transformer, PrivateStandardizer):
        transformer = clone(transformer).set_params(random_state=0)
    fitted = clone(transformer).fit_records(data)
    expected = clone(transformer).fit_transform(rows)
    np.testing.assert_array_equal(fitted.transform(rows), expected)


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_text_and_images_are_rejected(transformer):
    text = Dataset(np.array([["a"], ["b"]]), np.zeros(2, int), ("a", "b"), size=2)
    with pytest.raises(DataError, match="numbers of shape"):
        transformer.check_records(text)


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_empty_data_are_supported(transformer):
    data = Dataset(np.empty((0, 3)), np.empty(0, int), ("a", "b"), size=100)
    assert clone(transformer).fit_records(data).private_


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_names_and_frames_come_out(transformer, rows):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows, columns=["u", "v", "w"])
    out = clone(transformer).set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns) == list(clone(transformer).fit(frame).get_feature_names_out())
    assert len(out.columns) == (9 if isinstance(transformer, DeclaredOneHot) else 3)


def test_they_work_in_a_pipeline(rows):
    pipeline = make_pipeline(BoundedScaler((-2, 2), to=(-1, 1)), NormClipper(1.0))
    assert np.linalg.norm(pipeline.fit_transform(rows), axis=1).max() <= 1


def test_units_are_stated(rows):
    unit = Unit("patient", max_contributions=2)
    scaler = PrivateStandardizer((-2, 2), noise_multiplier=4.0, size=100, unit=unit).fit(rows)
    assert scaler.statement_.unit == "patient" and scaler.statement_.max_contributions == 2
    alone = PrivateStandardizer((-2, 2), noise_multiplier=4.0, size=100).fit(rows)
    assert scaler.statement_.epsilon > 1.9 * alone.statement_.epsilon


def test_interrupted_fits_make_no_claim(rows, monkeypatch):
    scaler = PrivateStandardizer((-2, 2), noise_multiplier=4.0, size=100).fit(rows)
    assert scaler.private_

    def interrupted(rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(scaler, "_sums", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scaler.fit(rows)
    assert not scaler.private_ and scaler.event_ is None


@pytest.mark.parametrize("transformer", DECLARED, ids=repr)
def test_anything_but_a_data_set_is_rejected(transformer, rows):
    with pytest.raises(ValueError, match="Expected a data set of veracal.data, got ndarray"):
        transformer.check_records(rows)


@pytest.mark.parametrize("categories", [[0.1, 0.2], [1 / 3, 2 / 3], [0.1, 0.1 + 1e-12], [1, 2]])
def test_categories_match_in_both_precisions(categories):
    rows = np.array(categories, dtype=np.float64)[:, None]
    distinct = len(set(rows.astype(np.float32).ravel())) == 2
    for fitted in (np.float32, np.float64):
        encoder = DeclaredOneHot([categories]).fit(rows.astype(fitted))
        for requested in (np.float32, np.float64) if distinct else (np.float64,):
            result = encoder.transform(rows.astype(requested))
            np.testing.assert_array_equal(result, np.eye(2))


def test_numbers_beyond_single_precision_match_no_category():
    encoder = DeclaredOneHot([[0.5, 1.5]]).fit([[0.5]])
    assert (encoder.transform([[1e300], [-1e300], [0.7]]) == 0).all()
    large = DeclaredOneHot([[1e300, 2e300]]).fit([[1.0]])
    np.testing.assert_array_equal(large.transform([[2e300]]), [[0.0, 1.0]])


def test_integers_are_compared_with_declared_categories():
    halves = DeclaredOneHot([[0.0, 0.5]]).fit(np.array([[0], [1]], dtype=np.uint8))
    np.testing.assert_array_equal(halves.transform([[0.5], [0.0]]), [[0, 1], [1, 0]])
