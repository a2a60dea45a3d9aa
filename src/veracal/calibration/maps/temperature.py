"""One number that makes every confidence larger or smaller."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from veracal._types import Floats
from veracal.calibration.maps.base import Map, from_logits, parameters
from veracal.data.scores import Scores

LEAST_INVERSE, MOST_INVERSE = 1e-6, 1e6


@dataclass(frozen=True, eq=False)
class Temperature(Map):
    r"""Logits multiplied by one number: :math:`\mathrm{softmax}(\beta z)`, :math:`\beta = 1/T`.

    Guo et al. 2017 (https://arxiv.org/abs/1706.04599), Eq. 9. Logits stay logits, and
    probabilities are raised to the power :math:`\beta` and scaled to sum to one, which is the
    same thing. A probability of exactly 0 stays 0, whatever the temperature: its logit is
    -inf.

    Parameters
    ----------
    inverse : float from 1e-6 to 1e6
        The inverse temperature :math:`\beta`. Above 1, confidences rise; below, they fall.

    Guarantees
    ----------
    No prediction changes, not even between values that differ in the last digit.

    Examples
    --------
    >>> scores = Scores.from_logits([[2.0, 0.0]])
    >>> Temperature(0.5).transform(scores).values
    array([[1., 0.]])
    >>> Temperature(2.0).transform(Scores.from_probabilities([[0.75, 0.25]])).values
    array([[0.9, 0.1]])
    """

    inverse: float

    kind: ClassVar[str] = "temperature"

    def __post_init__(self) -> None:
        low, high = LEAST_INVERSE, MOST_INVERSE
        value = parameters(self.inverse, 0, name="inverse", low=low, high=high)
        object.__setattr__(self, "inverse", float(value))

    @property
    def value(self) -> float:
        """The temperature T: what logits are divided by."""
        return 1 / self.inverse

    def _mapped(self, scores: Scores) -> Scores:
        """Scores of the same kind, sharper or softer."""
        with np.errstate(over="ignore"):  # what is too large becomes the largest logit
            logits = scores.logits.astype(np.float64) * self.inverse
        return same_predictions(from_logits(scores, logits), scores)


def same_predictions(mapped: Scores, given: Scores) -> Scores:
    """Mapped scores in which the classes that won before win, where rounding made ties."""
    rows = np.flatnonzero(mapped.predictions != given.predictions)
    if not len(rows):
        return mapped
    values: Floats = mapped.values.copy()
    top = values[rows].max(axis=1)
    values[rows, given.predictions[rows]] = np.nextafter(top, np.inf)
    return replace(mapped, values=values)
