"""The contract of mechanisms passes sound ones and catches broken ones."""

import numpy as np
import pytest

from veracal.accounting.events import DiscreteLaplace, Gaussian, Laplace, Pure
from veracal.mechanisms.discrete_noise import add_discrete_laplace
from veracal.testing import check_mechanism

FEWER, MORE = range(9), range(10)


def noisy(noise):
    return lambda records, n: len(records) + noise(n)


def test_sound_mechanisms_pass_and_are_measured(rng):
    laplace = check_mechanism(
        noisy(lambda n: rng.laplace(scale=1.0, size=n)), Laplace(1.0), FEWER, MORE
    )
    assert 0.8 < laplace <= 1
    check_mechanism(noisy(lambda n: rng.normal(size=n)), Gaussian(1.0), FEWER, MORE)


def test_our_own_noise_passes():
    def count(records, n):
        return add_discrete_laplace(np.full(n, len(records)), 2.0)

    assert 0.3 < check_mechanism(count, DiscreteLaplace(2.0, 1), FEWER, MORE) <= 0.5


@pytest.mark.parametrize(
    ("noise", "event"),
    [
        (lambda rng, n: np.zeros(n), Laplace(1.0)),
        (lambda rng, n: rng.laplace(scale=0.5, size=n), Laplace(1.0)),
        (lambda rng, n: rng.laplace(scale=0.7, size=n), Laplace(1.0)),
        (lambda rng, n: rng.exponential(size=n), Laplace(1.0)),
        (lambda rng, n: rng.uniform(-2, 2, size=n), Pure(1.0)),
        (lambda rng, n: rng.normal(scale=0.15, size=n), Gaussian(1.0)),
    ],
    ids=["none", "half", "0.7", "one-sided", "bounded", "a seventh"],
)
def test_broken_mechanisms_are_caught(rng, noise, event):
    with pytest.raises(AssertionError, match="a release costs at least"):
        check_mechanism(noisy(lambda n: noise(rng, n)), event, FEWER, MORE)


def test_releases_are_finite_numbers_of_finite_cost():
    with pytest.raises(AssertionError, match="not finite"):
        check_mechanism(lambda records, n: np.full(n, np.nan), Laplace(1.0), FEWER, MORE)
    with pytest.raises(AssertionError, match="expected 100 numbers"):
        check_mechanism(lambda records, n: 1.0, Laplace(1.0), FEWER, MORE, draws=100)
    with pytest.raises(AssertionError, match="promises nothing"):
        check_mechanism(lambda records, n: np.zeros(n), Laplace(0.0), FEWER, MORE)
