"""Margins of a row do not depend on other rows, bit for bit."""

import numpy as np
import pytest

from veracal.training import base as linear


def bits(rows, weights) -> np.ndarray:
    result = linear.margins(rows, weights, np.zeros(len(weights)))
    return np.ascontiguousarray(result).view(np.int64)


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("classes", [1, 3, 10, 100, 397])
@pytest.mark.parametrize("width", [5, 64, 769])
def test_the_result_of_a_row_has_the_same_bits_whatever_the_other_rows(
    classes, width, dtype, rng
) -> None:
    rows = rng.standard_normal((600, width)).astype(dtype)
    weights = rng.standard_normal((classes, width)).astype(dtype)
    whole = bits(rows, weights)
    for kept in (np.arange(1, 600), np.arange(7), np.arange(599, -1, -1), [300]):
        np.testing.assert_array_equal(bits(rows[kept], weights), whole[kept])


@pytest.mark.parametrize("classes", [1, 10])
def test_margins_equal_their_definition(classes, dtype, rng) -> None:
    rows, weights = rng.standard_normal((300, 20)), rng.standard_normal((classes, 20))
    result = linear.margins(rows.astype(dtype), weights.astype(dtype), np.arange(classes))
    close = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(result, rows @ weights.T + np.arange(classes), atol=close * 10)


def test_rows_are_only_computed_at_stable_positions(monkeypatch, rng):
    tried = []

    def places_alike(forward, synthetic, count):
        tried.append((synthetic.shape, synthetic.dtype, forward(synthetic).shape, count))
        return np.array([0, 7])

    shapes, at_places = [], linear.score_at_positions

    def watching(forward, rows, places, block):
        shapes.append((block.shape, block.dtype, places.tolist()))
        return at_places(forward, rows, places, block)

    monkeypatch.setattr(linear, "equivalent_positions", places_alike)
    monkeypatch.setattr(linear, "score_at_positions", watching)
    rows, weights = rng.standard_normal((5, 30)), rng.standard_normal((4, 30))
    result = linear.margins(rows, weights.astype(np.float32), np.arange(4))
    np.testing.assert_allclose(result, rows @ weights.T + np.arange(4), atol=1e-4)
    assert tried == [((256, 30), np.float32, (256, 4), 10)]
    assert shapes == [((256, 30), np.float32, [0, 7])]


def test_one_vs_rest_logits_keep_the_order_of_sums(rng) -> None:
    sums = rng.normal(0, 3000, (2000, 6))
    result = linear.one_vs_rest_logits(sums)
    np.testing.assert_array_equal(result.argmax(axis=1), sums.argmax(axis=1))
    with np.errstate(under="ignore"):
        plain = -np.logaddexp(0, -sums)
    assert (
        plain.argmax(axis=1) != sums.argmax(axis=1)
    ).mean() > 0.1  # where all of them underflow to 0
    np.testing.assert_allclose(result, plain, rtol=1e-12, atol=1e-303)
    assert (result < 0).all()
