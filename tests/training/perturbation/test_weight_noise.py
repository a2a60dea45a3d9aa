"""Distributions of noise on weights: one direction, the length, and differences."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import betainc

from veracal.training import weight_noise as laws
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.weight_noise import GammaNoise, GaussianNoise

RNG = np.random.default_rng(0)


def draw_noise(noise, n):
    """Draws of the noise by the mechanisms themselves."""
    d = noise.dimension
    if isinstance(noise, GaussianNoise):
        return RNG.normal(0.0, noise.std, (n, d))
    return spherical_gamma(d, noise.scale, rng=RNG, size=n)


LAWS = [GaussianNoise(1.7, 4), GammaNoise(0.3, 1), GammaNoise(2.0, 2), GammaNoise(0.7, 9)]


@pytest.mark.parametrize("noise", LAWS, ids=repr)
def test_the_distribution_matches_the_noise_and_other_scales_fail(noise):
    b = draw_noise(noise, 20_000)
    side = RNG.normal(size=noise.dimension)
    along = b @ (side / np.linalg.norm(side))
    assert stats.kstest(along, lambda y: 1 - noise.tail_probability(y)).pvalue > 1e-3
    assert stats.kstest(1.1 * along, lambda y: 1 - noise.tail_probability(y)).pvalue < 1e-6
    differences = (b - draw_noise(noise, 20_000))[:, 0]
    assert (
        stats.kstest(differences, lambda y: 1 - noise.difference().tail_probability(y)).pvalue
        > 1e-3
    )
    assert stats.kstest(differences, lambda y: 1 - noise.tail_probability(y)).pvalue < 1e-6


@pytest.mark.parametrize("noise", LAWS, ids=repr)
@pytest.mark.parametrize("tail", [0.2, 0.01])
def test_quantiles_leave_their_tail(noise, tail):
    b, c = draw_noise(noise, 50_000), draw_noise(noise, 50_000)
    error = 5 * np.sqrt(tail / 50_000)
    assert (b[:, 0] > noise.quantile(tail)).mean() == pytest.approx(tail, abs=error)
    lengths = np.linalg.norm(b, axis=1), np.linalg.norm(b - c, axis=1)
    assert (lengths[0] > noise.length_quantile(tail)).mean() == pytest.approx(tail, abs=error)
    both = noise.difference()
    assert (lengths[1] > both.length_quantile(tail)).mean() == pytest.approx(tail, abs=error)
    assert ((b - c)[:, 0] > both.quantile(tail)).mean() == pytest.approx(tail, abs=error)


@pytest.mark.parametrize("d", [2, 3, 8, 60])
@pytest.mark.parametrize("y", [0.05, 1.0, 6.0])
def test_one_direction_equals_its_definition(d, y):
    """A random length, Gamma of shape d, times the cosine of a random direction."""

    def above(g):
        cosine = betainc((d - 1) / 2, (d - 1) / 2, (1 - y / g) / 2) if g > y else 0.0
        return cosine * stats.gamma.pdf(g, d)

    slowly = quad(above, y, stats.gamma.isf(1e-15, d), epsabs=1e-12, limit=400)[0]
    result = GammaNoise(1.0, d).tail_probability(np.array([y]))[0]
    assert result == pytest.approx(slowly, abs=2e-9)


def test_in_one_dimension_it_is_laplace_far_into_its_tail():
    y = np.array([0.0, 0.1, 1.0, 10.0, 25.0])
    np.testing.assert_allclose(
        GammaNoise(1.0, 1).tail_probability(y), np.exp(-y) / 2, rtol=1e-6
    )


@pytest.mark.parametrize("d", [1, 3, 200, 100_000])
def test_the_mixture_has_the_known_length_distribution(d):
    radii, weights = laws.mixture_radii(d, 1)
    for tail in (0.3, 1e-6):
        length = stats.gamma.isf(tail, d)
        assert weights @ stats.chi.sf(length / radii, d) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf, True, "1"])
def test_wrong_scales_are_rejected(wrong):
    with pytest.raises(ValueError, match="noise_std"):
        GaussianNoise(wrong, 3)
    with pytest.raises(ValueError, match="noise_scale"):
        GammaNoise(wrong, 3)
