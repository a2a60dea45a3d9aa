"""The posterior of the temperature at which mean confidence equals accuracy."""

import math

import numpy as np
import pytest
from scipy.special import expit, logit

from veracal.calibration.private import root_posterior as module
from veracal.calibration.private.root_posterior import (
    NoisyCounts,
    NoisyGap,
    pooled_posterior,
)

ENDS = -math.log(6.0), -math.log(0.5)
N, ACCURACY, STEEPNESS = 2_000.0, 0.7, 0.9


def gap_at(position, root, noise=0.0):
    """The gap of the logistic curve, written out."""
    return N * (ACCURACY - expit(logit(ACCURACY) + STEEPNESS * (position - root))) + noise


def observe(root, positions, std, rng=None):
    """Noisy counts and gaps of a curve with a root."""
    draw = (lambda: rng.normal(0, std)) if rng is not None else (lambda: 0.0)
    counts = NoisyCounts(
        np.array(ACCURACY * N + draw()),
        np.array((1 - ACCURACY) * N + draw()),
        np.array(std),
        np.array(20.0),
    )
    gaps = [
        NoisyGap(np.array(position), np.array(gap_at(position, root, draw())), np.array(std))
        for position in positions
    ]
    return counts, gaps


@pytest.mark.parametrize("root", [-1.7, -1.0, -0.3, 0.0, 0.5])
def test_exact_gaps_end_at_the_root(root):
    position = module.CENTER
    counts, gaps = observe(root, [position], 0.0)
    for _ in range(3):
        position = float(pooled_posterior(counts, gaps, ENDS).best)
        gaps = [*gaps, *observe(root, [position], 0.0)[1]]
    assert float(pooled_posterior(counts, gaps, ENDS).best) == pytest.approx(root, abs=2e-3)


def test_a_posterior_is_that_of_the_definition():
    """Prior times likelihoods on the very points, summed out by loops."""
    counts, gaps = observe(-0.8, [-0.8, -1.1], 30.0)
    posterior = pooled_posterior(counts, gaps, ENDS)
    step = (posterior.points[1] - posterior.points[0]) / 2
    weights = np.zeros(len(posterior.points))
    for i, root in enumerate(posterior.points):
        for a in module.ACCURACIES:
            for s in module.STEEPNESS:
                half = (module.ACCURACIES[1] - module.ACCURACIES[0]) / 2 * counts.n
                spread = math.hypot(30.0 * math.hypot(a, 1 - a), half)
                off = counts.correct * (1 - a) - counts.wrong * a
                density = math.exp(-0.5 * (off / spread) ** 2) / spread
                for seen in gaps:
                    c = expit(logit(a) + s * (seen.position - root))
                    parts = (
                        30.0 / counts.n,
                        math.hypot(0.1, counts.error) * (a - c),
                        s * c * (1 - c) * step,
                        math.sqrt(1e-9),
                    )
                    std = math.sqrt(sum(part**2 for part in parts))
                    density *= math.exp(-0.5 * ((seen.gap / counts.n - (a - c)) / std) ** 2)
                    density /= std
                weights[i] += density
        weights[i] *= math.exp(-0.5 * ((root - module.CENTER) / module.SPREAD) ** 2)
    np.testing.assert_allclose(
        posterior.weights.sum(axis=(-1, -2)), weights / weights.sum(), rtol=1e-6, atol=1e-12
    )


def test_many_searches_at_once_are_each_one_alone():
    rng = np.random.default_rng(5)
    alone = [observe(root, [-0.8, -1.2], 40.0, rng) for root in (-1.5, -0.9, -0.2, 0.4)]
    together = pooled_posterior(
        NoisyCounts(
            *(
                np.array([getattr(c, name) for c, _ in alone]).reshape(2, 2)
                for name in ("correct", "wrong", "std", "sources")
            )
        ),
        [
            NoisyGap(
                *(
                    np.array([getattr(g[i], name) for _, g in alone]).reshape(2, 2)
                    for name in ("position", "gap", "std")
                )
            )
            for i in range(2)
        ],
        ENDS,
    )
    for i, (counts, gaps) in enumerate(alone):
        posterior = pooled_posterior(counts, gaps, ENDS)
        assert float(posterior.best) == together.best.ravel()[i]
        assert float(posterior.quantile(0.9)) == together.quantile(0.9).ravel()[i]
        assert float(posterior.accuracy) == pytest.approx(together.accuracy.ravel()[i])


def test_much_noise_leaves_the_prior():
    counts, gaps = observe(0.5, [module.CENTER], 1e6)
    posterior = pooled_posterior(counts, gaps, ENDS)
    assert float(posterior.best) == pytest.approx(module.CENTER, abs=0.1)
    width = float(posterior.quantile(0.84) - posterior.quantile(0.16))
    assert width == pytest.approx(2 * module.SPREAD, rel=0.1)


@pytest.mark.parametrize("single", [True, False])
def test_the_root_is_where_its_quantiles_say(single):
    """Roots drawn from the prior: an eighty-percent interval holds eighty percent of them."""
    rng = np.random.default_rng(8)
    count, std = 400, 60.0
    roots = rng.normal(module.CENTER, module.SPREAD, count)
    if single:
        noise = rng.laplace(0, std / math.sqrt(2), (4, count))
    else:
        noise = rng.normal(0, std, (4, count))
    positions = np.full(count, module.CENTER), np.clip(roots + 0.2, *ENDS)
    counts = NoisyCounts(
        ACCURACY * N + noise[0],
        (1 - ACCURACY) * N + noise[1],
        np.full(count, std),
        np.full(count, 9),
    )
    gaps = [
        NoisyGap(position, gap_at(position, roots, n), np.full(count, std))
        for position, n in zip(positions, noise[2:], strict=True)
    ]
    posterior = pooled_posterior(counts, gaps, ENDS, single=single)
    covered = (posterior.quantile(0.1) < roots) & (roots < posterior.quantile(0.9))
    assert 0.75 < covered.mean() < 0.95  # the misfit makes intervals a little wide
    narrow = (posterior.quantile(0.3) < roots) & (roots < posterior.quantile(0.7))
    assert narrow.mean() < 0.7


def test_a_map_improves_where_the_root_is_on_its_side():
    counts, gaps = observe(-1.2, [-1.2, -1.1], 5.0)
    posterior = pooled_posterior(counts, gaps, ENDS)
    assert float(posterior.improved(np.array(-1.1))) > 0.999
    assert float(posterior.improved(np.array(0.4))) < 0.001
    assert (
        0 <= float(posterior.improved(np.array(0.0))) < 1e-9
    )  # no map is not better than none
    # Uniform mixing at the root lowers confidence below accuracy.
    assert float(posterior.improved(np.array(-1.2), uniform_weight=0.9, chance=0.1)) < 0.001


def test_nothing_that_noise_does_is_not_finite():
    for correct, wrong in ((-500.0, -800.0), (0.0, 0.0), (1e6, -1e6), (-1e6, 3.0)):
        counts = NoisyCounts(*(np.array(x) for x in (correct, wrong, 300.0, 5.0)))
        for gap in (-1e9, 0.0, 1e9):
            gaps = [NoisyGap(np.array(-0.5), np.array(gap), np.array(200.0))]
            posterior = pooled_posterior(counts, gaps, ENDS)
            for value in (
                posterior.best,
                posterior.slope,
                posterior.accuracy,
                posterior.gap(np.array(-1.0)),
            ):
                assert np.isfinite(value)
            assert ENDS[0] - 2 <= float(posterior.best) <= ENDS[1] + 2
