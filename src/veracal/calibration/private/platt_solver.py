r"""The queries of private Platt scaling, and noisy steps that solve its equations.

The steps are taken in log-odds: with the inverse temperature :math:`\beta` of the start,
:math:`u = \beta z` and :math:`x = (u - m) / 2`, where m is the mean log-odds of uncertain
classes, the map is :math:`u + A x + b`, starting from A = 0 and b = 0. In these coordinates the
result does not depend on the scale of the logits, weights and biases are nearly uncorrelated,
and both have similar curvature, so that one noisy curvature determines the step sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import (
    MICRO,
    RELATIONS,
    Budget,
    Composed,
    Event,
    Relation,
    Repeated,
    Unit,
    epsilon_for,
    noise_for,
)
from veracal.calibration.maps.parametric import Form, Platt
from veracal.calibration.private.root_posterior import FINEST, TemperatureGrid
from veracal.calibration.private.session import QuerySession
from veracal.calibration.private.temperature import search_root
from veracal.calibration.queries.platt import (
    LOG_ODDS_CLIP,
    ParameterGrid,
    PlattCurvature,
    PlattEquations,
    platt_counts,
    weight_shape,
)
from veracal.calibration.queries.scalars import Gap
from veracal.data import Kind
from veracal.queries import Query, QueryRequest

N_STEPS = 8  # more steps do not help under noise; fewer do not converge
START_NOISE = 2.0  # noise of the queries for the initial temperature, relative to the others
N_GAPS = 3  # gap queries for the initial temperature
MIN_INVERSE = 0.05  # smallest initial inverse temperature
MAX_CLASSES = 50  # of a matrix, whose noise and answers grow with k²


@dataclass(frozen=True)
class PlattQueries:
    r"""The queries of one fit and their noise, fixed before the first query.

    Four queries for the initial temperature, with twice the noise of the others; one for the
    curvature and ``steps`` for the equations. All noise is discrete Gaussian with one
    multiplier, the smallest for which all queries together cost epsilon at delta. The initial
    temperature costs as much as one step.

    Guarantees
    ----------
    The cost is that of the composition according to the accountant, under both relations; the
    noise multiplier is at least the one that keeps it within epsilon at delta.
    """

    micro_epsilon: int
    delta: float
    form: Form
    classes: int
    steps: int = N_STEPS
    grid: ParameterGrid = field(default_factory=ParameterGrid)
    reads: Kind | None = None
    temperatures: tuple[float, float] | None = None  # of the start; None: the whole grid

    def __post_init__(self) -> None:
        _checks.whole(micro_epsilon=self.micro_epsilon, steps=self.steps)
        _checks.whole(classes=self.classes, least=2)
        weight_shape(self.form, int(self.classes))
        if not (isinstance(self.delta, float) and 0 < self.delta < 1):
            raise ValueError(f"Expected a delta between 0 and 1, got delta={self.delta!r}.")
        if self.form == "matrix" and self.classes > MAX_CLASSES:
            raise ValueError(
                f"Expected at most {MAX_CLASSES} classes for a matrix, got {self.classes}. "
                "Use 'vector'."
            )
        if not isinstance(self.grid, ParameterGrid):
            raise ValueError(f"Expected a ParameterGrid, got grid={self.grid!r}.")

    @property
    def inverses(self) -> tuple[float, float]:
        """Range of initial inverse temperatures, with a margin for weights on the grid.

        The ends of a declared range are rounded inward to the grid of temperatures.
        """
        high = self.grid.most_weight * 0.75
        if self.temperatures is None:
            return MIN_INVERSE, high
        first, last = TemperatureGrid.between(self.temperatures).inverse_ends
        low = math.ceil(MIN_INVERSE / FINEST) * FINEST
        return min(max(low, first), last), max(min(high, last), first)

    def noise_multiplier(self, unit: Unit | None = None) -> float:
        """Noise divided by sensitivity, of the curvature and of each step."""
        return _noise(self, unit or Unit())

    def requests(self, noise_multiplier: float) -> list[tuple[QueryRequest, int]]:
        """Counts, gaps, curvature and equations with placeholder parameters, and how often."""
        k, first = int(self.classes), START_NOISE * noise_multiplier
        ones = np.eye(k) if self.form == "matrix" else np.ones(weight_shape(self.form, k))
        start = self.grid.nearest(ones, np.zeros(k))
        equations = PlattEquations(start, parameters=self.grid)
        queries: list[tuple[Query, float, int]] = [
            (platt_counts(k, self.reads), first, 1),
            (Gap(1.0, k), first, N_GAPS),
            (PlattCurvature(1.0, k), noise_multiplier, 1),
            (equations, noise_multiplier, int(self.steps)),
        ]
        return [(QueryRequest(query, noise_multiplier=m), n) for query, m, n in queries]


@cache
def _noise(queries: PlattQueries, unit: Unit) -> float:
    """The smallest sufficient noise multiplier under both relations."""
    epsilon = queries.micro_epsilon / MICRO

    def at(relation: Relation) -> Callable[[float], Event]:
        return lambda noise: Composed(
            tuple(Repeated(q.event(relation, unit), n) for q, n in queries.requests(noise))
        )

    noise_multiplier = max(
        noise_for(Budget(epsilon, queries.delta, relation, unit), at(relation))
        for relation in RELATIONS
    )
    # Discretization changes the cost slightly; correct it.
    while any(
        epsilon_for(at(r)(noise_multiplier), queries.delta, unit) > epsilon for r in RELATIONS
    ):
        noise_multiplier *= 1 + 1e-6
    return noise_multiplier


SPREAD = 2.0  # typical spread of the log-odds of uncertain classes
PRIOR = 0.5  # prior standard deviation of the map from a temperature, in log-odds
_STIFF = 2.0  # largest curvature relative to the mean curvature
_SCALE = 2.0**-12  # center and spread are multiples of it, so that queries carry exact numbers
_MIN_CURVATURE = 0.01  # total over classes, for very confident predictions


@dataclass(frozen=True)
class LogOddsTransform:
    r"""Transformation from steps in log-odds to a map of the logits.

    Attributes
    ----------
    form : {"scalar", "vector", "matrix"}
    classes : int
    inverse : float
        Initial inverse temperature :math:`\beta`.
    offset : float
        Mean log-odds m of uncertain classes.
    grid : ParameterGrid
    reads : "logits", "probabilities" or None
    """

    form: Form
    classes: int
    inverse: float
    offset: float
    grid: ParameterGrid
    reads: Kind | None = None

    @property
    def center(self) -> float:
        """Logit of the offset, on a public grid."""
        return _round_to_scale(self.offset / self.inverse)

    @property
    def spread(self) -> float:
        """Spread of the logits of uncertain classes, on a public grid."""
        return max(_round_to_scale(SPREAD / self.inverse), _SCALE)

    def map(self, theta: Floats) -> Platt:
        r"""The nearest map on the grid to :math:`u + A (u - m)/2 + b`."""
        k = self.classes
        a, b = theta[:-k].reshape(weight_shape(self.form, k)) / SPREAD, theta[-k:]
        identity = np.eye(k) if self.form == "matrix" else 1.0
        shift = self.offset * (a.sum(axis=1) if self.form == "matrix" else a)
        weights, bias = self.inverse * (identity + a), b - shift
        return self.grid.nearest(weights, bias - bias.mean(), self.reads)

    def without_offsets(self, theta: Floats) -> Floats:
        """Equivalent parameters without equal shifts of the logits of all classes."""
        k, centered = self.classes, theta.copy()
        centered[-k:] -= centered[-k:].mean()
        if self.form == "matrix":
            weights = centered[:-k].reshape(k, k)
            centered[:-k] = (weights - weights.mean(axis=0)).ravel()
        return centered

    def stds(self, std: Floats) -> tuple[float, float]:
        """Largest standard deviations of the weights and biases of the map."""
        k = self.classes
        weight, bias = float(std[:-k].max()), float(std[-k:].max())
        mixed = {"scalar": 0.0, "vector": 1.0, "matrix": math.sqrt(k)}[self.form]
        moved = mixed * self.offset / SPREAD * weight
        return self.inverse * weight / SPREAD, math.hypot(bias, moved)


@dataclass(frozen=True)
class StepSizes:
    r"""Step sizes and shrinkage of the noisy steps.

    With the curvature h of a parameter, the noise s of the mean equations over all steps, and a
    prior :math:`N(0, \tau^2)`, the step is
    :math:`\theta \leftarrow \theta - (g/n + \lambda\theta) / (\kappa h + \lambda)` with
    :math:`\lambda = s^2 / (\tau^2 h)`, the optimal linear
    shrinkage under the prior. With much noise the map stays close to a temperature.

    Attributes
    ----------
    rate, ridge : array of shape (d,)
        The factor :math:`1 / (\kappa h + \lambda)` and :math:`\lambda`.
    steps : int
    """

    rate: Floats
    ridge: Floats
    steps: int

    @classmethod
    def of(
        cls, form: Form, classes: int, curvature: float, noise: float, steps: int
    ) -> "StepSizes":
        """Step sizes from the total curvature and the noise of one step on the mean."""
        weights = math.prod(weight_shape(form, classes))
        h = np.full(weights + classes, curvature / classes)
        stiff = h * _STIFF
        if form == "scalar":
            h[:weights] *= classes
        if form != "vector":  # one weight affects all classes, or all weights affect one
            stiff[:weights] *= classes
        ridge = noise**2 / steps / (PRIOR**2 * h)
        return cls(1 / (stiff + ridge), ridge, steps)

    def step(self, theta: Floats, mean: Floats) -> Floats:
        """One step for noisy mean equations."""
        return theta - self.rate * (mean + self.ridge * theta)

    def std(self, noise: float) -> Floats:
        """Upper bound on the standard deviation of a parameter due to the noise of all steps.

        Only the ridge corrects earlier noise in this bound; the curvature is ignored.
        """
        shrink = 1 - self.rate * self.ridge
        averaged = averaged_steps(self.steps)
        weights = [
            sum(shrink ** (t - j) for t in averaged if t >= j) / len(averaged)
            for j in range(self.steps)
        ]
        result: Floats = noise * self.rate * np.sqrt(sum(np.square(w) for w in weights))
        return result


def averaged_steps(steps: int) -> range:
    """Indices of the steps whose results are averaged: the second half."""
    return range(steps // 2, steps)


@dataclass(frozen=True, eq=False)
class SolverResult:
    """Result of the noisy steps."""

    map: Platt
    # Upper bounds on standard deviations due to the noise of the start and of the steps.
    weight_std: float
    bias_std: float
    mean_weight_std: float  # of the mean of the weights that multiply a class's own logit
    count: float  # number of records used as the divisor


def solve(
    queries: PlattQueries,
    session: QuerySession,
    requests: Sequence[QueryRequest],
    size: float | None = None,
) -> SolverResult:
    """Query a temperature, the curvature there, and the equations step by step.

    Parameters
    ----------
    requests : sequence of QueryRequest
        As :meth:`PlattQueries.requests` lists them.
    size : float or None
        Declared number of records; None: the noisy number.
    """
    form, k, steps = queries.form, int(queries.classes), int(queries.steps)
    searched, (curve, *equations) = requests[: 1 + N_GAPS], requests[1 + N_GAPS :]

    # The initial temperature, and its standard deviation under the model of the search.
    search = search_root(session, searched, queries.inverses)
    inverse, posterior = search.inverse, search.posterior
    start_std = inverse * float(posterior.quantile(0.8413) - posterior.quantile(0.1587)) / 2

    # The curvature there. One that is too large shortens the steps; one that is too small could
    # let them diverge. The mean log-odds are a ratio of two noisy numbers, shrunk toward zero.
    n = _record_count(session, size)
    answer = session.ask(replace(curve, query=PlattCurvature(inverse, k)), "curvature")
    (total, weighted), noise = answer.values / n, answer.noise_std / n
    curvature = min(max(float(total), noise, _MIN_CURVATURE), 1 - 1 / k)
    offset = float(weighted) * curvature / (curvature**2 + noise**2)
    offset = LOG_ODDS_CLIP * min(max(offset, -1.0), 1.0)

    transform = LogOddsTransform(form, k, inverse, offset, queries.grid, queries.reads)
    theta: Floats = np.zeros(math.prod(weight_shape(form, k)) + k)
    averaged, step_sizes = [], None
    for step, planned in enumerate(equations):
        query = PlattEquations(
            transform.map(theta), transform.center, transform.spread, step, queries.grid
        )
        release = session.ask(replace(planned, query=query), f"equations {step}")
        n = _record_count(session, size)
        if step_sizes is None:
            noise = release.noise_std / n
            step_sizes = StepSizes.of(form, k, curvature, noise, steps)
        theta = transform.without_offsets(step_sizes.step(theta, release.values / n))
        if step in averaged_steps(steps):
            averaged.append(theta)
    assert step_sizes is not None
    weight_std, bias_std = transform.stds(step_sizes.std(noise))
    mean_std = weight_std / math.sqrt(1 if form == "scalar" else k)
    return SolverResult(
        transform.map(np.mean(averaged, axis=0)),
        math.hypot(weight_std, start_std),
        bias_std,
        math.hypot(mean_std, start_std),
        n,
    )


def _round_to_scale(value: float) -> float:
    """The nearest multiple of the public step, without -0.0."""
    return float(np.rint(value / _SCALE) * _SCALE) + 0.0


def _record_count(session: QuerySession, size: float | None) -> float:
    """Noisy number of records of the sources that still answer, at least the noise itself."""
    if size is not None:
        return max(size * session.n_present / session.n_sources, 1.0)
    counts = session.answers[0]
    return max(float(sum(counts.values)), math.sqrt(2) * counts.noise_std, 1.0)
