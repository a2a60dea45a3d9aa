"""Noisy gradient descent on the parameters of a map, every step a question to a source."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import (
    RELATIONS,
    Budget,
    DiscreteGaussian,
    Event,
    Relation,
    Repeated,
    Unit,
    epsilon_for,
    noise_for,
)
from veracal.calibration.private.session import named, unit_of
from veracal.ledger import Item
from veracal.mechanisms import Linear, gaussian_noise
from veracal.queries import GaussianSource, Query, Release, Source, gaussian_event

PricedQuery = Callable[[Floats, int], Query]


@dataclass(frozen=True)
class DescentPlan:
    r"""Steps of full-batch descent, :math:`\theta \leftarrow \theta - \eta_t g_t / n`.

    :math:`g_t` is the noisy sum of clipped gradients, n a *declared* number of records, and
    :math:`\eta_t` falls on a line from the learning rate to zero (Zhang et al. 2022,
    https://arxiv.org/abs/2210.08248, Algorithm 1).

    Attributes
    ----------
    epsilon, delta : float
        What all steps cost together.
    size : float
        Declared number of records, the divisor. Never the real one, which is private.
    steps : int
    learning_rate : float
        At the first step.

    Guarantees
    ----------
    Noise, steps and divisor are known before a record is read. Every step is one discrete
    Gaussian on integers; together they cost at most epsilon at delta.
    """

    epsilon: float
    delta: float
    size: float
    steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        _checks.positive(epsilon=self.epsilon, delta=self.delta, size=self.size)
        _checks.positive(learning_rate=self.learning_rate)
        _checks.whole(steps=self.steps)

    @property
    def rates(self) -> Floats:
        """Learning rate of each step."""
        return Linear(self.learning_rate, 0.0, int(self.steps)).values(int(self.steps))

    def noise_multiplier(self, query: Query, unit: Unit | None = None) -> float:
        """Noise divided by sensitivity, for each step; enough under both relations."""
        most = (unit or Unit()).at_most
        moves = tuple(most * query.sensitivity_l2(relation) for relation in RELATIONS)
        return _noise(self.epsilon, self.delta, int(self.steps), moves, query.entries)

    def event(self, query: Query, relation: Relation, unit: Unit | None = None) -> Event:
        """Cost of all steps, whose queries are all as sensitive as this one."""
        return Repeated(self._step(query, relation, unit), int(self.steps))

    def items(
        self, query: Query, relation: Relation, unit: Unit | None, part: str | None
    ) -> list[Item]:
        """The line of a plan for a ledger that is opened for these steps."""
        return [Item(query.name, self._step(query, relation, unit), int(self.steps), part)]

    def _step(self, query: Query, relation: Relation, unit: Unit | None) -> Event:
        """Cost of one step."""
        return gaussian_event(query, self.noise_multiplier(query, unit), relation, unit)


@dataclass(frozen=True, eq=False)
class DescentResult:
    """Where a descent ended.

    Attributes
    ----------
    parameters : array of shape (d,)
    std : float
        Standard deviation that the noise of all steps gives a parameter, at most: as if no
        step made up for the noise of an earlier one.
    releases : tuple of Release
    """

    parameters: Floats
    std: float
    releases: tuple[Release, ...]


def descend(
    plan: DescentPlan,
    source: Source,
    start: Floats,
    ask: PricedQuery,
    *,
    request: str | None = None,
) -> DescentResult:
    """Descend from a start, asking for a gradient at every step.

    Parameters
    ----------
    plan : DescentPlan
    source : GaussianSource
    start : array of shape (d,)
    ask : callable
        ``ask(parameters, step)`` is the query for the gradient there.
    request : str, optional
        Id of the whole; every step gets one of its own from it.
    """
    able = check_gaussian(source)
    parameters = np.array(start, dtype=np.float64)
    multiplier = plan.noise_multiplier(ask(parameters, 0), unit_of(source))
    releases, variance = [], 0.0
    for step, rate in enumerate(plan.rates):
        release = able.answer_gaussian(
            ask(parameters, step), noise_multiplier=multiplier, request=named(request, step)
        )
        parameters = parameters - rate * release.values / plan.size
        variance += (rate * release.noise_std / plan.size) ** 2
        releases.append(release)
    return DescentResult(parameters, float(np.sqrt(variance)), tuple(releases))


def check_gaussian(source: Source) -> GaussianSource:
    """Refuse a source without Gaussian noise before anything is charged."""
    if not isinstance(source, GaussianSource):
        raise ValueError(
            f"Expected a source that answers with Gaussian noise, got {source!r}. Use the "
            "method 'search', which needs none."
        )
    return source


@cache
def _noise(
    epsilon: float, delta: float, steps: int, moves: tuple[float, ...], entries: int
) -> float:
    """Noise multiplier of one step out of several, enough for all sensitivities listed."""

    def event(noise: float, move: float) -> Event:
        law = DiscreteGaussian(gaussian_noise(move, noise), move, entries=entries)
        return Repeated(law, steps)

    found = noise_for(Budget(epsilon, delta), lambda noise: event(noise, max(moves)))
    # On a coarser grid the same ratio costs a little more or less, far behind the point.
    while any(epsilon_for(event(found, move), delta) > epsilon for move in moves):
        found *= 1 + 1e-6
    return found
