"""A confidence replaced by how often it was right."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.base import Map, from_probabilities, parameters
from veracal.data.scores import Scores


@dataclass(frozen=True, eq=False)
class Binned(Map):
    r"""The predicted class gets the accuracy of its bin of confidence, the others the rest.

    Histogram binning of the top label (Zadrozny & Elkan 2001; Gupta & Ramdas 2022,
    https://arxiv.org/abs/2107.08353). With confidence :math:`\hat p` in bin b of accuracy
    :math:`a_b`, the predicted class gets :math:`a_b`, and every other class

    .. math:: (1 - a_b) \, p_j / \textstyle\sum_{i \ne \hat y} p_i ,

    or an equal share of :math:`1 - a_b` if the others all have probability 0. It gives
    probabilities, whatever it is given.

    The prediction may change, where :math:`a_b` is below the share of another class; of two
    classes, wherever it is below one half. Scores have at least two classes, so there is
    always another class to take the rest.

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

    def transform(self, scores: Scores) -> Scores:
        """Probabilities."""
        accuracies = self.accuracies[self.bins.of(scores.confidence)]
        return from_probabilities(scores, with_confidence(scores, accuracies))


def with_confidence(scores: Scores, confidence: Floats) -> Floats:
    """Probabilities in which the predicted class has a given one, the others the rest.

    The others keep their proportions, or share equally where they have none.
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
    np.put_along_axis(values, top, confidence[:, None], axis=1)
    result: Floats = np.minimum(values, 1.0)
    return result
