"""Noisy gradient descent on the parameters of a calibration map, with one query per step."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import (
    MICRO,
    RELATIONS,
    Budget,
    DiscreteGaussian,
    Event,
    Repeated,
    Unit,
    epsilon_for,
    noise_for,
)
from veracal.calibration.private.session import (
    PrivateFitter,
    QuerySession,
    micro_epsilon_of,
)
from veracal.mechanisms import Linear, gaussian_noise
from veracal.queries import Query, QueryRequest

PAPER_STEPS = 100


class DescentFitter(PrivateFitter):
    r"""Base class of fitters with full-batch descent.

    .. math:: \theta \leftarrow \theta - \eta_t g_t / n

    where :math:`g_t` is the noisy sum of clipped gradients, n a *declared* number of records
    (its share for the sources that still answer), and :math:`\eta_t` falls on a line from the
    learning rate to zero (Zhang et al. 2022, https://arxiv.org/abs/2210.08248, Algorithm 1).
    With another method than ``"descent"`` the fitter makes the queries of :meth:`_queries`.

    Guarantees
    ----------
    Noise, steps and divisor are known before a record is read. Every step is one discrete
    Gaussian on integers; together they cost at most epsilon at delta.
    """

    method: str
    epsilon: float | None
    micro_epsilon: int | None
    delta: float | None
    size: int | None
    steps: int | None
    learning_rate: float

    def _start(self) -> Floats:
        """The parameters of the identity."""
        raise NotImplementedError

    def _gradient(self, parameters: Floats, step: int) -> Query:
        """The query of one step; its sensitivity does not depend on parameters or step."""
        raise NotImplementedError

    def _planned(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        self._check_settings()
        if self.method != "descent":
            return super()._planned(unit)
        if self.delta is None or self.size is None:
            raise ValueError(
                "Expected a delta and a declared size for descent, got "
                f"delta={self.delta!r}, size={self.size!r}. Declare both, or use another method."
            )
        epsilon = micro_epsilon_of(self.epsilon, self.micro_epsilon) / MICRO
        steps = PAPER_STEPS if self.steps is None else self.steps
        _checks.positive(epsilon=epsilon, delta=self.delta, size=self.size)
        _checks.positive(learning_rate=self.learning_rate)
        _checks.whole(steps=steps)
        query = self._gradient(self._start(), 0)
        sensitivities = tuple(
            unit.max_contributions * query.sensitivity_l2(r) for r in RELATIONS
        )
        noise = _noise(epsilon, self.delta, int(steps), sensitivities, query.entries)
        return [(QueryRequest(query, noise_multiplier=noise), int(steps))]

    def _check_settings(self) -> None:
        """Raise for invalid settings that both methods use."""

    def _descend(
        self, session: QuerySession, queries: Sequence[QueryRequest]
    ) -> tuple[Floats, float]:
        """Descend with one gradient query per step.

        Returns the parameters, and an upper bound on the standard deviation of a parameter due
        to the noise of all steps, ignoring that later steps correct earlier noise.
        """
        assert self.size is not None
        parameters, variance, steps = self._start(), 0.0, len(queries)
        rates = Linear(self.learning_rate, 0.0, steps).values(steps)
        for step, (rate, query) in enumerate(zip(rates, queries, strict=True)):
            gradient = self._gradient(parameters, step)
            release = session.ask(replace(query, query=gradient), str(step))
            size = self.size * session.n_present / session.n_sources
            parameters = parameters - rate * release.values / size
            variance += (rate * release.noise_std / size) ** 2
        return parameters, float(np.sqrt(variance))


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
