"""A temperature, and a share of plain doubt."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veracal.calibration.maps.base import Map, from_probabilities, parameters
from veracal.calibration.maps.temperature import LEAST_INVERSE, MOST_INVERSE, same_predictions
from veracal.data.scores import Scores

MOST_DOUBT = 0.99  # a prediction stays a prediction
DOUBT_BITS = 16  # of a doubt that was fitted privately: it is a multiple of 2^-16


@dataclass(frozen=True, eq=False)
class Doubt(Map):
    r"""Probabilities at a temperature, mixed with equal ones.

    .. math:: (1 - \lambda) \, \mathrm{softmax}(\beta z) + \lambda / k

    Where even the largest temperature that is allowed leaves predictions too sure, no
    temperature is right: the rest of the way is doubt, which brings every confidence down to
    an equal share :math:`1/k` at last (the mixture of Zhang et al. 2020,
    https://arxiv.org/abs/2003.07329, with two of its three parts). It gives probabilities,
    whatever it is given.

    Parameters
    ----------
    inverse : float from 1e-6 to 1e6
        The inverse temperature :math:`\beta`.
    doubt : float from 0 to 0.99
        The share :math:`\lambda` of equal probabilities.

    Guarantees
    ----------
    No prediction changes.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.9, 0.1], [0.4, 0.6]])
    >>> Doubt(1.0, 0.5).transform(scores).values
    array([[0.7 , 0.3 ],
           [0.45, 0.55]])
    """

    inverse: float
    doubt: float

    kind: ClassVar[str] = "temperature and doubt"

    def __post_init__(self) -> None:
        limits = {"inverse": (LEAST_INVERSE, MOST_INVERSE), "doubt": (0.0, MOST_DOUBT)}
        for name, (low, high) in limits.items():
            value = parameters(getattr(self, name), 0, name=name, low=low, high=high)
            object.__setattr__(self, name, float(value))

    @property
    def value(self) -> float:
        """The temperature T: what logits are divided by."""
        return 1 / self.inverse

    def _mapped(self, scores: Scores) -> Scores:
        """Probabilities."""
        logits = scores.logits.astype(np.float64)
        with np.errstate(over="ignore"):  # a difference beyond all floats is as good as any
            below = (logits - logits.max(axis=1, keepdims=True)) * self.inverse
        powers = np.exp(below)
        tempered = powers / powers.sum(axis=1, keepdims=True)
        mixed = (1 - self.doubt) * tempered + self.doubt / scores.n_classes
        return same_predictions(from_probabilities(scores, mixed), scores)
