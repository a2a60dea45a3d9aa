"""The sums of a row are its own, bit for bit."""

import numpy as np
import pytest

from veracal.training import linear


def bits(rows, weights) -> np.ndarray:
    found = linear.margins(rows, weights, np.zeros(len(weights)))
    return np.ascontiguousarray(found).view(np.int64)


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("classes", [1, 3, 10, 100, 397])
@pytest.mark.parametrize("width", [5, 64, 769])
def test_other_rows_change_no_bit_of_a_row(classes, width, dtype, rng) -> None:
    rows = rng.standard_normal((600, width)).astype(dtype)
    weights = rng.standard_normal((classes, width)).astype(dtype)
    whole = bits(rows, weights)
    for kept in (np.arange(1, 600), np.arange(7), np.arange(599, -1, -1), [300]):
        np.testing.assert_array_equal(bits(rows[kept], weights), whole[kept])


@pytest.mark.parametrize("classes", [1, 10])
def test_sums_are_the_weighted_ones(classes, dtype, rng) -> None:
    rows, weights = rng.standard_normal((300, 20)), rng.standard_normal((classes, 20))
    found = linear.margins(rows.astype(dtype), weights.astype(dtype), np.arange(classes))
    close = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, rows @ weights.T + np.arange(classes), atol=close * 10)


def test_a_place_that_rounds_otherwise_is_left_out(monkeypatch) -> None:
    """A product whose last three rows are added up backwards."""

    class Backwards(np.ndarray):
        def __matmul__(self, other):
            plain = np.asarray(self) @ np.asarray(other)
            plain[-3:] = np.asarray(self)[-3:, ::-1] @ np.asarray(other)[::-1]
            return plain

    tile = np.tile
    monkeypatch.setattr(linear.np, "tile", lambda *args: tile(*args).view(Backwards))
    places = linear.places_alike((4, 300), np.float32)
    assert places[0] == 0 and len(places) >= 4 and places.max() < linear._BLOCK - 3
