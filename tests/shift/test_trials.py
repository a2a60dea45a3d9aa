"""The vectorized trials against the library, one trial at a time."""

import numpy as np
import pytest

from benchmarks.shift import methods
from benchmarks.shift.grid import (
    EPSILONS,
    PICTURES,
    POINTS,
    RANGE,
    RECORDS,
    SAMPLES,
    SIZE_OF,
    SOURCES,
)
from benchmarks.shift.tables import TEMPERATURES, column, tables
from benchmarks.shift.trials import (
    Sources,
    binned_error,
    doubted_error,
    error,
    plain_error,
)
from tests.calibration.private.conftest import miscalibrated
from veracal import calibration
from veracal.calibration import PooledTemperature, Temperature, UniformMixing
from veracal.calibration.bins import Bins
from veracal.calibration.private.golden_section import GoldenTemperature
from veracal.queries import Pool, Public

TRIALS = 3


@pytest.fixture(scope="module")
def scores():
    return miscalibrated(PICTURES, 2.7, np.random.default_rng(0), classes=10)


@pytest.fixture(scope="module")
def make_tables(scores):
    return tables(scores.values, scores.known_labels, "test", TRIALS)


@pytest.fixture(scope="module")
def exact(make_tables):
    return Sources(make_tables, np.random.default_rng(0), private=False)


def split(make_tables, trial, point):
    """Images of the sources of one trial, and those left for the test."""
    used = make_tables.order[trial, : RECORDS[point]]
    return used, np.setdiff1d(np.arange(PICTURES), used)


def test_the_grid_is_that_of_the_paper():
    assert len(POINTS) == 25 + 10 + 10 and RECORDS.max() == 2_500
    assert (POINTS[0].sources, POINTS[24].sources) == (10, 250)
    assert EPSILONS[-10:].tolist() == pytest.approx(np.arange(0.2, 2.01, 0.2))


def test_orders_are_random_pictures_without_repetition(make_tables):
    for order in make_tables.order:
        assert len(set(order.tolist())) == len(order) == 2_500
    assert not np.array_equal(make_tables.order[0], make_tables.order[1])


@pytest.mark.parametrize("point", [0, 7, 24, 30, 40])
def test_sums_are_those_of_the_records(scores, make_tables, exact, point):
    for trial in range(TRIALS):
        used, _ = split(make_tables, trial, point)
        mine = scores.take(used)
        for i in (0, 100, 255):
            mapped = Temperature(1 / TEMPERATURES[i]).transform(mine)
            gap = mapped.correct - mapped.confidence
            table = make_tables.gaps[i, trial, SIZE_OF[point]]
            assert table.sum() == pytest.approx(gap.sum(), abs=2e-3)
            bins = np.bincount(Bins(15).of(mapped.confidence), gap, 15)
            np.testing.assert_allclose(table, bins, atol=2e-3)
            p = mapped.probabilities[np.arange(len(mine)), mine.known_labels]
            loss = np.minimum(-np.log(p), 10).sum()
            assert make_tables.losses[i, trial, SIZE_OF[point]] == pytest.approx(loss, rel=1e-5)
            first = gap[: SAMPLES[point]].sum()
            found = exact.first_gap(np.full(exact.shape, TEMPERATURES[i]))[trial, point]
            assert found == pytest.approx(first, abs=1e-3)
        right = int(mine.correct.sum())
        assert exact.counts(1.0)[trial, point].tolist() == [right, len(mine) - right]


@pytest.mark.parametrize("point", [3, 28])
def test_errors_are_those_of_the_other_pictures(scores, make_tables, exact, point):
    for trial in range(TRIALS):
        rest = scores.take(split(make_tables, trial, point)[1])
        hot = np.full(exact.shape, RANGE[1])
        for i in (60, 200):
            t = TEMPERATURES[i]
            slow = calibration.ece(Temperature(1 / t).transform(rest))
            assert error(exact, np.full(exact.shape, t))[trial, point] == pytest.approx(
                slow, abs=1e-6
            )
        assert plain_error(exact)[trial, point] == pytest.approx(
            calibration.ece(rest), abs=1e-6
        )
        for share in (0.1, 0.6):
            slow = calibration.ece(UniformMixing(1 / RANGE[1], share).transform(rest))
            fast = doubted_error(exact, hot, np.full(exact.shape, share))
            assert fast[trial, point] == pytest.approx(slow, abs=1e-6)


def test_bins_that_become_alike_are_one_bin(make_tables, exact):
    """The error after binning, from confidences written out."""
    accuracies = np.linspace(0.3, 0.5, 15)
    fast = binned_error(exact, np.broadcast_to(accuracies, (*exact.shape, 15)))
    rest = make_tables.all_counts - make_tables.counts[1, SIZE_OF[5]]
    new = Bins(15).of(accuracies)
    gaps = rest[:, 0] - accuracies * rest.sum(axis=1)
    slow = sum(abs(gaps[new == cell].sum()) for cell in set(new.tolist()))
    assert fast[1, 5] == pytest.approx(slow / rest.sum())


def pooled_records(scores, used, point):
    """The sources of a trial as the library knows them, without noise."""
    parts = np.split(used, SOURCES[point])
    return Pool([Public(scores.take(part)) for part in parts])


@pytest.mark.parametrize("point", [2, 27])
def test_without_noise_the_library_finds_the_same(scores, make_tables, exact, point):
    """Up to the grid of temperatures, whose steps are one percent."""
    temperatures, doubts = methods.pooled_fit(exact, methods.SHARES)
    used, rest = split(make_tables, 0, point)
    pool = pooled_records(scores, used, point)
    found = PooledTemperature(epsilon=1.0, classes=10, temperatures=RANGE).fit(pool)
    assert temperatures[0, point] == pytest.approx(found.map_.value, rel=0.02)
    assert doubts[0, point] == found.uniform_weight_ == 0
    golden = GoldenTemperature("accuracy", epsilon=1.0, temperatures=RANGE).fit(pool)
    slow = calibration.ece(golden.transform(scores.take(rest)))
    assert methods.acc_t(exact)[0, point] == pytest.approx(slow, abs=0.004)


def test_noise_has_the_law_of_the_sources(make_tables):
    """Standard deviation and kurtosis of sums of Laplace variables, one for each source."""
    rng = np.random.default_rng(1)
    noisy = Sources(make_tables, rng)
    quiet = Sources(make_tables, rng, private=False)
    at = np.full(noisy.shape, TEMPERATURES[80])
    gaps = np.array([noisy.gap(at, 0.3) - quiet.gap(at, 0.3) for _ in range(400)])
    counts = np.array([noisy.counts(0.3) - quiet.counts(0.3) for _ in range(400)])
    for point in (0, 24, 35):
        m, scale = SOURCES[point], 1 / (0.3 * EPSILONS[point])
        mine = gaps[:, :, point].ravel()
        assert mine.std() == pytest.approx(np.sqrt(2 * m) * scale, rel=0.08)
        t = np.exp(-1 / scale)
        law = np.sqrt(m * 2 * t) / (1 - t)  # of the discrete Laplace distribution
        assert counts[:, :, point].std() == pytest.approx(law, rel=0.08)
    assert column(TEMPERATURES).tolist() == list(range(256))
    np.testing.assert_allclose(noisy.std(0.3)[0], np.sqrt(2 * SOURCES) / (0.3 * EPSILONS))
