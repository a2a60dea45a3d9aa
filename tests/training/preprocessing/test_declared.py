"""Scaling, encoding and norm clipping by declared facts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from veracal.training import BoundedScaler, DeclaredOneHot, NormClipper
from veracal.training.preprocessing import scale_to_unit, shorten_rows

ODD = [0.0, -0.0, 5e-324, 1e-310, 1e-160, 0.3, -1.0, 1e6, 1e154, -1e200, 1e308, -1.7e308]


# ---------------------------------------------------------------- scaling


def slowly_scaled(x, low, high, to):
    clipped = min(max(x, low), high)
    return to[0] + (to[1] - to[0]) * (clipped - low) / (high - low)


@pytest.mark.parametrize("to", [(0.0, 1.0), (-3.0, 5.0)])
@pytest.mark.parametrize("bounds", [(-1, 4), [(-1, 4), (0, 1), (-10, -9)]])
def test_scaling_equals_its_definition(rng, bounds, to):
    rows = rng.normal(scale=5, size=(50, 3))
    pairs = [bounds] * 3 if isinstance(bounds, tuple) else bounds
    expected = [
        [slowly_scaled(x, *pair, to) for x, pair in zip(row, pairs, strict=True)]
        for row in rows
    ]
    np.testing.assert_allclose(
        BoundedScaler(bounds, to=to).fit_transform(rows), expected, atol=1e-12
    )


@given(arrays(np.float64, (4, 2), elements=st.sampled_from([*ODD, np.inf, -np.inf, np.nan])))
def test_scaled_values_are_between_zero_and_one(rows):
    for pair in ((0.0, 1.0), (-1e308, 1e308), (1e-300, 2e-300), (-1.7e308, -1.6e308)):
        low, high = (np.full(2, end) for end in pair)
        shares = scale_to_unit(rows, low, high)
        assert ((shares >= 0) & (shares <= 1)).all()
        assert (shares[np.isnan(rows)] == 0.5).all()
        assert (shares[rows >= pair[1]] == 1).all() and (shares[rows <= pair[0]] == 0).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_scaled_values_stay_in_their_range_in_any_precision(dtype):
    rows = np.linspace(0, 1, 1_001).reshape(-1, 1).astype(dtype)
    for to in ((0.1, 0.3), (-0.7, 0.1)):
        scaler = BoundedScaler((0.0, 1.0), to=to).fit(rows.astype(np.float64))
        values = scaler._apply(rows).astype(np.float64)
        assert values.min() >= to[0] and values.max() <= to[1]
        assert np.linalg.norm(values, axis=1).max() <= scaler.longest_row()


def test_observed_bounds_are_those_of_the_records(rng):
    rows = rng.normal(size=(70, 2))
    rows[:, 1] = 5.0
    scaled = BoundedScaler().fit_transform(rows)
    assert scaled[:, 0].min() == 0 and scaled[:, 0].max() == 1
    np.testing.assert_allclose(scaled[:, 1], 0.5)


@pytest.mark.parametrize(
    "bounds",
    [
        (1, 1),
        (2, 1),
        (0, np.inf),
        (0, np.nan),
        3,
        "ab",
        [(0, 1), (1,)],
        [(0, 1, 2)],
        (0, 5e-324),
    ],
    ids=repr,
)
def test_invalid_bounds_are_rejected(bounds):
    with pytest.raises(ValueError, match="Expected bounds"):
        BoundedScaler(bounds).event()


@pytest.mark.parametrize("to", [(1, 0), [(0, 1), (0, 1)], (-1.5e308, 1.5e308)], ids=repr)
def test_invalid_ranges_are_rejected(to):
    with pytest.raises(ValueError, match="to"):
        BoundedScaler((0, 1), to=to).event()


def test_bounds_for_another_width_are_rejected():
    with pytest.raises(ValueError, match="each of 3 columns"):
        BoundedScaler([(0, 1), (0, 1)]).fit(np.zeros((4, 3)))


# ---------------------------------------------------------------- categories


def slowly_encoded(row, categories):
    return [float(x == c) for x, known in zip(row, categories, strict=True) for c in known]


@pytest.mark.parametrize(
    ("rows", "categories"),
    [
        ([["a", "x"], ["longer than any", "y"], ["c", "x"]], [["c", "a"], ["y", "z"]]),
        (np.array([[0.1, 2.0], [3.0, 7.0]], np.float32), [[0.1, 1.0], [2.0, 3.0]]),
        (np.array([[0, 2], [3, 7]]), [[0, 1, 3], [2]]),
        (np.array([["a", 1], ["b", 2]], object), [["a"], [1, 3]]),
    ],
)
def test_encoding_equals_its_definition_and_undeclared_values_are_zeros(rows, categories):
    if isinstance(rows, np.ndarray) and rows.dtype == np.float32:
        known = [[np.float32(c) for c in column] for column in categories]
    else:
        known = categories
    expected = [slowly_encoded(row, known) for row in rows]
    np.testing.assert_array_equal(DeclaredOneHot(categories).fit_transform(rows), expected)


def test_a_missing_value_is_an_undeclared_one():
    encoded = DeclaredOneHot([[1.0, 2.0]]).fit([[1.0]]).transform([[np.nan], [2.0]])
    np.testing.assert_array_equal(encoded, [[0, 0], [0, 1]])


@pytest.mark.parametrize(
    "categories", [["abc"], [[]], [[1, "a"]], [[2, 1]], [["a", "a"]], [[1.0, np.nan]]], ids=repr
)
def test_invalid_categories_are_rejected(categories):
    with pytest.raises(ValueError, match="categories"):
        DeclaredOneHot(categories).event()


def test_categories_for_another_width_are_rejected():
    with pytest.raises(ValueError, match="categories of 2 columns, got 1"):
        DeclaredOneHot([["a"]]).fit([["a", "b"]])


# ---------------------------------------------------------------- norms


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_norm_clipping_equals_its_definition(rng, dtype):
    rows = (rng.normal(size=(200, 5)) * 10 ** rng.uniform(-3, 3, (200, 1))).astype(dtype)
    norms = np.linalg.norm(rows.astype(float), axis=1, keepdims=True)
    expected = rows * np.minimum(1, 0.7 / norms)
    got = NormClipper(0.7).fit_transform(rows)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=4e-6)
    kept = norms[:, 0] < 0.69
    np.testing.assert_array_equal(got[kept], rows[kept])


@given(
    arrays(np.float64, (3, 6), elements=st.sampled_from(ODD)),
    st.sampled_from([1e-9, 1.0, 1e99]),
)
def test_no_row_is_longer_than_the_declared_norm(rows, norm):
    for typed in (rows, np.clip(rows, -3e38, 3e38).astype(np.float32)):
        short = shorten_rows(typed, norm).astype(np.longdouble)
        assert np.isfinite(short).all()
        lengths = np.sqrt((short**2).sum(axis=1))
        assert (lengths <= norm * (1 - 1e-6)).all()
        huge = np.abs(typed).max(axis=1).astype(float) > 10 * norm
        assert (lengths[huge] >= norm * (1 - 3e-6)).all()  # scaled down, not lost


def test_a_clipper_does_not_count_clipped_rows(rng):
    rows = rng.normal(size=(20, 2))
    few, many = NormClipper(1e9).fit(rows), NormClipper(1e-9).fit(rows)
    assert vars(few).keys() == vars(many).keys()
    assert {k: v for k, v in vars(few).items() if k != "norm"} == {
        k: v for k, v in vars(many).items() if k != "norm"
    }


@pytest.mark.parametrize("norm", [0, -1, np.nan, np.inf, 1e-200, 1e200, "1"])
def test_invalid_norms_are_rejected(norm):
    with pytest.raises(ValueError, match="norm"):
        NormClipper(norm).event()
