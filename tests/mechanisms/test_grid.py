"""Records on a public grid: exact sums, exact sensitivities."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veracal.mechanisms.grid import (
    MAX_TOTAL,
    MAX_UNITS,
    Bounds,
    Grid,
    clip_to_grid,
    clip_vectors_to_grid,
    exact_total,
)

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


@given(st.floats(-1e6, 1e6), st.integers(0, 20))
def test_bounds_are_rounded_outward_exactly(value, bits):
    grid = Grid(bits)
    exact = Fraction(value) * 2**bits
    assert grid.round_down(value) <= exact < grid.round_down(value) + 1
    assert grid.round_up(value) - 1 < exact <= grid.round_up(value)


@given(ANY_FLOAT, st.floats(-50, 50), st.floats(0, 50), st.integers(0, 20))
def test_a_contribution_is_the_rounded_then_clipped_integer(value, low, width, bits):
    grid = Grid(bits)
    if grid.round_down(low) == grid.round_up(low + width) == 0:
        return
    bounds = Bounds.of(low, low + width, grid)
    (contribution,) = clip_to_grid([value], bounds, grid)
    if not np.isfinite(value):
        assert contribution == 0
    else:
        rounded = round(Fraction(value) * 2**bits)  # exact, half to even
        assert contribution == min(max(rounded, bounds.low), bounds.high)


@given(ANY_FLOAT, ANY_FLOAT, st.floats(-50, 50), st.floats(0, 50), st.integers(0, 20))
def test_two_records_differ_by_at_most_the_sensitivity(one, other, low, width, bits):
    grid = Grid(bits)
    if grid.round_down(low) == grid.round_up(low + width) == 0:
        return
    bounds = Bounds.of(low, low + width, grid)
    first, second = clip_to_grid([one, other], bounds, grid).tolist()
    assert abs(first) <= bounds.sensitivity("add-remove")
    assert abs(first - second) <= bounds.sensitivity("replace-one")
    assert bounds.sensitivity("add-remove") <= bounds.sensitivity("replace-one")


def test_rounding_after_clipping_would_double_a_distance():
    grid = Grid(0)
    near = clip_to_grid([0.5, 1.5], Bounds(-9, 9), grid)
    assert near[1] - near[0] == 2  # so no sensitivity may be taken from real bounds
    bounds = Bounds.of(0.5, 1.5, grid)
    assert bounds.sensitivity("replace-one") == 2


def test_bounds_without_zero_account_for_a_dropped_record():
    bounds = Bounds(3, 5)
    assert bounds.sensitivity("add-remove") == 5
    assert bounds.sensitivity("replace-one") == 5  # not 2: a broken record contributes zero
    moved = clip_to_grid([5.0], bounds, Grid(0)) - clip_to_grid([np.nan], bounds, Grid(0))
    assert moved == [5]


@pytest.mark.parametrize(
    ("low", "high", "add_remove", "replace_one", "one_bin"),
    [(0, 7, 7, 7, 14), (-3, 7, 7, 10, 14), (-7, 3, 7, 10, 14), (-7, -2, 7, 7, 14)],
)
def test_sensitivities_follow_from_the_two_integers(
    low, high, add_remove, replace_one, one_bin
):
    bounds = Bounds(low, high)
    assert bounds.sensitivity("add-remove") == add_remove
    assert bounds.sensitivity("replace-one") == replace_one
    assert bounds.one_bin_sensitivity("add-remove") == add_remove
    assert bounds.one_bin_sensitivity("replace-one") == one_bin


@given(
    st.lists(st.lists(ANY_FLOAT, min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(1, 1000),
    st.integers(0, 12),
    st.sampled_from([1, 2]),
)
def test_no_vector_exceeds_the_norm_bound(rows, most, bits, power):
    units = clip_vectors_to_grid(rows, most, Grid(bits), power=power)
    assert units.dtype == np.int64
    for row, contribution in zip(rows, units.tolist(), strict=True):
        assert sum(abs(k) ** power for k in contribution) <= most**power
        if not np.isfinite(row).all():
            assert contribution == [0, 0, 0]


def test_vectors_within_the_bound_are_truncated_toward_zero():
    grid = Grid(2)
    units = clip_vectors_to_grid([[0.7, -0.7], [1.0, 0.0]], 4, grid, power=2)
    assert units.tolist() == [[2, -2], [4, 0]]


def test_long_vectors_keep_their_direction():
    units = clip_vectors_to_grid([[3e5, -4e5], [1e308, 1e308]], 2**20, Grid(10), power=2)
    assert units[0] / 2**20 == pytest.approx([0.6, -0.8], abs=1e-5)
    assert units[1] / 2**20 == pytest.approx([0.5**0.5] * 2, abs=1e-5)


@given(st.lists(st.integers(-(2**60), 2**60), max_size=40))
def test_a_total_is_exact_or_clipped(numbers):
    (contribution,) = exact_total([np.array([k], dtype=np.int64) for k in numbers], 1)
    assert contribution == max(-MAX_TOTAL, min(sum(numbers), MAX_TOTAL))


def test_a_total_beyond_64_bits_is_clipped_without_an_error():
    block = np.array([2**62], dtype=np.int64)
    assert exact_total([block] * 9, 1) == [MAX_TOTAL]


@given(st.integers(-(2**53), 2**53), st.integers(0, 40))
def test_values_are_exactly_on_the_grid(units, bits):
    (value,) = Grid(bits).values([units])
    assert Fraction(value) * 2**bits == units


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "f8", "i4", "u1", "longdouble"])
def test_every_real_dtype_is_supported(dtype):
    values = np.array([0, 1, 2], dtype=dtype)
    assert clip_to_grid(values, Bounds(0, 8), Grid(2)).tolist() == [0, 4, 8]


@pytest.mark.parametrize("bits", [-1, 41, 0.5, True, float("nan")])
def test_invalid_grids_are_rejected(bits):
    with pytest.raises(ValueError, match="bits"):
        Grid(bits)


@pytest.mark.parametrize(
    ("low", "high"), [(1, 0), (0, 0), (0, MAX_UNITS + 1), (-MAX_UNITS - 1, 0)]
)
def test_invalid_bounds_are_rejected(low, high):
    with pytest.raises(ValueError, match="low"):
        Bounds(low, high)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bounds_must_be_finite(bad):
    with pytest.raises(ValueError, match="finite"):
        Bounds.of(0, bad, Grid(4))


def test_an_unknown_relation_is_rejected():
    with pytest.raises(ValueError, match="relation"):
        Bounds(0, 1).sensitivity("swap")
