"""Rounded real noise: exact enclosures, the right distribution, and digits on demand."""

import itertools
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from veracal.mechanisms import rounded_noise
from veracal.mechanisms.rounded_noise import (
    SphericalNoise,
    rounded_gaussian,
    rounded_spherical,
)


def test_rounded_normals_have_their_probabilities(rng):
    # About 2.6 units: the rounded distribution differs from the discrete Gaussian in every bin.
    std, draws = 0.8, np.array(rounded_gaussian(0.8, 12_000, rng=rng))
    k = np.arange(-3, 4)
    expected = stats.norm.cdf((k + 0.5) / std) - stats.norm.cdf((k - 0.5) / std)
    frequencies = np.array([(draws == one).mean() for one in k])
    errors = np.sqrt(expected * (1 - expected) / len(draws))
    assert (np.abs(frequencies - expected) < 5 * errors).all()
    discrete = (
        np.exp(-((k / std) ** 2) / 2) / np.exp(-((np.arange(-50, 51) / std) ** 2) / 2).sum()
    )
    assert (np.abs(frequencies - discrete) > 5 * errors).any()
    other = stats.norm.cdf((k + 0.5) / 0.94 / std) - stats.norm.cdf((k - 0.5) / 0.94 / std)
    assert (np.abs(frequencies - other) > 5 * errors).any()


def test_fine_normals_are_normal_and_independent(rng):
    draws = np.array(rounded_gaussian(1e12, 8_000, rng=rng)) / 1e12
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert 0.96 < draws.std() < 1.04  # 0.94 is 7.6 standard errors from 1
    assert abs(np.corrcoef(draws[::2], draws[1::2])[0, 1]) < 0.08  # two of one point
    assert abs(np.corrcoef(draws[::2] ** 2, draws[1::2] ** 2)[0, 1]) < 0.08


@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_spherical_vectors_have_gamma_lengths_and_uniform_directions(rng, d):
    vectors = np.array([rounded_spherical(1e9, d, rng=rng) for _ in range(800)]) / 1e9
    lengths = np.linalg.norm(vectors, axis=1)
    assert stats.kstest(lengths, stats.gamma(d).cdf).pvalue > 1e-4
    assert stats.kstest(vectors[:, 0] > 0, stats.bernoulli(0.5).cdf).statistic < 0.55
    if d > 1:
        # The square of one coordinate of a direction is Beta(1/2, (d - 1)/2).
        squares = (vectors[:, -1] / lengths) ** 2
        assert stats.kstest(squares, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > 1e-4


def test_in_one_dimension_it_is_rounded_laplace_noise(rng):
    scale = 1.5
    draws = np.array([rounded_spherical(scale, 1, rng=rng)[0] for _ in range(4_000)])
    law = stats.laplace(scale=scale)
    for k in (-2, 0, 1):
        expected = law.cdf(k + 0.5) - law.cdf(k - 0.5)
        error = np.sqrt(expected * (1 - expected) / len(draws))
        assert abs((draws == k).mean() - expected) < 5 * error


@pytest.mark.parametrize("d", [1, 4])
def test_refined_enclosures_are_nested(rng, d):
    with localcontext() as context:
        context.prec = 3  # whatever the thread's own arithmetic is
        spans = refined_spans(rng, d)
        context.prec = 200  # for the differences below
        for before, after in itertools.pairwise(spans):
            for (low, high), (lower, higher) in zip(before, after, strict=True):
                assert low <= lower <= higher <= high
                assert higher - lower < (high - low) / 10**15


def refined_spans(rng, d):
    """Enclosures of one vector with more and more digits."""
    noise = SphericalNoise(3.0, d, rng=rng)
    spans = []
    for _ in range(4):
        spans.append(noise.intervals())
        noise.refine()
    return spans


def test_results_do_not_depend_on_the_initial_digits(monkeypatch):
    """Digits are drawn until the integer is known: with 8 at first, almost always more."""
    monkeypatch.setattr(rounded_noise, "_BITS", 8)
    monkeypatch.setattr(rounded_noise, "_MORE_BITS", 8)
    rng = np.random.default_rng(0)
    draws = np.array(rounded_gaussian(1000.0, 4_000, rng=rng)) / 1000.0
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert len(np.unique(draws)) > 1_500
    vectors = np.array([rounded_spherical(1000.0, 3, rng=rng) for _ in range(1_000)]) / 1000.0
    lengths = np.linalg.norm(vectors, axis=1)
    assert stats.kstest(lengths, stats.gamma(3).cdf).pvalue > 1e-4


def test_digits_of_zeros_and_ones_are_refined():
    """The smallest and the largest digits, whose logarithm or interval can be taken."""

    class Scripted:
        def __init__(self, first):
            self._first, self._rest = [first] * 12, np.random.default_rng(0)

        def bytes(self, n):
            return bytes([self._first.pop()]) * n if self._first else self._rest.bytes(n)

    for first in (0, 255):
        spans = SphericalNoise(1.0, 3, rng=Scripted(first)).intervals()
        assert all(low <= high for low, high in spans)
        assert all(one.is_finite() for span in spans for one in span)
        assert len(rounded_gaussian(2.0, 3, rng=Scripted(first))) == 3


def test_an_interval_over_a_boundary_is_not_rounded():
    by = rounded_noise._IntervalArithmetic(96)
    span = (Decimal("0.4999999"), Decimal("0.5000001"))
    assert rounded_noise._round_intervals([span], [1], by) is None
    assert rounded_noise._round_intervals([(Decimal("0.6"), Decimal("1.4"))], [-1], by) == [-1]
    assert rounded_noise._round_intervals([(Decimal("-1.4"), Decimal("-0.6"))], [1], by) == [-1]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_checked(rng, wrong):
    with pytest.raises(ValueError, match="std"):
        rounded_gaussian(wrong, 1, rng=rng)
    with pytest.raises(ValueError, match="scale"):
        rounded_spherical(wrong, 2, rng=rng)
