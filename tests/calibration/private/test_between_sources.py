"""The variance due to the selection of sources."""

import math

import numpy as np
import pytest

from veracal.accounting import Parallel
from veracal.calibration.private.estimates import (
    between_source_variance,
    single_answers,
)
from veracal.mechanisms import Grid
from veracal.queries import Count, Pool, PooledRelease, Public, Release, laplace_event

Z = 1.96


def pooled(units, std):
    """An answer of as many sources as there are rows of units."""
    event = laplace_event(Count(), 1_000_000, "add-remove")
    parts = tuple(
        Release("x", tuple(int(k) for k in row), Grid(0), std, 1_000_000, event, private=True)
        for row in units
    )
    total = tuple(int(k) for k in np.sum(units, axis=0))
    return PooledRelease(
        "x",
        total,
        Grid(0),
        std * math.sqrt(len(parts)),
        1_000_000,
        Parallel(tuple(p.event for p in parts)),
        private=True,
        parts=parts,
        dropouts=(None,) * len(parts),
    )


def test_it_equals_its_definition_written_out():
    rng = np.random.default_rng(0)
    first, second = rng.integers(-50, 50, size=(7, 2)), rng.integers(0, 90, size=(7, 1))
    result = between_source_variance(
        [pooled(first, 2.0), pooled(second, 3.0)],
        [(1.0, -0.5), (0.25,)],
        sampling=10.0,
        n_sources=10,
    )
    x = [a - 0.5 * b + 0.25 * c for (a, b), (c,) in zip(first, second, strict=True)]
    noise = 7 * (4.0 * (1 + 0.25) + 9.0 * 0.0625)
    sample = sum((v - sum(x) / 7) ** 2 for v in x) / 6
    assert result.noise == pytest.approx(noise)
    assert result.between == pytest.approx((7 * sample - noise - 10.0) * (1 - 7 / 10))
    assert result.std == pytest.approx(math.sqrt(noise + 10.0 + result.between))


def test_it_is_right_on_average_and_never_negative():
    """Unbiased before truncation at zero: noise and variation of sources are separated."""
    rng = np.random.default_rng(1)
    m, spread, noise = 12, 30.0, 20.0
    result = []
    for _ in range(1_500):
        sums = rng.normal(5, spread, size=m) + rng.laplace(0, noise / math.sqrt(2), size=m)
        result.append(
            between_source_variance([pooled(np.rint(sums)[:, None], noise)], [(1.0,)]).between
        )
    assert np.mean(result) == pytest.approx(m * spread**2, rel=0.05)
    alike = [
        between_source_variance(
            [pooled(np.rint(rng.normal(0, noise, size=(m, 1))), noise)], [(1.0,)]
        ).between
        for _ in range(300)
    ]
    assert min(alike) == 0.0
    assert np.mean(alike) < 0.4 * m * noise**2


def covered(rng, *, with_between):
    """Whether an interval for the accuracy of all sources holds it when half of them answer."""
    everyone, scale = 60, 4.0
    sizes = rng.integers(5, 60, size=everyone)
    rates = rng.beta(4, 2, size=everyone)  # sources differ
    target = (rates * sizes).sum() / sizes.sum()
    here = rng.permutation(everyone)[:30]
    correct = rng.binomial(sizes[here], rates[here])
    exact = np.stack([correct, sizes[here] - correct], axis=1)
    t = -math.expm1(-1 / scale)
    noisy = exact + rng.geometric(t, exact.shape) - rng.geometric(t, exact.shape)
    answer = pooled(noisy, math.sqrt(2) * scale)
    right, wrong = answer.values
    n = right + wrong
    share = right / n
    # The residual of the ratio: right - share * (right + wrong).
    weights, sampling = [(1 - share, -share)], n * share * (1 - share)
    spread = between_source_variance([answer], weights, sampling=sampling, n_sources=everyone)
    without = math.sqrt(spread.noise + spread.sampling)
    return abs(share - target) <= Z * (spread.std if with_between else without) / n


def test_intervals_cover_a_mean_under_random_dropout_of_different_sources():
    seeds = range(600)
    wide = np.mean([covered(np.random.default_rng(s), with_between=True) for s in seeds])
    narrow = np.mean([covered(np.random.default_rng(s), with_between=False) for s in seeds])
    assert 0.93 <= wide <= 0.99
    assert narrow < 0.90  # noise and sampling alone are not enough


def test_nothing_is_known_beyond_one_source_and_nothing_is_missing_if_all_answered():
    one = pooled(np.array([[7]]), 2.0)
    assert between_source_variance([one], [(1.0,)], sampling=3.0).between == 0.0
    assert between_source_variance([one.parts[0]], [(1.0,)]).noise == 4.0
    all_here = pooled(np.array([[1], [90], [40]]), 1.0)
    assert between_source_variance([all_here], [(1.0,)], n_sources=3).between == 0.0
    assert between_source_variance([all_here], [(1.0,)]).between > 0


def test_nested_pools_are_flattened(rng):
    from tests.calibration.private.conftest import miscalibrated

    sources = [Public(miscalibrated(n, 1.0, rng)) for n in (3, 5, 9)]
    result = Pool([Pool(sources[:2]), sources[2]]).answer(Count(), micro_epsilon=1)
    assert [one.value for one in single_answers(result)] == [3, 5, 9]
    spread = between_source_variance([result], [(2.0,)])
    assert spread.noise == 0 and spread.between == 3 * np.var([6, 10, 18], ddof=1)


def test_answers_of_different_sources_are_refused():
    with pytest.raises(ValueError, match="same sources"):
        between_source_variance(
            [pooled(np.ones((2, 1)), 1.0), pooled(np.ones((3, 1)), 1.0)], [(1,), (1,)]
        )
    with pytest.raises(ValueError, match="same sources"):
        between_source_variance([], [])
    with pytest.raises(ValueError, match="sampling"):
        between_source_variance([pooled(np.ones((2, 1)), 1.0)], [(1.0,)], sampling=math.nan)
