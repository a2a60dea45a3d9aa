"""Noisy gradient descent on the parameters of a calibration map, with one query per step."""

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
from veracal.calibration.private.session import sub_request, unit_of
from veracal.ledger import Item
from veracal.mechanisms import Linear, gaussian_noise
from veracal.queries import GaussianSource, Query, Release, Source, gaussian_event

GradientQuery = Callable[[Floats, int], Query]


@dataclass(frozen=True)
class DescentPlan:
    r"""Steps of full-batch descent, :math:`\theta \leftarrow \theta - \eta_t g_t / n`.

    :math:`g_t` is the noisy sum of clipped gradients, n a *declared* number of records, and
    :math:`\eta_t` falls on a line from the learning rate to zero (Zhang et al. 2022,
    https://arxiv.org/abs/2210.08248, Algorithm 1).

    Attributes
    ----------
    epsilon, delta : float
        Cost of all steps together.
    size : float
        Declared number of records, the divisor. The actual number is private.
    steps : int
    learning_rate : float
        Learning rate of the first step.

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
        """Noise divided by sensitivity for each step, sufficient under both relations."""
        max_rows = (unit or Unit()).max_contributions
        sensitivities = tuple(
            max_rows * query.sensitivity_l2(relation) for relation in RELATIONS
        )
        return _noise(self.epsilon, self.delta, int(self.steps), sensitivities, query.entries)

    def event(self, query: Query, relation: Relation, unit: Unit | None = None) -> Event:
        """Cost of all steps; all queries have the sensitivity of this one."""
        return Repeated(self._step(query, relation, unit), int(self.steps))

    def items(
        self, query: Query, relation: Relation, unit: Unit | None, partition: str | None
    ) -> list[Item]:
        """Ledger item of all steps."""
        return [Item(query.name, self._step(query, relation, unit), int(self.steps), partition)]

    def _step(self, query: Query, relation: Relation, unit: Unit | None) -> Event:
        """Cost of one step."""
        return gaussian_event(query, self.noise_multiplier(query, unit), relation, unit)


@dataclass(frozen=True, eq=False)
class DescentResult:
    """Result of a noisy descent.

    Attributes
    ----------
    parameters : array of shape (d,)
    std : float
        Upper bound on the standard deviation of a parameter due to the noise of all steps,
        ignoring that later steps correct earlier noise.
    releases : tuple of Release
    """

    parameters: Floats
    std: float
    releases: tuple[Release, ...]


def descend(
    plan: DescentPlan,
    source: Source,
    start: Floats,
    gradient_query: GradientQuery,
    *,
    request: str | None = None,
) -> DescentResult:
    """Descend from a starting point with one gradient query per step.

    Parameters
    ----------
    plan : DescentPlan
    source : GaussianSource
    start : array of shape (d,)
    gradient_query : callable
        ``gradient_query(parameters, step)`` is the query for the gradient at the parameters.
    request : str, optional
        Request id of the fit, from which those of the steps are derived.
    """
    gaussian_source = check_gaussian(source)
    parameters = np.array(start, dtype=np.float64)
    multiplier = plan.noise_multiplier(gradient_query(parameters, 0), unit_of(source))
    releases, variance = [], 0.0
    for step, rate in enumerate(plan.rates):
        release = gaussian_source.answer_gaussian(
            gradient_query(parameters, step),
            noise_multiplier=multiplier,
            request=sub_request(request, step),
        )
        parameters = parameters - rate * release.values / plan.size
        variance += (rate * release.noise_std / plan.size) ** 2
        releases.append(release)
    return DescentResult(parameters, float(np.sqrt(variance)), tuple(releases))


def check_gaussian(source: Source) -> GaussianSource:
    """Reject a source that cannot add Gaussian noise, before anything is charged."""
    if not isinstance(source, GaussianSource):
        raise ValueError(
            f"Expected a source that answers with Gaussian noise, got {source!r}. Use the "
            "method 'search', which needs none."
        )
    return source


@cache
def _noise(
    epsilon: float, delta: float, steps: int, sensitivities: tuple[float, ...], entries: int
) -> float:
    """Noise multiplier of each of several steps, sufficient for all listed sensitivities."""

    def event(noise: float, sensitivity: float) -> Event:
        distribution = DiscreteGaussian(
            gaussian_noise(sensitivity, noise), sensitivity, entries=entries
        )
        return Repeated(distribution, steps)

    noise_multiplier = noise_for(
        Budget(epsilon, delta), lambda noise: event(noise, max(sensitivities))
    )
    # Discretization changes the cost slightly; correct it.
    while any(
        epsilon_for(event(noise_multiplier, sensitivity), delta) > epsilon
        for sensitivity in sensitivities
    ):
        noise_multiplier *= 1 + 1e-6
    return noise_multiplier
