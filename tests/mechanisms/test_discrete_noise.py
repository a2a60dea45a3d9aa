"""Noise is exact: its distribution, its cost, its randomness."""

import ast
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from veracal.accounting.components import MICRO, micro_epsilon, round_up_float
from veracal.accounting.events import DiscreteLaplace
from veracal.mechanisms import discrete_noise as noise
from veracal.mechanisms import grid
from veracal.mechanisms.discrete_noise import (
    MAX_NOISE,
    add_discrete_gaussian,
    add_discrete_laplace,
    discrete_gaussian_std,
    discrete_laplace_std,
    gaussian_noise,
    laplace_noise,
)
from veracal.queries import curator as holder
from veracal.queries import query as queries
from veracal.queries import query as sums
from veracal.queries import score_queries, sources

DRAWS = 20_000

pytestmark = pytest.mark.real_noise


@given(st.integers(1, 2**24), st.integers(1, 10**8))
def test_noise_costs_the_requested_epsilon(sensitivity, micro):
    if Fraction(sensitivity * MICRO, micro) > MAX_NOISE:
        return
    stored = Fraction(laplace_noise(sensitivity, micro))  # OpenDP takes this very rational
    assert stored >= Fraction(sensitivity * MICRO, micro)
    assert math.ceil(Fraction(sensitivity) / stored * MICRO) == micro
    event = DiscreteLaplace(noise=float(stored), sensitivity=sensitivity)
    assert micro_epsilon(event) == micro


def test_six_equal_shares_fit_into_one_epsilon():
    share = MICRO // 6
    event = DiscreteLaplace(noise=laplace_noise(1, share), sensitivity=1)
    assert 6 * micro_epsilon(event) <= MICRO


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**9))
def test_rounding_up_is_tight(value):
    rounded = round_up_float(value)
    assert Fraction(rounded) >= value
    assert Fraction(math.nextafter(rounded, 0)) < value


def test_gaussian_noise_is_rounded_up():
    assert Fraction(gaussian_noise(3, 0.1)) >= 3 * Fraction(0.1)
    assert gaussian_noise(3, 0.1) == pytest.approx(0.3)


def laplace_pmf(k, scale):
    return math.tanh(1 / (2 * scale)) * np.exp(-np.abs(k) / scale)


def gaussian_pmf(k, scale):
    every = np.arange(-400, 401)
    return np.exp(-((k / scale) ** 2) / 2) / np.exp(-((every / scale) ** 2) / 2).sum()


def pvalue(draws, pmf, scale):
    """Chi-squared test over integers near zero.

    From the outermost integer on that 50 draws are expected to reach, all count as one: cells
    that expect few draws would follow no chi-squared distribution.
    """
    k = np.arange(-400, 401)
    probabilities = pmf(k, scale)
    end = k[np.cumsum(probabilities[::-1])[::-1] * len(draws) >= 50].max()
    cells = np.clip(k, -end, end) + end
    expected = np.bincount(cells, probabilities)
    counts = np.bincount(np.clip(draws, -end, end) + end, minlength=2 * end + 1)
    return stats.chisquare(counts, expected / expected.sum() * len(draws)).pvalue


@pytest.mark.parametrize("scale", [0.7, 3.25])
@pytest.mark.parametrize(
    ("add", "pmf"), [(add_discrete_laplace, laplace_pmf), (add_discrete_gaussian, gaussian_pmf)]
)
def test_noise_has_the_claimed_distribution(add, pmf, scale):
    # Chance of a false alarm: 1e-9 for the distribution itself, in each of 4 cases. For scales
    # that are wrong by a tenth the statistic has, in simulations of 40,000 draws, a mean at
    # least 7.2 standard deviations above the 1e-9 quantile, with the lighter tail below.
    draws = add(np.full(2 * DRAWS, 5), scale) - 5
    assert pvalue(draws, pmf, scale) > 1e-9
    assert pvalue(draws, pmf, 1.1 * scale) < 1e-9
    assert pvalue(draws, pmf, scale / 1.1) < 1e-9


def test_the_test_distinguishes_the_distributions():
    # The statistic is expected at 20,000 times 0.119, its 1e-9 quantile is 91.
    draws = add_discrete_gaussian(np.zeros(DRAWS, dtype=int), 3.25)
    assert pvalue(draws, laplace_pmf, 3.25 / math.sqrt(2)) < 1e-9


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0, 1e6])
def test_standard_deviations_match_the_distributions(scale):
    # The sample's deviation has a relative error of sqrt((kurtosis - 1) / 4n): at most 0.015
    # for Laplace noise (kurtosis 19 at 0.3) and 0.010 for Gaussian noise (3 of 5,000 draws). A
    # tenth is 6.6 such errors, a chance below 1e-9.
    k = np.arange(-4000, 4001)
    if scale < 100:
        exact = np.sqrt((laplace_pmf(k, scale) * k**2).sum())
        assert discrete_laplace_std(scale) == pytest.approx(exact, rel=1e-9)
    draws = add_discrete_laplace(np.zeros(DRAWS, dtype=int), scale)
    assert discrete_laplace_std(scale) == pytest.approx(draws.std(), rel=0.1)
    if scale > 0.5:  # below, the distribution has only a few nonzero draws
        draws = add_discrete_gaussian(np.zeros(DRAWS // 4, dtype=int), scale)
        assert discrete_gaussian_std(scale) == pytest.approx(draws.std(), rel=0.1)
    if scale < 100:
        exact = np.sqrt((gaussian_pmf(k[3600:4401], scale) * k[3600:4401] ** 2).sum())
        assert discrete_gaussian_std(scale) == pytest.approx(exact, rel=1e-9)


def test_both_formulas_of_the_gaussian_deviation_agree():
    assert discrete_gaussian_std(7.9999999) == pytest.approx(8, rel=1e-7)


def test_forks_draw_different_noise():
    # Two draws are equal with probability 1 / 4s: 44,850 pairs, 1e-8.
    parent = add_discrete_laplace(np.zeros(50, dtype=int), 2.0**40)  # warm before forking
    seen = [parent.tolist()]
    for _ in range(4):
        seen.append(_draw_in_a_fork())
    seen.append(add_discrete_laplace(np.zeros(50, dtype=int), 2.0**40).tolist())
    everything = [k for draws in seen for k in draws]
    assert len(set(everything)) == len(everything) == 300


def _draw_in_a_fork():
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        drawn = add_discrete_laplace(np.zeros(50, dtype=int), 2.0**40)
        os.write(send, drawn.astype(np.int64).tobytes())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        drawn = np.frombuffer(pipe.read(), dtype=np.int64).tolist()
    os.waitpid(child, 0)
    return drawn


@pytest.mark.parametrize("module", [grid, noise, queries, sums, score_queries, sources, holder])
def test_no_other_generator_can_affect_a_release(module):
    """Neither numpy's generators nor the standard library's, nor our own seeded ones."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            words |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            words |= {node.module, *(alias.name for alias in node.names)}
    assert not words & {"random", "_random", "veracal._random", "secrets", "default_rng"}


def test_vectors_get_independent_noise():
    draws = add_discrete_laplace(np.zeros((2 * DRAWS), dtype=int), 30.0).reshape(2, -1)
    # Correlations of independent draws have a deviation of 1 / sqrt(n): two chances of 2e-9.
    assert abs(np.corrcoef(draws)[0, 1]) < 6 / math.sqrt(DRAWS)
    assert abs(np.corrcoef(draws[0][1:], draws[0][:-1])[0, 1]) < 6 / math.sqrt(DRAWS)


def test_no_entries_need_no_noise():
    assert add_discrete_laplace(np.zeros(0, dtype=int), 1.0).shape == (0,)


@pytest.mark.parametrize("add", [add_discrete_laplace, add_discrete_gaussian])
@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), 2.0**46 + 1, True])
def test_zero_and_excessive_noise_are_rejected(add, bad):
    with pytest.raises(ValueError, match="noise"):
        add([1], bad)


@pytest.mark.parametrize(
    "units", [[1.0], [[1]], 1, [2**62 + 1], [-(2**62) - 1], np.array([1], dtype=np.uint8)]
)
def test_statistics_must_be_integers_with_headroom(units):
    with pytest.raises(ValueError, match="integers"):
        add_discrete_laplace(np.asarray(units), 1.0)


@pytest.mark.parametrize(
    ("sensitivity", "micro"), [(0, 1), (1, 0), (1, -1), (1.5, 1), (1, 0.5)]
)
def test_invalid_costs_are_rejected(sensitivity, micro):
    with pytest.raises(ValueError, match="Expected"):
        laplace_noise(sensitivity, micro)


def test_a_cost_whose_noise_exceeds_64_bits_is_rejected():
    with pytest.raises(ValueError, match="fewer bits"):
        laplace_noise(2**40, 1)
