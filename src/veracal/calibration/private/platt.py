"""Private Platt scaling, and a plan that predicts its accuracy from public facts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import Unit
from veracal.calibration.maps.parametric import Form, Platt
from veracal.calibration.private.platt_solver import (
    N_STEPS,
    PRIOR,
    PlattQueries,
    SolverResult,
    solve,
)
from veracal.calibration.private.session import (
    DescentFitter,
    QuerySession,
    check_level,
    micro_epsilon_of,
)
from veracal.calibration.queries.platt import (
    ParameterGrid,
    PlattGradient,
    equation_bound,
    weight_shape,
)
from veracal.data import Estimate
from veracal.queries import QueryRequest

FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")
Method = Literal["equations", "descent"]
_LARGEST = 1e6  # bound on the parameters of a descent
_MAX_CLASSES = 200  # of a matrix, whose gradients have k² entries per record


class PrivatePlatt(DescentFitter):
    r"""An affine map of logits, fitted to noisy answers of a source.

    ``"equations"`` starts from a private temperature and takes a few noisy steps toward the map
    whose residuals :math:`\mathrm{softmax}(Wz + b) - e_y` have zero mean, alone and times
    bounded logits (:mod:`veracal.calibration.queries.platt`,
    :mod:`veracal.calibration.private.platt_solver`). All maps in queries lie on a declared grid
    of integers. It is for class-dependent miscalibration and many records:
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

    covers = "the Platt map and all answers used to fit it"

    def __init__(
        self,
        form: Form = "vector",
        *,
        method: Method = "equations",
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        delta: float | None = None,
        classes: int | None = None,
        size: int | None = None,
        steps: int | None = None,
        grid: ParameterGrid | None = None,
        clip: float = 10.0,
        learning_rate: float = 0.1,
        level: float = 0.95,
        reads: Literal["logits", "probabilities"] | None = None,
        temperatures: tuple[float, float] | None = None,
    ) -> None:
        self.form = form
        self.method = method
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.delta = delta
        self.classes = classes
        self.size = size
        self.steps = steps
        self.grid = grid
        self.clip = clip
        self.learning_rate = learning_rate
        self.level = level
        self.reads = reads
        self.temperatures = temperatures

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
        check_level(self.level)

    def _planned(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        self._check_settings()
        if self.method == "descent":
            return super()._planned(unit)
        queries = self._solver_queries()
        return queries.requests(queries.noise_multiplier(unit))

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
        ones = np.eye(k) if self.form == "matrix" else np.ones(weight_shape(self.form, k))
        return np.concatenate([ones.ravel(), np.zeros(k)])

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
    multiplier = queries.noise_multiplier(unit)
    rows = (unit or Unit()).at_most
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
