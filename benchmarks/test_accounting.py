"""How long do epsilon, and the noise for an epsilon, take compared with dp-accounting?

The peer composes the same events with its `PLDAccountant` at its default grid, and looks for
noise with its own `calibrate_dp_mechanism` at the same tolerance. Both answers are compared
before a time counts. One thread each: neither uses more. A mixture of Gaussians, for units of
several rows, is timed at a coarser grid for both, since the peer takes minutes at the default;
the noise for a schedule of 64 levels is left out for the peer, which would take ten minutes.
"""

import math
from collections.abc import Callable

import dp_accounting
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy import stats

from veracal.accounting.epsilon import _compose_branch, epsilon_for, noise_for
from veracal.accounting.events import Budget, Composed, Event, PoissonGaussian, Repeated, Unit

DELTA, RATE = 1e-5, 256 / 60_000
CONSTANT = (1.0,)
SCHEDULE = tuple(math.exp(-0.01 * level) for level in range(64))


def ours(noise: float, levels: tuple[float, ...], times: int) -> Event:
    """Steps at several levels of noise."""
    return Composed(
        tuple(Repeated(PoissonGaussian(noise * level, rate=RATE), times) for level in levels)
    )


def theirs(noise: float, levels: tuple[float, ...], times: int) -> dp_event.DpEvent:
    """The same for dp-accounting."""
    return dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(noise * level)),
                times,
            )
            for level in levels
        ]
    )


def our_epsilon(levels: tuple[float, ...], times: int) -> float:
    """Epsilon, computed without a cache."""
    _compose_branch.cache_clear()
    return epsilon_for(ours(1.1, levels, times), DELTA)


def their_epsilon(levels: tuple[float, ...], times: int) -> float:
    """Epsilon by the peer."""
    accountant = PLDAccountant()
    accountant.compose(theirs(1.1, levels, times))
    return float(accountant.get_epsilon(DELTA))


def our_noise(levels: tuple[float, ...], times: int) -> float:
    """The noise for epsilon = 1."""
    _compose_branch.cache_clear()
    return noise_for(Budget(1.0, DELTA), lambda noise: ours(noise, levels, times))


def their_noise(levels: tuple[float, ...], times: int) -> float:
    """The noise for epsilon = 1 by the peer, to the same tolerance."""
    return float(
        dp_accounting.calibrate_dp_mechanism(
            PLDAccountant,
            lambda noise: theirs(noise, levels, times),
            1.0,
            DELTA,
            bracket_interval=dp_accounting.ExplicitBracketInterval(0.5, 8.0),
            tol=1e-3,
        )
    )


@pytest.mark.parametrize("method", [our_epsilon, their_epsilon])
@pytest.mark.parametrize(
    ("levels", "times"),
    [(CONSTANT, 3516), (SCHEDULE, 55)],
    ids=["constant noise", "64 levels"],
)
def test_epsilon(benchmark, method: Callable[..., float], levels, times, request):
    benchmark.group = f"epsilon, {request.node.callspec.id.split('-')[0]}"
    found = benchmark.pedantic(method, (levels, times), rounds=5 if len(levels) == 1 else 2)
    assert found == pytest.approx(our_epsilon(levels, times), rel=2e-3)


@pytest.mark.parametrize(
    ("method", "levels", "times"),
    [
        (our_noise, CONSTANT, 3516),
        (their_noise, CONSTANT, 3516),
        (our_noise, SCHEDULE, 55),
    ],
    ids=["ours, constant", "theirs, constant", "ours, 64 levels"],
)
def test_noise(benchmark, method: Callable[..., float], levels, times):
    benchmark.group = f"noise, {len(levels)} levels"
    found = benchmark.pedantic(method, (levels, times), rounds=3)
    assert found == pytest.approx(our_noise(levels, times), rel=3e-3)


def our_mixture() -> float:
    """Epsilon of a unit of three rows."""
    _compose_branch.cache_clear()
    event = Repeated(PoissonGaussian(1.1, rate=RATE), 3516)
    return epsilon_for(event, DELTA, Unit("patient", 3), coarse=10.0)


def their_mixture() -> float:
    """The same by the peer."""
    weights = stats.binom.pmf(range(4), 3, RATE).tolist()
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(
        dp_event.MixtureOfGaussiansDpEvent(1.1, [0.0, 1.0, 2.0, 3.0], weights), 3516
    )
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.benchmark(group="epsilon, three rows a unit")
@pytest.mark.parametrize("method", [our_mixture, their_mixture])
def test_mixture(benchmark, method: Callable[[], float]):
    found = benchmark.pedantic(method, rounds=3, warmup_rounds=0)
    assert found == pytest.approx(our_mixture(), rel=5e-3)
