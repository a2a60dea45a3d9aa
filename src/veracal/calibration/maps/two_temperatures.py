"""Two temperatures: one for predictions that are unsure, one for those that are sure."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veracal._types import Floats
from veracal.calibration.maps.base import Map, from_logits, parameters
from veracal.calibration.maps.temperature import LEAST_INVERSE, MOST_INVERSE, same_predictions
from veracal.data.scores import Scores

STEEPEST = 4.0  # difference of the two logarithms; up to 4.46 the order of records is kept


@dataclass(frozen=True, eq=False)
class TwoTemperatures(Map):
    r"""Logits multiplied by a number between two, the nearer to one the surer the record.

    .. math::
        \mathrm{softmax}(\beta(s) z), \qquad
        \log \beta(s) = (1 - s) \log \beta_0 + s \log \beta_1, \qquad
        s = \max_j \, \mathrm{softmax}(\beta_* z)_j

    One temperature moves confidences of all heights together; this moves the low ones and the
    high ones apart, and is :class:`Temperature` where both numbers are the same. A probability
    of exactly 0 stays 0.

    Parameters
    ----------
    unsure, sure : float from 1e-6 to 1e6
        Inverse temperatures :math:`\beta_0` and :math:`\beta_1`, for a confidence of 0 and of
        1. Neither is more than :math:`e^4` times the other.
    at : float from 1e-6 to 1e6
        Inverse temperature :math:`\beta_*` at which the confidence s is read.

    Guarantees
    ----------
    No prediction changes. For two classes the order of the records by their probability does
    not change either: the logit of the surer class, :math:`x \beta(\sigma(\beta_* x))`, rises
    with x, since :math:`x \sigma(x) (1 - \sigma(x)) < 1/4.46`.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.5, 0.5], [0.75, 0.25], [0.99, 0.01]])
    >>> TwoTemperatures(unsure=4.0, sure=1.0).transform(scores).values[:, 0].round(3)
    array([0.5  , 0.825, 0.991])
    """

    unsure: float
    sure: float
    at: float = 1.0

    kind: ClassVar[str] = "two temperatures"

    def __post_init__(self) -> None:
        for name in ("unsure", "sure", "at"):
            value = parameters(
                getattr(self, name), 0, name=name, low=LEAST_INVERSE, high=MOST_INVERSE
            )
            object.__setattr__(self, name, float(value))
        if abs(math.log(self.sure / self.unsure)) > STEEPEST + 1e-9:
            raise ValueError(
                f"Expected neither inverse temperature above e^{STEEPEST:g} times the other, "
                f"got unsure={self.unsure!r}, sure={self.sure!r}."
            )

    def _mapped(self, scores: Scores) -> Scores:
        """Scores of the same kind, sharper or softer."""
        logits = scores.logits.astype(np.float64)
        with np.errstate(over="ignore"):  # what is too large becomes the largest logit
            logits *= self.inverses(sureness(logits, self.at))[:, None]
        return same_predictions(from_logits(scores, logits), scores)

    def inverses(self, sureness: Floats) -> Floats:
        """Inverse temperature for a confidence, or an array of them."""
        low, high = math.log(self.unsure), math.log(self.sure)
        result: Floats = np.exp((1 - sureness) * low + sureness * high)
        return result


def sureness(logits: Floats, inverse: float) -> Floats:
    """Confidence of each row of logits at an inverse temperature, of shape (n,)."""
    with np.errstate(over="ignore"):  # a difference beyond all floats is as good as any
        below = inverse * (logits - logits.max(axis=1, keepdims=True))
        result: Floats = 1 / np.exp(below, out=below).sum(axis=1)
    return result
