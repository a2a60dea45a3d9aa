"""Confidence and correctness, found fast, are those of the scores; so are bins and sums."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.calibration.metrics.sample_scores import scores
from veracal.calibration.bins import Bins, bin_indices
from veracal.calibration.metrics.base import BinTotals, Outcomes, gap_totals, top_label, two_sum
from veracal.data import Scores


@pytest.mark.parametrize("k", [2, 3, 4, 5, 7, 8, 9, 10, 16, 33, 63, 64, 65, 200])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_top_labels_are_those_of_the_scores(k, kind):
    for built in (scores(50, k, kind=kind), scores(1, k, kind=kind, dtype=np.float32)):
        result = top_label(built)
        assert (result.happened == built.correct).all()
        np.testing.assert_allclose(result.probability, built.confidence, rtol=4e-16 * k)


@given(arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(2, 9)),
              elements=st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.0])), st.data())  # fmt: skip
def test_the_first_of_equal_scores_is_predicted(logits, data):
    n, k = logits.shape
    labels = data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    result = Scores.from_logits(logits, labels)
    first = [row.index(max(row)) for row in logits.tolist()]
    expected = [a == b for a, b in zip(first, labels, strict=True)]
    assert top_label(result).happened.tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 15, 49, 100, 999, 10_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_are_those_that_a_search_among_the_edges_finds(count, dtype, rng):
    bins = Bins(count)
    edges = bins.edges.astype(dtype)
    around = np.r_[edges, np.nextafter(edges, dtype(2)), np.nextafter(edges, dtype(-1))]
    every = np.r_[around, rng.random(1_000).astype(dtype), dtype(5e-324), dtype(-0.0)]
    searched = np.searchsorted(bins.edges[1:-1], every, side="left")
    np.testing.assert_array_equal(bins.of(every), searched)
    inside = (every >= 0) & (every <= 1)
    np.testing.assert_array_equal(bin_indices(every[inside], bins), searched[inside])


def test_bins_of_anything_exist():
    odd = [-1e300, -1, 0, 1, 2, 1e300, np.inf, -np.inf, np.nan]
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            result = Bins(15).of(np.array(odd, dtype))
        assert result[:8].tolist() == [0, 0, 0, 14, 14, 14, 14, 0] and 0 <= result[8] < 15
        assert result.dtype == np.int64
    assert Bins(3).of(0.5) == 1 and Bins(2).of(np.float16(0.5)) == 0
    assert Bins(4).of([[0, 1], [1, 0]]).tolist() == [[0, 3], [3, 0]]


@given(st.floats(-1e200, 1e200), st.floats(-1e200, 1e200))
def test_nothing_is_lost_in_a_sum(a, b):
    total, lost = two_sum(np.array(a), np.array(b))
    assert Fraction(a) + Fraction(b) == Fraction(float(total)) + Fraction(float(lost))


def test_sums_do_not_drift_with_the_number_of_blocks():
    parts = [Outcomes(np.array([0.1]), np.array([False]))] * 5_000
    totals = BinTotals.of(parts, Bins(15))
    plain = 0.0
    for _ in parts:
        plain += 0.1
    assert abs(plain - 500) > 5e-13  # what adding one by one loses
    assert (totals.probability + totals.rest)[1] == pytest.approx(500, abs=1e-13)
    assert gap_totals(parts, Bins(15))[1] == pytest.approx(500, abs=1e-13)


def test_totals_of_parts_add_up(rng):
    p, happened = rng.random(1_000), rng.random(1_000) < 0.5
    whole = BinTotals.of([Outcomes(p, happened)], Bins(7))
    one, two = (BinTotals.of([Outcomes(p[i], happened[i])], Bins(7))
                for i in (slice(300), slice(300, None)))  # fmt: skip
    both = one + two
    assert (both.counts == whole.counts).all() and (both.happened == whole.happened).all()
    np.testing.assert_allclose(both.gaps, whole.gaps, atol=1e-13)
    alone = gap_totals([Outcomes(p, happened)], Bins(7))
    np.testing.assert_allclose(alone, whole.gaps, atol=1e-13)
    with pytest.raises(ValueError, match="Expected totals over"):
        one + BinTotals.of([Outcomes(p, happened)], Bins(8))
