"""The posterior of where accuracy and confidence meet."""

import math

import numpy as np
import pytest
from scipy.special import expit, logit

from veracal.calibration.private import pooled as module
from veracal.calibration.private.pooled import NoisyCounts, NoisyGap, meeting

ENDS = -math.log(6.0), -math.log(0.5)
N, ACCURACY, STEEPNESS = 2_000.0, 0.7, 0.9


def gap_at(place, root, noise=0.0):
    """The gap of the logistic curve, written out."""
    return N * (ACCURACY - expit(logit(ACCURACY) + STEEPNESS * (place - root))) + noise


def told(root, places, std, rng=None):
    """Noisy counts and gaps of a curve with a root."""
    draw = (lambda: rng.normal(0, std)) if rng is not None else (lambda: 0.0)
    counted = NoisyCounts(
        np.array(ACCURACY * N + draw()),
        np.array((1 - ACCURACY) * N + draw()),
        np.array(std),
        np.array(20.0),
    )
    gaps = [
        NoisyGap(np.array(place), np.array(gap_at(place, root, draw())), np.array(std))
        for place in places
    ]
    return counted, gaps


@pytest.mark.parametrize("root", [-1.7, -1.0, -0.3, 0.0, 0.5])
def test_exact_gaps_end_at_the_root(root):
    place = module.CENTER
    counted, gaps = told(root, [place], 0.0)
    for _ in range(3):
        place = float(meeting(counted, gaps, ENDS).best)
        gaps = [*gaps, *told(root, [place], 0.0)[1]]
    assert float(meeting(counted, gaps, ENDS).best) == pytest.approx(root, abs=2e-3)


def test_a_posterior_is_that_of_the_definition():
    """Prior times likelihoods on the very points, summed out by loops."""
    counted, gaps = told(-0.8, [-0.8, -1.1], 30.0)
    found = meeting(counted, gaps, ENDS)
    step = (found.points[1] - found.points[0]) / 2
    weights = np.zeros(len(found.points))
    for i, root in enumerate(found.points):
        for a in module._ACCURACIES:
            for s in module._STEEPNESS:
                half = (module._ACCURACIES[1] - module._ACCURACIES[0]) / 2 * counted.n
                spread = math.hypot(30.0 * math.hypot(a, 1 - a), half)
                off = counted.correct * (1 - a) - counted.wrong * a
                density = math.exp(-0.5 * (off / spread) ** 2) / spread
                for seen in gaps:
                    c = expit(logit(a) + s * (seen.place - root))
                    parts = (
                        30.0 / counted.n,
                        math.hypot(0.1, counted.error) * (a - c),
                        s * c * (1 - c) * step,
                        math.sqrt(1e-9),
                    )
                    std = math.sqrt(sum(part**2 for part in parts))
                    density *= math.exp(-0.5 * ((seen.gap / counted.n - (a - c)) / std) ** 2)
                    density /= std
                weights[i] += density
        weights[i] *= math.exp(-0.5 * ((root - module.CENTER) / module.SPREAD) ** 2)
    np.testing.assert_allclose(
        found.weights.sum(axis=(-1, -2)), weights / weights.sum(), rtol=1e-6, atol=1e-12
    )


def test_many_searches_at_once_are_each_one_alone():
    rng = np.random.default_rng(5)
    alone = [told(root, [-0.8, -1.2], 40.0, rng) for root in (-1.5, -0.9, -0.2, 0.4)]
    together = meeting(
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
                    for name in ("place", "gap", "std")
                )
            )
            for i in range(2)
        ],
        ENDS,
    )
    for i, (counted, gaps) in enumerate(alone):
        found = meeting(counted, gaps, ENDS)
        assert float(found.best) == together.best.ravel()[i]
        assert float(found.quantile(0.9)) == together.quantile(0.9).ravel()[i]
        assert float(found.accuracy) == pytest.approx(together.accuracy.ravel()[i])


def test_much_noise_leaves_the_prior():
    counted, gaps = told(0.5, [module.CENTER], 1e6)
    found = meeting(counted, gaps, ENDS)
    assert float(found.best) == pytest.approx(module.CENTER, abs=0.1)
    width = float(found.quantile(0.84) - found.quantile(0.16))
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
    places = np.full(count, module.CENTER), np.clip(roots + 0.2, *ENDS)
    counted = NoisyCounts(
        ACCURACY * N + noise[0],
        (1 - ACCURACY) * N + noise[1],
        np.full(count, std),
        np.full(count, 9),
    )
    gaps = [
        NoisyGap(place, gap_at(place, roots, n), np.full(count, std))
        for place, n in zip(places, noise[2:], strict=True)
    ]
    found = meeting(counted, gaps, ENDS, single=single)
    held = (found.quantile(0.1) < roots) & (roots < found.quantile(0.9))
    assert 0.75 < held.mean() < 0.95  # the misfit makes intervals a little wide
    narrow = (found.quantile(0.3) < roots) & (roots < found.quantile(0.7))
    assert narrow.mean() < 0.7


def test_a_map_improves_where_the_root_is_on_its_side():
    counted, gaps = told(-1.2, [-1.2, -1.1], 5.0)
    found = meeting(counted, gaps, ENDS)
    assert float(found.improved(np.array(-1.1))) > 0.999
    assert float(found.improved(np.array(0.4))) < 0.001
    assert 0 <= float(found.improved(np.array(0.0))) < 1e-9  # no map is not better than none
    # Doubt at the root takes confidence below accuracy, too much of it further than before.
    assert float(found.improved(np.array(-1.2), doubt=0.9, chance=0.1)) < 0.001


def test_nothing_that_noise_does_is_not_finite():
    for correct, wrong in ((-500.0, -800.0), (0.0, 0.0), (1e6, -1e6), (-1e6, 3.0)):
        counted = NoisyCounts(*(np.array(x) for x in (correct, wrong, 300.0, 5.0)))
        for gap in (-1e9, 0.0, 1e9):
            gaps = [NoisyGap(np.array(-0.5), np.array(gap), np.array(200.0))]
            found = meeting(counted, gaps, ENDS)
            for value in (found.best, found.slope, found.accuracy, found.gap(np.array(-1.0))):
                assert np.isfinite(value)
            assert ENDS[0] - 2 <= float(found.best) <= ENDS[1] + 2
