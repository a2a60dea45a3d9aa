"""Batches have the distribution that is accounted for."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from veracal import _random
from veracal.accounting.events import Gaussian, PoissonGaussian
from veracal.mechanisms.sampling import FullBatch, Poisson


@pytest.mark.parametrize("n", [0, 1, 7, 1_000])
@pytest.mark.parametrize("rate", [1e-300, 1e-6, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_rows_are_distinct_ascending_and_in_range(n, rate, rng) -> None:
    for rows in (Poisson(rate).batch(n, rng) for _ in range(20)):
        assert rows.dtype.kind == "i" and (np.diff(rows) > 0).all()
        assert ((rows >= 0) & (rows < n)).all()
        assert rate < 1 or len(rows) == n


@pytest.mark.parametrize("rate", [0.03, 0.4, 0.9])
def test_every_batch_has_its_bernoulli_probability(rate, rng) -> None:
    """All 16 batches of four rows, against the product of four Bernoulli draws."""
    counts = np.zeros(16)
    for rows in (Poisson(rate).batch(4, rng) for _ in range(40_000)):
        counts[(1 << rows).sum()] += 1
    members = np.array([bin(k).count("1") for k in range(16)])
    expected = 40_000 * rate**members * (1 - rate) ** (4 - members)
    merged = expected >= 5
    observed = np.append(counts[merged], counts[~merged].sum())
    expected = np.append(expected[merged], expected[~merged].sum())
    if expected[-1] < 1:
        observed, expected = (
            observed[:-1],
            expected[:-1] * observed[:-1].sum() / expected[:-1].sum(),
        )
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    wrong = 40_000 * (0.95 * rate) ** members * (1 - 0.95 * rate) ** (4 - members)
    wrong = np.append(wrong[merged], wrong[~merged].sum())[: len(observed)]
    assert stats.chisquare(observed, wrong * observed.sum() / wrong.sum()).pvalue < 1e-4


def test_batch_sizes_are_binomial_and_may_be_zero(rng) -> None:
    sizes = np.array([len(Poisson(0.02).batch(100, rng)) for _ in range(20_000)])
    counts = np.bincount(sizes, minlength=8)
    observed = np.append(counts[:7], counts[7:].sum())
    expected = stats.binom(100, 0.02)
    expected = 20_000 * np.append(expected.pmf(range(7)), expected.sf(6))
    assert stats.chisquare(observed, expected).pvalue > 1e-4 and counts[0] > 0


def test_gaps_are_drawn_until_the_end_of_the_table() -> None:
    """Gaps of one need many more draws than expected, and all of them are drawn."""

    class Unlucky:
        def geometric(self, rate, size):
            return np.ones(size, dtype=np.int64)

    assert Poisson(0.001).batch(5_000, Unlucky()).tolist() == list(range(5_000))


def test_the_first_rows_do_not_depend_on_the_number_of_rows() -> None:
    for n in (10, 500, 501):
        small = Poisson(0.1).batch(n, np.random.default_rng(5))
        large = Poisson(0.1).batch(n + 1, np.random.default_rng(5))
        assert large[large < n].tolist() == small.tolist()


def test_memory_grows_with_the_batch_not_with_the_records(rng) -> None:
    tracemalloc.start()
    rows = Poisson(1e-7).batch(10**9, rng)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows) == pytest.approx(100, abs=60) and peak < 100_000


def test_a_secret_generator_never_repeats_a_batch() -> None:
    first, second = (Poisson(0.5).batch(200, _random.secret_generator()) for _ in range(2))
    assert first.tolist() != second.tolist()


def test_full_batches_contain_all_rows(rng) -> None:
    assert FullBatch().batch(3, rng).tolist() == [0, 1, 2]
    assert FullBatch().batch(0, rng).shape == (0,)


def test_samplers_state_their_events() -> None:
    assert Poisson(0.1).event(2.0, 1.0, "add-remove") == PoissonGaussian(2.0, 1.0, rate=0.1)
    assert Poisson(0.1).event(2.0, 1.0, "replace-one") == PoissonGaussian(
        2.0, 1.0, "replace-one", rate=0.1
    )
    assert FullBatch().event(2.0, 1.5, "add-remove") == Gaussian(2.0, 1.5)
    assert FullBatch().event(2.0, 1.5, "replace-one") == Gaussian(2.0, 3.0, "replace-one")
    with pytest.raises(ValueError, match="relation"):
        FullBatch().event(2.0, 1.5, "substitute")


@pytest.mark.parametrize("rate", [0, -0.1, 1.1, np.nan, "0.5", True])
def test_poisson_rejects_invalid_rates(rate) -> None:
    with pytest.raises(ValueError, match="rate"):
        Poisson(rate)
