"""Channel means and standard deviations with calibrated noise."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from veracal.accounting import Budget, Gaussian, NotPrivate, Unit, epsilon_for
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.ledger import open_ledger
from veracal.neural import PrivateNetwork
from veracal.neural.architectures import scatter_cnn
from veracal.queries import Curator
from veracal.training import (
    BoundedScaler,
    PrivateChannelStandardizer,
    make_private_pipeline,
)
from veracal.training.standardizer import (
    channel_grid,
    channel_moments,
    channel_sensitivity,
    channel_sums,
    noisy_moments,
)

RELATIONS = ("add-remove", "replace-one")
SENSITIVITY = {"add-remove": math.sqrt(2), "replace-one": math.sqrt(6)}
ODD = [0.0, 5e-324, -1e-200, 1e30, -1e160, 1e308, np.nan, np.inf, -np.inf]


def draw_features(rng, n):
    """Features with ordinary and adversarial values."""
    rows = rng.standard_normal((n, 3, 2, 2)) * 10.0 ** rng.uniform(-2, 2, (n, 1, 1, 1))
    odd = rng.random((n, 1, 1, 1)) < 0.3
    return np.where(odd & (rng.random(rows.shape) < 0.3), rng.choice(ODD, rows.shape), rows)


# ---------------------------------------------------------------- sums


def real_sums(rows, channels, *settings):
    """Sums of vectors, in units of their norms."""
    return channel_sums([rows], channels, *settings) * channel_grid(channels).step


def slow_sums(rows, mean_norm, square_norm):
    """The same by the formula, record by record."""
    sums = np.zeros((2, rows.shape[1]))
    for record in rows.reshape(len(rows), rows.shape[1], -1):
        means = [math.fsum(channel) / len(channel) for channel in record]
        squares = [math.fsum(v * v for v in channel) / len(channel) for channel in record]
        for place, (vector, norm) in enumerate(((means, mean_norm), (squares, square_norm))):
            sums[place] += np.array(vector) / max(norm, math.hypot(*vector))
    return sums


def test_sums_equal_their_definition(rng):
    rows = rng.standard_normal((50, 4, 3, 5))
    for norms in ((0.2, 1.5), (1e3, 1e3), (1e-3, 1e-3)):
        result = real_sums(rows, 4, *norms)
        np.testing.assert_allclose(result, slow_sums(rows, *norms), rtol=1e-5, atol=1e-4)


def test_flat_rows_and_blocks_and_single_precision_change_nothing(rng):
    rows = rng.standard_normal((50, 4, 3, 5)).astype(np.float32)
    whole = channel_sums([rows], 4, 0.5, 1.0)
    np.testing.assert_array_equal(channel_sums([rows.reshape(50, 60)], 4, 0.5, 1.0), whole)
    np.testing.assert_array_equal(channel_sums([rows.astype(float)], 4, 0.5, 1.0), whole)
    blocks = rows[:7], rows[7:8], rows[8:]
    np.testing.assert_array_equal(channel_sums(blocks, 4, 0.5, 1.0), whole)
    np.testing.assert_array_equal(channel_sums([rows[::-1]], 4, 0.5, 1.0), whole)
    np.testing.assert_array_equal(channel_sums([], 4, 0.5, 1.0), 0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 100_000), (64, 1), (2, 9_000), (81, 64)])
def test_the_moments_of_a_record_do_not_depend_on_others(rng, shape):
    rows = rng.standard_normal((5, *shape)).astype(np.float32)
    whole = channel_moments(rows, shape[0])
    for part in (slice(0, 1), slice(4, 5), slice(1, 4)):
        for beside, alone in zip(whole, channel_moments(rows[part], shape[0]), strict=True):
            np.testing.assert_array_equal(beside[part], alone)


def test_a_nonfinite_record_adds_nothing(rng):
    rows = rng.standard_normal((6, 3, 2, 2))
    rest = channel_sums([np.delete(rows, 2, axis=0)], 3, 1.0, 1.0)
    for value in (np.nan, np.inf, -np.inf, 1e308, -1e200):  # whose square is infinite
        rows[2, 1, 0, 1] = value
        means, squares = channel_moments(rows, 3)
        assert np.isnan(means[2]).all() and np.isnan(squares[2]).all()
        np.testing.assert_array_equal(channel_sums([rows], 3, 1.0, 1.0), rest)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_moves_the_sums_by_no_more_than_stated(rng, relation):
    for _ in range(300):
        rows, norms = draw_features(rng, 4), 10.0 ** rng.uniform(-3, 3, 2)
        other = rows[1:].copy()
        if relation == "replace-one":
            new = -rows[:1] if rng.random() < 0.3 else draw_features(rng, 1)
            other = np.concatenate([new, other])
        moved = real_sums(rows, 3, *norms) - real_sums(other, 3, *norms)
        assert np.linalg.norm(moved) <= channel_sensitivity(relation)


def test_the_stated_sensitivity_is_nearly_attained():
    # Means of opposite directions, and squares that share no channel.
    here = np.array([[[1.0, 1.0], [0.0, 0.0]]])
    there = np.array([[[-1.0, -1.0], [1e3, -1e3]]])
    first, second = (real_sums(one, 2, 1e-6, 1e-6) for one in (here, there))
    for relation, moved in (("add-remove", first), ("replace-one", first - second)):
        stated, sensitivity = channel_sensitivity(relation), SENSITIVITY[relation]
        assert sensitivity * (1 - 1e-5) < np.linalg.norm(moved) <= stated
        assert sensitivity <= stated < sensitivity * (1 + 1e-15)


# ---------------------------------------------------------------- moments


def test_without_noise_they_are_mean_and_standard_deviation(rng):
    rows = rng.normal([[[1.0]], [[-3.0]]], [[[0.5]], [[2.0]]], (4_000, 2, 3, 3))
    sums = channel_sums([rows], 2, 100.0, 500.0)
    settings = dict(mean_norm=100.0, square_norm=500.0, least_variance=1e-6, rng=rng)
    means, spreads = noisy_moments(sums, 4_000, 1e-12, grid=channel_grid(2), **settings)
    np.testing.assert_allclose(means, rows.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(spreads, rows.std(axis=(0, 2, 3)), rtol=1e-4)


def test_a_standard_deviation_is_never_below_its_lower_bounds(rng):
    nothing = np.zeros((2, 400), dtype=np.int64)
    for noise, size, norm, floor, least in (
        (1e-9, 50, 1.0, 1e-3, 1e-3),
        (3.0, 100, 1.0, 1e-3, 0.03),
        (3.0, 100, 7.0, 1e-3, 0.21),
        (3.0, 100, 1.0, 0.5, 0.5),
    ):
        _, spreads = noisy_moments(
            nothing,
            size,
            noise,
            grid=channel_grid(400),
            square_norm=norm,
            least_variance=floor,
            rng=rng,
        )
        assert spreads.min() == pytest.approx(math.sqrt(least))


def test_noise_has_its_distribution_and_is_drawn_for_every_entry(rng):
    grid = channel_grid(3_000)
    sums = np.full((2, 3_000), 500_000 << grid.bits)
    settings = dict(mean_norm=2.0, square_norm=8.0, least_variance=1e-9, rng=rng)
    means, spreads = noisy_moments(sums, 1_000_000, 40.0, grid=grid, **settings)
    first = means / 2.0 * 1_000_000 - 500_000
    second = (spreads**2 + means**2) / 8.0 * 1_000_000 - 500_000
    for noise in (first, second):
        assert stats.kstest(noise, stats.norm(0, 40.0).cdf).pvalue > 1e-3
        assert 0.95 < noise.std() / 40.0 < 1.05  # 0.94 is 4.6 standard errors from 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


# ---------------------------------------------------------------- the estimator


def noisy_sums(scaler, size):
    """The released vector before division, in units of the norms."""
    squares = scaler.scale_**2 + scaler.mean_**2
    return np.array([scaler.mean_ / scaler.mean_norm, squares / scaler.square_norm]) * size


@pytest.mark.parametrize("relation", RELATIONS)
def test_neighbors_differ_by_no_more_than_the_event_says(rng, relation):
    rows = rng.normal(0.5, 2.0, (1_000, 2, 2, 2))
    scaler = PrivateChannelStandardizer(
        1.0, 9.0, noise_multiplier=2.0, relation=relation, random_state=3, size=1_000
    )
    reached = []
    for last, new in (
        ([[1e3, 1e3], [0, 0]], [[-1e3, -1e3], [1e6, -1e6]]),
        ([[1e9, 1e9], [0, 1]], [[-1, 0], [0, 0]]),
        ([[0, 0], [0, 0]], [[np.nan, 0], [0, 0]]),
    ):
        ends = [np.broadcast_to(np.array(end)[:, None], (1, 2, 2, 2)) for end in (last, new)]
        here, there = (np.concatenate([rows[:-1], end]) for end in ends)
        if relation == "add-remove":
            there = rows[:-1]
        whole, less = (noisy_sums(scaler.fit(part), 1_000) for part in (here, there))
        event = scaler.event_
        # Noise on the sums is the event's, in units of the sensitivity.
        noise_std = event.noise / event.sensitivity * SENSITIVITY[relation]
        reached.append(np.linalg.norm(whole - less) / (noise_std / 2.0))
    assert 0.999 < max(reached) <= 1 + 1e-6


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_noise_is_that_of_the_event(relation):
    scaler = PrivateChannelStandardizer(
        5.0, 1.0, noise_multiplier=1.0, size=20, random_state=0, relation=relation
    )
    noise = scaler.fit(np.zeros((20, 2_500, 1))).mean_ / 5.0 * 20
    assert stats.kstest(noise, stats.norm(0, SENSITIVITY[relation]).cdf).pvalue > 1e-3
    # 0.94 is 4.2 standard errors from 1; the other relation's noise would do even less.
    assert 0.95 < noise.std() / SENSITIVITY[relation] < 1.05


def test_noise_is_proportional_to_typical_scales(rng):
    typical = np.array([1.0, 1e-3])
    settings = dict(noise_multiplier=1.0, size=500, random_state=0)
    rows = rng.standard_normal((500, 2, 3))
    plain = PrivateChannelStandardizer(1.0, 2.0, **settings).fit(rows)
    scaled = PrivateChannelStandardizer(1.0, 2.0, typical=typical, **settings)
    small = rows * typical[:, None]
    np.testing.assert_allclose(scaled.fit(small).mean_, plain.mean_ * typical, rtol=1e-9)
    np.testing.assert_allclose(scaled.scale_, plain.scale_ * typical, rtol=1e-9)
    np.testing.assert_allclose(scaled.transform(small), plain.transform(rows), rtol=1e-9)
    np.testing.assert_allclose(
        real_sums(small, 2, 1.0, 2.0, typical), slow_sums(rows, 1.0, 2.0), atol=2e-3
    )
    assert scaled.event() == plain.event()


def test_the_real_number_of_records_has_no_effect():
    fits = [
        PrivateChannelStandardizer(1.0, 1.0, noise_multiplier=1.0, size=50, random_state=0).fit(
            np.zeros((n, 2, 3))
        )
        for n in (1, 50, 333)
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].mean_, other.mean_)
        np.testing.assert_array_equal(fits[0].scale_, other.scale_)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_with_little_noise_channels_are_standardized(rng, kind):
    rows = rng.normal([[[1.0]], [[-3.0]]], [[[0.5]], [[2.0]]], (5_000, 2, 3, 3)).astype(kind)
    scaler = PrivateChannelStandardizer(
        100.0, 500.0, noise_multiplier=1e-3, size=5_000, random_state=0
    )
    out = scaler.fit_transform(rows)
    assert out.dtype == kind and out.shape == rows.shape
    np.testing.assert_allclose(out.mean(axis=(0, 2, 3)), 0, atol=0.01)
    np.testing.assert_allclose(out.std(axis=(0, 2, 3)), 1, atol=0.01)
    by_hand = (rows - scaler.mean_[:, None, None]) / scaler.scale_[:, None, None]
    np.testing.assert_allclose(out, by_hand, atol=1e-5)


def test_flat_rows_with_declared_channels_give_the_same_result(rng):
    rows = rng.standard_normal((40, 3, 2, 2))
    settings = dict(noise_multiplier=1.0, size=40, random_state=0)
    shaped = PrivateChannelStandardizer(1.0, 1.0, **settings).fit(rows)
    flat = PrivateChannelStandardizer(1.0, 1.0, channels=3, **settings).fit(
        rows.reshape(40, 12)
    )
    np.testing.assert_array_equal(shaped.mean_, flat.mean_)
    np.testing.assert_array_equal(
        shaped.transform(rows).reshape(40, 12), flat.transform(rows.reshape(40, 12))
    )


def test_blocks_and_rows_on_disk_give_the_same_result(rng, tmp_path, monkeypatch):
    rows = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(30, 3, 2, 2))
    rows[:] = rng.standard_normal(rows.shape)
    scaler = PrivateChannelStandardizer(1.0, 1.0, noise_multiplier=1.0, size=30, random_state=0)
    here = clone(scaler).fit(np.array(rows))
    expected = here.transform(np.array(rows))
    monkeypatch.setattr("veracal.training.standardizer._BLOCK_CELLS", 7 * 12)
    there = clone(scaler).fit(rows)
    np.testing.assert_array_equal(here.mean_, there.mean_)
    np.testing.assert_array_equal(there.transform(rows), expected)
    np.testing.assert_array_equal(here.transform(np.array(rows)), expected)


def test_epsilon_is_respected_and_nearly_spent():
    for relation in RELATIONS:
        scaler = PrivateChannelStandardizer(
            1.0, 1.0, epsilon=0.7, delta=1e-6, relation=relation
        )
        event = scaler.event()
        assert 0.69 < epsilon_for(event, 1e-6) <= 0.7
        assert event.relation == relation and event.sensitivity == 1.0
    scaler = PrivateChannelStandardizer(1.0, 1.0)
    assert scaler.event() == clone(scaler).set_params(epsilon=1.0).event()
    assert PrivateChannelStandardizer(3.0, 1.0, noise_multiplier=2).event() == Gaussian(2.0)


def test_it_costs_what_the_papers_two_releases_cost_together():
    # Two Gaussians of 8 each: section 5.5 of the methods has epsilon 0.86 for them.
    event = PrivateChannelStandardizer(1.0, 1.0, noise_multiplier=8 / math.sqrt(2)).event()
    assert 0.6 < epsilon_for(event, 1e-5) < 0.86


def test_a_fit_states_its_guarantee(rng):
    rows = rng.uniform(size=(100, 2, 4))
    outputs = PrivateChannelStandardizer(1.0, 1.0, epsilon=1.0, size=100).fit(rows).statement_
    assert (
        0.99 < outputs.epsilon <= 1.0 and "means and standard deviations" in outputs.covers[0]
    )
    settings = PrivateChannelStandardizer(1.0, 1.0, epsilon=1.0).fit(rows).statement_
    assert isinstance(settings, NotPrivate) and "declare size" in settings.reasons[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({}, "declare size"), (dict(size=100, random_state=0), "random_state was set")],
)
def test_it_states_why_it_is_not_private(rng, settings, reason):
    scaler = PrivateChannelStandardizer(1.0, 1.0, **settings).fit(rng.uniform(size=(100, 2, 3)))
    assert not scaler.private_ and reason in scaler.not_private_because_[0]


def test_two_fits_draw_different_noise(rng):
    rows = rng.uniform(size=(100, 2, 3))
    scaler = PrivateChannelStandardizer(1.0, 1.0, size=100)
    assert (scaler.fit(rows).mean_ != scaler.fit(rows).mean_).all()


@pytest.mark.parametrize(
    "settings",
    [
        dict(mean_norm=0),
        dict(square_norm=np.inf),
        dict(noise_multiplier=0),
        dict(epsilon=-1),
        dict(epsilon=1, noise_multiplier=1),
        dict(delta=0),
        dict(delta=1),
        dict(least_variance=0),
        dict(typical=[1.0, -1.0]),
        dict(channels=0),
        dict(size=0),
        dict(relation="swap"),
        dict(random_state="dice"),
    ],
    ids=repr,
)
def test_invalid_settings_are_rejected_before_a_record_is_read(settings):
    with pytest.raises(ValueError, match="Expected .* got"):
        PrivateChannelStandardizer(**{"mean_norm": 1.0, "square_norm": 1.0, **settings}).event()


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (np.zeros((5, 4, 2, 2)), dict(channels=3), r"rows of 3 channels.* \(n, 4, 2, 2\)"),
        (np.zeros((5, 10)), dict(channels=3), r"a multiple of that, got shape \(n, 10\)"),
        (np.zeros((5, 3, 2)), dict(typical=[1, 2]), "each of 3 channels, got .* shape .2,."),
        (np.zeros((5, 2, 0)), {}, r"floats of shape \(n, channels, ...\)"),
        (np.zeros((5, 0, 2)), {}, r"floats of shape \(n, channels, ...\)"),
    ],
)
def test_other_shapes_are_rejected(rows, settings, message):
    with pytest.raises(ValueError, match=message):
        PrivateChannelStandardizer(1.0, 1.0, size=5, **settings).fit(rows)


def test_another_number_of_channels_is_rejected_after_the_fit(rng):
    scaler = PrivateChannelStandardizer(1.0, 1.0, size=5).fit(rng.uniform(size=(5, 3, 2, 2)))
    with pytest.raises(ValueError, match="3"):
        scaler.transform(np.zeros((5, 4, 2, 2)))


# ---------------------------------------------------------------- data sets


def data(rng, **settings):
    """Twenty records of features."""
    rows = rng.uniform(size=(20, 3, 2, 2)).astype(np.float32)
    return Dataset(rows, np.zeros(20, int), ("a", "b"), **settings)


def test_a_private_size_is_required_and_a_public_one_checked(rng):
    with pytest.raises(DataError, match="declared number of records"):
        PrivateChannelStandardizer(1.0, 1.0).check_records(data(rng))
    swapped = PrivateChannelStandardizer(1.0, 1.0, relation="replace-one")
    assert swapped.fit_records(data(rng)).private_
    with pytest.raises(ValueError, match="size=20"):
        clone(swapped).set_params(size=21).check_records(data(rng))
    assert PrivateChannelStandardizer(1.0, 1.0, size=21).fit_records(data(rng)).private_
    assert PrivateChannelStandardizer(1.0, 1.0).fit_records(data(rng, size=25)).private_


def test_sums_are_divided_by_the_declared_size_of_the_data_set(rng):
    settings = dict(noise_multiplier=1.0, random_state=0)
    first, second = (
        PrivateChannelStandardizer(1.0, 1.0, **settings).fit_records(data(rng_of(0), size=size))
        for size in (20, 40)
    )
    np.testing.assert_allclose(first.mean_, 2 * second.mean_, rtol=1e-12)


def rng_of(seed):
    """A generator."""
    return np.random.default_rng(seed)


def test_unsuitable_records_are_rejected_by_shape_and_type(rng):
    scaler = PrivateChannelStandardizer(1.0, 1.0, size=20)
    with pytest.raises(ValueError, match="Expected a data set of veracal.data, got ndarray"):
        scaler.fit_records(np.zeros((20, 3, 2, 2)))
    pictures = Dataset(np.zeros((20, 8, 8, 3), np.uint8), np.zeros(20, int), ("a", "b"))
    with pytest.raises(ValueError, match="features as floats .* uint8 .* Scattering"):
        scaler.check_records(pictures)


def test_a_unit_of_several_records_is_charged_and_checked(rng):
    one, three = (
        PrivateChannelStandardizer(1.0, 1.0, epsilon=1.0, size=20, unit=Unit("patient", n))
        for n in (1, 3)
    )
    assert three.event().noise == pytest.approx(3 * one.event().noise, rel=1e-3)
    pairs = data(rng, units=np.repeat(np.arange(10), 2), max_contributions=2)
    assert three.fit_records(pairs).private_
    with pytest.raises(DataError):
        one.fit_records(pairs)


# ---------------------------------------------------------------- before a network


def test_standardizer_and_network_are_charged_together(rng, tmp_path):
    features = rng.standard_normal((80, 3, 4, 4)).astype(np.float32)
    records = Dataset(features, np.arange(80) % 2, ("no", "yes"), size=80)
    whole = make_private_pipeline(
        PrivateChannelStandardizer(2.0, 4.0, noise_multiplier=8.0),
        PrivateNetwork(
            partial(scatter_cnn, 2, channels=3, side=4, filters=4),
            epsilon=None,
            noise_multiplier=6.0,
            steps=3,
            gradients="ghost",
        ),
    )
    ledger = open_ledger(tmp_path / "a.ledger", Budget(8.0, 1e-5), kind="open")
    fitted = Curator(records, ledger).fit(whole)
    assert fitted.private_ and fitted.predict(features).shape == (80,)
    (entry,) = ledger.entries()
    first, second = fitted.event_.events
    assert first == Gaussian(8.0, 1.0, "add-remove") and second == whole.steps[1][1].event()
    assert entry.event == fitted.event_
    with pytest.raises(DataError, match="shape"):
        make_private_pipeline(BoundedScaler((0, 1)), whole.steps[1][1]).check_records(records)
