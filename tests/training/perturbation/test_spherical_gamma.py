"""Spherical noise with Gamma-distributed length and uniform direction."""

import numpy as np
import pytest
from scipy import stats

from veracal.training.output_perturbation import spherical_gamma


@pytest.mark.parametrize("d", [1, 2, 5, 40])
def test_the_length_is_gamma(rng, d):
    lengths = np.linalg.norm(spherical_gamma(d, 0.3, rng=rng, size=20_000), axis=1)
    assert stats.kstest(lengths, stats.gamma(d, scale=0.3).cdf).pvalue > 0.01
    assert stats.kstest(lengths, stats.gamma(d, scale=0.33).cdf).pvalue < 1e-6
    assert stats.kstest(lengths, stats.gamma(d + 0.5, scale=0.3).cdf).pvalue < 1e-3


def test_the_direction_is_uniform_and_independent_of_the_length(rng):
    vectors = spherical_gamma(3, 2.0, rng=rng, size=20_000)
    lengths = np.linalg.norm(vectors, axis=1)
    directions = vectors / lengths[:, None]
    tilted = np.array([2.0, -1.0, 2.0]) / 3
    for axis in (np.eye(3)[0], np.eye(3)[2], tilted):
        # On a sphere in three dimensions every coordinate is uniform (Archimedes).
        assert stats.kstest(directions @ axis, stats.uniform(-1, 2).cdf).pvalue > 0.01
        assert abs(stats.spearmanr(lengths, directions @ axis).statistic) < 0.03
    cube = rng.uniform(-1, 1, (20_000, 3))
    cube /= np.linalg.norm(cube, axis=1, keepdims=True)
    assert stats.kstest(cube @ tilted, stats.uniform(-1, 2).cdf).pvalue < 1e-3


def test_in_one_dimension_it_is_laplace(rng):
    values = spherical_gamma(1, 1.5, rng=rng, size=20_000)[:, 0]
    assert stats.kstest(values, stats.laplace(scale=1.5).cdf).pvalue > 0.01
    assert stats.kstest(values, stats.norm(scale=1.5).cdf).pvalue < 1e-6


def test_a_draw_of_zeros_still_gets_a_direction():
    class Zeros:
        def standard_normal(self, size):
            return np.zeros(size)

        def gamma(self, shape, scale, size):
            return np.full(size, 7.0)

    assert spherical_gamma(3, 1.0, rng=Zeros()).tolist() == [7.0, 0.0, 0.0]


def test_one_vector_or_many(rng):
    assert spherical_gamma(4, 1.0, rng=rng).shape == (4,)
    assert spherical_gamma(4, 1.0, rng=rng, size=0).shape == (0, 4)
    with pytest.raises(ValueError, match="scale"):
        spherical_gamma(4, 0.0, rng=rng)
