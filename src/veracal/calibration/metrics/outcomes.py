"""Probabilities of events, and whether they happened: what calibration is a property of."""

from dataclasses import dataclass

import numpy as np

from veracal._types import Bools, Floats
from veracal.data.scores import Scores


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Events with the probability each was given.

    The event of a record may be that its predicted class is right (top label, see
    :func:`~veracal.calibration.metrics.top_label.top_label`), or that it belongs to the
    second of two classes (binary, see :func:`second_class`).

    Attributes
    ----------
    probability : array of floats of shape (n,)
    happened : array of bools of shape (n,)
    """

    probability: Floats
    happened: Bools


def second_class(scores: Scores) -> Outcomes:
    """Probability of the second of two classes, and whether the label is that class."""
    probability = scores.probabilities[:, 1].astype(np.float64)
    return Outcomes(probability, scores.known_labels == 1)


def log_odds(scores: Scores) -> Floats:
    r"""Log odds :math:`\log p_1 - \log p_0` of the second of two classes.

    From logits it is their difference, without the loss of going through probabilities; a
    probability of 0 gives an infinity.
    """
    logits = scores.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = logits[:, 1] - logits[:, 0]
    return result
