"""The standardizer: noise covers the sensitivity of the moments to one record."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from scipy import stats

from veracal.accounting import Gaussian, NotPrivate, epsilon_for
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.training import PrivateStandardizer
from veracal.training.standardizer import (
    COLUMN_GRID,
    MIN_VARIANCE,
    column_sensitivity,
    column_sums,
    noisy_moments,
)

ODD = [0.0, 5e-324, 0.3, -0.9999999, 1.0, -1.0, 1e6, -1e308, np.inf, -np.inf, np.nan]
LOW, HIGH = np.full(3, -1.0), np.full(3, 1.0)
RELATIONS = ("add-remove", "replace-one")
GRID_UNITS = 2**COLUMN_GRID.bits
column_moments = partial(
    noisy_moments, grid=COLUMN_GRID, least_variance=MIN_VARIANCE, largest=1.0
)


def draw_rows(rng, n):
    """Rows of typical and of adversarial values."""
    rows = rng.uniform(-1.5, 1.5, (n, 3))
    return np.where(rng.random((n, 3)) < 0.3, rng.choice(ODD, (n, 3)), rows)


# ---------------------------------------------------------------- sums


def slow_sums(rows, low, high):
    """The same with exact fractions, value by value."""
    sums = [[0] * len(low) for _ in range(2)]
    for row in rows:
        for j, x in enumerate(row):
            if math.isnan(x):
                u = Fraction(0)
            else:
                bounded = Fraction(min(max(x, low[j]), high[j]))
                u = (
                    2 * (bounded - Fraction(low[j])) / (Fraction(high[j]) - Fraction(low[j]))
                    - 1
                )
            k = round(u * GRID_UNITS)
            sums[0][j] += k
            sums[1][j] += round(Fraction(k * k, GRID_UNITS))
    return sums


def test_sums_equal_their_definition(rng):
    rows = draw_rows(rng, 60)
    for low, high in ((LOW, HIGH), (np.array([-0.5, 0.0, -2.0]), np.array([0.5, 1.0, 0.25]))):
        np.testing.assert_array_equal(
            column_sums([rows], low, high), slow_sums(rows, low, high)
        )


def test_neither_order_nor_blocks_change_a_bit(rng):
    rows = draw_rows(rng, 97)
    whole = column_sums([rows], LOW, HIGH)
    np.testing.assert_array_equal(column_sums([rows[::-1]], LOW, HIGH), whole)
    np.testing.assert_array_equal(
        column_sums([rows[:5], rows[5:6], rows[6:]], LOW, HIGH), whole
    )
    np.testing.assert_array_equal(column_sums([], LOW, HIGH), 0)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_changes_the_sums_by_at_most_the_sensitivity(rng, relation):
    for _ in range(400):
        rows = draw_rows(rng, 4)
        other = (
            rows[1:] if relation == "add-remove" else np.vstack([draw_rows(rng, 1), rows[1:]])
        )
        if rng.random() < 0.3 and relation == "replace-one":
            other[0] = -rows[0]
        moved = column_sums([rows], LOW, HIGH) - column_sums([other], LOW, HIGH)
        # In integers, so that rounding cannot hide a difference.
        square = sum(int(k) ** 2 for k in moved.ravel())
        factor = 2 if relation == "add-remove" else 4
        assert square <= factor * 3 * GRID_UNITS**2


def test_rounding_does_not_increase_the_sensitivity():
    steps = 1 - np.arange(12) / GRID_UNITS
    values = np.concatenate([steps, -steps, steps - 0.3 / GRID_UNITS])[:, None]
    sums = np.array([column_sums([v[None]], LOW[:1], HIGH[:1]).ravel() for v in values])
    moved = sums[:, None] - sums[None]
    assert (moved**2).sum(axis=2).max() == 4 * GRID_UNITS**2  # attained by the end points only


@pytest.mark.parametrize("width", [1, 2, 3, 8, 50])
def test_the_stated_sensitivity_is_attained(width):
    low, high = np.full(width, -1.0), np.full(width, 1.0)
    end, other = np.ones((1, width)), -np.ones((1, width))
    there, gone = column_sums([end], low, high), column_sums([other], low, high)
    for relation, moved in (("add-remove", there), ("replace-one", there - gone)):
        stated = column_sensitivity(width, relation)
        assert (
            np.linalg.norm(moved / GRID_UNITS)
            <= stated
            <= np.linalg.norm(moved / GRID_UNITS) * (1 + 1e-15)
        )
        assert Fraction(stated) ** 2 >= (2 if relation == "add-remove" else 4) * width


# ---------------------------------------------------------------- moments


def test_without_noise_they_are_mean_and_standard_deviation(rng):
    rows = rng.uniform(-0.8, 0.6, (5_000, 3)) ** 3
    sums = column_sums([rows], LOW, HIGH)
    means, spreads = column_moments(sums, 5_000, 1e-12, rng=rng)
    np.testing.assert_allclose(means, rows.mean(axis=0), atol=2 / GRID_UNITS)
    np.testing.assert_allclose(spreads, rows.std(axis=0), rtol=1e-4)


def test_a_standard_deviation_is_at_least_its_noise():
    nothing = np.zeros((2, 400), int)
    for noise, size, least in ((1e-9, 50, MIN_VARIANCE), (3.0, 100, 0.03), (500.0, 100, 1.0)):
        _, spreads = column_moments(nothing, size, noise, rng=np.random.default_rng(0))
        assert spreads.min() == pytest.approx(math.sqrt(least)) and spreads.max() <= 1
    means, _ = column_moments(nothing, 1, 50.0, rng=np.random.default_rng(0))
    assert np.abs(means).max() == 1


def test_noise_has_its_distribution_and_is_drawn_for_every_entry(rng):
    # The noise is small relative to the declared size, so that nothing is clipped.
    sums = np.full((2, 3_000), GRID_UNITS // 2 * 1_000_000)
    means, spreads = column_moments(sums, 1_000_000, 40.0, rng=rng)
    first = means * 1_000_000 - 500_000
    second = (spreads**2 + means**2) * 1_000_000 - 500_000
    for noise in (first, second):
        assert stats.kstest(noise, stats.norm(0, 40.0).cdf).pvalue > 1e-3
        assert 0.95 < noise.std() / 40.0 < 1.05  # 0.94 is 4.6 standard errors from 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


# ---------------------------------------------------------------- the estimator


def noisy_sums(scaler):
    """The release of a fit, before division by the size."""
    means, spreads = scaler._released
    return np.array([means, spreads**2 + means**2]) * 1_000


@pytest.mark.parametrize("relation", RELATIONS)
def test_neighbors_differ_by_at_most_the_events_sensitivity(rng, relation):
    settings = dict(noise_multiplier=2.0, relation=relation, random_state=3)
    size = 1_000 if relation == "add-remove" else None
    scaler = PrivateStandardizer([(-5, 5), (0, 100)], size=size, **settings)
    rows = rng.uniform([-4, 10], [4, 90], (1_000, 2))
    reached = []
    for last in ([5, 100], [-5, 0], [1e9, -1e9], [0, 50]):
        here = np.vstack([rows[:-1], [last]])
        opposite = [-last[0], 100 - last[1]]
        there = rows[:-1] if relation == "add-remove" else np.vstack([rows[:-1], [opposite]])
        whole, less = (noisy_sums(scaler.fit(part)) for part in (here, there))
        event = scaler.event_
        moved = np.linalg.norm(whole - less) / (event.noise / event.sensitivity)
        reached.append(moved / (column_sensitivity(2, relation) / 2.0))
    assert 0.999 < max(reached) <= 1 + 1e-6


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_noise_is_that_of_the_event(relation):
    settings = dict(noise_multiplier=1.0, size=2_000, random_state=0)
    scaler = PrivateStandardizer((-1, 1), relation=relation, **settings)
    means, _ = scaler.fit(np.zeros((2_000, 400)))._released
    factor = 2 if relation == "add-remove" else 4
    squares = ((means * 2_000) ** 2).sum() / (factor * 400)
    assert 1e-4 < stats.chi2(400).cdf(squares) < 1 - 1e-4
    for wrong in (2.0, 0.5):  # the other relation's noise is detected
        assert not 1e-4 < stats.chi2(400).cdf(squares / wrong) < 1 - 1e-4


def test_the_real_number_of_records_is_not_used(rng):
    # Records at the midpoint of the bounds add nothing, so their number makes no difference.
    fits = [
        PrivateStandardizer((-1, 1), noise_multiplier=1.0, size=50, random_state=0).fit(
            np.zeros((n, 2))
        )
        for n in (1, 50, 333)
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].mean_, other.mean_)
        np.testing.assert_array_equal(fits[0].scale_, other.scale_)


def test_with_little_noise_columns_are_standardized(rng):
    rows = rng.normal([10, -200], [1, 30], (20_000, 2))
    scaler = PrivateStandardizer(
        [(0, 20), (-500, 100)], noise_multiplier=1e-3, size=20_000, random_state=0
    )
    out = scaler.fit_transform(rows)
    np.testing.assert_allclose(out.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(out.std(axis=0), 1, atol=0.01)
    np.testing.assert_allclose(scaler.mean_, rows.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(scaler.scale_, rows.std(axis=0), rtol=1e-2)
    clipped = np.clip(rows, [0, -500], [20, 100])
    np.testing.assert_allclose(out, (clipped - scaler.mean_) / scaler.scale_, atol=1e-9)


def test_an_epsilon_is_kept_and_nearly_spent():
    for relation in RELATIONS:
        event = PrivateStandardizer((0, 1), epsilon=0.7, delta=1e-6, relation=relation).event()
        assert 0.69 < epsilon_for(event, 1e-6) <= 0.7
        assert event.relation == relation and event.sensitivity == 1.0
    assert (
        PrivateStandardizer((0, 1)).event() == PrivateStandardizer((0, 1), epsilon=1.0).event()
    )
    assert PrivateStandardizer((0, 1), noise_multiplier=2).event() == Gaussian(2.0)


def test_a_fit_states_its_guarantee(rng):
    rows = rng.uniform(size=(100, 2))
    model = PrivateStandardizer((0, 1), epsilon=1.0, size=100).fit(rows).statement_
    assert 0.99 < model.epsilon <= 1.0 and "means and standard deviations" in model.covers[0]
    values = PrivateStandardizer((0, 1), epsilon=1.0).fit(rows).statement_
    assert isinstance(values, NotPrivate) and "declare size" in values.reasons[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(size=100), "declare bounds"),
        (dict(bounds=(0, 1)), "declare size"),
        (dict(bounds=(0, 1), size=100, random_state=0), "random_state was set"),
    ],
)
def test_reasons_for_no_privacy_are_recorded(rng, settings, reason):
    scaler = PrivateStandardizer(**settings).fit(rng.uniform(size=(100, 2)))
    assert not scaler.private_ and reason in scaler.not_private_because_[0]


def test_two_fits_draw_different_noise(rng):
    rows = rng.uniform(size=(100, 2))
    scaler = PrivateStandardizer((0, 1), size=100)
    assert (scaler.fit(rows).mean_ != scaler.fit(rows).mean_).all()


@pytest.mark.parametrize(
    "settings",
    [
        dict(noise_multiplier=0),
        dict(epsilon=-1),
        dict(epsilon=1, noise_multiplier=1),
        dict(delta=0),
        dict(delta=1),
        dict(size=0),
        dict(relation="swap"),
    ],
    ids=repr,
)
def test_invalid_settings_are_rejected(settings):
    with pytest.raises(ValueError, match="Expected"):
        PrivateStandardizer((0, 1), **settings).event()


def test_a_private_size_must_be_declared_and_a_public_one_must_match(rng):
    rows, labels = rng.uniform(size=(20, 2)), np.zeros(20, int)
    data = Dataset(rows, labels, ("a", "b"))
    with pytest.raises(DataError, match="declared number of records"):
        PrivateStandardizer((0, 1)).check_records(data)
    swapped = PrivateStandardizer((0, 1), relation="replace-one")
    assert swapped.fit_records(data).private_
    with pytest.raises(ValueError, match="size=20"):
        PrivateStandardizer((0, 1), relation="replace-one", size=21).check_records(data)
    assert PrivateStandardizer((0, 1), size=21).fit_records(data).private_
