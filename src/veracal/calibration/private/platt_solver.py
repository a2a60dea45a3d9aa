r"""What a private affine map asks, and what that costs.

Noisy steps toward the affine map that solves its equations.

The steps are taken in log-odds: with the inverse temperature :math:`\beta` of a start,
:math:`u = \beta z` and :math:`x = (u - m) / 2`, where m is where the logits of unsure classes
lie, the map is :math:`u + A x + b` from A = 0 and b = 0. So nothing depends on the scale of the
logits, weights and biases hardly disturb each other, and both are about as steep: the noisy
curvature, a number for each class, is all that the steps need to know.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from veracal.calibration.private.root_search import FINEST, GapContext, Probe, posterior
from veracal.calibration.private.session import QuerySession
from veracal.calibration.private.temperature_grid import TemperatureGrid
from veracal.calibration.queries.platt import (
    LEVEL,
    ParameterGrid,
    PlattCurvature,
    PlattEquations,
    platt_counts,
    weight_shape,
)
from veracal.calibration.queries.scalars import Gap
from veracal.data import Kind
from veracal.ledger import Item
from veracal.queries import Query, gaussian_event

STEPS = 8  # more converge no better under noise, and fewer not far enough
START = 2.0  # noise of the questions for a temperature to start from, beside the others
GAPS = 3  # of these questions
LEAST = 0.05  # of the inverse temperature
MOST_CLASSES = 50  # of a matrix, whose noise and whose answers grow with the classes


@dataclass(frozen=True)
class PlattQuestions:
    r"""The questions of one fit, with their noises, all fixed before the first is asked.

    Four questions for a temperature, with twice the noise of the others; one for the curvature
    and ``steps`` for the equations. All noise is discrete and Gaussian, of one multiplier, the
    smallest with which all questions cost epsilon at delta together. The temperature takes
    the share that one step takes.

    Attributes
    ----------
    micro_epsilon : int
    delta : float
    form : {"scalar", "vector", "matrix"}
    classes : int
    steps : int
    grid : ParameterGrid
    reads : "logits", "probabilities" or None
    temperatures : pair of float, or None
        Public range of the temperature that is started from; None is all that the grid has
        room for.

    Guarantees
    ----------
    The cost is that of the composition as the accountant has it, under both relations; the
    noise multiplier is never below what keeps it within epsilon at delta.
    """

    micro_epsilon: int
    delta: float
    form: Form
    classes: int
    steps: int = STEPS
    grid: ParameterGrid = field(default_factory=ParameterGrid)
    reads: Kind | None = None
    temperatures: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _checks.whole(micro_epsilon=self.micro_epsilon, steps=self.steps)
        _checks.whole(classes=self.classes, least=2)
        weight_shape(self.form, int(self.classes))
        if not (isinstance(self.delta, float) and 0 < self.delta < 1):
            raise ValueError(f"Expected a delta between 0 and 1, got delta={self.delta!r}.")
        if self.form == "matrix" and self.classes > MOST_CLASSES:
            raise ValueError(
                f"Expected at most {MOST_CLASSES} classes for a matrix, got {self.classes}. "
                "Use 'vector'."
            )
        if not isinstance(self.grid, ParameterGrid):
            raise ValueError(f"Expected a ParameterGrid, got grid={self.grid!r}.")

    @property
    def counts(self) -> Query:
        """The first question: numbers of right and of wrong predictions."""
        return platt_counts(int(self.classes), self.reads)

    def gap(self, inverse: float) -> Query:
        """The question for the gap at an inverse temperature."""
        return Gap(inverse, int(self.classes))

    @property
    def inverses(self) -> tuple[float, float]:
        """Range of inverse temperatures, so that weights have room on the grid to both sides.

        The ends of a declared range are rounded inward to the grid of temperatures.
        """
        high = self.grid.most_weight * 0.75
        if self.temperatures is None:
            return LEAST, high
        first, last = TemperatureGrid.between(self.temperatures).inverse_ends
        least = math.ceil(LEAST / FINEST) * FINEST
        return min(max(least, first), last), max(min(high, last), first)

    def curvature(self, inverse: float) -> PlattCurvature:
        """The question for the curvature."""
        return PlattCurvature(inverse, int(self.classes))

    def equations(self, map_: Platt, center: float, spread: float, step: int) -> PlattEquations:
        """The question of one step."""
        return PlattEquations(map_, center, spread, step, self.grid)

    def noise_multiplier(self, unit: Unit | None = None) -> float:
        """Noise divided by sensitivity, of the curvature and of each step."""
        return _noise(self, unit or Unit())

    def items(self, relation: Relation, unit: Unit | None, part: str | None) -> list[Item]:
        """Lines of a plan for a ledger that is opened for one fit."""
        listed = self._listed(self.noise_multiplier(unit), relation, unit)
        return [Item(query.name, event, times, part) for query, event, times in listed]

    def event(self, relation: Relation, unit: Unit | None = None) -> Event:
        """What one fit costs."""
        return self._event(self.noise_multiplier(unit), relation, unit)

    def _event(self, noise: float, relation: Relation, unit: Unit | None) -> Event:
        """What one fit costs with a noise multiplier."""
        listed = self._listed(noise, relation, unit)
        return Composed(tuple(Repeated(event, times) for _, event, times in listed))

    def _listed(
        self, noise: float, relation: Relation, unit: Unit | None
    ) -> list[tuple[Query, Event, int]]:
        """Questions, each at any temperature or map, with their cost and how often."""
        k = int(self.classes)
        ones = np.eye(k) if self.form == "matrix" else np.ones(weight_shape(self.form, k))
        start = self.grid.nearest(ones, np.zeros(k))
        asked: list[tuple[Query, float, int]] = [
            (self.counts, START * noise, 1),
            (self.gap(1.0), START * noise, GAPS),
            (self.curvature(1.0), noise, 1),
            (self.equations(start, 0.0, 1.0, 0), noise, int(self.steps)),
        ]
        return [(q, gaussian_event(q, m, relation, unit), times) for q, m, times in asked]


@cache
def _noise(questions: PlattQuestions, unit: Unit) -> float:
    """The smallest noise multiplier that will do, under both relations."""
    epsilon = questions.micro_epsilon / MICRO

    def at(relation: Relation) -> Callable[[float], Event]:
        return lambda noise: questions._event(noise, relation, unit)

    found = max(
        noise_for(Budget(epsilon, questions.delta, relation, unit), at(relation))
        for relation in RELATIONS
    )
    # On a coarser grid the same ratio costs a little more or less, far behind the point.
    while any(epsilon_for(at(r)(found), questions.delta, unit) > epsilon for r in RELATIONS):
        found *= 1 + 1e-6
    return found


SPREAD = 2.0  # of the log-odds of unsure classes, about
PRIOR = 0.5  # how far the map is from a temperature, in log-odds, if nothing is known of it
_STIFF = 2.0  # the steepest direction, beside the mean one
_SCALE = 2.0**-12  # center and spread are multiples of it: short exact numbers on the wire
_LEAST_CURVATURE = 0.01  # all classes together: hardly anybody is unsure


@dataclass(frozen=True)
class LogOddsTransform:
    r"""From steps in log-odds to a map of the logits.

    Attributes
    ----------
    form : {"scalar", "vector", "matrix"}
    classes : int
    inverse : float
        The inverse temperature :math:`\beta` of the start.
    level : float
        The log-odds m that logits of unsure classes have.
    grid : ParameterGrid
    reads : "logits", "probabilities" or None
    """

    form: Form
    classes: int
    inverse: float
    level: float
    grid: ParameterGrid
    reads: Kind | None = None

    @property
    def center(self) -> float:
        """Logit at which the level is, on a public grid."""
        return _on_scale(self.level / self.inverse)

    @property
    def spread(self) -> float:
        """Spread of the logits of unsure classes, on a public grid."""
        return max(_on_scale(SPREAD / self.inverse), _SCALE)

    def map(self, theta: Floats) -> Platt:
        r"""The map on the grid of :math:`u + A (u - m)/2 + b`."""
        k = self.classes
        a, b = theta[:-k].reshape(weight_shape(self.form, k)) / SPREAD, theta[-k:]
        identity = np.eye(k) if self.form == "matrix" else 1.0
        shift = self.level * (a.sum(axis=1) if self.form == "matrix" else a)
        weights, bias = self.inverse * (identity + a), b - shift
        return self.grid.nearest(weights, bias - bias.mean(), self.reads)

    def without_offsets(self, theta: Floats) -> Floats:
        """The same probabilities, without what moves the logits of all classes alike."""
        k, found = self.classes, theta.copy()
        found[-k:] -= found[-k:].mean()
        if self.form == "matrix":
            weights = found[:-k].reshape(k, k)
            found[:-k] = (weights - weights.mean(axis=0)).ravel()
        return found

    def stds(self, std: Floats) -> tuple[float, float]:
        """Largest standard deviations of weights and biases of the map."""
        k = self.classes
        weight, bias = float(std[:-k].max()), float(std[-k:].max())
        mixed = {"scalar": 0.0, "vector": 1.0, "matrix": math.sqrt(k)}[self.form]
        moved = mixed * self.level / SPREAD * weight
        return self.inverse * weight / SPREAD, math.hypot(bias, moved)


@dataclass(frozen=True)
class StepSizes:
    r"""How far steps go, and how strongly they are held back.

    With the curvature h of a parameter, the noise s that all steps together leave on the mean
    equations, and a prior :math:`N(0, \tau^2)`, the step is
    :math:`\theta \leftarrow \theta - (g/n + \lambda\theta) / (\kappa h + \lambda)` with
    :math:`\lambda = s^2 / (\tau^2 h)`: the weight with which a linear map of such an answer is
    best, on average over the prior. With much noise the map stays a temperature.

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
        """From the curvature of all classes, and the noise of one step on the mean."""
        weights = math.prod(weight_shape(form, classes))
        h = np.full(weights + classes, curvature / classes)
        stiff = h * _STIFF
        if form == "scalar":
            h[:weights] *= classes
        if form != "vector":  # one weight works on all classes, or all weights on one
            stiff[:weights] *= classes
        ridge = noise**2 / steps / (PRIOR**2 * h)
        return cls(1 / (stiff + ridge), ridge, steps)

    @property
    def kept(self) -> range:
        """The steps whose results are averaged: the second half."""
        return range(self.steps // 2, self.steps)

    def step(self, theta: Floats, mean: Floats) -> Floats:
        """One step, against noisy mean equations."""
        return theta - self.rate * (mean + self.ridge * theta)

    def std(self, noise: float) -> Floats:
        """What noise of every step gives a parameter, at most.

        As if the equations were flat and no step made up for the noise of an earlier one, but
        for the ridge.
        """
        shrink = 1 - self.rate * self.ridge
        weights = [
            sum(shrink ** (t - j) for t in self.kept if t >= j) / len(self.kept)
            for j in range(self.steps)
        ]
        result: Floats = noise * self.rate * np.sqrt(sum(np.square(w) for w in weights))
        return result


@dataclass(frozen=True, eq=False)
class SolverResult:
    """Where the steps ended.

    Attributes
    ----------
    map : Platt
    weight_std, bias_std : float
        Standard deviations that the noise gives a weight and a bias: of the temperature that
        was started from, and of the steps at most.
    mean_weight_std : float
        The same for the mean of the weights that multiply a class's own logit.
    count : float
        Number of records that was divided by.
    """

    map: Platt
    weight_std: float
    bias_std: float
    mean_weight_std: float
    count: float


def solve(
    questions: PlattQuestions,
    inquiry: QuerySession,
    noise_multiplier: float,
    size: float | None = None,
) -> SolverResult:
    """Ask for a temperature, for the curvature there, then for equations step by step.

    Parameters
    ----------
    questions : PlattQuestions
    inquiry : Inquiry
    noise_multiplier : float
        Of the curvature and of every step.
    size : float or None
        Declared number of records; None divides by the noisy number that was answered.
    """
    form, k = questions.form, int(questions.classes)
    inverse, start_std = _temperature(questions, inquiry, noise_multiplier)
    n = _count(inquiry, size)
    answer = inquiry.ask_gaussian(questions.curvature(inverse), noise_multiplier, "curvature")
    curvature, level = _curved(answer.values / n, answer.noise_std / n, k)
    view = LogOddsTransform(form, k, inverse, level, questions.grid, questions.reads)
    theta: Floats = np.zeros(math.prod(weight_shape(form, k)) + k)
    kept, pace, noise = [], None, 0.0
    for step in range(int(questions.steps)):
        query = questions.equations(view.map(theta), view.center, view.spread, step)
        release = inquiry.ask_gaussian(query, noise_multiplier, f"equations {step}")
        n = _count(inquiry, size)
        if pace is None:
            noise = release.noise_std / n
            pace = StepSizes.of(form, k, curvature, noise, int(questions.steps))
        theta = view.without_offsets(pace.step(theta, release.values / n))
        if step in pace.kept:
            kept.append(theta)
    assert pace is not None
    std = pace.std(noise)
    weight_std, bias_std = view.stds(std)
    mean_std = weight_std / math.sqrt(1 if form == "scalar" else k)
    return SolverResult(
        view.map(np.mean(kept, axis=0)),
        math.hypot(weight_std, start_std),
        bias_std,
        math.hypot(mean_std, start_std),
        n,
    )


def _on_scale(value: float) -> float:
    """The nearest multiple of the public step, and no minus zero."""
    return float(np.rint(value / _SCALE) * _SCALE) + 0.0


def _temperature(
    questions: PlattQuestions, inquiry: QuerySession, noise_multiplier: float
) -> tuple[float, float]:
    """An inverse temperature to start from, as :class:`PrivateTemperature` finds one.

    With it, the standard deviation that noise gives it, as far as the search's model holds.
    """
    low, high = questions.inverses
    more = START * noise_multiplier
    inquiry.ask_gaussian(questions.counts, more, "counts")
    inverse, std, asked = min(max(1.0, low), high), 0.0, list[float]()
    for i in range(GAPS):
        inquiry.ask_gaussian(questions.gap(inverse), more, f"gap {i}")
        asked.append(inverse)
        first, *answers = inquiry.answers
        correct, wrong = first.values
        setting = GapContext.of(correct, wrong, first.noise_std, (low, high))
        probes = [
            Probe(at, answer.value, answer.noise_std)
            for at, answer in zip(asked, answers, strict=True)
        ]
        found = posterior(probes, setting)
        inverse = min(max(found.inverse(), low), high)
        std = inverse * (found.quantile(0.8413) - found.quantile(0.1587)) / 2
    return inverse, std


def _count(inquiry: QuerySession, size: float | None) -> float:
    """Number of records of those who answer still, never below what noise alone may be."""
    if size is not None:
        return max(size * inquiry.present / inquiry.asked, 1.0)
    counts = inquiry.answers[0]
    return max(float(sum(counts.values)), math.sqrt(2) * counts.noise_std, 1.0)


def _curved(mean: Sequence[float] | Floats, noise: float, classes: int) -> tuple[float, float]:
    """Curvature of all classes, and level of the unsure ones, as far as noise lets them be."""
    # Too large a curvature makes steps short; too small a one could make them diverge.
    least = max(noise, _LEAST_CURVATURE)
    curvature = min(max(float(mean[0]), least), 1 - 1 / classes)
    # A ratio of two noisy numbers, toward zero as far as noise hides it.
    level = float(mean[1]) * curvature / (curvature**2 + noise**2)
    return curvature, LEVEL * min(max(level, -1.0), 1.0)
