"""Intervals of golden-section temperatures, and their coverage."""

import math

import numpy as np
import pytest
from scipy.special import expit

from veracal.calibration.private.golden_section import (
    ErrorBound,
    SourceSums,
    absolute_sum_interval,
    golden_section,
    loss_interval,
    minimum_interval,
    root_interval,
)

ENDS = (0.5, 6.0)
RIGHT = 2.2  # the temperature of the population
STEP = 2.0**-20


class World:
    """Two-class records in sources of unequal size, queried for gaps or losses with noise."""

    def __init__(self, rng, *, sources, n, scale):
        sizes = rng.integers(n // 2, n + n // 2 + 1, size=sources)
        self.rng, self.scale = rng, scale
        self.owner = np.repeat(np.arange(sources), sizes)
        self.logits = np.abs(rng.normal(scale=2.0, size=sizes.sum()))
        self.right = rng.random(sizes.sum()) < expit(self.logits)
        self.points, self.told = [], []

    def ask(self, kind):
        def at(t):
            margin = self.logits * RIGHT / t
            loss = np.minimum(np.logaddexp(0, np.where(self.right, -margin, margin)), 10) - 5
            values = self.right - expit(margin) if kind == "gap" else loss
            parts = np.bincount(self.owner, values)
            noise = self.rng.laplace(scale=self.scale, size=len(parts))
            noises = (self.scale / STEP,) * len(parts)
            self.points.append(float(t))
            self.told.append(SourceSums((parts + noise)[:, None], noises, STEP))
            total = self.told[-1].totals[0]
            return abs(total) if kind == "gap" else total

        return at


def ends_of(kind):
    return {"gap": root_interval, "loss": loss_interval}[kind]


def coverage(kind, rule, rng, *, trials, alter=None, truth=RIGHT, **settings):
    """How often the interval holds the temperature of the population; its mean width."""
    hits, width = 0, 0.0
    for _ in range(trials):
        world = World(rng, **settings)
        golden_section(world.ask(kind), *ENDS, 5)
        observed = [alter(one) for one in world.told] if alter else world.told
        low, high = ends_of(kind)(np.array(world.points), observed, rule, ENDS)
        assert ENDS[0] <= low <= high <= ENDS[1]
        hits += low <= truth <= high
        width += (high - low) / trials
    return hits / trials, width


def one_source(told):
    """A close mistake: the noise alone is counted, as of one source."""
    return SourceSums(told.parts.sum(axis=0, keepdims=True), told.noises, told.step)


def without_noise(told):
    """Another: the sampling alone is counted."""
    return SourceSums(told.parts.sum(axis=0, keepdims=True), (), told.step)


@pytest.mark.parametrize(("sources", "n", "scale"), [(30, 20, 3.0), (100, 6, 8.0)])
def test_variation_between_sources_locates_the_root(rng, sources, n, scale):
    world = {"sources": sources, "n": n, "scale": scale}
    held, _ = coverage("gap", ErrorBound(0.05, None, 2.0), rng, trials=100, **world)
    assert held >= 0.94


def test_with_many_records_the_noise_alone_is_not_enough(rng):
    world = {"sources": 12, "n": 300, "scale": 0.05}
    rule = ErrorBound(0.05, None, 2.0)
    held, width = coverage("gap", rule, rng, trials=100, **world)
    wrong, _ = coverage("gap", rule, rng, trials=100, alter=one_source, **world)
    assert wrong < 0.85 < 0.94 <= held
    assert width < 2.5  # of 5.5: it says something


def test_with_few_records_the_sampling_alone_is_not_enough(rng):
    world = {"sources": 5, "n": 60, "scale": 40.0}
    rule = ErrorBound(0.05, 5 * 90, 2.0)
    held, _ = coverage("gap", rule, rng, trials=100, **world)
    wrong, _ = coverage("gap", rule, rng, trials=100, alter=without_noise, **world)
    assert wrong < 0.85 < 0.94 <= held


def test_a_declared_size_counts_the_sampling_of_one_source(rng):
    world = {"sources": 1, "n": 20_000, "scale": 3.0}
    held, width = coverage("gap", ErrorBound(0.05, 30_000, 2.0), rng, trials=40, **world)
    assert held >= 0.94
    assert width < 3.5


@pytest.mark.parametrize(("sources", "n", "scale"), [(12, 400, 0.5), (40, 400, 5.0)])
def test_variation_between_sources_locates_the_minimum(rng, sources, n, scale):
    world = {"sources": sources, "n": n, "scale": scale}
    held, width = coverage("loss", ErrorBound(0.05, None, 20.0), rng, trials=60, **world)
    assert held >= 0.94
    assert width < 5.0


def test_a_root_beyond_the_range_counts_as_its_end(rng):
    world = World(rng, sources=12, n=300, scale=0.1)
    world.right[:] = False
    golden_section(world.ask("gap"), *ENDS, 5)
    low, high = root_interval(
        np.array(world.points), world.told, ErrorBound(0.05, None, 2.0), ENDS
    )
    assert high == 6.0 and low > 5.0
    world = World(rng, sources=12, n=300, scale=0.1)
    world.right[:] = True
    golden_section(world.ask("gap"), *ENDS, 5)
    low, high = root_interval(
        np.array(world.points), world.told, ErrorBound(0.05, None, 2.0), ENDS
    )
    assert low == 0.5 and high < 1.0


def test_hoeffdings_half_width_is_its_formula():
    settings = SourceSums(np.array([[1.0, 2.0]]), (), 1.0)
    reach = ErrorBound(0.1, 400, 3.0, n_candidates=7).half_widths(settings, n_sums=6)
    n, width, alpha = 400, 3.0, 0.05  # the other half is for noise
    assert reach == pytest.approx([reach[0]] * 2)
    assert 2 * 7 * math.exp(-2 * reach[0] ** 2 / (n * width**2)) == pytest.approx(alpha)
    assert ErrorBound(0.1, None, 3.0).half_widths(settings, n_sums=6).tolist() == [0.0, 0.0]


def test_students_half_width_is_its_formula(rng):
    parts = rng.normal(size=(14, 3))
    reach = ErrorBound(0.05, None, 2.0).half_widths(
        SourceSums(parts, (1.0,) * 14, 1.0), n_sums=5
    )
    for entry in range(3):
        deviation = math.sqrt(((parts[:, entry] - parts[:, entry].mean()) ** 2).sum() / 13)
        quantile = (
            3.0123  # of Student's distribution with 13 degrees, two-sided 0.01, from tables
        )
        assert reach[entry] == pytest.approx(quantile * deviation * math.sqrt(14), rel=1e-4)


def test_gaps_of_bins_are_compared_by_where_their_absolutes_may_be():
    points = np.array([1.0, 2.0, 4.0])
    sums = [[30.0, -30.0], [1.0, 1.0], [20.0, 5.0]]
    settings = [SourceSums(np.array([row]), (1.0,), 1.0) for row in sums]
    assert absolute_sum_interval(points, settings, ErrorBound(0.05, None, 2.0), ENDS) == (
        1.0,
        4.0,
    )
    # With a reach of about 11 for each bin, 25 is no longer surely above 2.
    settings = [SourceSums(np.array([row]), (2.0,), 1.0) for row in sums]
    assert absolute_sum_interval(points, settings, ErrorBound(0.05, None, 2.0), ENDS) == (
        1.0,
        6.0,
    )


def test_a_valley_lies_between_what_is_surely_larger():
    points = np.array([2.0, 4.0, 3.0, 5.0])
    nothing = np.zeros((4, 4), dtype=bool)
    assert minimum_interval(points, nothing, ENDS) == ENDS
    falls = nothing.copy()
    falls[0, 2] = True  # larger at 2 than at 3: the least is above 2
    assert minimum_interval(points, falls, ENDS) == (2.0, 6.0)
    rises = nothing.copy()
    rises[1, 2] = True  # larger at 4 than at 3: the least is below 4
    assert minimum_interval(points, rises, ENDS) == (0.5, 4.0)
    assert minimum_interval(points, falls | rises, ENDS) == (2.0, 4.0)
    nonsense = nothing.copy()
    nonsense[3, 2] = nonsense[0, 1] = nonsense[2, 0] = True  # no valley has this
    low, high = minimum_interval(points, nonsense, ENDS)
    assert low <= high
