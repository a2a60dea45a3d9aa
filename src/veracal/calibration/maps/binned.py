"""A confidence replaced by how often it was right."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.base import Map, from_probabilities, parameters
from veracal.data.scores import Scores

_BELOW = 1e-12  # how much less another class gets, relative: more than rounding


@dataclass(frozen=True, eq=False)
class Binned(Map):
    r"""The predicted class gets the accuracy of its bin of confidence, the others the rest.

    Histogram binning of the top label (Zadrozny & Elkan 2001; Gupta & Ramdas 2022,
    https://arxiv.org/abs/2107.08353). With confidence :math:`\hat p` in bin b of accuracy
    :math:`a_b`, the predicted class gets :math:`a_b`, and every other class

    .. math:: (1 - a_b) \, p_j / \textstyle\sum_{i \ne \hat y} p_i ,

    or an equal share of :math:`1 - a_b` if the others all have probability 0. Where one of
    them would so overtake the predicted class although :math:`a_b > 1/k`, shares are made more
    equal, just as far as keeps it below. It gives probabilities, whatever it is given.

    The prediction changes only where :math:`a_b \le 1/k` and it has to: somebody else then has
    at least as much. Scores have at least two classes, so there is always somebody to take
    the rest.

    Parameters
    ----------
    bins : Bins
    accuracies : array of shape (bins.count,)
        Numbers in [0, 1].

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]])
    >>> Binned(Bins(1), [0.2]).transform(scores).values
    array([[0.2, 0.6, 0.2],
           [0.2, 0.4, 0.4]])
    """

    bins: Bins
    accuracies: Floats

    kind: ClassVar[str] = "binned"

    def __post_init__(self) -> None:
        if not isinstance(self.bins, Bins):
            raise ValueError(f"Expected bins to be Bins, got bins={self.bins!r}.")
        accuracies = parameters(self.accuracies, 1, name="accuracies", low=0.0, high=1.0)
        if len(accuracies) != self.bins.count:
            raise ValueError(
                f"Expected {self.bins.count} accuracies, one a bin, got {len(accuracies)}."
            )
        object.__setattr__(self, "accuracies", accuracies)

    def _mapped(self, scores: Scores) -> Scores:
        """Probabilities."""
        accuracies = self.accuracies[self.bins.of(scores.confidence)]
        return from_probabilities(scores, with_confidence(scores, accuracies))


def with_confidence(scores: Scores, confidence: Floats) -> Floats:
    """Probabilities in which the predicted class has a given one, the others the rest.

    The others keep their proportions, or share equally where they have none. A predicted class
    that is given more than an equal share of the whole stays the predicted one.
    """
    values = np.array(scores.probabilities, dtype=np.float64)
    top = scores.predictions[:, None]
    np.put_along_axis(values, top, 0.0, axis=1)
    rest = values.sum(axis=1, keepdims=True)
    values[rest[:, 0] == 0] = 1.0
    np.put_along_axis(values, top, 0.0, axis=1)
    rest[rest == 0] = scores.n_classes - 1
    values /= rest  # first: the rest may be so small that a factor for it would overflow
    values *= (1 - confidence)[:, None]
    _hold_down(values, confidence)
    np.put_along_axis(values, top, confidence[:, None], axis=1)
    result: Floats = np.minimum(values, 1.0)
    return result


def _hold_down(values: Floats, confidence: Floats) -> None:
    r"""Mix rows with equal shares, as little as keeps them below the confidence.

    With the largest m and an equal share u below the bound c, the row
    :math:`(1 - t) v + t u` has the largest value c for :math:`t = (m - c) / (m - u)`. The place
    of the predicted class gets a share, too, and is overwritten by the caller.
    """
    bound = confidence * (1 - _BELOW)
    share = (1 - confidence) / (values.shape[1] - 1)
    largest = values.max(axis=1)
    rows = np.flatnonzero((largest > bound) & (share < bound))
    part = ((largest - bound)[rows] / (largest - share)[rows])[:, None]
    values[rows] = (1 - part) * values[rows] + part * share[rows, None]
