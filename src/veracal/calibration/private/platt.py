"""A private affine map of the logits.

What a private affine map can be expected to be worth, from public facts alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from scipy import stats

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import MICRO, Event, Relation, Unit
from veracal.calibration.maps.parametric import Form, Platt
from veracal.calibration.private.gradient_descent import DescentPlan, check_gaussian, descend
from veracal.calibration.private.platt_solver import (
    PRIOR,
    STEPS,
    PlattQuestions,
    SolverResult,
    solve,
)
from veracal.calibration.private.session import (
    PrivateFitter,
    QuerySession,
    check_affordable,
    price,
    unit_of,
)
from veracal.calibration.queries.platt import (
    ParameterGrid,
    PlattGradient,
    equation_bound,
    weight_shape,
)
from veracal.data import Estimate
from veracal.ledger import Item
from veracal.queries import Release, Source

FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")
Method = Literal["equations", "descent"]
_LARGEST = 1e6  # of a parameter of a descent, whatever the noise did
_MOST_CLASSES = 200  # of a matrix, whose gradients take the square of them for each record
_PAPER_STEPS = 100
COVERS = "the Platt map, and every answer that led to it"


class PrivatePlatt(PrivateFitter):
    r"""A Platt map fitted by noisy answers of whoever holds the records.

    ``"equations"`` starts from a private temperature and takes a few noisy steps toward the map
    whose residuals :math:`\mathrm{softmax}(Wz + b) - e_y` are zero on average, overall and
    times bounded logits (:mod:`veracal.calibration.queries.platt`,
    :mod:`veracal.calibration.private.platt_solver`). All maps that are asked about lie on an
    enrolled grid of integers. It is for class-dependent miscalibration and many records:
    :func:`plan_platt` says beforehand whether one temperature is expected to do better. With
    too much noise the map stays near the temperature of the start, which has a tenth of the
    budget and is worse than one that :class:`PrivateTemperature` finds with all of it.

    ``"descent"`` is noisy full-batch descent on the log likelihood, from W = 1 and b = 0, as
    Zhang et al. 2022 (https://arxiv.org/abs/2210.08248) describe for one temperature; for
    Platt scaling they give no settings, so those of the temperature are used, with weights and
    bias clipped together. At these settings it stays far behind a temperature.

    The noise grows with the number of parameters: a matrix is for few classes.

    Parameters
    ----------
    form : {"scalar", "vector", "matrix"}
        What W is.
    method : {"equations", "descent"}
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for the fit; one of the two.
    delta : float
    classes : int
        Public number of classes.
    size : int, optional
        *Declared* number of records, never the real one. Descent needs it; without one the
        equations are divided by the noisy number that the temperature is found with.
    steps : int, optional
        8, or 100 for descent.
    grid : ParameterGrid, optional
        The enrolled grid; by default multiples of :math:`2^{-12}` within 16.
    clip, learning_rate
        For descent.
    level : float
        Of the interval.
    reads : "logits", "probabilities" or None
        Kind of scores that the sources hold, which the map then insists on.
    temperatures : pair of float, optional
        Public range of the temperature that equations start from.

    Attributes
    ----------
    map_ : Platt
        On the grid, if it was found by equations.
    noise_std_ : float
        Standard deviation that the noise gives a parameter, at most: the larger of the two
        below.
    weight_std_, bias_std_ : float
        The same for a weight and for a bias.
    effective_temperature_ : Estimate
        One over the mean of the weights that multiply a class's own logit, with an interval for
        the noise alone. Its ``n`` is the noisy or the declared number of records.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    As of :class:`PrivateTemperature`. Equations: what one record adds to an answer is at most
    2 in the L2 norm for a vector, :math:`\sqrt 6` for a scalar and :math:`\sqrt{2(1+k)}` for
    a matrix of k classes, without any clipping of residuals. Descent: the clip bounds the L2
    norm of a record's whole gradient, weights and bias together. The noises are fixed
    beforehand and compose to at most epsilon at delta (:meth:`event`). Of a pool, each step
    counts the sources that have answered everything so far, and divides by the noisy number of
    *their* records (or by their share of the declared one).
    """

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

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of one fit, known before any record is read."""
        if self._descends():
            return self._plan().event(self._gradient(self._start(), 0), relation, unit)
        return self._questions().event(relation, unit)

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this fit."""
        if self._descends():
            return self._plan().items(self._gradient(self._start(), 0), relation, unit, part)
        return self._questions().items(relation, unit, part)

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source for residuals, or gradients, at every step.

        Parameters
        ----------
        source : GaussianSource
        request : str, optional
            As of :meth:`PrivateTemperature.fit`.
        """
        descends = self._descends()
        check_gaussian(source)
        return (self._descend if descends else self._solve)(source, request)

    def _solve(self, source: Source, request: str | None) -> Self:
        """Steps toward the solution of the equations."""
        questions = self._questions()
        inquiry = QuerySession(source, request)
        inquiry.afford(self.items)
        noise = questions.noise_multiplier(unit_of(source))
        size = None if self.size is None else float(self.size)
        found = solve(questions, inquiry, noise, size)
        return self._kept(found, inquiry.releases, source)

    def _descend(self, source: Source, request: str | None) -> Self:
        """Follow noisy gradients."""
        check_affordable(source, self.items, request)
        made = descend(self._plan(), source, self._start(), self._gradient, request=request)
        alone = made.std / np.sqrt(1 if self.form == "scalar" else int(self.classes or 1))
        map_ = self._map(made.parameters)
        found = SolverResult(map_, made.std, made.std, float(alone), float(self.size or 1))
        return self._kept(found, made.releases, source)

    def _kept(self, found: SolverResult, releases: Sequence[Release], source: Source) -> Self:
        """Keep the map and what noise did to it."""
        self.weight_std_, self.bias_std_ = found.weight_std, found.bias_std
        self.noise_std_ = max(found.weight_std, found.bias_std)
        self.effective_temperature_ = effective_temperature(found, self.level)
        assert self.delta is not None
        return self._keep(found.map, releases, source, covers=COVERS, delta=self.delta)

    def _questions(self) -> PlattQuestions:
        """The questions of a fit by equations."""
        self._start()
        if self.delta is None:
            raise ValueError("Expected a delta, got delta=None. Gaussian noise needs one.")
        if self.size is not None:
            _checks.whole(size=self.size)
        steps = STEPS if self.steps is None else self.steps
        told = (price(self.epsilon, self.micro_epsilon), float(self.delta), self.form)
        assert self.classes is not None
        grid = ParameterGrid() if self.grid is None else self.grid
        return PlattQuestions(
            *told, int(self.classes), steps, grid, self.reads, self.temperatures
        )

    def _descends(self) -> bool:
        """Which method it is."""
        _checks.one_of(("equations", "descent"), method=self.method)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        return self.method == "descent"

    def _plan(self) -> DescentPlan:
        """The steps of a descent."""
        if self.delta is None or self.size is None:
            raise ValueError(
                f"Expected a delta and a declared size, got delta={self.delta!r}, "
                f"size={self.size!r}."
            )
        epsilon = price(self.epsilon, self.micro_epsilon) / MICRO
        steps = _PAPER_STEPS if self.steps is None else self.steps
        return DescentPlan(epsilon, self.delta, self.size, steps, self.learning_rate)

    def _gradient(self, parameters: Floats, step: int) -> PlattGradient:
        """The question of one step."""
        return PlattGradient(self._map(parameters), self.clip, step)

    def _start(self) -> Floats:
        """The map that changes nothing, as a vector: weights, then bias."""
        weight_shape(self.form, 2)
        if self.classes is None:
            raise ValueError(
                "Expected the number of classes, which must be public, got classes=None. "
                "Declare classes=..."
            )
        _checks.whole(classes=self.classes, least=2)
        k = int(self.classes)
        if self.form == "matrix" and k > _MOST_CLASSES:
            raise ValueError(
                f"Expected at most {_MOST_CLASSES} classes for a matrix, got {k}. Use 'vector'."
            )
        ones = np.eye(k) if self.form == "matrix" else np.ones(weight_shape(self.form, k))
        return np.concatenate([ones.ravel(), np.zeros(k)])

    def _map(self, parameters: Floats) -> Platt:
        """The map of a vector of parameters."""
        assert self.classes is not None
        k = int(self.classes)
        bounded = np.clip(parameters, -_LARGEST, _LARGEST)
        weights, bias = bounded[:-k], bounded[-k:]
        return Platt(weights.reshape(weight_shape(self.form, k)), bias, self.reads)


def effective_temperature(found: SolverResult, level: float) -> Estimate:
    """One over the mean of the weights of a class's own logit; where noise may have put it.

    If that mean may be zero or less, there is no end to the temperature: the interval ends at
    infinity, and the value is None where the mean itself is not above zero.
    """
    own = np.diag(found.map.weights) if found.map.form == "matrix" else found.map.weights
    mean = float(np.mean(own))
    reach = float(stats.norm.ppf((1 + level) / 2)) * found.mean_weight_std
    low, high = (1 / w if w > 0 else math.inf for w in (mean + reach, mean - reach))
    value = 1 / mean if mean > 0 else None
    return Estimate(value, low, high, level, max(round(found.count), 0))


MOST_STD = 0.5 * PRIOR  # of a bias in log-odds, for the map to be expected to pay
_CURVATURE = 0.1  # of all classes together: that of a network which is right 93 times in 100


@dataclass(frozen=True)
class PlattPlan:
    r"""What a fit asks, costs and can be expected to be worth.

    Attributes
    ----------
    questions : PlattQuestions
    size, sources : int
    noise_multiplier : float
        Of the curvature and of each step.
    parameter_std : float
        Standard deviation that noise gives a bias, in log-odds, where the curvature is that
        expected.
    excess : float
        What noise adds to the mean log loss: half the curvature times the variance, for all
        parameters.
    survives : float
        Share of a correction of the usual size (0.5 in log-odds) that is left when noise is
        weighed against it.
    advice : {"platt", "temperature"}
        What is expected to do better. "platt" where ``parameter_std`` is at most a quarter.
    """

    questions: PlattQuestions
    size: int
    sources: int
    noise_multiplier: float
    parameter_std: float
    excess: float
    survives: float
    advice: Literal["platt", "temperature"]

    def text(self) -> str:
        """The plan, for people."""
        asked = self.questions
        told = (
            f"{4 + 1 + asked.steps} questions to {self.sources:,} source"
            f"{'s' if self.sources > 1 else ''}, noise multiplier {self.noise_multiplier:.4g}: "
            f"noise of {self.parameter_std:.2g} in log-odds on each bias, "
            f"{self.excess:.2g} on the log loss."
        )
        if self.advice == "platt":
            return f"{told} Enough for a {asked.form} of {asked.classes} classes."
        return f"{told} One temperature is expected to do better: use that, or more records."


def plan_platt(
    form: Form = "vector",
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    delta: float,
    classes: int,
    size: int,
    sources: int = 1,
    steps: int = STEPS,
    curvature: float = _CURVATURE,
    grid: ParameterGrid | None = None,
    unit: Unit | None = None,
) -> PlattPlan:
    r"""Plan a private affine map before anybody is asked.

    With d sources that each add noise, n records in all and the bound C on what a record adds,
    the mean equations of T steps have noise :math:`s = \sqrt{d / T}\, \sigma C / n` together,
    and a bias :math:`s / h` where its curvature is h. What counts is therefore
    :math:`n / \sqrt d`: a hundred sources of 1,000 records do as well as one of 10,000.

    Parameters
    ----------
    form : {"scalar", "vector", "matrix"}
    epsilon, micro_epsilon : float or int
        What one unit of the records pays; one of the two.
    delta : float
    classes : int
    size : int
        Declared number of records, of all sources together.
    sources : int
        Number of sources that add noise.
    steps : int
    curvature : float in (0, 1)
        Expected :math:`E[\sum_c p_c (1 - p_c)]`, about 1.4 times the share of wrong
        predictions: a public guess.
    grid : ParameterGrid, optional
    unit : Unit, optional

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
    told = (price(epsilon, micro_epsilon), delta, form, int(classes), int(steps))
    questions = PlattQuestions(*told, grid or ParameterGrid())
    multiplier = questions.noise_multiplier(unit)
    rows = (unit or Unit()).at_most
    bound = rows * equation_bound(form, int(classes))
    noise = math.sqrt(sources) * multiplier * bound / size
    h = curvature / classes
    alone = noise / math.sqrt(steps) / h  # without anything that holds it back
    survives = PRIOR**2 / (PRIOR**2 + alone**2)
    std = alone * survives
    entries = math.prod(weight_shape(form, int(classes))) + int(classes)
    return PlattPlan(
        questions=questions,
        size=int(size),
        sources=int(sources),
        noise_multiplier=multiplier,
        parameter_std=std,
        excess=entries * h * std**2 / 2,
        survives=survives,
        advice="platt" if alone <= MOST_STD else "temperature",
    )
