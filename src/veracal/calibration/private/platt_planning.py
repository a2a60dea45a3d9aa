"""What a private affine map can be expected to be worth, from public facts alone."""

import math
from dataclasses import dataclass
from typing import Literal

from veracal import _checks
from veracal.calibration.maps.platt import Form
from veracal.calibration.private.asking import price
from veracal.calibration.private.platt_questions import STEPS, PlattQuestions
from veracal.calibration.private.platt_solving import PRIOR
from veracal.calibration.queries import ParameterGrid
from veracal.calibration.queries.equations import equation_bound
from veracal.calibration.queries.parameters import weight_shape
from veracal.privacy import Unit

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
