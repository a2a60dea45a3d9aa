r"""Private Platt scaling, and a plan that predicts its accuracy from public facts.

The equations are solved by noisy steps in log-odds: with the initial inverse temperature
:math:`\beta`, :math:`u = \beta z` and :math:`x = (u - m) / 2`, where m is the mean log-odds of
uncertain classes, the map is :math:`u + A x + b`, starting from A = 0 and b = 0. In these
coordinates the result does not depend on the scale of the logits, weights and biases are nearly
uncorrelated, and both have similar curvature, so that one noisy curvature determines the steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np
from scipy import stats

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
from veracal.calibration.private.session import (
    DescentFitter,
    QuerySession,
    micro_epsilon_of,
)
from veracal.calibration.private.temperature import search_root
from veracal.calibration.queries.platt import (
    LOG_ODDS_CLIP,
    ParameterGrid,
    PlattCurvature,
    PlattEquations,
    PlattGradient,
    equation_bound,
    platt_counts,
    weight_shape,
)
from veracal.calibration.queries.scalars import Gap
from veracal.data import Estimate, Kind
from veracal.queries import Query, QueryRequest

FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")
Method = Literal["equations", "descent"]
_LARGEST = 1e6  # bound on the parameters of a descent
_MAX_CLASSES = 200  # of a matrix in descent, whose gradients have k² entries per record
N_STEPS = 8  # more steps do not help under noise; fewer do not converge
START_NOISE = 2.0  # noise of the queries for the initial temperature, relative to the others
N_GAPS = 3  # gap queries for the initial temperature
MIN_INVERSE = 0.05  # smallest initial inverse temperature
MAX_CLASSES = 50  # of a matrix in equations, whose noise and answers grow with k²


def _identity(form: Form, classes: int) -> Floats:
    """The weights of the identity."""
    return np.eye(classes) if form == "matrix" else np.ones(weight_shape(form, classes))


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

    def requests(self, noise_multiplier: float) -> list[tuple[QueryRequest, int]]:
        """Counts, gaps, curvature and equations with placeholder parameters, and how often."""
        k, first = int(self.classes), START_NOISE * noise_multiplier
        start = self.grid.nearest(_identity(self.form, k), np.zeros(k))
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
    """The smallest sufficient noise multiplier of curvature and steps, under both relations."""
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
    """Transformation from steps in log-odds to a map of the logits."""

    form: Form
    classes: int
    inverse: float  # of the initial temperature
    offset: float  # mean log-odds m of uncertain classes
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
        shift = self.offset * (a.sum(axis=1) if self.form == "matrix" else a)
        weights, bias = self.inverse * (_identity(self.form, k) + a), b - shift
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
    :math:`\lambda = s^2 / (\tau^2 h)`, the optimal linear shrinkage under the prior. With much
    noise the map stays close to a temperature.
    """

    rate: Floats  # the factor, of shape (d,)
    ridge: Floats  # lambda, of shape (d,)
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


@dataclass(eq=False, repr=False)
class PrivatePlatt(DescentFitter):
    r"""An affine map of logits, fitted to noisy answers of a source.

    ``"equations"`` starts from a private temperature and takes a few noisy steps toward the map
    whose residuals :math:`\mathrm{softmax}(Wz + b) - e_y` have zero mean, alone and times
    bounded logits (:mod:`veracal.calibration.queries.platt`). All maps in queries lie on a
    declared grid of integers. It is for class-dependent miscalibration and many records:
    :func:`plan_platt` predicts whether one temperature is more accurate. With too much noise
    the map stays near the initial temperature, which gets a tenth of the budget and is less
    accurate than :class:`PrivateTemperature` with all of it.

    ``"descent"`` is noisy full-batch gradient descent on the log likelihood from W = 1 and b =
    0 (Zhang et al. 2022, https://arxiv.org/abs/2210.08248). The paper gives no settings for
    Platt scaling, so those of one temperature are used, with weights and bias clipped together.
    At these settings it is much less accurate than one temperature.

    The noise grows with the number of parameters: a matrix is for few classes.

    Parameters
    ----------
    form : {"scalar", "vector", "matrix"}
        Shape of W.
    method : {"equations", "descent"}
    epsilon, micro_epsilon : float or int
        Cost of the fit for each privacy unit; one of the two.
    delta : float
    classes : int
        Public number of classes.
    size : int, optional
        *Declared* number of records. Required for descent; without it the equations are divided
        by the noisy number of records.
    steps : int, optional
        8, or 100 for descent.
    grid : ParameterGrid, optional
        The declared grid; by default multiples of :math:`2^{-12}` within 16.
    clip, learning_rate
        For descent.
    level : float
        Confidence level of the interval.
    reads : "logits", "probabilities" or None
        Kind of the scores; the map then accepts only this kind.
    temperatures : pair of float, optional
        Public range of the initial temperature of the equations.

    Attributes
    ----------
    map_ : Platt
        On the grid, if fitted by equations.
    noise_std_ : float
        Upper bound on the standard deviation of a parameter due to noise: the larger of the
        two below.
    weight_std_, bias_std_ : float
        The same for weights and biases.
    effective_temperature_ : Estimate
        One over the mean of the weights that multiply a class's own logit, with an interval for
        the noise alone. Its ``n`` is the noisy or the declared number of records.
    releases_, private_, statement_
        As in :class:`PrivateTemperature`.

    Guarantees
    ----------
    As in :class:`PrivateTemperature`. Equations: the contribution of one record to an answer is
    at most 2 in the L2 norm for a vector, :math:`\sqrt 6` for a scalar and
    :math:`\sqrt{2(1+k)}` for a matrix of k classes, without clipping residuals. Descent: the
    clip bounds the L2 norm of a record's gradient, weights and bias together. The noise is
    fixed beforehand and composes to at most epsilon at delta (:meth:`event`). With a pool, each
    step uses the sources that have answered every query so far, and divides by the noisy
    number of *their* records (or by their share of the declared number).
    """

    form: Form = "vector"
    _: KW_ONLY
    method: Method = "equations"
    epsilon: float | None = None
    micro_epsilon: int | None = None
    delta: float | None = None
    classes: int | None = None
    size: int | None = None
    steps: int | None = None
    grid: ParameterGrid | None = None
    clip: float = 10.0
    learning_rate: float = 0.1
    level: float = 0.95
    reads: Literal["logits", "probabilities"] | None = None
    temperatures: tuple[float, float] | None = None

    covers = "the Platt map and all answers used to fit it"

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Platt:
        if self.method == "equations":
            size = None if self.size is None else float(self.size)
            result = solve(self._solver_queries(), session, queries, size)
        else:
            parameters, std = self._descend(session, queries)
            mean_std = std / math.sqrt(1 if self.form == "scalar" else int(self.classes or 1))
            map_, n = self._map(parameters), float(self.size or 1)
            result = SolverResult(map_, std, std, mean_std, n)
        self.weight_std_, self.bias_std_ = result.weight_std, result.bias_std
        self.noise_std_ = max(result.weight_std, result.bias_std)
        # The mean weight of a class's own logit. If its interval includes zero, that of the
        # temperature is unbounded.
        weights = result.map.weights
        mean = float(np.mean(np.diag(weights) if result.map.form == "matrix" else weights))
        half_width = float(stats.norm.ppf((1 + self.level) / 2)) * result.mean_weight_std
        low, high = (
            1 / w if w > 0 else math.inf for w in (mean + half_width, mean - half_width)
        )
        value, n = 1 / mean if mean > 0 else None, max(round(result.count), 0)
        self.effective_temperature_ = Estimate(value, low, high, self.level, n)
        return result.map

    def _check_settings(self) -> None:
        _checks.one_of(("equations", "descent"), method=self.method)
        _checks.open_fraction(level=self.level)

    def _plan(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        self._check_settings()
        if self.method == "descent":
            return super()._plan(unit)
        queries = self._solver_queries()
        return queries.requests(_noise(queries, unit))

    def _solver_queries(self) -> PlattQueries:
        """The queries of a fit by equations."""
        self._start()
        if self.delta is None:
            raise ValueError("Expected a delta, got delta=None. Gaussian noise needs one.")
        if self.size is not None:
            _checks.whole(size=self.size)
        assert self.classes is not None
        return PlattQueries(
            micro_epsilon_of(self.epsilon, self.micro_epsilon),
            float(self.delta),
            self.form,
            int(self.classes),
            N_STEPS if self.steps is None else self.steps,
            ParameterGrid() if self.grid is None else self.grid,
            self.reads,
            self.temperatures,
        )

    def _gradient(self, parameters: Floats, step: int) -> PlattGradient:
        return PlattGradient(self._map(parameters), self.clip, step)

    def _start(self) -> Floats:
        """The parameters of the identity: weights, then bias."""
        weight_shape(self.form, 2)
        if self.classes is None:
            raise ValueError(
                "Expected the number of classes, which must be public, got classes=None. "
                "Declare classes=..."
            )
        _checks.whole(classes=self.classes, least=2)
        k = int(self.classes)
        if self.form == "matrix" and k > _MAX_CLASSES:
            raise ValueError(
                f"Expected at most {_MAX_CLASSES} classes for a matrix, got {k}. Use 'vector'."
            )
        return np.concatenate([_identity(self.form, k).ravel(), np.zeros(k)])

    def _map(self, parameters: Floats) -> Platt:
        """The map with these parameters."""
        assert self.classes is not None
        k = int(self.classes)
        bounded = np.clip(parameters, -_LARGEST, _LARGEST)
        weights, bias = bounded[:-k], bounded[-k:]
        return Platt(weights.reshape(weight_shape(self.form, k)), bias, self.reads)


MAX_STD = 0.5 * PRIOR  # of a bias in log-odds; with more noise one temperature is better
_CURVATURE = 0.1  # total over classes of a network with 93 % accuracy


@dataclass(frozen=True)
class PlattPlan:
    r"""Cost and expected accuracy of a private Platt map.

    Attributes
    ----------
    queries : PlattQueries
    size, sources : int
    noise_multiplier : float
        Noise multiplier of the curvature and of each step.
    parameter_std : float
        Standard deviation of a bias due to noise, in log-odds, at the expected curvature.
    excess : float
        Increase of the mean log loss by noise: half the curvature times the variance, summed
        over all parameters.
    shrinkage : float
        Share of a correction of the prior's size (0.5 in log-odds) that remains after
        shrinkage for the noise.
    advice : {"platt", "temperature"}
        Method with the better expected accuracy: "platt" if ``parameter_std`` is at most a
        quarter.
    """

    queries: PlattQueries
    size: int
    sources: int
    noise_multiplier: float
    parameter_std: float
    excess: float
    shrinkage: float
    advice: Literal["platt", "temperature"]

    def text(self) -> str:
        """The plan in words."""
        queries = self.queries
        summary = (
            f"{4 + 1 + queries.steps} queries to {self.sources:,} source"
            f"{'s' if self.sources > 1 else ''}, noise multiplier {self.noise_multiplier:.4g}: "
            f"noise of {self.parameter_std:.2g} in log-odds on each bias, "
            f"{self.excess:.2g} on the log loss."
        )
        if self.advice == "platt":
            return f"{summary} Sufficient for a {queries.form} of {queries.classes} classes."
        return f"{summary} One temperature is expected to be more accurate."


def plan_platt(
    form: Form = "vector",
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    delta: float,
    classes: int,
    size: int,
    sources: int = 1,
    steps: int = N_STEPS,
    curvature: float = _CURVATURE,
    grid: ParameterGrid | None = None,
    unit: Unit | None = None,
) -> PlattPlan:
    r"""Plan a private Platt map from public facts.

    With d sources that each add noise, n records in total and the bound C on a record's
    contribution, the mean equations over T steps have noise :math:`s = \sqrt{d / T}\, \sigma C
    / n` , and a bias with curvature h has noise :math:`s / h`. The accuracy therefore depends
    on :math:`n / \sqrt d`: a hundred sources of 1,000 records are as good as one of 10,000.

    Parameters
    ----------
    form : {"scalar", "vector", "matrix"}
    epsilon, micro_epsilon : float or int
        Cost for each privacy unit; one of the two.
    size : int
        Declared total number of records.
    sources : int
        Number of sources that add noise.
    curvature : float in (0, 1)
        Expected :math:`E[\sum_c p_c (1 - p_c)]`, about 1.4 times the error rate; a
        public guess.

    Examples
    --------
    >>> few = plan_platt(epsilon=1.0, delta=1e-5, classes=10, size=5_000, sources=100)
    >>> many = plan_platt(epsilon=1.0, delta=1e-5, classes=10, size=1_000_000, sources=1_000)
    >>> few.advice, many.advice
    ('temperature', 'platt')
    """
    _checks.whole(size=size, sources=sources)
    if not 0 < curvature < 1:
        raise ValueError(f"Expected curvature between 0 and 1, got curvature={curvature!r}.")
    total = micro_epsilon_of(epsilon, micro_epsilon)
    queries = PlattQueries(
        total, delta, form, int(classes), int(steps), grid or ParameterGrid()
    )
    multiplier = _noise(queries, unit or Unit())
    rows = (unit or Unit()).max_contributions
    bound = rows * equation_bound(form, int(classes))
    noise = math.sqrt(sources) * multiplier * bound / size
    h = curvature / classes
    unshrunk_std = noise / math.sqrt(steps) / h  # without shrinkage
    shrinkage = PRIOR**2 / (PRIOR**2 + unshrunk_std**2)
    std = unshrunk_std * shrinkage
    entries = math.prod(weight_shape(form, int(classes))) + int(classes)
    return PlattPlan(
        queries=queries,
        size=int(size),
        sources=int(sources),
        noise_multiplier=multiplier,
        parameter_std=std,
        excess=entries * h * std**2 / 2,
        shrinkage=shrinkage,
        advice="platt" if unshrunk_std <= MAX_STD else "temperature",
    )
