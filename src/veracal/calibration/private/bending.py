r"""Where both gaps vanish, from a few noisy answers.

Near the root :math:`\theta^*` the gaps of unsure and sure predictions are linear in the two
logarithms :math:`\theta` of inverse temperatures,

.. math:: G(\theta) = -J (\theta - \theta^*),

with slopes J that were asked for. Noisy gaps and a prior then give a posterior of the root,
taken to be normal. The prior says that the two temperatures are near each other: with much
noise they stay together, and what remains is a search for one.

All of this is a function of noisy answers and of public numbers, and costs no privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit

from veracal._types import Floats
from veracal.calibration.private.search import Setting

_BEND = 0.5  # prior of the difference of both logarithms
_COMMON = 0.9  # prior of their mean, as of the root of a search
_MISFIT = 0.1  # of the line, as a share of the gap
_LEAST_ODDS = 0.5  # logarithm of the odds of an accuracy near one half


@dataclass(frozen=True, eq=False)
class Seen:
    """Noisy gaps at a place.

    Attributes
    ----------
    moves : array of shape (2,)
        The place: both logarithms, from where the slopes were taken.
    gaps : array of shape (2,), or of shape (1,) for their sum alone
        Right predictions minus confidences.
    std : float
        Standard deviation of the noise of each.
    """

    moves: Floats
    gaps: Floats
    std: float

    @property
    def design(self) -> Floats:
        """What the gaps are of both gaps: themselves, or their sum."""
        return np.eye(2) if len(self.gaps) == 2 else np.ones((1, 2))

    @property
    def weight(self) -> float:
        """How much they count."""
        return 1 / (self.std**2 + (_MISFIT * float(np.abs(self.gaps).max())) ** 2 + 1e-9)


@dataclass(frozen=True, eq=False)
class Bend:
    """Posterior of the root.

    Attributes
    ----------
    moves : array of shape (2,)
        Its mean.
    stds : array of shape (2,)
        Standard deviations, for noise and for which records there are.
    """

    moves: Floats
    stds: Floats


def as_slopes(values: ArrayLike) -> Floats:
    """Noisy sums of squares and products as a matrix that slopes can be.

    Without noise it has no negative eigenvalue, so those that noise made negative are zero.
    """
    low, both, high = np.asarray(values, dtype=np.float64)
    roots, vectors = np.linalg.eigh(np.array([[low, both], [both, high]]))
    result: Floats = (vectors * np.maximum(roots, 0)) @ vectors.T
    return result


def bend(slopes: Floats, seen: Sequence[Seen], setting: Setting) -> Bend:
    """Where the root is, given answers so far.

    Parameters
    ----------
    slopes : array of shape (2, 2)
        As of :func:`as_slopes`.
    seen : sequence of Seen
    setting : Setting
    """
    apart, together = np.array([[1, -1], [-1, 1]]), np.full((2, 2), 0.25)
    precision = apart / _BEND**2 + together / _COMMON**2
    pull, gain = np.zeros(2), np.zeros((2, 2))
    for one in seen:
        line = one.design @ slopes
        precision = precision + one.weight * line.T @ line
        pull = pull + one.weight * line.T @ (one.gaps + line @ one.moves)
        gain = gain + one.weight * line.T @ one.design
    noise = np.linalg.inv(precision)
    chance = noise @ gain @ _chance(slopes, setting) @ gain.T @ noise
    return Bend(noise @ pull, np.sqrt(np.diag(noise + chance)))


def _chance(slopes: Floats, setting: Setting) -> Floats:
    """Covariance of the gaps over which records there are.

    A record's gap varies by p (1 - p), and for two classes its slope is that times the
    logarithm of the odds, so the slopes tell it, at the odds of the accuracy.
    """
    odds = max(abs(float(logit(setting.accuracy))), _LEAST_ODDS)
    result: Floats = slopes / odds
    return result
