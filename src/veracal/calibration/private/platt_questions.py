"""What a private affine map asks, and what that costs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from veracal import _checks
from veracal.calibration.maps import Platt
from veracal.calibration.maps.platt import Form
from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.calibration.private.search import FINEST
from veracal.calibration.queries import (
    Gap,
    ParameterGrid,
    PlattCurvature,
    PlattEquations,
)
from veracal.calibration.queries.equations import platt_counts
from veracal.calibration.queries.parameters import weight_shape
from veracal.data.score_values import Kind
from veracal.privacy import (
    Budget,
    Composed,
    Event,
    Item,
    Query,
    Relation,
    Repeated,
    Unit,
    epsilon_for,
    gaussian_event,
    noise_for,
)
from veracal.privacy.budget import RELATIONS
from veracal.privacy.costs.pure import MICRO

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
