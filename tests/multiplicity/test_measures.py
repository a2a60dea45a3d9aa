"""Each measure against its definition, written out slowly over all pairs of runs."""

from itertools import combinations

import numpy as np
import pytest

from veracal.multiplicity import measures

RNG = np.random.default_rng(0)


def by_pairs(decisions):
    """Twice the share of pairs of runs that differ."""
    pairs = list(combinations(decisions.tolist(), 2))
    return 2 * np.mean([a != b for a, b in pairs])


@pytest.mark.parametrize("m", [2, 3, 10, 41])
def test_disagreement_is_twice_the_share_of_pairs_that_differ(m):
    decisions = RNG.integers(0, 2, (m, 5))
    result = measures.disagreement(decisions.sum(axis=0), m)
    np.testing.assert_allclose(result, [by_pairs(column) for column in decisions.T])
    np.testing.assert_allclose(result, 4 * decisions.var(axis=0, ddof=1))


@pytest.mark.parametrize("p", [0.0, 0.02, 0.3, 0.5])
def test_disagreement_is_unbiased_for_every_number_of_runs(p):
    from scipy.stats import binom

    for m in (2, 3, 7):
        counts = np.arange(m + 1)
        mean = binom.pmf(counts, m, p) @ measures.disagreement(counts, m)
        assert mean == pytest.approx(4 * p * (1 - p), abs=1e-12)
        # the close wrong one, which divides by m instead of m - 1, is not
        wrong = binom.pmf(counts, m, p) @ (4 * (counts / m) * (1 - counts / m))
        assert p == 0.0 or wrong < 4 * p * (1 - p) - 1e-3


def test_disagreement_may_exceed_one():
    assert measures.disagreement(np.array([25]), 50)[0] == pytest.approx(50 / 49)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_normalized_disagreement_of_several_classes(k):
    m, n = 30, 6
    decisions = RNG.integers(0, k, (m, n))
    counts = np.stack([(decisions == c).sum(axis=0) for c in range(k)], axis=1)
    each = 4 * np.stack([(decisions == c).var(axis=0, ddof=1) for c in range(k)], axis=1)
    np.testing.assert_allclose(
        measures.class_averaged_disagreement(counts, m), each.mean(axis=1)
    )
    np.testing.assert_allclose(measures.pooled_disagreement(counts, m), each.ravel())
    pairs = [by_pairs(column) / 2 for column in decisions.T]
    np.testing.assert_allclose(
        measures.normalized_disagreement(counts, m), k / (k - 1) * np.array(pairs), atol=1e-12
    )


def test_ten_classes_average_to_less_than_the_papers_table_shows():
    """At most 0.36, so the table's maxima of 1 are those of single classes."""
    counts = np.full((1, 10), 1000)
    assert measures.class_averaged_disagreement(counts, 10_000)[0] == pytest.approx(
        0.36, abs=1e-4
    )
    half = np.array([[5000, 5000] + 8 * [0]])
    assert measures.pooled_disagreement(half, 10_000).max() == pytest.approx(1, abs=1e-3)


def test_normalized_equals_disagreement_for_two_classes():
    counts = np.array([[7, 3], [10, 0], [5, 5]])
    np.testing.assert_allclose(
        measures.normalized_disagreement(counts, 10),
        measures.disagreement(counts[:, 1], 10),
        atol=1e-12,
    )


def test_flips_against_a_deployed_model():
    counts = np.array([[7, 3], [10, 0], [5, 5]])
    result = measures.expected_flip(counts, 10, np.array([0, 1, 1]))
    np.testing.assert_allclose(result, [0.3, 1.0, 0.5])


@pytest.mark.parametrize("runs", [1, 0, -1, 1.5])
def test_measures_need_two_runs(runs):
    with pytest.raises(ValueError, match="runs >= 2"):
        measures.disagreement(np.array([0]), runs)


def test_a_single_class_is_rejected():
    with pytest.raises(ValueError, match="two or more classes"):
        measures.normalized_disagreement(np.array([[5]]), 5)
