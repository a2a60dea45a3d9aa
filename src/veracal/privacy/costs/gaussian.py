"""Gaussian noise without sampling, in closed form."""

import math

import numpy as np
from dp_accounting import get_epsilon_gaussian
from scipy import special

from veracal.privacy.costs.leaves import Branch
from veracal.privacy.events import Gaussian


def gaussian_ratio(branch: Branch) -> float | None:
    """Sensitivity over noise of the one Gaussian that many are together, if nothing else is."""
    squares = [
        n * (leaf.sensitivity / leaf.noise) ** 2
        for leaf, n in branch.items()
        if isinstance(leaf, Gaussian)
    ]
    return math.sqrt(sum(squares)) if len(squares) == len(branch) else None


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Exact epsilon of a Gaussian mechanism (Balle and Wang 2018, Theorem 8), rounded up."""
    if ratio <= 2 * delta:  # the total variation, ratio / sqrt(2 pi) at most, is within delta
        return 0.0
    with np.errstate(all="ignore"):
        found = float(get_epsilon_gaussian(1 / ratio, delta))
    return found * (1 + 1e-9)


def gaussian_delta(ratio: float, epsilon: float) -> float:
    r"""Exact delta of a Gaussian mechanism whose sensitivity is ``ratio`` times its noise.

    .. math:: \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)
    """
    near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    found = float(special.ndtr(near) - math.exp(epsilon + special.log_ndtr(far)))
    return min(1.0, max(0.0, found) * (1 + 1e-9) + 4e-16)  # the difference cancels digits
