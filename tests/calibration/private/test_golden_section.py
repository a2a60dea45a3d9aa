"""Golden section: its evaluations, its result, and close but wrong versions."""

import math

import numpy as np
import pytest
from scipy import optimize

from veracal.calibration.private.golden_section import (
    RATIO,
    Bracket,
    golden_section,
    n_evaluations,
)
from veracal.calibration.private.root_posterior import TemperatureGrid


class Counting:
    """A function that records where it was evaluated."""

    def __init__(self, function):
        self.function, self.asked = function, []

    def __call__(self, point):
        self.asked.append(point)
        return self.function(point)


def as_defined(function, low, high, reductions):
    """The search written out slowly, for one number (methods of the paper, corrected)."""
    t0, t1 = high - RATIO * (high - low), low + RATIO * (high - low)
    h0, h1 = function(t0), function(t1)
    for k in range(reductions):
        last = k == reductions - 1
        if h0 >= h1:
            low, t0, h0 = t0, t1, h1
            t1 = low + RATIO * (high - low)
            h1 = None if last else function(t1)
        else:
            high, t1, h1 = t1, t0, h0
            t0 = high - RATIO * (high - low)
            h0 = None if last else function(t0)
    return low, high


def old_bracket(function, low, high, reductions):
    """A close mistake: the new point is computed from the bracket before the cut."""
    t0, t1 = high - RATIO * (high - low), low + RATIO * (high - low)
    h0, h1 = function(t0), function(t1)
    for _ in range(reductions):
        width = high - low
        if h0 >= h1:
            low, t0, h0 = t0, t1, h1
            t1 = high - (1 - RATIO) * width
            h1 = function(t1)
        else:
            high, t1, h1 = t1, t0, h0
            t0 = low + (1 - RATIO) * width
            h0 = function(t0)
    return low, high


def valley(least):
    return lambda t: np.abs(np.log(t / least))


@pytest.mark.parametrize("reductions", [1, 2, 5, 12])
@pytest.mark.parametrize("least", [0.4, 0.7, 1.3, 2.2, 2.99])
def test_it_is_the_search_as_defined(reductions, least):
    one, other = Counting(valley(least)), Counting(valley(least))
    result = golden_section(one, 0.5, 3.0, reductions)
    low, high = as_defined(other, 0.5, 3.0, reductions)
    assert (result.bracket.low, result.bracket.high) == pytest.approx((low, high), abs=1e-14)
    np.testing.assert_allclose(one.asked, other.asked, atol=1e-13)
    np.testing.assert_array_equal(result.points, one.asked)
    np.testing.assert_array_equal(result.values, [valley(least)(t) for t in one.asked])
    assert result.minimum == pytest.approx((low + high) / 2)


@pytest.mark.parametrize("reductions", [1, 2, 5, 12])
def test_it_asks_one_more_time_than_it_cuts_and_never_twice_in_a_place(reductions):
    for least in (0.1, 0.9, 1.75, 2.5, 9.0):
        queried = Counting(valley(least))
        golden_section(queried, 0.5, 3.0, reductions)
        assert len(queried.asked) == reductions + 1 == n_evaluations(reductions)
        assert np.diff(np.sort(queried.asked)).min() > 1e-9
        assert min(queried.asked) > 0.5 and max(queried.asked) < 3.0


def test_five_cuts_of_the_papers_range_leave_0_225():
    result = golden_section(valley(1.5), 0.5, 3.0, 5)
    assert result.bracket.high - result.bracket.low == pytest.approx(0.2254, abs=5e-5)
    assert result.bracket.high - result.bracket.low == pytest.approx(2.5 * RATIO**5)


@pytest.mark.parametrize("shape", [np.abs, np.square, np.expm1], ids=["V", "U", "rising"])
def test_the_least_of_a_valley_is_within_half_the_last_width(shape, rng):
    low, high = rng.uniform(0.1, 1, 200), rng.uniform(2, 9, 200)
    least = rng.uniform(low, high) if shape is not np.expm1 else low
    for reductions in (1, 3, 5, 9):
        result = golden_section(lambda t: shape(t - least), low, high, reductions)
        half = (high - low) * RATIO**reductions / 2
        assert (np.abs(result.minimum - least) <= half * (1 + 1e-9)).all()


def test_many_searches_at_once_are_the_same_as_one_by_one(rng):
    least = rng.uniform(0.3, 3.5, size=(20, 3))
    noise = rng.laplace(scale=0.5, size=(6, 20, 3))  # no valley is left of it

    def noisy(places, which=...):
        draws = iter(noise)
        return lambda t: np.abs(t - places) + next(draws)[which]

    every = golden_section(noisy(least), np.full((20, 3), 0.5), 3.0, 5)
    for index in np.ndindex(20, 3):
        one = golden_section(noisy(least[index], index), 0.5, 3.0, 5)
        assert one.minimum == every.minimum[index]
        np.testing.assert_array_equal(one.points, every.points[(slice(None), *index)])


def test_equal_values_keep_the_upper_part():
    result = golden_section(np.zeros_like, 0.5, 3.0, 3)
    assert result.bracket.high == 3.0
    assert result.bracket.low == pytest.approx(3 - 2.5 * RATIO**3)


def test_a_new_point_of_the_old_bracket_is_seen_to_go_astray():
    """The mistake ends far from the least, which the search of the library finds."""
    grid = np.linspace(0.6, 2.9, 47)
    wrong = [abs(sum(old_bracket(valley(t), 0.5, 3.0, 5)) / 2 - t) for t in grid]
    right = [abs(float(golden_section(valley(t), 0.5, 3.0, 5).minimum) - t) for t in grid]
    assert max(right) <= 0.1128 < 0.2 < max(wrong)


def test_another_library_finds_the_same_least(rng):
    for least in rng.uniform(0.6, 2.9, 10):
        known = optimize.golden(valley(least), brack=(0.5, least + 0.01, 3.0), tol=1e-10)
        assert golden_section(valley(least), 0.5, 3.0, 45).minimum == pytest.approx(known)


def test_points_of_a_bracket_are_golden():
    for bracket in (Bracket(0.5, 3.0), Bracket(-1.0, 1e3)):
        lower, upper = bracket.points()
        after = bracket.narrow(np.array(True))
        assert (after.low, after.high) == (bracket.low, upper)
        assert after.points()[1] == pytest.approx(lower)
        after = bracket.narrow(np.array(False))
        assert (after.low, after.high) == (lower, bracket.high)
        assert after.points()[0] == pytest.approx(upper)


@pytest.mark.parametrize(
    ("low", "high", "reductions"),
    [(3.0, 0.5, 5), (1.0, 1.0, 5), (0.5, math.inf, 5), (math.nan, 1.0, 5), (0.5, 3.0, 0)],
)
def test_invalid_settings_are_rejected_before_any_query(low, high, reductions):
    queried = Counting(valley(1.0))
    with pytest.raises(ValueError, match="Expected"):
        golden_section(queried, low, high, reductions)
    assert not queried.asked


def test_temperatures_of_a_grid_are_the_nearest_and_in_the_range(rng):
    wanted = rng.uniform(0.3, 8.0, size=(50, 4))
    for bits in (3, 8, 12):
        grid = TemperatureGrid(0.5, 6.0, bits)
        result = grid.inverses(wanted)
        every = np.arange(1, 2 * 2**bits + 1) / 2**bits
        every = every[(1 / every <= 6.0) & (1 / every >= 0.5)]
        nearest = np.abs(every - 1 / wanted[..., None]).argmin(axis=-1)
        np.testing.assert_array_equal(result, every[nearest])
        assert grid.inverses(1.0) == 1.0


@pytest.mark.parametrize(
    ("low", "high", "bits"),
    [
        (3.0, 0.5, 16),
        (1.0, 1.0, 16),
        (0.0, 1.0, 16),
        (1e-7, 1.0, 16),
        (0.5, 2e6, 16),
        (0.5, math.nan, 16),
        (0.7, 0.9, 0),
        (0.5, 3.0, 31),
        (0.5, 3.0, -1),
        (2.9, 2.90001, 16),
    ],
)
def test_a_grid_that_cannot_be_is_refused(low, high, bits):
    with pytest.raises(ValueError, match="Expected"):
        TemperatureGrid(low, high, bits)
