"""No clipped row is longer than the declared norm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from veracal.data.rows import MappedRows
from veracal.training import perturbation as module
from veracal.training.perturbation import (
    ClippedRows,
    clip_matrix,
    clip_rows,
    norm_bound,
    one_vs_rest_signs,
)

ODD = [0.0, -0.0, 5e-324, 1e-200, 1e-160, 1.0, -3.0, 1e100, 1e155, 1e308, -1.7e308]


@settings(max_examples=60)
@given(
    hnp.arrays(np.float64, (4, 3), elements=st.sampled_from(ODD) | st.floats(-10, 10)),
    st.sampled_from([1e-12, 0.3, 1.0, 7.0, 1e12]),
    st.booleans(),
)
def test_rows_are_clipped_or_unchanged(block, norm, fit_intercept):
    result = clip_rows(block, norm, fit_intercept=fit_intercept)
    assert result.shape == (4, 3 + fit_intercept)
    lengths = np.linalg.norm(result, axis=1)
    assert (lengths <= norm_bound(norm, fit_intercept=fit_intercept)).all()
    if fit_intercept:
        assert (result[:, -1] == 1).all()
    for before, after in zip(block, result[:, :3], strict=True):
        peak = np.abs(before).max() or 1.0
        length = np.linalg.norm(before / peak)  # in units of the largest entry
        if length <= norm / max(peak, 1e-290) * (1 - 1e-12):
            assert after.tolist() == before.tolist()
        else:
            np.testing.assert_allclose(
                after, norm * (before / peak / length), rtol=1e-12, atol=1e-300
            )


def test_a_row_that_is_not_finite_becomes_zeros():
    block = np.array([[np.nan, 1.0], [np.inf, 1.0], [0.3, 0.4]])
    result = clip_rows(block, 1.0, fit_intercept=True)
    np.testing.assert_allclose(result, [[0, 0, 1], [0, 0, 1], [0.3, 0.4, 1]])


def test_rows_on_disk_are_clipped_as_they_are_read(tmp_path, rng, monkeypatch):
    X = rng.normal(size=(50, 3)).astype(np.float32) * 5
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    mapped.flush()
    expected = clip_rows(X, 2.0, fit_intercept=True)
    np.testing.assert_array_equal(clip_matrix(X, 2.0, fit_intercept=True), expected)
    monkeypatch.setattr(module, "_IN_MEMORY", 10)
    lazily = clip_matrix(MappedRows.of(mapped), 2.0, fit_intercept=True)
    assert isinstance(lazily, ClippedRows) and lazily.shape == (50, 4) and len(lazily) == 50
    np.testing.assert_array_equal(lazily[10:20], expected[10:20])


def test_the_norm_bound_includes_the_appended_one():
    assert norm_bound(3.0, fit_intercept=True) == pytest.approx(np.sqrt(10))
    assert norm_bound(3.0, fit_intercept=False) > 3.0  # it includes the rounding


def test_one_vs_rest_signs():
    codes = np.array([0, 2, 1, 2])
    assert one_vs_rest_signs(codes, 3).tolist() == [
        [1, -1, -1, -1],
        [-1, -1, 1, -1],
        [-1, 1, -1, 1],
    ]
    assert one_vs_rest_signs(np.array([0, 1]), 2).tolist() == [[-1, 1]]
    assert one_vs_rest_signs(np.array([0, 0]), 4)[3].tolist() == [
        -1,
        -1,
    ]  # no record in the last class
