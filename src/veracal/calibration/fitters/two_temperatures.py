"""The two temperatures under which labels are likeliest."""

import numpy as np
from scipy.optimize import Bounds, minimize

from veracal._types import Floats
from veracal.calibration.fitters.base import MapFitter
from veracal.calibration.fitters.temperature import TemperatureScaling, label_gaps
from veracal.calibration.maps import TwoTemperatures
from veracal.calibration.maps.temperature import LEAST_INVERSE, MOST_INVERSE
from veracal.calibration.maps.two_temperatures import STEEPEST
from veracal.calibration.metrics.proper import nll
from veracal.data.scores import Scores


class TwoTemperatureScaling(MapFitter):
    r"""Two temperatures by maximum likelihood, **not private**.

    The confidence s is read at the temperature that :class:`TemperatureScaling` finds. From
    there the loss

    .. math:: \frac1n \sum_i \log \sum_j e^{\beta(s_i) (z_{ij} - z_{i y_i})}

    is made smaller in both logarithms of the inverse temperatures, each at most 2 away (L-BFGS,
    scipy). Records of one confidence leave the two as they are.

    Parameters
    ----------
    inverse_range : two floats, default=(0.01, 100)
        Public bounds on the temperature at which the confidence is read.

    Guarantees
    ----------
    The negative log-likelihood never rises on the records of the fit, and no prediction
    changes anywhere.

    Examples
    --------
    >>> said = np.repeat([0.6, 0.9], 20)
    >>> right = np.repeat([1, 0, 1, 0], [13, 7, 18, 2])  # 65 % and 90 %
    >>> scores = Scores.from_probabilities(said, right)
    >>> TwoTemperatureScaling().fit_transform(scores).confidence[[0, -1]].round(3)
    array([0.65, 0.9 ])
    """

    def __init__(self, inverse_range: tuple[float, float] = (0.01, 100.0)) -> None:
        self.inverse_range = inverse_range

    def _fitted(self, scores: Scores) -> TwoTemperatures:
        at = TemperatureScaling(self.inverse_range)._fitted(scores).inverse
        reach = STEEPEST / 2
        found = minimize(
            lambda moves: loss_and_slopes(scores, at, moves),
            np.zeros(2),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(-reach, reach),
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        unsure, sure = np.clip(at * np.exp(found.x), LEAST_INVERSE, MOST_INVERSE).tolist()
        return TwoTemperatures(unsure, sure, at)

    def _loss(self, mapped: Scores, given: Scores) -> float:
        return nll(mapped)


def loss_and_slopes(scores: Scores, at: float, moves: Floats) -> tuple[float, Floats]:
    r"""Mean NLL, and its derivatives in both logarithms.

    Parameters
    ----------
    scores : Scores
    at : float
        Inverse temperature at which the confidence is read.
    moves : array of shape (2,)
        Logarithms of both inverse temperatures minus that of ``at``.
    """
    loss, slopes = 0.0, np.zeros(2)
    for gaps in label_gaps(scores):
        below = gaps - gaps.max(axis=0)
        sure = 1 / np.exp(at * below).sum(axis=0)
        shares = np.stack([1 - sure, sure])
        inverse = at * np.exp(moves @ shares)
        p = np.exp(inverse * below)
        total = p.sum(axis=0)
        loss += float((np.log(total) + inverse * gaps.max(axis=0)).sum())
        slopes += shares @ (np.einsum("ji,ji->i", p, gaps) / total * inverse)
    return loss / len(scores), slopes / len(scores)
